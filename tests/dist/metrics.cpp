// Metrics of all kinds of states in whole runs: over ranks, in microbatches, from a checkpoint.

#include <tutti/trainer.hpp>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/metrics/auroc.hpp>
#include <tutti/metrics/average_precision.hpp>
#include <tutti/metrics/calibration_error.hpp>
#include <tutti/metrics/confusion_matrix.hpp>
#include <tutti/metrics/f1_score.hpp>
#include <tutti/metrics/mean_average_precision.hpp>
#include <tutti/metrics/metric.hpp>
#include <tutti/metrics/pearson.hpp>
#include <tutti/metrics/r2_score.hpp>
#include <tutti/metrics/spearman.hpp>
#include <tutti/models/classifier.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

Metrics all_kinds() {
  const auto right = [](const at::Tensor& x, const at::Tensor& y) { return x.argmax(1).eq(y); };
  return make_metrics(AUROC{{.task = Task::multiclass, .num_classes = 3, .average = Average::none}},
                      F1Score{{.num_classes = 3, .average = Average::macro}},
                      ConfusionMatrix{{.num_classes = 3}},
                      CalibrationError{{.num_classes = 3, .n_bins = 5}}, metric<"Right">(right));
}

// What a run says: its values, and its tables.
struct Said {
  MetricValues train;
  MetricValues eval;
  std::string table;
};

struct Cut {
  std::int64_t batch_size;
  std::int64_t microbatch = 0;
  std::int64_t eval_batch_size = 1;
  std::int64_t eval_microbatch = 0;
};

Said said(const Cut& cut, const std::string& save = "", const std::string& load = "") {
  at::manual_seed(11);
  const at::Tensor x = at::randn({24, 4});
  const at::Tensor y = at::randint(3, {24}, at::kLong);
  const auto part = [](const at::Tensor& of) { return of.slice(0, 0, 11); };
  at::manual_seed(1);
  const Classifier model{
      torch::nn::Linear(4, 3),
      {.num_classes = 3, .train_metrics = all_kinds(), .eval_metrics = all_kinds()}};
  const TensorLoader test{part(x), part(y), {.batch_size = cut.eval_batch_size}};
  TrainerOptions options{
      .train = TensorLoader{x, y, {.batch_size = cut.batch_size}},
      .eval = {{"test", test, {.device_eval_microbatch_size = cut.eval_microbatch}}},
      .max_duration = "1ep",
      .optimizer = SGD{.lr = 0.1},
      .device_train_microbatch_size = cut.microbatch,
      .device = "cpu",
      .seed = 3,
      .progress_bar = false};
  options.save_folder = save;
  options.save_metrics = true;
  options.load_path = load;
  Trainer trainer{model, options, InMemoryLogger{}};
  if (load.empty()) {
    trainer.fit();
  }
  const State& state = trainer.state();
  const auto& tables = trainer.template get<InMemoryLogger>().tables;
  const auto table = tables.find("metrics/test/MulticlassConfusionMatrix");
  return {state.train_metric_values, state.eval_metric_values.at("test"),
          table == tables.end() ? "" : table->second};
}

void check_close(const MetricValues& got, const MetricValues& want) {
  CHECK(got.size() == 6);  // three classes of AUROC, and no number of the matrix
  for (const auto& [name, value] : want) {
    INFO(name);
    CHECK(std::abs(got.at(name) - value) < 1e-6);
  }
}

void check_same(const Said& got, const Said& want) {
  check_close(got.train, want.train);
  check_close(got.eval, want.eval);
  CHECK(got.table == want.table);
  CHECK(want.table.find("target") != std::string::npos);
}

// Its outputs are its inputs: detections or numbers, as if it had found them.
struct Echo : torch::nn::Module {
  explicit Echo(Metrics of) : wanted(std::move(of)) {}
  at::Tensor weight = register_parameter("weight", at::ones(1));
  Metrics wanted;
  Outputs forward(const Batch& batch) const { return batch.inputs().mul(weight); }
  Loss loss(const Outputs&, const Batch&) const { return weight.sum(); }
  Metrics metrics(bool /*train*/) const { return wanted; }
};

MetricValues evaluated(const Metrics& metrics, const at::Tensor& found, const at::Tensor& wanted,
                       std::int64_t batch_size) {
  Trainer<> trainer{std::make_shared<Echo>(metrics),
                    {.eval = {{"test", TensorLoader{found, wanted, {.batch_size = batch_size}}}},
                     .optimizer = SGD{.lr = 0.1},
                     .device = "cpu",
                     .progress_bar = false}};
  trainer.eval();
  return trainer.state().eval_metric_values.at("test");
}

at::Tensor boxes(std::int64_t images, std::int64_t most, std::uint64_t seed) {
  at::manual_seed(seed);
  const at::Tensor corner = at::rand({images, most, 2}).mul(40);
  const at::Tensor label = at::randint(-1, 2, {images, most, 1}, at::kFloat);
  return at::cat({corner, corner.add(at::rand({images, most, 2}).mul(60).add(5)), label}, 2);
}

// Boxes found near those wanted, with random scores.
at::Tensor found_near(const at::Tensor& wanted) {
  const at::Tensor near = wanted.narrow(2, 0, 4).add(at::randn({7, 4, 4}).mul(1.5));
  return at::cat({near, at::rand({7, 4, 1}), wanted.narrow(2, 4, 1)}, 2);
}

// The metrics whose states are all examples, of boxes, of numbers and of scores.
MetricValues concatenated(std::int64_t batch_size) {
  const at::Tensor wanted = boxes(7, 4, 1);
  const at::Tensor found = found_near(wanted);
  const at::Tensor numbers = at::randn({11});
  const at::Tensor guesses = numbers.add(at::randn({11}));
  const at::Tensor scores = at::randn({11, 3});
  const at::Tensor classes = at::randint(3, {11}, at::kLong);
  MetricValues values = evaluated(make_metrics(MeanAveragePrecision{}), found, wanted, batch_size);
  values.merge(evaluated(make_metrics(R2Score{}, PearsonCorrCoef{}, SpearmanCorrCoef{}), guesses,
                         numbers, batch_size));
  values.merge(
      evaluated(make_metrics(AveragePrecision{{.task = Task::multiclass, .num_classes = 3}}),
                scores, classes, batch_size));
  return values;
}

}  // namespace

TEST_CASE("rank body: metrics of all examples", "[.rank]") {
  const MetricValues ranks = concatenated(2);
  const MetricValues one = alone([] { return concatenated(3); });
  CHECK(one.size() == 16);
  CHECK(ranks.size() == one.size());
  for (const auto& [name, value] : one) {
    INFO(name);
    CHECK(std::isfinite(value));
    CHECK(std::abs(ranks.at(name) - value) < 1e-6);
  }
}

TEST_CASE("metrics of boxes, ranks and correlations are those of all ranks' examples",
          "[dist][metrics]") {
  CHECK(run_ranks("rank body: metrics of all examples") == all_passed);
}

TEST_CASE("rank body: metrics", "[.rank]") {
  // 6 examples of the test set on each rank, one of them a repetition: alone in its batch, and not.
  const Said singles = said({.batch_size = 6});
  const Said parts =
      said({.batch_size = 6, .microbatch = 4, .eval_batch_size = 3, .eval_microbatch = 2});
  const Said one = alone([] { return said({.batch_size = 12}); });
  check_same(singles, one);
  check_same(parts, one);
}

TEST_CASE("metrics are those of all ranks' examples, each counted once", "[dist][metrics]") {
  CHECK(run_ranks("rank body: metrics") == all_passed);
}

TEST_CASE("metrics do not depend on microbatches, and their values come back from a checkpoint",
          "[trainer][metrics][resume]") {
  const TemporaryFolder folder;
  const Said whole = said({.batch_size = 12, .eval_batch_size = 11}, folder.path().string());
  check_same(said({.batch_size = 12, .microbatch = 5, .eval_batch_size = 4, .eval_microbatch = 3}),
             whole);
  const Said loaded =
      said({.batch_size = 12, .eval_batch_size = 11}, "", folder.path().string() + "/latest");
  CHECK(loaded.train == whole.train);
  CHECK(loaded.eval == whole.eval);
}

TEST_CASE("a model of boxes hands them over as outputs, and its loader as targets",
          "[trainer][metrics]") {
  const at::Tensor wanted = boxes(7, 4, 1);
  const at::Tensor found = found_near(wanted);
  MeanAveragePrecision metric;
  metric.update(found, wanted);
  const MetricValues values = evaluated(make_metrics(MeanAveragePrecision{}), found, wanted, 3);
  CHECK(values.size() == 12);
  CHECK(values.at("map") == metric.compute());
  CHECK(values.at("map") > 0.05);
  CHECK(values.at("map") < 0.95);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
