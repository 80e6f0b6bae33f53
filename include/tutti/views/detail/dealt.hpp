// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/views/detail/flow.hpp>

namespace tutti::views::detail {

// A rank's share of a stream, as DistributedSampler deals numbers: elements rank, rank +
// world_size, ..., and where the ranks do not divide them, elements of the beginning again at the
// end, or with drop_last none of the tail.
template <class T>
class DealtStream final : public Stream<T> {
 public:
  // before: the pass as it was before `open` was called for `of`.
  DealtStream(Open<T, false> open, const Pass& before, std::shared_ptr<Stream<T>> of,
              bool drop_last)
      : open_(std::move(open)),
        before_(before),
        of_(std::move(of)),
        rank_(before.rank),
        world_(before.world_size),
        drop_last_(drop_last) {
    of_->expect_stride(world_);
  }

  std::int64_t size() const override {
    const std::int64_t n = of_->size();
    return n < 0 ? -1 : (n + (drop_last_ ? 0 : world_ - 1)) / world_;
  }

  std::optional<T> next() override {
    if (over_) {
      return std::nullopt;
    }
    std::int64_t there = of_->skip(rank_);
    std::optional<T> own = there == rank_ ? of_->next() : std::nullopt;
    there += own ? 1 + of_->skip(world_ - 1 - rank_) : 0;
    seen_ += there;
    over_ = there < world_;
    if (there == 0 || (over_ && drop_last_)) {
      return std::nullopt;
    }
    if (!own) {
      repeats_ = true;
      own = again((seen_ - there + rank_) % seen_);
    }
    return own;
  }

  std::int64_t skip(std::int64_t n) override {
    if (over_ || n == 0) {
      return 0;
    }
    const std::int64_t there = of_->skip(n * world_);
    seen_ += there;
    over_ = there < n * world_;
    return (there + (drop_last_ ? 0 : world_ - 1)) / world_;
  }

  std::int64_t reads() const override { return of_->reads(); }
  std::string reader() const override { return of_->reader(); }

  // The element that next() gave last is one of the beginning.
  [[nodiscard]] bool repeats() const { return repeats_; }

 private:
  std::optional<T> again(std::int64_t i) const {
    Pass pass = before_;
    const auto of = open_(pass);
    of->skip(i);
    return of->next();
  }

  Open<T, false> open_;
  Pass before_;
  std::shared_ptr<Stream<T>> of_;
  std::int64_t rank_;
  std::int64_t world_;
  bool drop_last_;
  bool over_ = false;
  bool repeats_ = false;
  std::int64_t seen_ = 0;  // by all ranks
};

}  // namespace tutti::views::detail
