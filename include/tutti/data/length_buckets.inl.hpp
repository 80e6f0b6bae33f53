// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/length_buckets.hpp>

#include <iterator>

#include <tutti/core/rng.hpp>
#include <tutti/data/detail/item_rng.hpp>

namespace tutti::data {

namespace detail {

// Puts the batch with the longest example in front and, before that, mixes all of them.
TUTTI_INLINE void arrange_batches(std::vector<std::int64_t>& order,
                                  std::span<const std::int64_t> lengths,
                                  const LengthOrderOptions& options) {
  const auto size = static_cast<std::size_t>(options.batch_size);
  const std::size_t full = order.size() / size;
  const auto swap = [&](std::size_t a, std::size_t b) {
    if (a != b) {
      const auto from = order.begin() + static_cast<std::ptrdiff_t>(a * size);
      std::swap_ranges(from, from + options.batch_size,
                       order.begin() + static_cast<std::ptrdiff_t>(b * size));
    }
  };
  if (options.shuffle) {
    constexpr std::uint64_t of_batches = 3;
    Rng rng = item_rng(options.seed, of_batches, 0);
    for (std::size_t i = full; i > 1; --i) {
      swap(i - 1, static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(i))));
    }
  }
  std::size_t longest = 0;
  for (std::size_t i = 1; i < full; ++i) {  // each batch begins with its longest example
    const auto of = [&](std::size_t batch) {
      return lengths[static_cast<std::size_t>(order[batch * size])];
    };
    longest = of(i) > of(longest) ? i : longest;
  }
  swap(0, longest);
}

}  // namespace detail

TUTTI_INLINE std::vector<std::int64_t> order_by_length(std::span<const std::int64_t> order,
                                                       std::span<const std::int64_t> lengths,
                                                       const LengthOrderOptions& options) {
  TUTTI_CHECK_VALUE(options.batch_size >= 1 && options.window >= 1,
                    "order_by_length: batch_size is ", options.batch_size, " and window ",
                    options.window, ", expected 1 or more");
  for (const std::int64_t i : order) {
    TUTTI_CHECK_VALUE(
        i >= 0 && i < std::ssize(lengths) && lengths[static_cast<std::size_t>(i)] >= 0,
        "order_by_length: example ", i, " has no length of 0 or more; there are ", lengths.size(),
        " lengths");
  }
  std::vector<std::int64_t> out(order.begin(), order.end());
  const auto window = static_cast<std::size_t>(
      std::min<std::int64_t>(std::ssize(order), options.window) * options.batch_size);
  for (std::size_t from = 0; from < out.size(); from += window) {
    const std::size_t to = std::min(out.size(), from + window);
    std::stable_sort(
        out.begin() + static_cast<std::ptrdiff_t>(from),
        out.begin() + static_cast<std::ptrdiff_t>(to), [&](std::int64_t a, std::int64_t b) {
          return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
        });
  }
  detail::arrange_batches(out, lengths, options);
  return out;
}

TUTTI_INLINE void LengthBucketsOptions::validate() const {
  for (std::size_t i = 0; i < boundaries.size(); ++i) {
    TUTTI_CHECK_VALUE(boundaries[i] > (i == 0 ? 0 : boundaries[i - 1]), "LengthBuckets: boundary ",
                      i, " is ", boundaries[i], ", expected ascending numbers above 0");
  }
  TUTTI_CHECK_VALUE(batch_sizes.size() == 1 || batch_sizes.size() == boundaries.size() + 1,
                    "LengthBuckets: there are ", batch_sizes.size(), " batch_sizes, expected 1 or ",
                    boundaries.size() + 1, ", one more than boundaries");
  for (const std::int64_t size : batch_sizes) {
    TUTTI_CHECK_VALUE(size >= 1, "LengthBuckets: a batch size is ", size, ", expected 1 or more");
  }
}

}  // namespace tutti::data
