// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/optim/detail/strip.hpp>
#if defined(__x86_64__)
#include <tutti/optim/detail/elementwise_x86.hpp>
#include <tutti/optim/detail/strips_x86.hpp>
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>

/// One pass over the memory of many parameters.
namespace tutti::optim::detail {

template <class Numbers>
void sweep_part([[maybe_unused]] const Strip& strip, [[maybe_unused]] std::int64_t from,
                [[maybe_unused]] std::int64_t to, [[maybe_unused]] const Numbers& numbers,
                [[maybe_unused]] const Fold& fold) {
#if defined(__x86_64__)
  sweep_avx2(strip, from, to, numbers, fold);
#endif
}

/// Updates all strips; on as many threads as there are, where that pays. Needs has_avx2().
template <class Numbers>
void sweep(const std::vector<Strip>& strips, const Numbers& numbers, const Fold& fold) {
  constexpr std::int64_t worth_a_thread = 1 << 16;
  std::int64_t total = 0;
  for (const Strip& strip : strips) {
    total += strip.size;
  }
  const std::int64_t threads = total < 2 * worth_a_thread ? 1 : at::get_num_threads();
  if (threads == 1) {
    for (const Strip& strip : strips) {
      sweep_part(strip, 0, strip.size, numbers, fold);
    }
    return;
  }
  // Pieces of equal length, cut where a strip's whole blocks end.
  const std::int64_t pieces = std::min(4 * threads, total / worth_a_thread);
  ::tutti::detail::parallel_each(pieces, [&](std::int64_t piece) {
    const std::int64_t begin = total * piece / pieces;
    const std::int64_t end = total * (piece + 1) / pieces;
    std::int64_t start = 0;  // of the strip
    for (const Strip& strip : strips) {
      const auto cut = [&](std::int64_t at) {
        return at >= start + strip.size ? strip.size
                                        : std::max<std::int64_t>(at - start, 0) / 16 * 16;
      };
      if (cut(begin) < cut(end)) {
        sweep_part(strip, cut(begin), cut(end), numbers, fold);
      }
      start += strip.size;
    }
  });
}

}  // namespace tutti::optim::detail
