// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/core/detail/pass.hpp>

// What a step of a pipeline gives in one pass. Steps see each other through these two interfaces
// alone, so that a pipeline's type does not grow with it.
namespace tutti::views::detail {

using tutti::detail::InPass;
using tutti::detail::Pass;

// Numbered elements. Several threads call at().
template <class T>
class Indexed {
 public:
  Indexed() = default;
  Indexed(const Indexed&) = delete;
  Indexed& operator=(const Indexed&) = delete;
  virtual ~Indexed() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual T at(std::int64_t i) const = 0;  // 0 <= i < size()
};

// Elements one after the other, for one thread at a time.
template <class T>
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;  // of the whole pass; -1: seen at its end
  virtual std::optional<T> next() = 0;
  // Leaves out n elements, or all that are left; returns how many.
  virtual std::int64_t skip(std::int64_t n) = 0;
  // Of each `stride` elements that follow all but one are skipped.
  virtual void expect_stride(std::int64_t) {}
  // Elements that had to be made to know which to skip, and the name of the step that needs it.
  [[nodiscard]] virtual std::int64_t reads() const { return 0; }
  [[nodiscard]] virtual std::string reader() const { return {}; }
};

template <class T, bool indexed>
using Flow = std::conditional_t<indexed, Indexed<T>, Stream<T>>;

// Begins a pass.
template <class T, bool indexed>
using Open = std::function<std::shared_ptr<Flow<T, indexed>>(Pass&)>;

// Numbered elements one after the other.
template <class T>
class InTurn final : public Stream<T> {
 public:
  explicit InTurn(std::shared_ptr<const Indexed<T>> all) : all_(std::move(all)) {}

  std::int64_t size() const override { return all_->size(); }
  std::optional<T> next() override {
    return place_ < all_->size() ? std::optional<T>(all_->at(place_++)) : std::nullopt;
  }
  std::int64_t skip(std::int64_t n) override {
    const std::int64_t left = all_->size() - place_;
    const std::int64_t gone = n < left ? n : left;
    place_ += gone;
    return gone;
  }

 private:
  std::shared_ptr<const Indexed<T>> all_;
  std::int64_t place_ = 0;
};

template <class T>
std::shared_ptr<Stream<T>> in_turn(std::shared_ptr<Indexed<T>> all) {
  return std::make_shared<InTurn<T>>(std::move(all));
}
template <class T>
std::shared_ptr<Stream<T>> in_turn(std::shared_ptr<Stream<T>> stream) {
  return stream;
}

// A step whose elements come from those of another one, which it skips like itself.
template <class T, class Of = T>
class Over : public Stream<T> {
 public:
  explicit Over(std::shared_ptr<Stream<Of>> of) : of_(std::move(of)) {}
  std::int64_t reads() const override { return of_->reads(); }
  std::string reader() const override { return of_->reader(); }

 protected:
  std::shared_ptr<Stream<Of>> of_;
};

// A step that has to make elements to know which of them to skip, and counts those that it reads.
template <class T, class Of = T>
class Reading : public Over<T, Of> {
 public:
  // name: the step's.
  Reading(std::shared_ptr<Stream<Of>> of, const char* name)
      : Over<T, Of>(std::move(of)), name_(name) {}

  std::int64_t skip(std::int64_t n) override {
    std::int64_t gone = 0;
    while (gone < n && this->next()) {
      ++gone;
    }
    return gone;
  }
  std::int64_t reads() const override { return std::max(reads_, this->of_->reads()); }
  std::string reader() const override {
    const std::string below = this->of_->reader();
    return below.empty() ? name_ : below;
  }

 protected:
  std::optional<Of> read() {
    std::optional<Of> element = this->of_->next();
    reads_ += element ? 1 : 0;
    return element;
  }

  const char* name_;
  std::int64_t reads_ = 0;
};

// A step that takes in elements and gives some out now and then, several at a time.
template <class T, class Of = T>
class Gathering : public Reading<T, Of> {
 public:
  using Reading<T, Of>::Reading;

  std::optional<T> next() final {
    while (place_ == done_.size()) {
      if (over_) {
        return std::nullopt;
      }
      std::optional<Of> element = this->read();
      over_ = !element;
      place_ = 0;
      done_.clear();  // also where the next line throws
      done_ = over_ ? finish() : push(std::move(*element));
    }
    return std::move(done_[place_++]);
  }

 protected:
  // What comes out for an element that comes in, and at the end.
  virtual std::vector<T> push(Of element) = 0;
  virtual std::vector<T> finish() = 0;

 private:
  std::vector<T> done_{};
  std::size_t place_ = 0;
  bool over_ = false;
};

}  // namespace tutti::views::detail
