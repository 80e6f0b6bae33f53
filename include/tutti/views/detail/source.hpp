// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranges as what steps read, and the operator that joins them; read views/examples.hpp first.

namespace tutti::views::detail {

template <class R>
inline constexpr bool is_examples = false;
template <class T, bool indexed>
inline constexpr bool is_examples<Examples<T, indexed>> = true;

// A container that the pipeline owns.
template <class C>
class Owned : public ranges::view_base {
 public:
  explicit Owned(C&& container) : container_(std::make_shared<C>(std::move(container))) {}
  [[nodiscard]] auto begin() const { return ranges::begin(*container_); }
  [[nodiscard]] auto end() const { return ranges::end(*container_); }
  [[nodiscard]] std::size_t size() const
    requires(bool(ranges::sized_range<C>))
  {
    return static_cast<std::size_t>(ranges::size(*container_));
  }

 private:
  std::shared_ptr<C> container_;
};

template <class R>
auto held(R&& range) {
  using Range = std::remove_cvref_t<R>;
  if constexpr (std::derived_from<Range, std::ranges::view_base> || ranges::view_<Range>) {
    return Range(std::forward<R>(range));
  } else if constexpr (std::is_lvalue_reference_v<R>) {
    return ranges::ref_view<std::remove_reference_t<R>>(range);
  } else {
    return Owned<Range>(std::forward<R>(range));
  }
}

template <class V>
inline constexpr bool numbered =
    bool(ranges::random_access_range<V>) && bool(ranges::sized_range<V>);

template <class R>
inline constexpr bool has_end = !bool(ranges::is_infinite<R>::value);

template <class R>
inline constexpr bool again_and_again = bool(ranges::forward_range<R>);

// Says which element of a range made trouble.
template <class F>
auto at_place(const char* step, std::int64_t i, F&& make) {
  try {
    return make();
  } catch (...) {
    data::detail::throw_over(std::string(step) + std::to_string(i) + " cannot be had: ");
  }
}

// Any numbered range. Each pass has a copy of the view, since views keep what they found.
template <class V, class T>
class IndexedRange final : public Indexed<T> {
 public:
  IndexedRange(V view, Pass& pass) : view_(std::move(view)) {
    const InPass in_pass(pass);
    first_ = ranges::begin(view_);
    size_ = static_cast<std::int64_t>(ranges::distance(first_, ranges::end(view_)));
    pass_ = pass;
  }
  std::int64_t size() const override { return size_; }
  T at(std::int64_t i) const override {
    Pass pass = pass_;
    const InPass in_pass(pass);
    using Difference = ranges::range_difference_t<V>;
    return at_place("views: element ", i,
                    [&] { return static_cast<T>(*(first_ + static_cast<Difference>(i))); });
  }

 private:
  V view_;
  ranges::iterator_t<V> first_{};
  std::int64_t size_ = 0;
  Pass pass_;
};

// Any other range that can begin again.
template <class V, class T>
class ForwardRange final : public Stream<T> {
 public:
  ForwardRange(V view, Pass& pass) : view_(std::move(view)) {
    const InPass in_pass(pass);
    next_.emplace(ranges::begin(view_));
    end_.emplace(ranges::end(view_));
    if constexpr (ranges::sized_range<V>) {
      size_ = static_cast<std::int64_t>(ranges::size(view_));
    }
    TUTTI_CHECK_VALUE(size_ >= 0 || !pass.dealt || pass.world_size == 1,
                      "views: a range of a length that shows only at its end cannot stand behind "
                      "views::shard, since ranks would get unequally many batches; put shard "
                      "behind it, or leave it to views::batch");
    pass_ = pass;
  }
  std::int64_t size() const override { return size_; }
  std::optional<T> next() override {
    const InPass in_pass(pass_);
    return at_place("views: element ", place_, [this]() -> std::optional<T> {
      if (!arrive()) {
        return std::nullopt;
      }
      fresh_ = false;
      return static_cast<T>(**next_);
    });
  }
  std::int64_t skip(std::int64_t n) override {
    const InPass in_pass(pass_);
    std::int64_t gone = 0;
    for (; gone < n && arrive(); ++gone) {
      fresh_ = false;
    }
    return gone;
  }

 private:
  // Moves on only when it is asked: a filter would read ahead.
  bool arrive() {
    if (!fresh_ && *next_ != *end_) {
      fresh_ = true;
      ++*next_;
      ++place_;
    }
    return *next_ != *end_;
  }

  V view_;
  std::optional<ranges::iterator_t<V>> next_;
  std::optional<ranges::sentinel_t<V>> end_;
  bool fresh_ = true;  // what next_ is at has not been given
  std::int64_t size_ = -1;
  std::int64_t place_ = 0;
  Pass pass_;
};

// Any range as Examples.
template <class R>
auto examples(R&& range) {
  using Range = std::remove_cvref_t<R>;
  if constexpr (is_examples<Range>) {
    return Range(std::forward<R>(range));
  } else if constexpr (again_and_again<Range> && has_end<Range>) {
    auto view = held(std::forward<R>(range));
    using V = decltype(view);
    using T = ranges::range_value_t<V>;
    using In = std::conditional_t<numbered<V>, IndexedRange<V, T>, ForwardRange<V, T>>;
    return Examples<T, numbered<V>>(
        [view = std::move(view)](Pass& pass) { return std::make_shared<In>(view, pass); });
  } else {
    static_assert(again_and_again<Range>,
                  "tutti: no pipeline can begin with this, since it is no range or one that can be "
                  "gone through only once, such as a stream or a generator, and every epoch begins "
                  "anew; give a forward range: a container, or a view of one.");
    static_assert(has_end<Range>,
                  "tutti: this range has no end, so an epoch of it would have none; put "
                  "ranges::views::take_exactly(n) behind it.");
    return Examples<int, true>();  // so that the compiler says no more
  }
}

template <class E>
struct Of {
  static constexpr bool value = false;
};
template <class T, bool indexed>
struct Of<Examples<T, indexed>> : std::type_identity<T> {
  static constexpr bool value = indexed;
};
template <class E>
using value_of = typename Of<E>::type;
template <class E>
inline constexpr bool indexed_of = Of<E>::value;

// A step waiting for its range, as range-v3's view_closure; it also takes ranges over.
template <class F>
struct Step {
  F apply;
};

template <class S>
inline constexpr bool is_step = false;
template <class F>
inline constexpr bool is_step<Step<F>> = true;
template <class F>
inline constexpr bool is_step<ranges::views::view_closure<F>> = true;

// range | step, and step | step.
template <class Left, class F>
auto operator|(Left&& left, Step<F> step) {
  if constexpr (is_step<std::remove_cvref_t<Left>>) {
    auto both = [first = std::forward<Left>(left), second = std::move(step)](auto&& range) {
      return std::forward<decltype(range)>(range) | first | second;
    };
    return Step<decltype(both)>{std::move(both)};
  } else if constexpr (!has_end<std::remove_cvref_t<Left>>) {
    return examples(std::forward<Left>(left));  // which refuses it
  } else {
    return step.apply(std::forward<Left>(left));
  }
}
template <class F, class G>
auto operator|(Step<F> step, ranges::views::view_closure<G> of_ranges) {
  auto both = [first = std::move(step), second = std::move(of_ranges)](auto&& range) {
    return std::forward<decltype(range)>(range) | first | second;
  };
  return Step<decltype(both)>{std::move(both)};
}

template <class F>
Step<F> step(F apply) {
  return {std::move(apply)};
}

}  // namespace tutti::views::detail
