// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::detail {

// Scopes of this thread in which its large CPU tensors get memory that is kept: what this is about
// is in train/cpu_memory.hpp.
constinit inline thread_local int keeping_memory = 0;

// While it lives, this thread is one of those. A task for another thread takes the wish of the
// thread that gives it: `[kept = keeping_memory > 0] { const KeptMemory memory(kept); ... }`.
class KeptMemory {
 public:
  explicit KeptMemory(bool on) : on_(on) { keeping_memory += on_ ? 1 : 0; }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  ~KeptMemory() { keeping_memory -= on_ ? 1 : 0; }

 private:
  bool on_;
};

}  // namespace tutti::detail
