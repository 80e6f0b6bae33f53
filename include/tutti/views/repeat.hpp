// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class T>
class Repeated final : public Indexed<T> {
 public:
  Repeated(std::shared_ptr<Indexed<T>> of, std::int64_t times)
      : of_(std::move(of)), times_(times) {}
  std::int64_t size() const override { return times_ * of_->size(); }
  T at(std::int64_t i) const override { return of_->at(i % of_->size()); }

 private:
  std::shared_ptr<Indexed<T>> of_;
  std::int64_t times_;
};

template <class T>
class RepeatedStream final : public Stream<T> {
 public:
  RepeatedStream(Open<T, false> open, const Pass& before, Pass& pass, std::int64_t times)
      : open_(std::move(open)),
        before_(before),
        of_(open_(pass)),
        left_(times - 1),
        times_(times) {}

  std::int64_t size() const override { return of_->size() < 0 ? -1 : times_ * of_->size(); }
  std::optional<T> next() override {
    for (;;) {
      if (std::optional<T> element = of_->next()) {
        return element;
      }
      if (!begin_again()) {
        return std::nullopt;
      }
    }
  }
  std::int64_t skip(std::int64_t n) override {
    std::int64_t gone = of_->skip(n);
    while (gone < n && begin_again()) {
      gone += of_->skip(n - gone);
    }
    return gone;
  }
  std::int64_t reads() const override { return reads_ + of_->reads(); }
  std::string reader() const override { return of_->reader(); }

 private:
  bool begin_again() {
    if (left_ == 0) {
      return false;
    }
    --left_;
    reads_ += of_->reads();
    Pass pass = before_;
    of_ = open_(pass);
    return true;
  }

  Open<T, false> open_;
  Pass before_;
  std::shared_ptr<Stream<T>> of_;
  std::int64_t left_;
  std::int64_t times_;
  std::int64_t reads_ = 0;
};

}  // namespace detail

/// The examples `times` times in an epoch, in the same order each time; a shuffle behind it mixes
/// them all. times: >= 1.
///
/// Throws c10::ValueError when times is 0 or negative.
inline auto repeat(std::int64_t times) {
  TUTTI_CHECK_VALUE(
      times >= 1, "views::repeat: times is ", times,
      ", expected 1 or more; how many epochs there are is the Trainer's max_duration");
  return detail::step([times](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    if constexpr (detail::indexed_of<decltype(of)>) {
      return Examples<T, true>([of = std::move(of), times](detail::Pass& pass) {
        return std::make_shared<detail::Repeated<T>>(of.open(pass), times);
      });
    } else {
      return Examples<T, false>([of = std::move(of), times](detail::Pass& pass) {
        const detail::Pass before = pass;
        const auto open = [of](detail::Pass& anew) { return of.open(anew); };
        return std::make_shared<detail::RepeatedStream<T>>(open, before, pass, times);
      });
    }
  });
}

}  // namespace tutti::views
