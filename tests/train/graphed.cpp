#include <tutti/train/graphed.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/callbacks/free_outputs.hpp>
#include <tutti/callbacks/nan_monitor.hpp>
#include <tutti/core/trace.hpp>
#include <tutti/metrics/accuracy.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/fake_graphs.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Runs with graphs, which a stand-in replays on the CPU: the same run, bit for bit.

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// Remembers the losses.
struct Losses final {
  static constexpr Role role = Role::callback;
  std::vector<double> values{};
  void apply(BatchEnd, const State& state) {
    values.push_back(state.total_loss.at("total").item<double>());
  }
};

struct Run {
  std::vector<double> losses;
  at::Tensor weights;
  std::vector<std::string> trace;
};

// One run; with graphs also what the stand-in did, in fake::log().
template <class M, class... Ps>
Run run(bool graphs, const M& make, TrainerOptions options, Ps... policies) {
  const fake::OnCpu on_cpu;
  options.cuda_graphs = graphs;
  options.device = "cpu";
  options.seed = 17;
  options.progress_bar = false;
  if (!options.optimizer) {
    options.optimizer = AdamW{.lr = 0.01};
  }
  auto model = make();
  Trainer trainer{model, std::move(options), std::move(policies)..., Losses{}, Trace{}};
  trainer.fit();
  return {trainer.template get<Losses>().values, tiny::flat(*trainer.state().model),
          trainer.template get<Trace>().lines};
}

template <class M, class... Ps>
fake::Log same(const M& make, const TrainerOptions& options, Ps... policies) {
  const Run plain = run(false, make, options, policies...);
  CHECK(fake::log().runs == 0);
  const Run graphed = run(true, make, options, policies...);
  CHECK(plain.losses == graphed.losses);
  CHECK(at::equal(plain.weights, graphed.weights));
  const auto passes = static_cast<int>(plain.losses.size());
  CHECK(fake::log().runs + fake::log().replays >= passes);
  return fake::log();
}

std::shared_ptr<tiny::Net> dropping() {
  return tiny::net(1, /*drop=*/0.3);
}

// Images [N, 3, 16, 16] of 5 classes, and a network for them.
std::vector<Batch> images(int count, std::int64_t size = 6) {
  at::manual_seed(3);
  std::vector<Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({size, 3, 16, 16}), at::randint(5, {size}, at::kLong));
  }
  return out;
}
auto classifier() {
  at::manual_seed(2);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)),
                            torch::nn::BatchNorm2d(6), torch::nn::ReLU(),
                            torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
                            torch::nn::Dropout(0.2), torch::nn::Linear(6, 5));
  return Classifier(net, {.num_classes = 5});
}

// A language model of one table: the next token from the present one.
struct Bigrams : torch::nn::Module {
  using model_features = types<takes_tokens>;
  Bigrams() {
    table = register_module("table", torch::nn::Embedding(11, 4));
    out = register_module("out", torch::nn::Linear(4, 11));
  }
  Outputs forward(const Batch& batch) {
    return out->forward(table->forward(batch.at("input_ids")));
  }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return torch::nn::functional::cross_entropy(outputs.tensor().flatten(0, 1),
                                                batch.at("labels").flatten());
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear out{nullptr};
};
auto bigrams() {
  at::manual_seed(4);
  return std::make_shared<Bigrams>();
}
std::vector<Batch> sentences(int count) {
  at::manual_seed(5);
  std::vector<Batch> out;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(11, {4, 16}, at::kLong);
    out.push_back(Batch{{"input_ids", ids}, {"labels", ids.roll(-1, 1)}});
  }
  return out;
}

// A penalty on the outputs, which is recorded.
struct Penalty final {
  static constexpr std::string_view name = "Penalty";
  static constexpr Rules rules{.graph = {.in = {id<AfterLoss>}}};
  void apply(AfterLoss, State& state) const {
    state.loss = state.loss.add(state.outputs.tensor().square().mean(), 0.1);
  }
};

struct Unknown final {
  static constexpr std::string_view name = "Unknown";
  void apply(AfterLoss, State&) const {}
};

}  // namespace

TEST_CASE("a run with graphs is the run without", "[train][graphs]") {
  const fake::Log log =
      same(dropping, {.train = tiny::batches(5),
                      .max_duration = "3ep",
                      .schedule = LinearWithWarmup{.t_warmup = "2ba", .alpha_f = 0.1}});
  CHECK(log.runs == 3);
  CHECK(log.records == 1);
  CHECK(log.replays == 12);
}

TEST_CASE("microbatches of two sizes have their graphs", "[train][graphs]") {
  const fake::Log log =
      same(dropping,
           {.train = tiny::batches(6), .max_duration = "3ep", .device_train_microbatch_size = 4});
  CHECK(log.records == 2);
  CHECK(log.replays == 15 + 12);
}

TEST_CASE("mixing is drawn ahead of the graph and smoothing done there", "[train][graphs]") {
  const TrainerOptions options{.train = images(5), .max_duration = "3ep"};
  SECTION("MixUp") {
    const fake::Log log =
        same(classifier, options, MixUp{}, LabelSmoothing{}, EMA{},
             GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.1},
             NaNMonitor{});
    CHECK(log.records == 1);
    CHECK(log.replays == 12);
  }
  SECTION("CutMix") {
    CHECK(same(classifier, options, CutMix{}, MixUp{}).replays == 12);
  }
  SECTION("smoothing alone") {
    CHECK(same(classifier, options, LabelSmoothing{}).replays == 12);
  }
}

TEST_CASE("a loss that is interpolated is computed without a graph", "[train][graphs]") {
  const fake::Log log = same(classifier, {.train = images(5), .max_duration = "2ep"},
                             MixUp{.interpolate_loss = true});
  CHECK(log.replays == 0);
  CHECK(log.runs == 10);
}

TEST_CASE("growing images are recorded at every size", "[train][graphs]") {
  const fake::Log log =
      same(classifier, {.train = images(10), .max_duration = "6ep"},
           ProgressiveResizing{.initial_scale = 0.5, .whole_units = true}, MixUp{});
  CHECK(log.records >= 3);
  CHECK(log.runs == 3 * log.records);
}

TEST_CASE("growing sequences are recorded at every length", "[train][graphs]") {
  const fake::Log log = same(
      bigrams, {.train = sentences(20), .max_duration = "2ep"},
      SeqLengthWarmup{.duration = 0.8, .min_seq_length = 4, .max_seq_length = 16, .step_size = 4});
  CHECK(log.records == 4);
}

TEST_CASE("frozen layers are left out of the graph that is recorded next", "[train][graphs]") {
  const fake::Log log = same(classifier, {.train = images(6), .max_duration = "4ep"},
                             LayerFreezing{.freeze_start = 0.3});
  CHECK(log.records >= 2);
}

TEST_CASE("a hook in the graph is part of what is replayed", "[train][graphs]") {
  CHECK(same(dropping, {.train = tiny::batches(6), .max_duration = "1ep"}, Penalty{}).replays == 3);
}

TEST_CASE("outputs are freed behind the graph", "[train][graphs]") {
  CHECK(same(dropping, {.train = tiny::batches(6), .max_duration = "1ep"}, FreeOutputs{}).replays ==
        3);
}

TEST_CASE("bf16 and automatic microbatches", "[train][graphs]") {
  SECTION("bf16") {
    CHECK(same(classifier,
               {.train = images(6), .max_duration = "1ep", .precision = Precision::amp_bf16},
               LabelSmoothing{})
              .replays == 3);
  }
  SECTION("automatic microbatches") {
    CHECK(same(dropping, {.train = tiny::batches(6),
                          .max_duration = "1ep",
                          .device_train_microbatch_size = "auto"})
              .replays == 3);
  }
}

TEST_CASE("a second fit records anew", "[train][graphs]") {
  const fake::OnCpu on_cpu;
  Trainer trainer{tiny::net(),
                  {.train = tiny::batches(5),
                   .max_duration = "1ep",
                   .optimizer = AdamW{},
                   .device = "cpu",
                   .cuda_graphs = "auto",
                   .progress_bar = false},
                  Losses{}};
  trainer.fit();
  CHECK(fake::log().records == 1);
  trainer.fit({.duration = "1ep"});
  CHECK(fake::log().records == 2);
  CHECK(fake::log().runs == 6);
}

TEST_CASE("what a graph does comes before the events that it covers", "[train][graphs]") {
  const TrainerOptions options{.train = tiny::batches(4), .max_duration = "4ba"};
  const Run plain = run(false, dropping, options, MixUp{}, Penalty{});
  const Run graphed = run(true, dropping, options, MixUp{}, Penalty{});
  const auto last_pass = [](const std::vector<std::string>& lines) {
    const auto from = std::find(lines.rbegin(), lines.rend(), "before_forward").base() - 1;
    std::string text;
    for (auto i = from; *i != "after_train_batch"; ++i) {
      text += *i + " ";
    }
    return text;
  };
  CHECK(last_pass(plain.trace) ==
        "before_forward before_forward>MixUp after_forward before_loss before_loss>MixUp "
        "after_loss after_loss>Penalty before_backward after_backward ");
  CHECK(last_pass(graphed.trace) ==
        "before_forward before_forward>MixUp before_loss>MixUp after_loss>Penalty after_forward "
        "before_loss after_loss before_backward after_backward ");
}

TEST_CASE("graphs that are asked for and cannot be are refused", "[train][graphs]") {
  const TrainerOptions options{.train = tiny::batches(2),
                               .max_duration = "1ep",
                               .optimizer = AdamW{},
                               .device = "cpu",
                               .cuda_graphs = true,
                               .progress_bar = false};
  CHECK_THROWS_WITH((Trainer<Losses>(tiny::net(), options)),
                    ContainsSubstring("cuda_graphs is true, but graphs need a CUDA device, and the "
                                      "run is on cpu; set cuda_graphs to false, or to \"auto\""));
  const fake::OnCpu on_cpu;
  CHECK_THROWS_WITH((Trainer<Unknown>(tiny::net(), options)),
                    ContainsSubstring("but Unknown acts on after_loss, between"));
  CHECK_THROWS_WITH((Trainer<SAM>(tiny::net(), options)),
                    ContainsSubstring("but SAM trains in two passes, with the weights in other "
                                      "memory in each; set"));
  State two;
  two.world_size = 2;
  CHECK_THROWS_WITH(train::make_graphs(true, "", two),
                    ContainsSubstring("but gradients are averaged over 2 processes while they are "
                                      "computed, which is not recorded; set"));
  CHECK(train::make_graphs("auto", "", two) == nullptr);
  CHECK(train::make_graphs(true, "", State()) != nullptr);
  train::graph_support().make = nullptr;
  CHECK_THROWS_WITH((Trainer<Losses>(tiny::net(), options)),
                    ContainsSubstring("add #include <tutti/train/cuda_graphs.hpp>"));
}

TEST_CASE("graphs where they can be are none where they cannot", "[train][graphs]") {
  TrainerOptions options{.train = tiny::batches(5),
                         .max_duration = "1ep",
                         .optimizer = AdamW{},
                         .device = "cpu",
                         .cuda_graphs = "auto",
                         .progress_bar = false};
  Trainer<Losses>(tiny::net(), options).fit();
  const fake::OnCpu on_cpu;
  Trainer<Unknown>(tiny::net(), options).fit();
  CHECK(fake::log().runs == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
