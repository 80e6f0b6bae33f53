// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::detail {

// Whether this thread records the operators of a forward pass, which export_onnx() writes down.
// The library's own loops then leave the work to ATen's operators, and layers do not look at
// numbers to find a shorter way, since the record is for other numbers, too.
inline bool& only_operators() {
  static thread_local bool value = false;
  return value;
}

// Sets it for a while.
class OnlyOperators {
 public:
  OnlyOperators() : before_(only_operators()) { only_operators() = true; }
  OnlyOperators(const OnlyOperators&) = delete;
  OnlyOperators& operator=(const OnlyOperators&) = delete;
  ~OnlyOperators() { only_operators() = before_; }

 private:
  bool before_;
};

}  // namespace tutti::detail
