#include <tutti/tutti.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// docs/recipes.md holds the rules of all algorithms, as the code states them. To write it anew
// after a rule has changed: TUTTI_WRITE_DOCS=1 trainer_tests "[recipes]"

namespace {

using algorithms =
    tutti::types<tutti::ALiBi, tutti::AugMix, tutti::BackboneFinetuning, tutti::BlurPool,
                 tutti::ChannelsLast, tutti::ColOut, tutti::CutMix, tutti::CutOut, tutti::DiLoCo,
                 tutti::EMA, tutti::Factorize, tutti::GatedLinearUnits, tutti::GhostBatchNorm,
                 tutti::GradientClipping, tutti::GyroDropout, tutti::LabelSmoothing,
                 tutti::LayerFreezing, tutti::LocalSGD, tutti::LoRA, tutti::LowPrecisionGroupNorm,
                 tutti::LowPrecisionLayerNorm, tutti::MixUp, tutti::ProgressiveResizing,
                 tutti::RandAugment, tutti::Recompute, tutti::SAM, tutti::SelectiveBackprop,
                 tutti::SeqLengthWarmup, tutti::SkipSpikes, tutti::SpectralNorm,
                 tutti::SqueezeExcite, tutti::StochasticDepth, tutti::SWA, tutti::SyncBatchNorm,
                 tutti::Unfreeze, tutti::WeightNorm, tutti::WeightStandardization>;

void write_list(std::ostream& out, std::string_view who, const char* list,
                std::initializer_list<tutti::Rule> rules) {
  for (const tutti::Rule& rule : rules) {
    out << "| " << who << " | `" << list << "` | " << rule.id.name() << " | " << rule.reason
        << " |\n";
  }
}

void write_pins(std::ostream& out, std::string_view who, const char* list,
                std::initializer_list<tutti::EventId> events) {
  for (const tutti::EventId event : events) {
    out << "| " << who << " | `" << list << "` | `" << to_string(event) << "` | |\n";
  }
}

void write_rules(std::ostream& out, std::string_view who, const tutti::Rules& rules) {
  write_list(out, who, "conflicts_with", rules.conflicts_with);
  write_list(out, who, "requires_policy", rules.requires_policy);
  write_list(out, who, "runs_before", rules.runs_before);
  write_list(out, who, "runs_after", rules.runs_after);
  write_pins(out, who, "runs_first", rules.runs_first);
  write_pins(out, who, "runs_last", rules.runs_last);
  write_list(out, who, "warns_with", rules.warns_with);
  write_list(out, who, "checked_with", rules.checked_with);
  write_list(out, who, "works_with", rules.works_with);
}

template <class... Ps>
void write_tags(std::ostream& out, tutti::types<Ps...>) {
  std::map<std::string, std::string> who;
  const auto add = [&](std::string_view policy, const tutti::Rules& rules) {
    for (const tutti::Id& tag : rules.tags) {
      std::string& names = who[std::string(tag.name())];
      if (!names.ends_with(policy)) {  // the tag for another kind of layer
        names += (names.empty() ? "" : ", ") + std::string(policy);
      }
    }
  };
  (add(tutti::name_of<Ps>(), tutti::policy_traits<Ps>::rules), ...);
  out << "| tag | who has it |\n|---|---|\n";
  for (const auto& [tag, names] : who) {
    out << "| " << tag << " | " << names << " |\n";
  }
}

template <class... Ps>
std::string tables(tutti::types<Ps...> list) {
  std::ostringstream out;
  out << "| algorithm | list | about | because |\n|---|---|---|---|\n";
  (write_rules(out, tutti::name_of<Ps>(), tutti::policy_traits<Ps>::rules), ...);
  out << "\n";
  write_tags(out, list);
  return out.str();
}

template <class... Ps>
constexpr std::size_t names(tutti::types<Ps...>) {
  return sizeof...(Ps);
}

const std::string page = TUTTI_SOURCE_DIR "/docs/recipes.md";

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("docs/recipes.md has the rules that the code has", "[recipes]") {
  const std::string text = read(page);
  const std::string begin = "<!-- rules -->\n";
  const std::size_t from = text.find(begin);
  const std::size_t to = text.find("<!-- end of rules -->");
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  const std::size_t at = from + begin.size();
  const std::string written = tables(algorithms{});
  if (std::getenv("TUTTI_WRITE_DOCS") != nullptr) {
    std::ofstream(page) << text.substr(0, at) << written << text.substr(to);
    return;
  }
  CHECK(text.substr(at, to - at) == written);
}

TEST_CASE("every algorithm's rules are in the page", "[recipes]") {
  std::size_t headers = 0;
  const std::string folder = TUTTI_SOURCE_DIR "/include/tutti/algorithms";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    headers += name.ends_with(".hpp") && !name.ends_with(".inl.hpp") ? 1U : 0U;
  }
  CHECK(names(algorithms{}) == headers);
}

TEST_CASE("all that may stand together is one recipe, sorted and described", "[recipes]") {
  using R = tutti::Recipe<tutti::EMA, tutti::LabelSmoothing, tutti::CutMix, tutti::MixUp,
                          tutti::GradientClipping, tutti::BlurPool>;
  STATIC_REQUIRE(R::valid);
  STATIC_REQUIRE(std::is_same_v<R::order<tutti::BeforeLoss>,
                                tutti::types<tutti::MixUp, tutti::CutMix, tutti::LabelSmoothing>>);
  STATIC_REQUIRE(std::is_same_v<R::order<tutti::Init>, tutti::types<tutti::BlurPool, tutti::EMA>>);
}

TEST_CASE("surgeries have one order, however they are listed", "[recipes]") {
  using namespace tutti;
  // SqueezeExcite has no rule about the two of transformers.
  using Backwards =
      Recipe<EMA, ChannelsLast, LowPrecisionLayerNorm, WeightStandardization, StochasticDepth,
             GhostBatchNorm, BlurPool, Factorize, SqueezeExcite, GatedLinearUnits, ALiBi>;
  STATIC_REQUIRE(
      std::is_same_v<
          Backwards::order<Init>,
          types<SqueezeExcite, ALiBi, GatedLinearUnits, Factorize, BlurPool, GhostBatchNorm,
                StochasticDepth, WeightStandardization, LowPrecisionLayerNorm, ChannelsLast, EMA>>);
  using Shuffled =
      Recipe<BlurPool, EMA, ALiBi, WeightStandardization, ChannelsLast, Factorize, SqueezeExcite,
             LowPrecisionLayerNorm, GatedLinearUnits, StochasticDepth, GhostBatchNorm>;
  STATIC_REQUIRE(
      std::is_same_v<
          Shuffled::order<Init>,
          types<ALiBi, SqueezeExcite, GatedLinearUnits, Factorize, BlurPool, GhostBatchNorm,
                StochasticDepth, WeightStandardization, LowPrecisionLayerNorm, ChannelsLast, EMA>>);
}

TEST_CASE("batches are selected, cut and resized in one order, however listed", "[recipes]") {
  using namespace tutti;
  STATIC_REQUIRE(
      std::is_same_v<
          Recipe<CutOut, ProgressiveResizing, ColOut, SelectiveBackprop>::order<AfterDataloader>,
          types<SelectiveBackprop, ColOut, ProgressiveResizing, CutOut>>);
  STATIC_REQUIRE(std::is_same_v<Recipe<SeqLengthWarmup, ALiBi>::order<AfterDataloader>,
                                types<ALiBi, SeqLengthWarmup>>);
}

// Which algorithms stand beside CUDA graphs, and where their hooks between the forward and the end
// of the backward pass run; the others have none there.
namespace {

template <class P>
using GraphsWith = tutti::GraphPlan<tutti::Recipe<P>>;

template <class... Ps>
std::string without_graphs(tutti::types<Ps...>) {
  std::string text;
  ((text += GraphsWith<Ps>::possible ? "" : GraphsWith<Ps>::why_not() + "\n"), ...);
  return text;
}

template <class... Ps>
std::string beside_graphs(tutti::types<Ps...>) {
  std::string text;
  const auto one = [&]<class P, class E>(std::type_identity<P>, E) {
    using Plan = GraphsWith<P>;
    text += Plan::template inside<E>::size > 0    ? std::string(tutti::name_of<P>()) + " in\n"
            : Plan::template ahead<E>::size > 0   ? std::string(tutti::name_of<P>()) + " ahead\n"
            : Plan::template behind<E>::size > 0  ? std::string(tutti::name_of<P>()) + " behind\n"
            : Plan::template instead<E>::size > 0 ? std::string(tutti::name_of<P>()) + " instead\n"
                                                  : "";
  };
  const auto all = [&]<class P, class... Es>(std::type_identity<P> p, tutti::types<Es...>) {
    (one(p, Es{}), ...);
  };
  (all(std::type_identity<Ps>{}, tutti::detail::graph_events{}), ...);
  return text;
}

template <class T>
constexpr bool is_lazy = false;
template <class T>
constexpr bool is_lazy<tutti::Lazy<T>> = true;

// Options of policies that hold what only a run makes.
template <class... Ps>
std::string lazy_options(tutti::types<Ps...>) {
  std::string text;
  const auto one = [&]<class P>(const P& policy) {
    tutti::detail::for_each_option(policy, [&]<class T>(std::string_view option, const T&) {
      text += is_lazy<T> ? std::string(tutti::name_of<P>()).append(" ").append(option) + "\n" : "";
    });
  };
  (one(Ps{}), ...);
  return text;
}

}  // namespace

TEST_CASE("what a policy holds while it runs stands in its run", "[recipes]") {
  using tutti::detail::HoldsRun;
  using callbacks =
      tutti::types<tutti::ActivationMonitor, tutti::EarlyStopper, tutti::EvalOutputLogging,
                   tutti::Generate, tutti::ImageVisualizer, tutti::MemorySnapshot,
                   tutti::OOMObserver, tutti::ReduceLROnPlateau, tutti::RuntimeEstimator,
                   tutti::SpeedMonitor, tutti::SystemMetricsMonitor, tutti::ThresholdStopper>;
  CHECK(lazy_options(algorithms{}).empty());
  CHECK(lazy_options(callbacks{}).empty());
  STATIC_REQUIRE(
      []<class... Ps>(tutti::types<Ps...>) { return (HoldsRun<Ps> && ...); }(callbacks{}));
}

TEST_CASE("every algorithm says whether steps with it can be graphs", "[recipes][graphs]") {
  CHECK(algorithms::size == 37);
  CHECK(without_graphs(algorithms{}) ==
        "ALiBi makes its biases anew when the length changes, and a graph would read the old ones\n"
        "GyroDropout picks its masks on the host while the model runs\n"
        "Recompute puts the generators back on the host, while the model runs\n"
        "SAM trains in two passes, with the weights in other memory in each\n"
        "StochasticDepth draws on the host, while the model runs, what it skips\n");
  CHECK(beside_graphs(algorithms{}) ==
        "CutMix ahead\nCutMix instead\nLabelSmoothing ahead\nLabelSmoothing behind\n"
        "MixUp ahead\nMixUp instead\n");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
