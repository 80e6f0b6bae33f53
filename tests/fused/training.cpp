#include <tutti/fused/normalize.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/fused/half_inputs.hpp>
#include <tutti/metrics/loss_metric.hpp>

#include "dist/ranks.hpp"
#include "fused/runs.hpp"
#include "support/out_of_memory.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace fused_runs;
using Catch::Matchers::ContainsSubstring;
using tutti::AfterForward;
using tutti::Batch;
using tutti::ChannelsLast;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::MixUp;
using tutti::Outputs;
using tutti::SelectiveBackprop;
using tutti::State;
using tutti::Switch;
using tutti::Trainer;
using tutti::fused::HalfInputs;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

// Memory for so many examples.
struct Room final {
  std::int64_t examples = 1000;
  void apply(AfterForward, const State& state) const {
    if (state.batch.num_samples() > examples) {
      tutti_test::out_of_memory();
    }
  }
};

struct Choice {
  bool fuse = true;
  bool selects = false;
  bool colout = true;
  std::int64_t room = 1000;
};

// The recipe of this file's runs. Model: a network, or a task around one.
template <class Model>
auto trainer_of(Model model, TrainerOptions with, const Choice& choice) {
  return std::make_unique<
      Trainer<Normalize, Switch<SelectiveBackprop>, Switch<ColOut>, CutOut, Room, MixUp,
              tutti::accept<CutMix, CutOut>, CutMix, InMemoryLogger>>(
      std::move(model), std::move(with), normalize(choice.fuse),
      Switch(SelectiveBackprop{.start = 0, .end = 1, .keep = 0.6, .interrupt = 2}, choice.selects),
      Switch(ColOut{}, choice.colout), CutOut{.per_image = true}, Room{.examples = choice.room},
      MixUp{.alpha = 1}, tutti::accept<CutMix, CutOut>{}, CutMix{}, InMemoryLogger{});
}

// A classifier whose loss is nobody's business, so that targets have to be dense.
struct Task {
  std::shared_ptr<Net> net;
  [[nodiscard]] Outputs forward(const Batch& batch) const { return net->forward(batch.inputs()); }
  [[nodiscard]] tutti::Loss loss(const Outputs& outputs, const Batch& batch) const {
    return plain_loss(outputs.tensor(), batch.targets());
  }
  [[nodiscard]] at::Tensor sample_losses(const Outputs& outputs, const Batch& batch) const {
    return tutti::functional::soft_cross_entropy(outputs.tensor(), batch.targets(), {}, -100,
                                                 tutti::Reduction::none);
  }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> module() const { return net; }
};

// The same, and its metric looks at the inputs.
struct Curious : Task {
  std::shared_ptr<std::vector<at::Tensor>> measured = std::make_shared<std::vector<at::Tensor>>();
  [[nodiscard]] tutti::Metrics metrics(bool) const {
    return {std::make_shared<tutti::LossMetric>(plain_loss, "CE")};
  }
  void update_metric(const Batch& batch, const Outputs& outputs, tutti::Metric& metric) const {
    measured->push_back(batch.inputs());
    metric.update(outputs.tensor(), batch.targets());
  }
};

template <class T = Task>
T task() {
  at::manual_seed(1);
  T out;
  out.net = std::make_shared<Net>();
  return out;
}

Outcome run(const TrainerOptions& with, const Choice& choice) {
  const Task model = task();
  trainer_of(model, with, choice)->fit();
  Outcome out;
  out.inputs = model.net->seen;
  out.weights = tiny::flat(*model.net);
  return out;
}

void check_both(const TrainerOptions& with, Choice choice) {
  choice.fuse = true;
  const Outcome fused = run(with, choice);
  choice.fuse = false;
  check_same(fused, run(with, choice));
}

TrainerOptions in_parts(tutti::CountOrAuto size) {
  TrainerOptions out = options(true);
  out.device_train_microbatch_size = size;
  return out;
}

}  // namespace

TEST_CASE("a fused recipe trains alike in microbatches of any size", "[fused][law]") {
  for (const std::int64_t size : {0, 1, 2, 4, 7}) {
    INFO("microbatches of " << size);
    const Warnings quiet;
    check_both(in_parts(size), {});
  }
  TrainerOptions accumulating = in_parts(0);
  accumulating.grad_accum = 3;
  check_both(accumulating, {});
}

TEST_CASE("a fused recipe that runs out of memory begins again with the same draws",
          "[fused][law]") {
  const Warnings quiet;
  const Outcome automatic = run(in_parts("auto"), {.room = 2});
  const Outcome fixed = run(in_parts(2), {});
  CHECK(same_bits(automatic.weights, fixed.weights));
}

TEST_CASE("a fused recipe trains alike beside policies that choose examples", "[fused][law]") {
  check_both(options(true), {.selects = true});
  check_both(options(true), {.selects = true, .colout = false});
}

TEST_CASE("a fused recipe trains alike in low precision", "[fused][law]") {
  TrainerOptions low = options(true);
  low.precision = tutti::Precision::amp_bf16;
  check_both(low, {});
}

TEST_CASE("what a DataSpec does with batches finds them as without fusing", "[fused][law]") {
  const auto with = [](tutti::DataHooks hooks) {
    TrainerOptions out = options(true);
    out.train = {images(true), std::move(hooks)};
    return out;
  };
  check_both(with({.split_batch =
                       [](const Batch& batch, std::int64_t) {
                         const at::Tensor order = at::arange(batch.num_samples() - 1, -1, -1);
                         return Batch(batch.inputs().index_select(0, order),
                                      batch.targets().index_select(0, order))
                             .split(2);
                       }}),
             {});
  check_both(with({.microbatch_transform =
                       [](Batch batch) {
                         CHECK(batch.inputs().is_floating_point());
                         batch.inputs() = batch.inputs().mul(1.5);
                         return batch;
                       }}),
             {});
  check_both(with({.batch_transform =
                       [](Batch batch) {
                         CHECK(batch.inputs().scalar_type() == at::kByte);
                         batch.inputs() = batch.inputs().bitwise_xor(1);
                         return batch;
                       }}),
             {});
  check_both(with({.batch_transform =
                       [](Batch batch) {
                         batch.inputs() = batch.inputs().contiguous(at::MemoryFormat::ChannelsLast);
                         return batch;
                       }}),
             {});
}

TEST_CASE("a model's own metric sees the images as without fusing", "[fused][law]") {
  const auto measured = [](bool fuse) {
    const Curious model = task<Curious>();
    trainer_of(model, options(true), {.fuse = fuse})->fit();
    return *model.measured;
  };
  const auto got = measured(true);
  const auto want = measured(false);
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(same_bits(got[i], want[i]));
  }
}

TEST_CASE("a fused recipe resumes inside an epoch bit for bit", "[fused][resume]") {
  const TemporaryFolder folder;
  TrainerOptions saving = options(true);
  saving.save_folder = (folder.path() / "run").string();
  saving.save_interval = "1ba";
  const Outcome whole = run(saving, {});
  TrainerOptions resuming = options(true);
  resuming.load_path = (folder.path() / "run" / "ep1-ba3").string();
  const Outcome resumed = run(resuming, {});
  CHECK(same_bits(resumed.weights, whole.weights));
  const Outcome separate = run(resuming, {.fuse = false});  // from what a fused run has saved
  check_same(resumed, separate);
}

TEST_CASE("bytes are normalised in evaluation and prediction, too", "[fused]") {
  const Task model = task();
  auto trainer = trainer_of(model, options(true), {});
  trainer->eval();
  const at::Tensor floats = *[&] {
    auto loader = images(false, 4, 4);
    loader.follow_seed(trainer->state().rank_zero_seed);
    loader.start(0);
    return std::make_unique<at::Tensor>(loader.next()->inputs());
  }();
  REQUIRE(model.net->seen.size() == 1);
  CHECK(same_bits(model.net->seen[0], floats));
  trainer->predict(images(true, 4, 4));
  REQUIRE(model.net->seen.size() == 2);
  CHECK(same_bits(model.net->seen[1], floats));
  CHECK_THROWS_WITH(trainer->predict(images(false, 4, 4)),
                    ContainsSubstring("Normalize: the inputs from \"predict\" are Float") &&
                        ContainsSubstring("expected bytes, uint8 [N, C, H, W]; let the loader "
                                          "deliver images as they are"));
}

TEST_CASE("a pass stores images as the recipe wants them", "[fused][law]") {
  const auto trained = [](bool fuse, tutti::Precision precision, bool last) {
    const Task model = task();
    TrainerOptions with = options(true);
    with.precision = precision;
    Trainer trainer(model, with, Switch(ChannelsLast{}, last), HalfInputs{}, normalize(fuse),
                    MixUp{.alpha = 1}, tutti::Trace{});
    trainer.fit();
    Outcome out;
    out.inputs = model.net->seen;
    out.weights = tiny::flat(*model.net);
    out.trace = trainer.template get<tutti::Trace>().lines;
    return out;
  };
  for (const auto precision : {tutti::Precision::fp32, tutti::Precision::amp_bf16}) {
    const bool low = precision == tutti::Precision::amp_bf16;
    for (const bool last : {false, true}) {
      const Outcome fused = trained(true, precision, last);
      const Outcome separate = trained(false, precision, last);
      const at::Tensor& first = fused.inputs[0];
      CHECK(first.scalar_type() == (low ? at::kBFloat16 : at::kFloat));
      CHECK(first.is_contiguous(at::MemoryFormat::ChannelsLast) == last);
      check_same(fused, separate);
      CHECK(fused.trace == separate.trace);
    }
  }
}

TEST_CASE("bytes without a Normalize are an error that says what to do", "[fused]") {
  const auto fit = [](auto... policies) {
    Trainer trainer(task(), options(true), policies...);
    trainer.fit();
  };
  CHECK_THROWS_WITH(fit(CutOut{}),
                    ContainsSubstring("The inputs are bytes, uint8[3, 3, 16, 20], and most "
                                      "networks take floats: put tutti::fused::Normalize"));
}

TEST_CASE("rank body: a fused recipe", "[.rank]") {
  const auto weights = [](bool fuse) {
    const Task model = task();
    auto trainer = trainer_of(model, options(true), {.fuse = fuse});
    trainer->fit();
    const at::Tensor mine = tiny::flat(*model.net);
    const auto ranks = trainer->state().communicator->all_gather(mine);
    CHECK(ranks.front().equal(ranks.back()));
    return mine;
  };
  const at::Tensor fused = weights(true);
  CHECK(same_bits(fused, weights(false)));
}
TEST_CASE("a fused recipe trains alike on two ranks", "[fused][dist]") {
  CHECK(run_ranks("rank body: a fused recipe") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
