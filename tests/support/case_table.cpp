#include "support/case_table.hpp"

#include <cmath>
#include <iomanip>
#include <sstream>

#include <ATen/ATen.h>

namespace tutti_test {

namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string out = "[";
  for (const std::int64_t extent : tensor.sizes()) {
    out += (out.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return out + "]";
}

// Digits that differ are shown, also of numbers near 0.
std::string text_of(double value) {
  std::ostringstream out;
  out << std::setprecision(10) << value;
  return out.str();
}

// What LibTorch adds to an exception's text is left out.
std::string sentence(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from"));
}

void print_line(std::ostream& out, const std::string& kind, const CaseTally& tally) {
  out << std::left << std::setw(18) << kind << std::right << std::setw(6) << tally.cases
      << std::setw(8) << tally.passed << std::setw(9) << tally.skipped;
  for (const std::string& reason : tally.reasons) {
    out << "  " << reason;
  }
  out << "\n";
}

}  // namespace

void Complaints::check(bool holds, const std::string& complaint) const {
  if (!holds) {
    complaints_->push_back(complaint);
  }
}

void Complaints::close(const std::string& what, const at::Tensor& got, const at::Tensor& want,
                       double scale) const {
  if (!got.defined() || got.sizes() != want.sizes()) {
    check(false, what + ": got " + (got.defined() ? shape_text(got) : "nothing") + ", expected " +
                     shape_text(want));
    return;
  }
  if (want.numel() == 0) {
    return;
  }
  const at::Tensor a = got.detach().cpu().to(at::kDouble);
  const at::Tensor b = want.to(at::kDouble);
  const double most = scale * b.abs().max().item<double>();
  const double worst = (a - b).abs().max().item<double>();
  check(worst <= most, what + ": the largest difference is " + text_of(worst) + ", at most " +
                           text_of(most) + " is allowed");  // NaN fails too
}

void Complaints::number(const std::string& what, double got, double want, double relative,
                        double absolute) const {
  check(std::abs(got - want) <= relative * std::abs(want) + absolute,
        what + ": got " + text_of(got) + ", expected " + text_of(want));
}

void CaseTable::run(const std::string& kind, const std::string& what, const Complaints& noted,
                    const std::function<void()>& handler) {
  CaseTally& tally = kinds_[kind];
  ++tally.cases;
  std::vector<std::string> complaints;
  try {
    handler();
    complaints = noted.complaints();
  } catch (const SkippedCase& reason) {
    ++tally.skipped;
    tally.reasons.insert(reason.what());
    return;
  } catch (const std::exception& error) {
    complaints = noted.complaints();
    complaints.push_back("threw: " + sentence(error));
  }
  tally.passed += complaints.empty() ? 1U : 0U;
  for (const std::string& complaint : complaints) {
    tally.complaints.push_back(what + ": " + complaint);
  }
}

CaseTally CaseTable::print(std::ostream& out) const {
  out << std::left << std::setw(18) << "kind"
      << " cases  passed  skipped  why\n";
  CaseTally sum;
  for (const auto& [kind, tally] : kinds_) {
    print_line(out, kind, tally);
    sum.cases += tally.cases;
    sum.passed += tally.passed;
    sum.skipped += tally.skipped;
    sum.complaints.insert(sum.complaints.end(), tally.complaints.begin(), tally.complaints.end());
  }
  print_line(out, "all", sum);
  return sum;
}

}  // namespace tutti_test
