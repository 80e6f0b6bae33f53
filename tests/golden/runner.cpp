#include "golden/runner.hpp"

#include <iomanip>
#include <iostream>

#include "support/catch.hpp"

// Runs every case of an index.json: that of tests/golden, or of the folder that the environment
// variable TUTTI_GOLDEN names. The table it prints says per function how many cases ran, passed and
// were left out, and why.

namespace golden {

void Verdict::tensor(const std::string& key, const at::Tensor& got) {
  seen_.insert(key);
  if (!case_.has_out(key)) {
    complaints_.push_back(key + ": the case has no such output");
    return;
  }
  if (const std::string wrong = matches(got, case_.out(key), case_.tolerance); !wrong.empty()) {
    complaints_.push_back(key + ": " + wrong);
  }
}

void Verdict::number(const std::string& key, double got) {
  if (case_.has_out(key)) {
    const at::Tensor want = case_.out(key);
    tensor(key, at::full(want.sizes(), got, want.options()));
  } else {
    tensor(key, {});
  }
}

void Verdict::check(bool holds, const std::string& complaint) {
  if (!holds) {
    complaints_.push_back(complaint);
  }
}

bool Verdict::raises_as_reference(const std::function<void()>& call) {
  const Json* raises = case_.expect.find("raises");
  raise_judged_ = true;
  try {
    call();
  } catch (const Skipped&) {
    throw;
  } catch (const Unknown&) {
    throw;
  } catch (const std::exception& error) {
    check(raises != nullptr, std::string("threw: ") + error.what());
    return false;
  }
  check(raises == nullptr,
        "went through where the reference raises " + (raises != nullptr ? raises->string() : ""));
  return true;
}

std::vector<std::string> Verdict::complaints() const {
  std::vector<std::string> all = complaints_;
  if (const Json* raises = case_.expect.find("raises"); raises != nullptr) {
    if (!raise_judged_) {
      all.push_back("went through where the reference raises " + raises->string());
    }
  } else {
    for (const std::string& key : case_.out_keys()) {
      if (seen_.count(key) == 0) {
        all.push_back(key + ": nobody compared this output");
      }
    }
  }
  return all;
}

const Json* Arguments::find(const std::string& key) const {
  asked_.insert(key);
  const Json* found = object_.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json& Arguments::json(const std::string& key) const {
  asked_.insert(key);
  return object_.at(key);
}

double Arguments::number(const std::string& key, double otherwise) const {
  const Json* found = find(key);
  return found == nullptr ? otherwise : found->number();
}

std::int64_t Arguments::integer(const std::string& key, std::int64_t otherwise) const {
  const Json* found = find(key);
  return found == nullptr ? otherwise : found->integer();
}

bool Arguments::flag(const std::string& key, bool otherwise) const {
  const Json* found = find(key);
  return found == nullptr ? otherwise : found->boolean();
}

std::string Arguments::text(const std::string& key, const std::string& otherwise) const {
  const Json* found = find(key);
  return found == nullptr ? otherwise : found->string();
}

void Arguments::done() const {
  if (!object_.is_object()) {
    return;
  }
  for (const auto& [key, value] : object_.object()) {
    if (asked_.count(key) == 0) {
      throw Unknown(what_ + " has no argument '" + key + "' here; teach the handler");
    }
  }
}

}  // namespace golden

namespace {

using golden::Case;

golden::Handlers all_handlers() {
  golden::Handlers all = golden::value_handlers();
  all.merge(golden::loss_handlers());
  all.merge(golden::batch_handlers());
  all.merge(golden::layer_handlers());
  all.merge(golden::optimizer_handlers());
  all.merge(golden::training_handlers());
  all.merge(golden::trace_handlers());
  all.merge(golden::image_handlers());
  all.merge(golden::run_handlers());
  all.merge(golden::transformer_handlers());
  all.merge(golden::surgery_handlers());
  return all;
}

struct Tally {
  std::size_t ran = 0;
  std::size_t passed = 0;
  std::size_t skipped = 0;
  std::set<std::string> reasons;
};

void run_case(const Case& c, golden::Handler handler, Tally& tally) {
  golden::Verdict verdict(c);
  std::vector<std::string> complaints;
  try {
    handler(c, verdict);
    complaints = verdict.complaints();
  } catch (const golden::Skipped& reason) {
    ++tally.skipped;
    tally.reasons.insert(reason.what());
    return;
  } catch (const golden::Unknown& error) {
    complaints = {error.what()};
  } catch (const std::exception& error) {
    if (c.expect.find("raises") == nullptr) {
      complaints = {std::string("threw: ") + error.what()};
    }
  }
  ++tally.ran;
  tally.passed += complaints.empty() ? 1U : 0U;
  for (const std::string& complaint : complaints) {
    FAIL_CHECK(c.name << " " << complaint);
  }
}

void print(const std::string& function, const Tally& tally) {
  std::cout << std::left << std::setw(34) << function << std::right << std::setw(5) << tally.ran
            << std::setw(8) << tally.passed << std::setw(9) << tally.skipped;
  for (const std::string& reason : tally.reasons) {
    std::cout << "  " << reason;
  }
  std::cout << "\n";
}

}  // namespace

TEST_CASE("every case of a function that tutti has agrees with the reference", "[golden]") {
  const golden::Handlers handlers = all_handlers();
  std::cout << std::left << std::setw(34) << "function"
            << "  ran  passed  skipped  reason\n";
  Tally sum;
  for (const std::string& function : golden::functions()) {
    Tally tally;
    const auto handler = handlers.find(function);
    if (handler != handlers.end()) {
      for (const Case& c : golden::cases(function)) {
        run_case(c, handler->second, tally);
      }
    } else {
      FAIL_CHECK(function << ": no handler runs its cases");
    }
    print(function, tally);
    sum.ran += tally.ran;
    sum.passed += tally.passed;
    sum.skipped += tally.skipped;
  }
  print("all", sum);
  CHECK(sum.ran > 0);
}

TEST_CASE(
    "the runner notices a wrong result, an output that nobody compared, and an argument that "
    "nobody read",
    "[golden]") {
  const Case c = golden::cases("soft_cross_entropy").at(0);
  golden::Verdict wrong(c);
  wrong.tensor("loss", c.out("loss").add(1));
  wrong.tensor("grad", c.out("grad"));
  CHECK(wrong.complaints().size() == 1);

  golden::Verdict incomplete(c);
  incomplete.tensor("loss", c.out("loss"));
  CHECK(incomplete.complaints() == std::vector<std::string>{"grad: nobody compared this output"});

  golden::Verdict throws(c);
  CHECK(!throws.raises_as_reference([] { throw std::runtime_error("x"); }));
  CHECK(throws.complaints().front() == "threw: x");

  const Case raising(tutti::detail::parse_json(
                         R"({"name": "f/0", "function": "f", "expect": {"raises": "ValueError"},)"
                         R"( "tolerance": {"exact": true, "rtol": 0, "atol": 0, "scale": 0}})"),
                     {});
  CHECK(golden::Verdict(raising).complaints().size() == 1);
  golden::Verdict accepting(raising);
  accepting.goes_on_on_purpose();
  CHECK(accepting.complaints().empty());

  const golden::Json object(golden::Json::Object{{"alpha", 0.5}, {"beta", 1}});
  const golden::Arguments arguments(object, "MixUp");
  CHECK(arguments.number("alpha", 0) == 0.5);
  CHECK_THROWS_WITH(arguments.done(), Catch::Matchers::ContainsSubstring("no argument 'beta'"));
}
