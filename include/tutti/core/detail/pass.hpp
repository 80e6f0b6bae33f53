// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti::detail {

// One pass over a pipeline of views (tutti/views): which epoch it is of, and for which rank.
struct Pass {
  std::int64_t epoch = 0;
  std::uint64_t seed = 0;  // the run's
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  bool dealt = false;       // a step said, as it began, that it gives this rank its share
  std::uint64_t draws = 0;  // steps with random numbers of their own that have begun
};

// The pass that ranges which begin on this thread belong to. Views of range-v3 between the steps
// know nothing of it, and it reaches the steps below them all the same.
inline thread_local Pass* pass_here = nullptr;

// Makes it `pass` while it lives.
class InPass {
 public:
  explicit InPass(Pass& pass) : before_(pass_here) { pass_here = &pass; }
  InPass(const InPass&) = delete;
  InPass& operator=(const InPass&) = delete;
  ~InPass() { pass_here = before_; }

 private:
  Pass* before_;
};

}  // namespace tutti::detail
