// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

// Windows in n elements; -1 where n is unknown.
inline std::int64_t windows(std::int64_t n, std::int64_t length, std::int64_t stride) {
  return n < 0 ? -1 : n < length ? 0 : (n - length) / stride + 1;
}

template <class T>
class Windows final : public Indexed<std::vector<T>> {
 public:
  Windows(std::shared_ptr<Indexed<T>> of, std::int64_t length, std::int64_t stride)
      : of_(std::move(of)), length_(length), stride_(stride) {}
  std::int64_t size() const override { return windows(of_->size(), length_, stride_); }
  std::vector<T> at(std::int64_t i) const override {
    std::vector<T> out;
    out.reserve(static_cast<std::size_t>(length_));
    for (std::int64_t j = 0; j < length_; ++j) {
      out.push_back(of_->at(i * stride_ + j));
    }
    return out;
  }

 private:
  std::shared_ptr<Indexed<T>> of_;
  std::int64_t length_;
  std::int64_t stride_;
};

template <class T>
class WindowsOfStream final : public Reading<std::vector<T>, T> {
 public:
  WindowsOfStream(std::shared_ptr<Stream<T>> of, std::int64_t length, std::int64_t stride)
      : Reading<std::vector<T>, T>(std::move(of), "window"), length_(length), stride_(stride) {}

  std::int64_t size() const override { return windows(this->of_->size(), length_, stride_); }
  std::optional<std::vector<T>> next() override {
    while (std::ssize(held_) < length_) {
      this->of_->skip(std::exchange(late_, 0));
      std::optional<T> element = this->read();
      if (!element) {
        return std::nullopt;
      }
      held_.push_back(std::move(*element));
    }
    std::vector<T> out(held_.begin(), held_.end());
    leave();
    return out;
  }
  std::int64_t skip(std::int64_t n) override {
    if (size() >= 0) {
      n = std::min(n, size() - given_);
      for (std::int64_t i = 0; i < n; ++i) {
        leave();
      }
      return n;
    }
    return Reading<std::vector<T>, T>::skip(n);
  }

 private:
  // Moves on by a stride, over elements that no window has where it is longer than one.
  void leave() {
    ++given_;
    for (std::int64_t i = 0; i < stride_; ++i) {
      if (held_.empty()) {
        ++late_;
      } else {
        held_.pop_front();
      }
    }
  }

  std::int64_t length_;
  std::int64_t stride_;
  std::deque<T> held_;
  std::int64_t given_ = 0;
  std::int64_t late_ = 0;  // elements to leave out before the next one
};

}  // namespace detail

/// Windows of `length` neighbouring elements, each a std::vector, that begin every `stride`
/// elements; what is left at the end and fills none is left out.
///
/// length: >= 1. stride: >= 1; 0: length, so that they do not overlap.
/// Throws c10::ValueError when one is out of range.
inline auto window(std::int64_t length, std::int64_t stride = 0) {
  TUTTI_CHECK_VALUE(length >= 1, "views::window: length is ", length, ", expected 1 or more");
  TUTTI_CHECK_VALUE(stride >= 0, "views::window: stride is ", stride, ", expected 0 or more");
  stride = stride == 0 ? length : stride;
  return detail::step([length, stride](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    constexpr bool indexed = detail::indexed_of<decltype(of)>;
    using Made = std::conditional_t<indexed, detail::Windows<T>, detail::WindowsOfStream<T>>;
    return Examples<std::vector<T>, indexed>(
        [of = std::move(of), length, stride](detail::Pass& pass) {
          return std::make_shared<Made>(of.open(pass), length, stride);
        });
  });
}

}  // namespace tutti::views
