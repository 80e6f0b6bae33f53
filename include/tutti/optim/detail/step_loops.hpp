// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/cpu.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/optim/detail/parameter_view.hpp>
#if defined(__x86_64__)
#include <tutti/optim/detail/elementwise_x86.hpp>
#include <tutti/optim/detail/step_loops_x86.hpp>
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>

/// One pass over the memory of many parameters.
namespace tutti::optim::detail {

template <class Numbers>
void step_part([[maybe_unused]] const ParameterView& view, [[maybe_unused]] std::int64_t from,
               [[maybe_unused]] std::int64_t to, [[maybe_unused]] const Numbers& numbers,
               [[maybe_unused]] const StepExtras& extras) {
#if defined(__x86_64__)
  step_avx2(view, from, to, numbers, extras);
#endif
}

/// Updates all views; on as many threads as there are, where that pays. Needs has_avx2().
template <class Numbers>
void step_views(const std::vector<ParameterView>& views, const Numbers& numbers,
                const StepExtras& extras) {
  constexpr std::int64_t worth_a_thread = 1 << 16;
  std::int64_t total = 0;
  for (const ParameterView& view : views) {
    total += view.size;
  }
  const std::int64_t threads = total < 2 * worth_a_thread ? 1 : at::get_num_threads();
  if (threads == 1) {
    for (const ParameterView& view : views) {
      step_part(view, 0, view.size, numbers, extras);
    }
    return;
  }
  // Pieces of equal length, cut where a view's whole blocks end.
  const std::int64_t pieces = std::min(4 * threads, total / worth_a_thread);
  ::tutti::detail::parallel_each(pieces, [&](std::int64_t piece) {
    const std::int64_t begin = total * piece / pieces;
    const std::int64_t end = total * (piece + 1) / pieces;
    std::int64_t start = 0;  // of the view
    for (const ParameterView& view : views) {
      const auto cut = [&](std::int64_t at) {
        return at >= start + view.size ? view.size
                                       : std::max<std::int64_t>(at - start, 0) / 16 * 16;
      };
      if (cut(begin) < cut(end)) {
        step_part(view, cut(begin), cut(end), numbers, extras);
      }
      start += view.size;
    }
  });
}

}  // namespace tutti::optim::detail
