#include <tutti/train/cuda_graphs.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vit.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

#if TUTTI_WITH_CUDA

namespace {

struct Losses final {
  static constexpr Role role = Role::callback;
  std::vector<double> values{};
  void apply(BatchEnd, const State& state) {
    values.push_back(state.total_loss.at("total").item<double>());
  }
};

std::vector<Batch> images(int count) {
  at::manual_seed(3);
  std::vector<Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({8, 3, 16, 16}), at::randint(5, {8}, at::kLong));
  }
  return out;
}

auto classifier(double drop) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)),
                            torch::nn::BatchNorm2d(6), torch::nn::ReLU(),
                            torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
                            torch::nn::Dropout(drop), torch::nn::Linear(6, 5));
  return Classifier(net, {.num_classes = 5});
}

struct Run {
  std::vector<double> losses;
  at::Tensor weights;
  std::int64_t replayed = 0;
};

// What this program's graphs have done, counted by a backend around CUDA's.
std::int64_t replays = 0;
class Counted final : public train::GraphBackend {
 public:
  explicit Counted(at::Device device) : inner_(device) {}
  void run(const std::function<void()>& work) override { inner_.run(work); }
  Recorded record(const std::function<Tensors()>& work) override {
    Recorded made = inner_.record(work);
    return {std::make_unique<Replayed>(std::move(made.graph)), std::move(made.tensors)};
  }

 private:
  class Replayed final : public Graph {
   public:
    explicit Replayed(std::unique_ptr<Graph> inner) : inner_(std::move(inner)) {}
    void replay() override {
      ++replays;
      inner_->replay();
    }

   private:
    std::unique_ptr<Graph> inner_;
  };
  train::CudaGraphBackend inner_;
};

template <class Make, class... Ps>
Run run(bool graphs, TrainerOptions options, const Make& model, std::vector<Batch> train,
        Ps... policies) {
  replays = 0;
  train::graph_support().make = [](at::Device device) -> std::unique_ptr<train::StepGraphs> {
    return std::make_unique<train::Graphs>(std::make_unique<Counted>(device));
  };
  options.train = std::move(train);
  options.max_duration = "2ep";
  options.optimizer = AdamW{.lr = 0.01};
  options.schedule = LinearWithWarmup{.t_warmup = "2ba", .alpha_f = 0.1};
  options.device = "cuda";
  options.cuda_graphs = graphs;
  options.seed = 17;
  options.progress_bar = false;
  at::manual_seed(2);
  Trainer trainer{model(), std::move(options), std::move(policies)..., Losses{}};
  trainer.fit();
  return {trainer.template get<Losses>().values, tiny::flat(*trainer.state().model).cpu(), replays};
}

template <class Make, class... Ps>
void same_of(const TrainerOptions& options, const Make& model, const std::vector<Batch>& train,
             Ps... policies) {
  const Run plain = run(false, options, model, train, policies...);
  const Run graphed = run(true, options, model, train, policies...);
  CHECK(plain.replayed == 0);
  CHECK(graphed.replayed > 0);
  REQUIRE(plain.losses.size() == graphed.losses.size());
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    INFO("batch " << i);
    CHECK(graphed.losses[i] == Approx(plain.losses[i]).epsilon(1e-5));
  }
  CHECK(at::allclose(plain.weights, graphed.weights, 1e-4, 1e-6));
}

template <class... Ps>
void same(const TrainerOptions& options, double drop, Ps... policies) {
  same_of(options, [&] { return classifier(drop); }, images(12), policies...);
}

// Tokens, of which one in four is not to be seen.
std::vector<Batch> sentences(int count) {
  at::manual_seed(4);
  std::vector<Batch> out;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(40, {4, 12}, at::kLong);
    at::Tensor mask = at::ones_like(ids);
    mask.slice(1, 9).zero_();
    out.push_back({{"input_ids", ids}, {"attention_mask", mask}, {"labels", ids}});
  }
  return out;
}

// Else cuDNN's convolutions add up in any order, and AdamW takes whole steps on what is left of 0.
struct Deterministic {
  bool before = at::globalContext().deterministicCuDNN();
  Deterministic() { at::globalContext().setDeterministicCuDNN(true); }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
  ~Deterministic() { at::globalContext().setDeterministicCuDNN(before); }
};

bool no_device() {
  if (torch::cuda::is_available()) {
    return false;
  }
  tutti_test::skip("there is no CUDA device");
  return true;
}

}  // namespace

TEST_CASE("the program that includes it has CUDA's graphs", "[train][graphs]") {
  CHECK(train::graph_support().make != nullptr);
  CHECK(train::graph_support().device == at::kCUDA);
}

// Tolerances: a graph launches the same kernels, but libraries may choose others per stream.
TEST_CASE("a run on a GPU with graphs is the run without", "[train][graphs][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  SECTION("plain") {
    same({}, 0);
  }
  SECTION("dropout draws the same numbers") {
    same({}, 0.3);
  }
  SECTION("microbatches") {
    same({.device_train_microbatch_size = 3}, 0);
  }
  SECTION("bf16") {
    same({.precision = Precision::amp_bf16}, 0);
  }
  SECTION("fp16 with its scaler") {
    same({.precision = Precision::amp_fp16}, 0);
  }
  SECTION("mixing, smoothing, clipping") {
    same({}, 0, MixUp{}, LabelSmoothing{},
         GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.1});
  }
  SECTION("growing images") {
    same({}, 0, ProgressiveResizing{.whole_units = true});
  }
}

TEST_CASE("the library's models train on a GPU with graphs as without",
          "[train][graphs][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  SECTION("ResNet") {
    const Deterministic convolutions;
    same_of(
        {}, [] { return Classifier(models::resnet18({.num_classes = 5}), {.num_classes = 5}); },
        images(6));
  }
  SECTION("ViT") {
    same_of(
        {},
        [] {
          return Classifier(
              models::VisionTransformer(models::VisionTransformerOptions{.image_size = 16,
                                                                         .patch_size = 4,
                                                                         .num_layers = 2,
                                                                         .num_heads = 2,
                                                                         .hidden_dim = 16,
                                                                         .mlp_dim = 32,
                                                                         .num_classes = 5}),
              {.num_classes = 5});
        },
        images(6));
  }
  SECTION("GPT-2") {
    same_of(
        {},
        [] {
          return std::make_shared<models::GPT2LMHeadModelImpl>(models::GPT2Options{
              .vocab_size = 40, .n_positions = 12, .n_embd = 16, .n_layer = 2, .n_head = 2});
        },
        sentences(6));
  }
  SECTION("BERT") {
    same_of(
        {},
        [] {
          return std::make_shared<models::BertForMaskedLMImpl>(
              models::BertOptions{.vocab_size = 40,
                                  .hidden_size = 16,
                                  .num_hidden_layers = 2,
                                  .num_attention_heads = 2,
                                  .intermediate_size = 32,
                                  .max_position_embeddings = 12});
        },
        sentences(6));
  }
}

TEST_CASE("a model that waits for the device cannot be recorded", "[train][graphs][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  struct Waits : tiny::Net {
    Outputs forward(const Batch& batch) {
      return tiny::Net::forward(batch).tensor().mul(in->weight.sum().item<double>());
    }
  };
  at::manual_seed(1);
  Trainer trainer{std::make_shared<Waits>(),
                  {.train = tiny::batches(6),
                   .max_duration = "1ep",
                   .optimizer = AdamW{},
                   .device = "cuda",
                   .cuda_graphs = true,
                   .progress_bar = false},
                  Losses{}};
  CHECK_THROWS_WITH(trainer.fit(), Catch::Matchers::ContainsSubstring("set cuda_graphs to false"));

  // The program goes on, and draws and takes memory as before.
  const Run plain = run(false, {}, [] { return classifier(0.3); }, images(12));
  CHECK(plain.losses.size() == 24);
  same({}, 0.3);
}

#else

TEST_CASE("without CUDA the program has no graphs", "[train][graphs]") {
  CHECK(train::graph_support().make == nullptr);
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
