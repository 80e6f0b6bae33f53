// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include <ATen/Parallel.h>
#include <c10/util/FunctionRef.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/kept_memory.hpp>
#include <tutti/core/detail/one_thread.hpp>

namespace tutti::detail {

// What the threads of one parallel_each share. Lives as long as the last of them looks at it.
struct SharedWork {
  std::atomic<std::int64_t> next{0};
  std::int64_t done = 0;
  std::exception_ptr error{};
  std::mutex mutex{};
  std::condition_variable all_done{};

  // Takes numbers below n until there are none left. f is touched only for a number taken.
  void take(std::int64_t n, c10::function_ref<void(std::int64_t)> f);
};

// f(0), ..., f(n - 1) in any order, on as many threads as at::get_num_threads() says. Throws what
// one of them threw, after all have ended. at::parallel_for would use one thread wherever the
// program is compiled without OpenMP.
void parallel_each(std::int64_t n, c10::function_ref<void(std::int64_t)> f);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void SharedWork::take(std::int64_t n, c10::function_ref<void(std::int64_t)> f) {
  const OneThread alone;
  for (std::int64_t i = next++; i < n; i = next++) {
    std::exception_ptr thrown;
    try {
      f(i);
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    error = error ? error : thrown;
    if (++done == n) {
      all_done.notify_all();
    }
  }
}

TUTTI_INLINE void parallel_each(std::int64_t n, c10::function_ref<void(std::int64_t)> f) {
  const std::int64_t threads =
      at::in_parallel_region() ? 1 : std::min<std::int64_t>(at::get_num_threads(), n);
  if (threads <= 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      f(i);
    }
    return;
  }
  const auto work = std::make_shared<SharedWork>();
  for (std::int64_t i = 1; i < threads; ++i) {
    at::launch([work, n, f, kept = keeping_memory > 0] {
      const KeptMemory memory(kept);
      work->take(n, f);
    });
  }
  work->take(n, f);
  std::unique_lock lock(work->mutex);
  work->all_done.wait(lock, [&] { return work->done == n; });
  if (work->error) {
    std::rethrow_exception(work->error);
  }
}

}  // namespace tutti::detail

#endif
