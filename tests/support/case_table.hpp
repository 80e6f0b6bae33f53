// SPDX-License-Identifier: Apache-2.0
#pragma once

// What programs that walk a folder of reference cases share: the disagreements of one case, and
// the table of all of them by kind.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti_test {

/// Thrown for a case that needs what tutti does not have; the text is the reason.
struct SkippedCase : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown for a case that its handler does not know what to do with.
struct UnmappedCase : std::logic_error {
  using std::logic_error::logic_error;
};

/// What was noted about one case; a copy notes into the same list.
class Complaints {
 public:
  /// Notes a disagreement unless `holds`.
  void check(bool holds, const std::string& complaint) const;
  /// Notes a disagreement unless |got - want| <= scale * max|want| everywhere, with equal shapes.
  void close(const std::string& what, const at::Tensor& got, const at::Tensor& want,
             double scale = 5e-5) const;
  /// Notes a disagreement unless |got - want| <= relative * |want| + absolute.
  void number(const std::string& what, double got, double want, double relative,
              double absolute = 0) const;

  /// What was noted so far.
  [[nodiscard]] const std::vector<std::string>& complaints() const { return *complaints_; }

 private:
  std::shared_ptr<std::vector<std::string>> complaints_ =
      std::make_shared<std::vector<std::string>>();
};

/// The cases of one kind.
struct CaseTally {
  std::size_t cases = 0;
  std::size_t passed = 0;
  std::size_t skipped = 0;
  std::set<std::string> reasons;
  std::vector<std::string> complaints;
};

/// Cases by kind: how many there are, passed and were skipped for which reasons.
class CaseTable {
 public:
  /// Runs one case: `handler` notes into `noted` or throws. what: the case's name.
  void run(const std::string& kind, const std::string& what, const Complaints& noted,
           const std::function<void()>& handler);

  [[nodiscard]] const std::map<std::string, CaseTally>& kinds() const { return kinds_; }

  /// Prints a line a kind, and one for all. Returns the sum.
  CaseTally print(std::ostream& out) const;

 private:
  std::map<std::string, CaseTally> kinds_;
};

}  // namespace tutti_test
