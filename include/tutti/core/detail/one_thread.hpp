// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace tutti::detail {

// While it lives, operators of this thread run on this thread alone: the threads that prepare data
// do not multiply, and a sum has the same bits on each of them. at::set_num_threads would also
// change the threads that are begun later, so OpenMP is told directly, where LibTorch brought it.
class OneThread {
 public:
  OneThread() : threads_(at::get_num_threads()) { set(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { set(threads_); }

 private:
  static void set(int threads) {
    using Set = void (*)(int);
    static const auto set_threads =
        reinterpret_cast<Set>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_threads != nullptr) {
      set_threads(threads);
    }
  }

  int threads_;
};

}  // namespace tutti::detail
