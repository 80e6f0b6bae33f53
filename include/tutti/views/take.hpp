// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class T>
class FirstOf final : public Indexed<T> {
 public:
  FirstOf(std::shared_ptr<Indexed<T>> of, std::int64_t n) : of_(std::move(of)), n_(n) {}
  std::int64_t size() const override { return std::min(n_, of_->size()); }
  T at(std::int64_t i) const override { return of_->at(i); }

 private:
  std::shared_ptr<Indexed<T>> of_;
  std::int64_t n_;
};

template <class T>
class FirstOfStream final : public Over<T> {
 public:
  FirstOfStream(std::shared_ptr<Stream<T>> of, std::int64_t n) : Over<T>(std::move(of)), n_(n) {}
  std::int64_t size() const override { return std::min(n_, this->of_->size()); }
  std::optional<T> next() override {
    if (given_ >= n_) {
      return std::nullopt;
    }
    ++given_;
    return this->of_->next();
  }
  std::int64_t skip(std::int64_t n) override {
    const std::int64_t gone = this->of_->skip(std::min(n, n_ - given_));
    given_ += gone;
    return gone;
  }

 private:
  std::int64_t n_;
  std::int64_t given_ = 0;
};

}  // namespace detail

/// The first n examples of every epoch, or all when there are fewer. n: >= 0.
///
/// Throws c10::ValueError when n is negative.
inline auto take(std::int64_t n) {
  TUTTI_CHECK_VALUE(n >= 0, "views::take: n is ", n, ", expected 0 or more");
  return detail::step([n](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    constexpr bool indexed = detail::indexed_of<decltype(of)>;
    using Made = std::conditional_t<indexed, detail::FirstOf<T>, detail::FirstOfStream<T>>;
    return Examples<T, indexed>([of = std::move(of), n](detail::Pass& pass) {
      return std::make_shared<Made>(of.open(pass), n);
    });
  });
}

}  // namespace tutti::views
