// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <tutti/data/sampler.hpp>
#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class T>
class Shuffled final : public Indexed<T> {
 public:
  Shuffled(std::shared_ptr<Indexed<T>> of, std::uint64_t seed, std::int64_t epoch)
      : of_(std::move(of)), order_(of_->size(), {.shuffle = true, .seed = seed}) {
    order_.set_epoch(epoch);
  }
  std::int64_t size() const override { return of_->size(); }
  T at(std::int64_t i) const override {
    if (!is_drawn_.load(std::memory_order_acquire)) {
      draw();
    }
    return of_->at(order_[i]);
  }

 private:
  // Not before an element is asked for: some passes are begun for their size alone. Behind an
  // atomic, since std::call_once costs more than what it guards.
  void draw() const {
    const std::lock_guard lock(mutex_);
    if (!is_drawn_.load(std::memory_order_relaxed)) {
      (void)order_[0];
      is_drawn_.store(true, std::memory_order_release);
    }
  }

  std::shared_ptr<Indexed<T>> of_;
  DistributedSampler order_;
  mutable std::mutex mutex_{};
  mutable std::atomic<bool> is_drawn_{false};
};

}  // namespace detail

/// A new order of the examples every epoch: a permutation seeded with seed + epoch, bit for bit
/// that of DataLoader and of PyTorch's DistributedSampler.
///
/// range: random access, with a size. seed: the run's where none is given. Any example is had at
/// once, so a run that resumes reads nothing again.
inline auto shuffle(std::optional<std::uint64_t> seed = std::nullopt) {
  return detail::step([seed](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using E = decltype(of);
    static_assert(
        detail::indexed_of<E> || !detail::is_examples<E>,
        "tutti: views::shuffle needs a random-access range with a size, which no range is "
        "behind filter, a map with threads or a list; put shuffle before them.");
    if constexpr (detail::indexed_of<E>) {
      using T = detail::value_of<E>;
      return Examples<T, true>([of = std::move(of), seed](detail::Pass& pass) {
        return std::make_shared<detail::Shuffled<T>>(of.open(pass), seed.value_or(pass.seed),
                                                     pass.epoch);
      });
    }
  });
}

}  // namespace tutti::views
