#include "golden/runner.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>

#include <c10/util/Exception.h>

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

std::string sentence(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  return own != nullptr ? own->what_without_backtrace() : error.what();
}

bool is_kind(const std::exception& error, const std::string& raises) {
  static const std::set<std::string> accidents{"ZeroDivisionError", "AttributeError", "KeyError",
                                               "AssertionError", "OverflowError"};
  const auto is = [&](auto* kind) { return dynamic_cast<decltype(kind)>(&error) != nullptr; };
  if (raises == "IndexError") {
    return is(static_cast<const c10::IndexError*>(nullptr));
  }
  if (raises == "NotImplementedError") {
    return is(static_cast<const c10::NotImplementedError*>(nullptr));
  }
  const bool value = is(static_cast<const c10::ValueError*>(nullptr)) ||
                     is(static_cast<const std::invalid_argument*>(nullptr)) ||
                     is(static_cast<const std::domain_error*>(nullptr)) ||
                     is(static_cast<const std::overflow_error*>(nullptr));
  if (raises == "TypeError") {
    return value || is(static_cast<const c10::TypeError*>(nullptr));
  }
  if (raises == "RuntimeError") {
    return !value && (is(static_cast<const c10::Error*>(nullptr)) ||
                      is(static_cast<const std::runtime_error*>(nullptr)));
  }
  return value && (raises == "ValueError" || accidents.contains(raises));
}

namespace {

// Letters and digits alone, in lower case.
std::string plain(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    const auto c = static_cast<unsigned char>(letter);
    if (std::isalnum(c) != 0) {
      out += static_cast<char>(std::tolower(c));
    }
  }
  return out;
}

}  // namespace

bool names_one(const std::exception& error, const Names& who) {
  const std::string text = plain(sentence(error));
  return std::any_of(who.begin(), who.end(), [&](const std::string& name) {
    std::string wanted = name;
    for (const std::string_view kind : {"apply_", "metric_"}) {
      wanted.erase(0, wanted.starts_with(kind) ? kind.size() : 0);
    }
    for (const std::string_view kind : {"_batch", "_image"}) {
      wanted.resize(wanted.size() - (wanted.ends_with(kind) ? kind.size() : 0));
    }
    return text.find(plain(wanted)) != std::string::npos;
  });
}

const std::vector<Difference>& stated_refusals() {
  static const std::vector<Difference> all{
      {"algorithms/alibi.md", "Sizes that do not come out whole are refused", "ALiBi: "},
      {"algorithms/augmix.md", "Depth 0, which the reference takes for a random one, is an error",
       "AugMix: depth"},
      {"algorithms/augmix.md", "Depth 0, which the reference takes for a random one, is an error",
       "augmix_image: depth"},
      {"algorithms/blurpool.md", "`min_channels` below 1 is refused", "BlurPool: min_channels"},
      {"algorithms/colout.md", "Deleting everything is an error", "ColOut: p_row"},
      {"algorithms/colout.md", "Deleting everything is an error", "ColOut: p_col"},
      {"algorithms/cutmix.md", "is refused in the recipe", "CutMix: alpha"},
      {"algorithms/cutout.md",
       "A length outside of (0, 1) and a negative number of holes are errors", "CutOut: "},
      {"algorithms/cutout.md",
       "A length outside of (0, 1) and a negative number of holes are errors", "cutout_batch: "},
      {"algorithms/factorize.md", "Options are checked", "Factorize: "},
      {"algorithms/ghost_batchnorm.md", "`ghost_batch_size` is checked",
       "GhostBatchNorm: ghost_batch_size"},
      {"algorithms/gradient_clipping.md", "Type and threshold are checked at construction",
       "GradientClipping: clipping_threshold"},
      {"algorithms/gradient_clipping.md", "Type and threshold are checked at construction",
       "apply_gradient_clipping: clipping_threshold"},
      {"algorithms/label_smoothing.md", "`smoothing` outside 0 to 1 is refused",
       "LabelSmoothing: smoothing"},
      {"algorithms/label_smoothing.md", "`smoothing` outside 0 to 1 is refused",
       "smooth_labels: smoothing"},
      {"algorithms/layer_freezing.md", "Options out of range are refused",
       "LayerFreezing: freeze_"},
      {"algorithms/layer_freezing.md", "Options out of range are refused", "freeze_layers: "},
      {"algorithms/selective_backprop.md", "`interrupt = 1`, which would never choose, is an error",
       "SelectiveBackprop: interrupt"},
      {"algorithms/seq_length_warmup.md", "`min_seq_length` below 1",
       "SeqLengthWarmup: min_seq_length"},
      {"algorithms/seq_length_warmup.md", "`preserve_end_of_sequence` without `truncate`",
       "SeqLengthWarmup: preserve_end_of_sequence"},
      {"algorithms/squeeze_excite.md", "A gate of less than one channel is an error",
       "SqueezeExcite: latent_channels"},
      {"algorithms/squeeze_excite.md", "A gate of less than one channel is an error",
       "SqueezeExcite2d: latent_channels"},
      {"algorithms/squeeze_excite.md", "`latent_channels` and `min_channels` are checked",
       "SqueezeExcite: min_channels"},
      {"algorithms/swa.md", "`swa_lr` without `schedule_swa_lr` is refused", "SWA: swa_lr"},
  };
  return all;
}

bool Verdict::raises_as_reference(const std::function<void()>& call, const Names& who) {
  try {
    call();
  } catch (const Skipped&) {
    throw;
  } catch (const Unknown&) {
    throw;
  } catch (const std::exception& error) {
    judge(error, who);
    return false;
  }
  const Json* raises = case_.expect.find("raises");
  raise_judged_ = true;
  check(raises == nullptr,
        "went through where the reference raises " + (raises != nullptr ? raises->string() : ""));
  return true;
}

void Verdict::judge(const std::exception& error, const std::string& raises, const Names& who,
                    const std::string& what) {
  check(is_kind(error, raises),
        what + " threw another kind than the reference's " + raises + ": " + sentence(error));
  check(names_one(error, who),
        what + " threw in words that do not name " + who.at(0) + ": " + sentence(error));
}

void Verdict::judge(const std::exception& error, const Names& who) {
  raise_judged_ = true;
  if (const Json* raises = case_.expect.find("raises"); raises != nullptr) {
    judge(error, raises->string(), who.empty() ? Names{case_.function} : who, "it");
    return;
  }
  const std::string text = sentence(error);
  for (const Difference& known : stated_refusals()) {
    if (text.starts_with(known.message) && is_kind(error, "ValueError")) {
      differs(known);
      refused_as_stated_ = true;
      return;
    }
  }
  check(false, "threw: " + text);
}

void Verdict::leave_out_all(const Difference& difference) {
  differs(difference);
  for (const std::string& key : case_.out_keys()) {
    leave_out(key);
  }
}

void Verdict::differs(const Difference& difference) {
  raise_judged_ = true;
  stated_.insert(difference);
}

std::vector<std::string> Verdict::complaints() const {
  std::vector<std::string> all = complaints_;
  if (const Json* raises = case_.expect.find("raises"); raises != nullptr) {
    if (!raise_judged_) {
      all.push_back("went through where the reference raises " + raises->string());
    }
  } else if (!refused_as_stated_) {
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
  return found == nullptr   ? otherwise
         : found->is_bool() ? static_cast<double>(found->boolean())
                            : found->number();
}

std::int64_t Arguments::integer(const std::string& key, std::int64_t otherwise) const {
  const Json* found = find(key);
  return found == nullptr ? otherwise : found->is_bool() ? found->boolean() : found->integer();
}

void Arguments::only(const std::string& key, const Json& value) const {
  const Json* found = find(key);
  if (found != nullptr && !(*found == value)) {
    throw Skipped("needs another " + key + " than " + tutti::detail::to_text(value));
  }
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
  std::size_t stated = 0;  // of those that passed: tutti differs, as docs/ say
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
    verdict.judge(error);
    complaints = verdict.complaints();
  }
  ++tally.ran;
  tally.passed += complaints.empty() ? 1U : 0U;
  tally.stated += complaints.empty() && !verdict.stated().empty() ? 1U : 0U;
  for (const golden::Difference& difference : verdict.stated()) {
    tally.reasons.insert("differs as docs/" + std::string(difference.page) + " states: \"" +
                         std::string(difference.words) + "\"");
  }
  for (const std::string& complaint : complaints) {
    FAIL_CHECK(c.name << " " << complaint);
  }
}

void print(const std::string& function, const Tally& tally) {
  std::cout << std::left << std::setw(34) << function << std::right << std::setw(5) << tally.ran
            << std::setw(8) << tally.passed << std::setw(9) << tally.skipped << std::setw(9)
            << tally.stated;
  for (const std::string& reason : tally.reasons) {
    std::cout << "  " << reason;
  }
  std::cout << "\n";
}

}  // namespace

TEST_CASE("every case of a function that tutti has agrees with the reference", "[golden]") {
  const golden::Handlers handlers = all_handlers();
  std::cout << std::left << std::setw(34) << "function"
            << "  ran  passed  skipped  differs  why\n";
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
    sum.stated += tally.stated;
  }
  print("all", sum);
  CHECK(sum.ran > 0);
}

TEST_CASE("arguments that the reference's set lacks are read, and what one of the two refuses",
          "[golden]") {
  const std::string folder = TUTTI_SOURCE_DIR "/tests/golden/more/";
  std::ifstream file(folder + "index.json", std::ios::binary);
  const auto index =
      tutti::detail::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto read = tutti::checkpoint::read_safetensors(folder + "more.safetensors");
  const golden::Tensors tensors(read.begin(), read.end());
  const golden::Handlers handlers = all_handlers();
  Tally tally;
  for (const golden::Json& entry : index["cases"].array()) {
    run_case(Case(entry, tensors), handlers.at(entry["function"].string()), tally);
  }
  print("more", tally);
  CHECK(tally.passed == 7);
  CHECK(tally.stated == 3);  // of EMA_init, colout_batch and time_arith
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

  const golden::Json object(golden::Json::Object{{"alpha", 0.5}, {"beta", 1}});
  const golden::Arguments arguments(object, "MixUp");
  CHECK(arguments.number("alpha", 0) == 0.5);
  CHECK_THROWS_WITH(arguments.done(), Catch::Matchers::ContainsSubstring("no argument 'beta'"));
}

TEST_CASE("an error counts as the reference's by its kind and its words alone", "[golden]") {
  const Case raising(tutti::detail::parse_json(
                         R"({"name": "f/0", "function": "apply_ghost_batchnorm",)"
                         R"( "expect": {"raises": "ValueError"},)"
                         R"( "tolerance": {"exact": true, "rtol": 0, "atol": 0, "scale": 0}})"),
                     {});
  CHECK(golden::Verdict(raising).complaints().size() == 1);
  const auto complaints = [&](auto raise) {
    golden::Verdict verdict(raising);
    verdict.raises_as_reference(raise);
    return verdict.complaints().size();
  };
  CHECK(complaints([] { TORCH_CHECK_VALUE(false, "GhostBatchNorm: a batch of 2"); }) == 0);
  CHECK(complaints([] { TORCH_CHECK(false, "GhostBatchNorm: a batch of 2"); }) == 1);
  CHECK(complaints([] { TORCH_CHECK_VALUE(false, "the size of tensor a"); }) == 1);
  CHECK(complaints([] { at::ones({2}).add(at::ones({3})); }) == 2);
  CHECK(complaints([] {}) == 1);

  golden::Verdict accepting(raising);
  accepting.differs(golden::stated::any_batch);
  CHECK(accepting.complaints().empty());
  CHECK(accepting.stated().size() == 1);
}

TEST_CASE("what tutti refuses and the reference takes passes as a stated difference alone",
          "[golden]") {
  const Case c = golden::cases("soft_cross_entropy").at(0);
  golden::Verdict refused(c);
  refused.raises_as_reference([] { TORCH_CHECK_VALUE(false, "ColOut: p_row is 1, expected"); });
  CHECK(refused.complaints().empty());
  CHECK(refused.stated().begin()->page == "algorithms/colout.md");

  golden::Verdict other(c);
  other.raises_as_reference([] { TORCH_CHECK_VALUE(false, "ColOut: the input is"); });
  CHECK(other.complaints().size() == 3);
}

TEST_CASE("the documentation has every stated difference", "[golden]") {
  std::vector<golden::Difference> all = golden::stated_refusals();
  all.insert(
      all.end(),
      {golden::stated::any_batch, golden::stated::short_warmup, golden::stated::smoothing_alone,
       golden::stated::ema_default, golden::stated::warmup_units, golden::stated::time_text,
       golden::stated::whole_number, golden::stated::whole_batches, golden::stated::one_weight,
       golden::stated::kept_parts, golden::stated::severity_zero, golden::stated::kept_examples,
       golden::stated::ignored_positions, golden::stated::weak_factors});
  for (const golden::Difference& difference : all) {
    std::ifstream file(std::string(TUTTI_SOURCE_DIR "/docs/") + std::string(difference.page));
    std::string text;
    for (std::string word; file >> word;) {
      text += word + " ";
    }
    INFO(difference.page << ": " << difference.words);
    CHECK(text.find(difference.words) != std::string::npos);
  }
}
