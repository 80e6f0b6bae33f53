// SPDX-License-Identifier: Apache-2.0
// Seven algorithms in a training loop of one's own: their functional forms, without a Trainer.
//
// Run it:    algorithms_by_hand; --epochs N for another length than 12
// It prints: the loss and the accuracy on 360 unseen digits after every epoch, with the network's
//            own weights and with their average (97 and 99 % at the end, in seconds)
// The same with a Trainer: digits
// ctest: --epochs 3
#include <cstdio>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>

namespace fn = tutti::functional;

struct Digits {
  at::Tensor images;  // (N, 1, 8, 8) in -1..1
  at::Tensor labels;  // (N)
};

// Every fifth of 1,797 images is a test image.
Digits load(bool train) {
  const std::string folder = TUTTI_EXAMPLES_DATA;
  const at::Tensor images = tutti::data::load_idx(folder + "/digits-images.idx3-ubyte");
  const at::Tensor labels = tutti::data::load_idx(folder + "/digits-labels.idx1-ubyte");
  const at::Tensor is_test = torch::arange(images.size(0)).remainder(5).eq(0);
  const at::Tensor chosen = train ? is_test.logical_not() : is_test;
  return {images.index({chosen}).to(torch::kFloat).unsqueeze(1).div(8).sub(1),
          labels.index({chosen}).to(torch::kLong)};
}

// Layers of LibTorch itself: those in a Sequential can be replaced as they are.
torch::nn::Sequential make_network() {
  const auto conv = [](std::int64_t in, std::int64_t out, std::int64_t stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
  };
  return torch::nn::Sequential(conv(1, 32, 1), torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                               conv(32, 64, 2), torch::nn::BatchNorm2d(64), torch::nn::ReLU(),
                               conv(64, 64, 1), torch::nn::BatchNorm2d(64), torch::nn::ReLU(),
                               torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
                               torch::nn::Linear(64, 10));
}

double accuracy(torch::nn::Sequential& network, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  network->eval();
  const at::Tensor right = network->forward(digits.images).argmax(1).eq(digits.labels);
  network->train();
  return 100 * right.to(torch::kFloat).mean().item<double>();
}

int main(int argc, char** argv) try {
  int epochs = 12;
  tutti::cli::Program program{"algorithms_by_hand", "Functional forms in a loop of one's own."};
  program.add("--epochs", epochs, "how many").parse(argc, argv);
  torch::manual_seed(17);
  tutti::Rng rng(17);
  const Digits train = load(true);
  const Digits test = load(false);
  torch::nn::Sequential network = make_network();
  fn::apply_blurpool(*network);  // before the optimizer is made, or with it as an argument
  const auto sgd = std::make_shared<torch::optim::SGD>(
      network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4));
  fn::SAMOptimizer sam(sgd, /*rho=*/0.05);
  fn::EMAParameters average(*network);

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double sum = 0;
    const auto batches = torch::randperm(train.images.size(0)).split(64);
    for (const at::Tensor& rows : batches) {
      const at::Tensor labels = train.labels.index_select(0, rows);
      at::Tensor images = train.images.index_select(0, rows);
      images = fn::cutout_batch(images, rng, {.length = 0.25, .per_image = true});
      const fn::MixUpBatch mixed = fn::mixup_batch(images, labels, rng, {.alpha = 0.2});
      const at::Tensor loss = sam.step([&] {  // called twice: here, and where the loss is higher
        sgd->zero_grad();
        const at::Tensor logits = network->forward(mixed.input);
        const auto against = [&](const at::Tensor& target) {
          return fn::soft_cross_entropy(logits, fn::smooth_labels(logits, target, 0.1));
        };
        at::Tensor both =
            (1 - mixed.mixing) * against(labels) + mixed.mixing * against(mixed.permuted_target);
        both.backward();
        fn::apply_gradient_clipping(*network, tutti::ClippingType::norm, 2.0);
        return both;
      });
      fn::compute_ema(*network, average, /*smoothing=*/0.97);
      sum += loss.item<double>();
    }
    const double own = accuracy(network, test);
    average.swap();
    const double averaged = accuracy(network, test);
    average.swap();
    std::printf("epoch %2d   loss %.3f   accuracy %.2f %%   averaged %.2f %%\n", epoch,
                sum / static_cast<double>(batches.size()), own, averaged);
  }
} catch (...) {
  return tutti::report_failure();
}
