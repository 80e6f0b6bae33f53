// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <tutti/views/batch.hpp>

namespace tutti::views {

/// Refuses what are no batches.
template <class R>
struct PrefetchCheck {
  static_assert(std::same_as<R, Batches>,
                "tutti: views::prefetch prepares batches ahead; put views::batch(size) before it.");
};

/// `batches` batches prepared ahead of the loop by `threads` threads, a whole batch by each. The
/// batches are the same bit for bit with any number of both.
///
/// One thread alone reads a stream, which is what filter, a map with threads and their like give;
/// there map(change, threads) divides the work.
/// batches: >= 0; 0: none, the loop's thread prepares each. threads: >= 1.
/// Throws c10::ValueError when one is out of range.
inline auto prefetch(std::int64_t batches, std::int64_t threads = 1) {
  TUTTI_CHECK_VALUE(batches >= 0, "views::prefetch: batches is ", batches, ", expected 0 or more");
  TUTTI_CHECK_VALUE(threads >= 1, "views::prefetch: threads is ", threads, ", expected 1 or more");
  return detail::step([batches, threads](auto&& range) {
    using R = std::remove_cvref_t<decltype(range)>;
    static_assert(sizeof(PrefetchCheck<R>) > 0);
    if constexpr (std::same_as<R, Batches>) {
      return range.prefetched(batches, threads);
    }
  });
}

}  // namespace tutti::views
