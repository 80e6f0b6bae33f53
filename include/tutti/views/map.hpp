// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <c10/core/GradMode.h>

#include <tutti/core/detail/one_thread.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/item_rng.hpp>
#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

// What a map does to one element, number i of its range. Several threads call it.
template <class T, class F>
struct Change {
  static constexpr bool draws = std::invocable<const F&, T, Rng&>;

  const F function;
  std::uint64_t seed = 0;
  std::uint64_t purpose = 0;

  Change(F f, Pass& pass) : function(std::move(f)) {
    if constexpr (draws) {
      seed = data::detail::mix(pass.seed, static_cast<std::uint64_t>(pass.epoch));
      purpose = ++pass.draws;
    }
  }
  auto operator()(T element, std::int64_t i) const {
    return at_place("views::map: element ", i, [&] {
      if constexpr (draws) {
        Rng rng = data::detail::item_rng(seed, purpose, static_cast<std::uint64_t>(i));
        return std::invoke(function, std::move(element), rng);
      } else {
        return std::invoke(function, std::move(element));
      }
    });
  }
};

template <class T, class F>
struct MapResult {
  static_assert(std::invocable<const F&, T> || std::invocable<const F&, T, Rng&>,
                "tutti: views::map cannot call this function; give it U change(T) or U change(T, "
                "tutti::Rng&), const where it is an object, T being what the step before gives.");
};
template <class T, class F>
  requires std::invocable<const F&, T, Rng&>
struct MapResult<T, F> : std::type_identity<std::invoke_result_t<const F&, T, Rng&>> {};
template <class T, class F>
  requires(std::invocable<const F&, T> && !std::invocable<const F&, T, Rng&>)
struct MapResult<T, F> : std::type_identity<std::invoke_result_t<const F&, T>> {};

template <class T, class F>
using map_result = std::remove_cvref_t<typename MapResult<T, F>::type>;

template <class T, class F>
class Mapped final : public Indexed<map_result<T, F>> {
 public:
  Mapped(std::shared_ptr<Indexed<T>> of, F f, Pass& pass)
      : of_(std::move(of)), change_(std::move(f), pass) {}
  std::int64_t size() const override { return of_->size(); }
  map_result<T, F> at(std::int64_t i) const override { return change_(of_->at(i), i); }

 private:
  std::shared_ptr<Indexed<T>> of_;
  Change<T, F> change_;
};

// Works on several elements at once and gives them in their order. of: Indexed<T>, whose elements
// the threads make as well, or Stream<T>, which the caller's thread reads.
template <class T, class F, class From>
class MappedByThreads final : public Stream<map_result<T, F>> {
  using U = map_result<T, F>;
  static constexpr bool numbers = std::is_base_of_v<Indexed<T>, From>;

 public:
  MappedByThreads(std::shared_ptr<From> of, F f, std::int64_t threads, Pass& pass)
      : of_(std::move(of)),
        change_(std::make_shared<const Change<T, F>>(std::move(f), pass)),
        threads_(threads) {}

  std::int64_t size() const override { return of_->size(); }

  std::optional<U> next() override {
    if (threads_ == 0) {
      auto work = work_on(place_);
      place_ += work ? 1 : 0;
      return work ? std::optional<U>((*work)()) : std::nullopt;
    }
    constexpr std::int64_t ahead_of_each = 2;
    while (ahead_.size() < threads_ * ahead_of_each) {
      const std::int64_t i = given_.empty() ? place_ : given_.back() + stride_;
      auto work = work_on(i);
      if (!work) {
        break;
      }
      ahead_.submit(threads_, std::move(*work));
      given_.push_back(i);
    }
    if (given_.empty()) {
      return std::nullopt;
    }
    place_ = given_.front() + 1;
    given_.pop_front();
    return ahead_.take();
  }

  std::int64_t skip(std::int64_t n) override {
    std::int64_t to = place_ + n;
    if (size() >= 0) {
      to = std::min(to, size());
    } else if (given_.empty() || given_.back() < to) {
      to = std::min(to, read_up_to(to));
    }
    while (!given_.empty() && given_.front() < to) {
      given_.pop_front();
      try {
        (void)ahead_.take();
      } catch (...) {  // nobody wants it
      }
    }
    return to - std::exchange(place_, to);
  }

  void expect_stride(std::int64_t stride) override {
    stride_ = stride;
    if constexpr (!numbers) {
      of_->expect_stride(stride);
    }
  }
  std::int64_t reads() const override {
    if constexpr (numbers) {
      return 0;
    } else {
      return of_->reads();
    }
  }
  std::string reader() const override {
    if constexpr (numbers) {
      return {};
    } else {
      return of_->reader();
    }
  }

 private:
  // Where the range's next element is once those before i are left out; less than i at its end.
  std::int64_t read_up_to(std::int64_t i) {
    if constexpr (numbers) {
      return std::min(i, of_->size());
    } else {
      read_ += i > read_ ? of_->skip(i - read_) : 0;
      return read_;
    }
  }

  // The making of element i; none behind the end. For streams i does not go back.
  std::optional<std::function<U()>> work_on(std::int64_t i) {
    if constexpr (numbers) {
      if (i >= of_->size()) {
        return std::nullopt;
      }
      return alone([of = of_, change = change_, i] { return (*change)(of->at(i), i); });
    } else {
      if (read_up_to(i) < i) {
        return std::nullopt;
      }
      ++read_;
      std::optional<T> element;
      try {
        element = of_->next();
      } catch (...) {  // comes out in its turn
        return [fault = std::current_exception()]() -> U { std::rethrow_exception(fault); };
      }
      if (!element) {
        return std::nullopt;
      }
      auto here = std::make_shared<T>(std::move(*element));  // tasks can be copied
      return alone([here, change = change_, i] { return (*change)(std::move(*here), i); });
    }
  }

  template <class Work>
  static std::function<U()> alone(Work work) {
    return [work = std::move(work)] {
      const tutti::detail::OneThread one_thread;
      const c10::NoGradGuard no_grad;
      return work();
    };
  }

  std::shared_ptr<From> of_;
  std::shared_ptr<const Change<T, F>> change_;
  std::int64_t threads_;
  std::int64_t stride_ = 1;
  std::int64_t place_ = 0;          // of the element that next() gives
  std::int64_t read_ = 0;           // of the element that of_->next() gives
  std::deque<std::int64_t> given_;  // to the threads: the numbers of the elements
  data::detail::Ahead<U> ahead_;
};

}  // namespace detail

/// Each example changed: `U change(T)`, or `U change(T, Rng&)` with random numbers of the run's
/// seed, the epoch and the example's number alone. The function is const and needs no order.
///
/// Throws c10::Error, with the exception that caused it nested inside, where `change` throws.
template <class F>
auto map(F change) {
  return detail::step([change = std::move(change)](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    using U = detail::map_result<T, F>;
    if constexpr (detail::indexed_of<decltype(of)>) {
      return Examples<U, true>([of = std::move(of), change](detail::Pass& pass) {
        auto all = of.open(pass);
        return std::make_shared<detail::Mapped<T, F>>(std::move(all), change, pass);
      });
    } else {
      return Examples<U, false>([of = std::move(of), change](detail::Pass& pass) {
        using Made = detail::MappedByThreads<T, F, detail::Stream<T>>;
        auto stream = of.open(pass);
        return std::make_shared<Made>(std::move(stream), change, 0, pass);
      });
    }
  });
}

/// The same by `threads` threads that work ahead, two examples for each, and in the same order:
/// every number of threads gives the same bits. 0: the thread that asks does it.
///
/// What comes out has no numbers any more, so shuffle stands before it. A run that resumes leaves
/// out what comes before its place without making it, where the range itself can.
/// threads: >= 0. Throws c10::ValueError when it is negative, and as map(change).
template <class F>
auto map(F change, std::int64_t threads) {
  TUTTI_CHECK_VALUE(threads >= 0, "views::map: threads is ", threads, ", expected 0 or more");
  return detail::step([change = std::move(change), threads](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    using From = detail::Flow<T, detail::indexed_of<decltype(of)>>;
    return Examples<detail::map_result<T, F>, false>(
        [of = std::move(of), change, threads](detail::Pass& pass) {
          auto from = of.open(pass);
          return std::make_shared<detail::MappedByThreads<T, F, From>>(std::move(from), change,
                                                                       threads, pass);
        });
  });
}

}  // namespace tutti::views
