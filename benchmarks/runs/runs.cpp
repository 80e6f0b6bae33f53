// Whole runs: the digits network, a ResNet-9 on CIFAR-10 and a character GPT, each trained on one
// thread, for a number of epochs or until the accuracy is what it should be.
//
// Usage: benchmark_runs digits|digits_recipe|cifar|cifar_channels_last|cifar_uncached|gpt EPOCHS
// TARGET SEED FILES...; the files are the IDX pair of the digits, CIFAR-10 records to train on and
// to test with, a text. A TARGET above 0 is an accuracy: the model is evaluated after every epoch,
// and a better one ends the run. With 0 it is evaluated once, after EPOCHS. Prints one line of
// JSON: the CPU seconds of fit(), epochs, examples (tokens for gpt) a second, and what the last
// evaluation found. peers.py does the same in PyTorch and Composer.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/callbacks/threshold_stopper.hpp>
#include <tutti/data/cifar.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

using Files = std::vector<std::string>;

constexpr std::int64_t length = 128;  // of a sequence of characters

struct Data {
  tutti::TensorLoader train;
  tutti::TensorLoader test;
};

Data digits(const Files& files) {
  const at::Tensor images =
      tutti::data::load_idx(files.at(0)).to(at::kFloat).unsqueeze(1).div(8).sub(1);
  const at::Tensor labels = tutti::data::load_idx(files.at(1)).to(at::kLong);
  const at::Tensor is_test = at::arange(images.size(0)).remainder(5).eq(0);
  const auto part = [&](bool train) {
    const at::Tensor rows = (train ? is_test.logical_not() : is_test).nonzero().flatten();
    return tutti::TensorLoader{images.index_select(0, rows),
                               labels.index_select(0, rows),
                               {.batch_size = 64, .shuffle = train}};
  };
  return {part(true), part(false)};
}

Data cifar(const Files& files) {
  const auto part = [&](const std::string& file, bool train) {
    const auto set = tutti::data::load_cifar10_batches({file});
    const at::Tensor images = set.images.to(at::kFloat).div(127.5).sub(1);
    return tutti::TensorLoader{images, set.labels, {.batch_size = 32, .shuffle = train}};
  };
  return {part(files.at(0), true), part(files.at(1), false)};
}

Data text(const Files& files) {
  const bench::Bytes bytes = bench::bytes_of(files.at(0), length);
  const auto part = [&](const at::Tensor& ids, bool train) {
    return tutti::TensorLoader{tutti::Batch{{"input_ids", ids}, {"labels", ids}},
                               {.batch_size = 16, .shuffle = train, .drop_last = train}};
  };
  return {part(bytes.train, true), part(bytes.test, false)};
}

torch::nn::Sequential convolution(std::int64_t in, std::int64_t out, bool pool) {
  torch::nn::Sequential layers(
      tutti::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
      tutti::nn::BatchNorm2d(out), torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  if (pool) {
    layers->push_back(tutti::nn::MaxPool2d(2));
  }
  return layers;
}

struct ResNet9Impl : torch::nn::Module {
  explicit ResNet9Impl(std::int64_t width = 16) {
    const auto block = [this](const char* name, std::int64_t in, std::int64_t out, bool pool) {
      return register_module(name, convolution(in, out, pool));
    };
    stem = block("stem", 3, width, false);
    first = block("first", width, 2 * width, true);
    branch1a = block("branch1a", 2 * width, 2 * width, false);
    branch1b = block("branch1b", 2 * width, 2 * width, false);
    second = block("second", 2 * width, 4 * width, true);
    third = block("third", 4 * width, 8 * width, true);
    branch2a = block("branch2a", 8 * width, 8 * width, false);
    branch2b = block("branch2b", 8 * width, 8 * width, false);
    head = register_module("head", torch::nn::Linear(8 * width, 10));
  }
  at::Tensor forward(at::Tensor x) {
    x = first->forward(stem->forward(x));
    x = x + branch1b->forward(branch1a->forward(x));
    x = third->forward(second->forward(x));
    x = x + branch2b->forward(branch2a->forward(x));
    return head->forward(x.amax({2, 3}));
  }
  torch::nn::Sequential stem, first, branch1a, branch1b, second, third, branch2a, branch2b;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ResNet9);

struct Plan {
  std::string name;
  std::int64_t epochs;  // at most
  double target;        // an accuracy that ends the run; 0: none
  std::uint64_t seed;
};

template <class Model, class Optimizer, class... Policies>
void run(const Plan& plan, Model model, const Data& data, std::int64_t units,
         const Optimizer& optimizer, const char* metric, Policies... policies) {
  using Stopper = tutti::Switch<tutti::ThresholdStopper>;
  const bool stops = plan.target > 0;
  const tutti::ThresholdStopper stopper{
      .monitor = "MulticlassAccuracy", .dataloader_label = "test", .threshold = plan.target};
  tutti::Trainer<Policies..., Stopper> trainer(std::move(model),
                                               {.train = data.train,
                                                .eval = {{"test", data.test}},
                                                .max_duration = plan.epochs,
                                                .eval_interval = stops ? 1 : plan.epochs,
                                                .optimizer = optimizer,
                                                .device = "cpu",
                                                .cache_cpu_memory = plan.name != "cifar_uncached",
                                                .seed = plan.seed,
                                                .progress_bar = false},
                                               std::move(policies)..., Stopper(stopper, stops));
  const std::clock_t began = std::clock();
  trainer.fit();
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  const std::int64_t epochs = trainer.state().timestamp.epoch;
  const auto examples = static_cast<double>(epochs * data.train.size() * data.train.batch_size());
  std::printf(
      "{\"name\": \"%s\", \"seconds\": %.4f, \"epochs\": %ld, \"per_second\": %.2f, "
      "\"found\": %.5f, \"torch\": \"%s\"}\n",
      plan.name.c_str(), seconds, static_cast<long>(epochs),
      examples * static_cast<double>(units) / seconds, trainer.state().metric("test", metric),
      TORCH_VERSION);
}

bool choose(const Plan& plan, const Files& files) {
  const std::string& name = plan.name;
  const tutti::ClassifierOptions classes{.num_classes = 10, .train_metrics = tutti::Metrics{}};
  if (name == "digits" || name == "digits_recipe") {
    const tutti::SGD sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4};
    const tutti::Classifier model{
        tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}}), classes};
    if (name == "digits") {
      run(plan, model, digits(files), 1, sgd, "MulticlassAccuracy");
    } else {
      run(plan, model, digits(files), 1, sgd, "MulticlassAccuracy", tutti::MixUp{.alpha = 1.0},
          tutti::BlurPool{}, tutti::LabelSmoothing{}, tutti::EMA{.half_life = "50ba"});
    }
  } else if (name.starts_with("cifar")) {
    const tutti::SGD sgd{.lr = 0.005, .momentum = 0.9, .weight_decay = 5e-4};
    const tutti::Classifier model{ResNet9(), classes};
    if (name == "cifar_channels_last") {
      run(plan, model, cifar(files), 1, sgd, "MulticlassAccuracy", tutti::ChannelsLast{});
    } else if (name == "cifar" || name == "cifar_uncached") {
      run(plan, model, cifar(files), 1, sgd, "MulticlassAccuracy");
    } else {
      return false;
    }
  } else if (name == "gpt") {
    auto net = std::make_shared<tutti::models::GPT2LMHeadModelImpl>(
        tutti::models::GPT2Options{.vocab_size = 128,
                                   .n_positions = length,
                                   .n_embd = 64,
                                   .n_layer = 2,
                                   .n_head = 4,
                                   .embd_pdrop = 0,
                                   .attn_pdrop = 0,
                                   .resid_pdrop = 0});
    run(plan, net, text(files), length,
        tutti::AdamW{.lr = 3e-3, .betas = {0.9, 0.95}, .weight_decay = 1e-2}, "LanguagePerplexity");
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const Plan plan = argc > 4 ? Plan{argv[1], std::atoll(argv[2]), std::atof(argv[3]),
                                    std::strtoull(argv[4], nullptr, 10)}
                             : Plan{};
  torch::manual_seed(plan.seed);
  if (plan.epochs < 1 || !choose(plan, Files(argv + 5, argv + argc))) {
    std::fprintf(
        stderr,
        "usage: %s digits|digits_recipe|cifar|cifar_channels_last|cifar_uncached|gpt EPOCHS "
        "TARGET SEED FILES...\n",
        argv[0]);
    return 2;
  }
}
