#include <tutti/fused/engine.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/callbacks/lr_monitor.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/explain.hpp>

#include "fused/runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace fused_runs;
using Catch::Matchers::ContainsSubstring;
using tutti::AfterDataloader;
using tutti::AfterLoss;
using tutti::AfterTrainBatch;
using tutti::BatchEnd;
using tutti::BatchStart;
using tutti::BeforeForward;
using tutti::BeforeTrainBatch;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::LabelSmoothing;
using tutti::MixUp;
using tutti::SAM;
using tutti::State;
using tutti::Switch;
using tutti::Trainer;
using tutti::fused::RandomCrop;
using tutti::fused::RandomErasing;
using tutti::fused::RandomFlip;

namespace {

using Accepted = tutti::accept<CutMix, CutOut>;
using Images = std::shared_ptr<std::vector<at::Tensor>>;

// Keeps the inputs that it finds at one event, every second batch, and may change them.
template <class S>
struct Onlooker final {
  std::string_view at;
  bool changes = false;
  Images found = std::make_shared<std::vector<at::Tensor>>();

  static constexpr std::string_view name = "Onlooker";
  using events = tutti::types<AfterDataloader, BatchStart, BeforeTrainBatch, BeforeForward,
                              AfterTrainBatch, BatchEnd>;

  template <class E>
  void look(E, S& state) {
    if (at != E::name) {
      return;
    }
    found->push_back(state.batch.inputs().clone());
    if constexpr (!std::is_const_v<S>) {
      if (changes) {
        state.batch.inputs() = state.batch.inputs().mul(2).add(0.5);
      }
    }
  }
  template <class E>
  bool due(E, const State& state) const {
    return at == E::name && state.timestamp.batch % 2 == 0;
  }
  void apply(AfterDataloader e, S& state) { look(e, state); }
  void apply(BatchStart e, S& state) { look(e, state); }
  void apply(BeforeTrainBatch e, S& state) { look(e, state); }
  void apply(BeforeForward e, S& state) { look(e, state); }
  void apply(AfterTrainBatch e, S& state) { look(e, state); }
  void apply(BatchEnd e, S& state) { look(e, state); }
  bool match(AfterDataloader e, const State& state) const { return due(e, state); }
  bool match(BatchStart e, const State& state) const { return due(e, state); }
  bool match(BeforeTrainBatch e, const State& state) const { return due(e, state); }
  bool match(BeforeForward e, const State& state) const { return due(e, state); }
  bool match(AfterTrainBatch e, const State& state) const { return due(e, state); }
  bool match(BatchEnd e, const State& state) const { return due(e, state); }
};

// Looks at what the policies do not look at, and says that it does not.
struct Peek final {
  static constexpr tutti::About about{.reads_batch = false};
  std::vector<at::ScalarType> before_train_batch{};
  std::vector<std::int64_t> target_dims{};  // that the loss was computed with
  void apply(BeforeTrainBatch, const State& state) {
    before_train_batch.push_back(state.batch.inputs().scalar_type());
  }
  void apply(AfterLoss, const State& state) { target_dims.push_back(state.batch.targets().dim()); }
};

struct Seen {
  Outcome run;
  std::vector<at::Tensor> found;
};

template <class S>
Seen watched(bool fuse, std::string_view at, bool changes, bool sam) {
  const Onlooker<S> who{.at = at, .changes = changes};
  Outcome run = train(options(true), true, normalize(fuse), Switch(SAM{.rho = 0.1}, sam),
                      RandomCrop{.padding = 2}, ColOut{}, RandomErasing{}, who,
                      CutOut{.per_image = true}, MixUp{.alpha = 1}, Accepted{}, CutMix{});
  return {std::move(run), *who.found};
}

template <class S>
void check_onlooker(std::string_view at, bool changes, bool sam) {
  INFO("at " << at << ", changes " << changes << ", sam " << sam);
  const Seen want = watched<S>(false, at, changes, sam);
  const Seen got = watched<S>(true, at, changes, sam);
  REQUIRE(!want.found.empty());
  check_same(got.run, want.run);
  CHECK(got.run.trace == want.run.trace);
  REQUIRE(got.found.size() == want.found.size());
  for (std::size_t i = 0; i < got.found.size(); ++i) {
    CHECK(same_bits(got.found[i], want.found[i]));
  }
}

}  // namespace

TEST_CASE("who looks at the batch sees what it would be without fusing", "[fused][engine][law]") {
  for (const char* at : {"after_dataloader", "batch_start", "before_train_batch", "before_forward",
                         "after_train_batch", "batch_end"}) {
    check_onlooker<const State>(at, false, false);
    check_onlooker<const State>(at, false, true);
  }
}

TEST_CASE("who changes the batch changes what it would be without fusing", "[fused][engine][law]") {
  for (const char* at : {"after_dataloader", "batch_start", "before_train_batch", "before_forward",
                         "after_train_batch", "batch_end"}) {
    check_onlooker<State>(at, true, false);
    check_onlooker<State>(at, true, true);
  }
}

TEST_CASE("images wait as bytes for one pass, and targets are not made dense", "[fused][engine]") {
  const auto peek = [](bool fuse, tutti::ClassifierOptions how) {
    Trainer trainer(tutti::Classifier(std::make_shared<Net>(), how), options(true), normalize(fuse),
                    CutOut{}, RandomFlip{}, MixUp{}, LabelSmoothing{}, tutti::LRMonitor{},
                    tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                            .clipping_threshold = 1},
                    Peek{});
    trainer.fit();
    CHECK_THAT(
        tutti::explain(trainer),
        ContainsSubstring("fused, for batches of bytes:\n"
                          "  after_dataloader RandomFlip: x(n, c, i, flipped[n] ? width - 1 "
                          "- j : j)\n"
                          "  after_dataloader Normalize: (float(x(n, c, i, j)) / divisor - "
                          "mean[c]) / std[c]\n"
                          "  after_dataloader CutOut: in_hole(n, i, j) ? 0 : x(n, c, i, j)\n"
                          "  before_forward MixUp: (1 - mixing) * x(n, c, i, j) + mixing * "
                          "x(indices[n], c, i, j)\n"
                          "  loss: cross entropy of pairs of targets, none of them dense\n"));
    return trainer.template get<Peek>();
  };
  const Peek fused = peek(true, {});
  CHECK(fused.before_train_batch == std::vector<at::ScalarType>(6, at::kByte));
  CHECK(fused.target_dims == std::vector<std::int64_t>(12, 1));
  const Peek separate = peek(false, {});
  CHECK(separate.before_train_batch == std::vector<at::ScalarType>(6, at::kFloat));
  const Peek own = peek(true, {.loss = plain_loss});
  CHECK(own.before_train_batch == std::vector<at::ScalarType>(6, at::kByte));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
