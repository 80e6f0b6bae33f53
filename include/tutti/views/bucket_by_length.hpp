// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/batch.hpp>
#include <tutti/data/length_buckets.hpp>
#include <tutti/views/examples.hpp>

namespace tutti::views {

/// The tokens of an example: of "input_ids", one dimension. Throws c10::Error when there are none.
struct CountTokens {
  std::int64_t operator()(const Batch& example) const { return example.at("input_ids").numel(); }
};

namespace detail {

template <class T, class F>
class Bucketed final : public Over<T> {
 public:
  Bucketed(std::shared_ptr<Stream<T>> of, data::LengthBucketsOptions options, F length)
      : Over<T>(std::move(of)), buckets_(std::move(options)), length_(std::move(length)) {}

  std::int64_t size() const override { return this->of_->size(); }
  std::optional<T> next() override {
    while (place_ == done_.size()) {
      if (over_) {
        return std::nullopt;
      }
      place_ = 0;
      done_.clear();
      std::optional<T> element = this->of_->next();
      over_ = !element;
      if (over_) {
        for (std::vector<T>& rest : buckets_.finish()) {
          std::move(rest.begin(), rest.end(), std::back_inserter(done_));
        }
      } else {
        const auto length =
            at_place("views::bucket_by_length: the length of element ", reads_, [&] {
              return static_cast<std::int64_t>(std::invoke(length_, std::as_const(*element)));
            });
        done_ = buckets_.push(std::move(*element), length).value_or(std::vector<T>());
        ++reads_;
      }
    }
    return std::move(done_[place_++]);
  }
  std::int64_t skip(std::int64_t n) override {
    std::int64_t gone = 0;
    while (gone < n && next()) {
      ++gone;
    }
    return gone;
  }
  std::int64_t reads() const override { return reads_; }
  std::string reader() const override { return "bucket_by_length"; }

 private:
  data::LengthBuckets<T> buckets_;
  F length_;
  std::vector<T> done_{};
  std::size_t place_ = 0;
  bool over_ = false;
  std::int64_t reads_ = 0;
};

}  // namespace detail

/// The same elements in an order in which a batch has similar lengths, so that little is padded.
///
///     auto train = texts | tutti::views::shuffle() |
///                  tutti::views::bucket_by_length({128, 512}, 32) |
///                  tutti::views::batch({.size = 32, .collate = tutti::data::PadSequences{}});
///
/// boundaries: where buckets begin, ascending, as in data::LengthBucketsOptions. batch_size: that
/// of views::batch behind it; with several ranks `batch_size` examples of each are of one bucket.
/// length: `std::int64_t length(const T&)`, >= 0; by default the tokens of a Batch.
/// Elements come as soon as their bucket has enough for all ranks, and those that are left at the
/// end, the short ones first, together. Their order depends on that in which they came in alone. A
/// run that resumes inside an epoch reads again what comes before its place.
/// Throws c10::ValueError when an option is out of range.
/// Source: TensorFlow, `tf.data.Dataset.bucket_by_sequence_length`.
template <class F = CountTokens>
auto bucket_by_length(std::vector<std::int64_t> boundaries, std::int64_t batch_size,
                      F length = F()) {
  const data::LengthBucketsOptions options{.boundaries = std::move(boundaries),
                                           .batch_sizes = {batch_size}};
  options.validate();
  return detail::step([options, length = std::move(length)](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    static_assert(std::invocable<const F&, const T&>,
                  "tutti: views::bucket_by_length cannot ask for the length of these elements; "
                  "give it std::int64_t length(const T&), T being what the step before gives.");
    return Examples<T, false>([of = std::move(of), options, length](detail::Pass& pass) {
      auto stream = detail::in_turn(of.open(pass));
      data::LengthBucketsOptions all = options;
      all.batch_sizes.front() *= pass.dealt ? 1 : pass.world_size;
      return std::make_shared<detail::Bucketed<T, F>>(std::move(stream), std::move(all), length);
    });
  });
}

}  // namespace tutti::views
