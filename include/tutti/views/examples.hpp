// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>

#include <range/v3/range/access.hpp>
#include <range/v3/range/concepts.hpp>
#include <range/v3/range/primitives.hpp>
#include <range/v3/range/traits.hpp>
#include <range/v3/view/ref.hpp>
#include <range/v3/view/view.hpp>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/views/detail/flow.hpp>

/// Pipelines of examples: range-v3's views and tutti's steps, joined by `|`, that a Trainer reads.
///
///     auto train = files | ranges::views::transform(read) | tutti::views::shuffle(17) |
///                  tutti::views::batch(128) | tutti::views::prefetch(2);
///
/// Each epoch is a pass that begins anew and depends on the seeds and the epoch alone, not on the
/// number of threads. Steps are dealt to ranks and resume inside an epoch.
namespace tutti::views {

namespace detail {

// Iterator of numbered elements.
template <class T>
class IndexIterator {
 public:
  using difference_type = std::int64_t;
  using value_type = T;
  using reference = T;
  using pointer = void;
  using iterator_concept = std::random_access_iterator_tag;
  using iterator_category = std::input_iterator_tag;  // since *i is no reference

  IndexIterator() = default;
  IndexIterator(std::shared_ptr<const Indexed<T>> flow, std::int64_t i)
      : flow_(std::move(flow)), i_(i) {}

  T operator*() const { return flow_->at(i_); }
  T operator[](std::int64_t n) const { return flow_->at(i_ + n); }
  IndexIterator& operator+=(std::int64_t n) {
    i_ += n;
    return *this;
  }
  IndexIterator& operator-=(std::int64_t n) { return *this += -n; }
  IndexIterator& operator++() { return *this += 1; }
  IndexIterator& operator--() { return *this -= 1; }
  IndexIterator operator++(int) {
    IndexIterator before = *this;
    ++*this;
    return before;
  }
  IndexIterator operator--(int) {
    IndexIterator before = *this;
    --*this;
    return before;
  }
  friend IndexIterator operator+(IndexIterator i, std::int64_t n) { return i += n; }
  friend IndexIterator operator+(std::int64_t n, IndexIterator i) { return i += n; }
  friend IndexIterator operator-(IndexIterator i, std::int64_t n) { return i -= n; }
  friend std::int64_t operator-(const IndexIterator& a, const IndexIterator& b) {
    return a.i_ - b.i_;
  }
  friend bool operator==(const IndexIterator& a, const IndexIterator& b) { return a.i_ == b.i_; }
  friend std::strong_ordering operator<=>(const IndexIterator& a, const IndexIterator& b) {
    return a.i_ <=> b.i_;
  }

 private:
  std::shared_ptr<const Indexed<T>> flow_;
  std::int64_t i_ = 0;
};

// Iterator of a stream: a copy that stays behind begins the pass again when it is asked.
template <class T>
class StreamIterator {
 public:
  using difference_type = std::int64_t;
  using value_type = T;
  using reference = T;
  using pointer = void;
  using iterator_concept = std::forward_iterator_tag;
  using iterator_category = std::input_iterator_tag;

  StreamIterator() = default;
  StreamIterator(Open<T, false> open, Pass pass)
      : shared_(std::make_shared<Shared>(Shared{std::move(open), pass, nullptr, {}, 0})) {
    shared_->begin_again();
  }

  T operator*() const {
    TUTTI_CHECK_INDEX(shared_->reach(i_), "views: there is no element ", i_,
                      "; the iterator is at the end");
    return *shared_->here;
  }
  StreamIterator& operator++() {
    ++i_;
    return *this;
  }
  StreamIterator operator++(int) {
    StreamIterator before = *this;
    ++i_;
    return before;
  }
  friend bool operator==(const StreamIterator& a, const StreamIterator& b) { return a.i_ == b.i_; }
  friend bool operator==(const StreamIterator& a, std::default_sentinel_t) {
    return !a.shared_->reach(a.i_);
  }

 private:
  struct Shared {
    Open<T, false> open;
    Pass pass;
    std::shared_ptr<Stream<T>> stream;
    std::optional<T> here;
    std::int64_t passed;  // elements up to and with `here`

    void begin_again() {
      Pass anew = pass;
      stream = open(anew);
      here.reset();
      passed = 0;
    }
    // Makes element i the one that is here; false when there is none.
    bool reach(std::int64_t i) {
      if (i + 1 == passed) {
        return here.has_value();
      }
      if (i < passed) {
        begin_again();
      }
      const std::int64_t gone = stream->skip(i - passed);
      here = gone == i - passed ? stream->next() : std::nullopt;
      passed = i + 1;
      return here.has_value();
    }
  };

  std::shared_ptr<Shared> shared_;
  std::int64_t i_ = 0;
};

}  // namespace detail

/// The elements that a step of a pipeline gives, a view of range-v3 and of the standard library.
///
/// indexed: they have numbers and a size, and any of them is had at once: a random-access range.
/// Else they come one after the other: a forward range. Copies are cheap. Outside of a loader a
/// pass is one of epoch 0 on one rank.
template <class T, bool indexed>
class Examples : public ranges::view_base, public std::ranges::view_base {
 public:
  Examples() = default;
  explicit Examples(detail::Open<T, indexed> open) : open_(std::move(open)) {}

  /// Begins the pass that this thread is in.
  [[nodiscard]] auto begin() const {
    if constexpr (indexed) {
      return detail::IndexIterator<T>(enter(), 0);
    } else {
      const detail::Pass before = here();
      (void)enter();  // says what it is
      return detail::StreamIterator<T>(open_, before);
    }
  }
  [[nodiscard]] auto end() const {
    if constexpr (indexed) {
      const std::uint64_t draws = here().draws;
      auto flow = enter();
      if (tutti::detail::pass_here) {
        tutti::detail::pass_here->draws = draws;  // begin() counts them
      }
      const std::int64_t size = flow->size();
      return detail::IndexIterator<T>(std::move(flow), size);
    } else {
      return std::default_sentinel;
    }
  }

  /// How many they are.
  [[nodiscard]] std::size_t size() const
    requires indexed
  {
    detail::Pass pass = here();
    return static_cast<std::size_t>(open_(pass)->size());
  }

  /// For steps of one's own: begins a pass.
  [[nodiscard]] std::shared_ptr<detail::Flow<T, indexed>> open(detail::Pass& pass) const {
    return open_(pass);
  }

 private:
  static detail::Pass here() {
    detail::Pass pass = tutti::detail::pass_here ? *tutti::detail::pass_here : detail::Pass{};
    pass.dealt = false;
    return pass;
  }
  // Tells the pass of this thread what this step and those below it say.
  [[nodiscard]] std::shared_ptr<detail::Flow<T, indexed>> enter() const {
    detail::Pass pass = here();
    auto flow = open_(pass);
    if (tutti::detail::pass_here) {
      tutti::detail::pass_here->dealt |= pass.dealt;
      tutti::detail::pass_here->draws = pass.draws;
    }
    return flow;
  }

  detail::Open<T, indexed> open_;
};

}  // namespace tutti::views

#include <tutti/views/detail/source.hpp>
