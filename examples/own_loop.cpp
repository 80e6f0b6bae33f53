// SPDX-License-Identifier: Apache-2.0
// A training loop of one's own that fires events: a recipe of algorithms without a Trainer.
//
// Run it:    own_loop; --max-duration 20ep for another length
// It prints: the loss and the accuracy on 360 unseen digits after every epoch
// The same with a Trainer: digits. With the algorithms' functions alone: algorithms_by_hand
// ctest: --max-duration 2ep
#include <cstdio>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/cli.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/core/state.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/train/reproducibility.hpp>

// Every fifth of 1,797 images is a test image.
tutti::TensorLoader load(bool train) {
  const std::string folder = TUTTI_EXAMPLES_DATA;
  const at::Tensor images = tutti::data::load_idx(folder + "/digits-images.idx3-ubyte");
  const at::Tensor labels = tutti::data::load_idx(folder + "/digits-labels.idx1-ubyte");
  const at::Tensor is_test = torch::arange(images.size(0)).remainder(5).eq(0);
  const at::Tensor rows = train ? is_test.logical_not() : is_test;
  return {images.index({rows}).to(torch::kFloat).unsqueeze(1).div(8).sub(1),
          labels.index({rows}).to(torch::kLong),
          {.batch_size = 64, .shuffle = train}};
}

// The loop decides which events there are; a policy runs at those that it knows, in the order that
// the compiler has found.
template <class Engine>
double train_epoch(Engine& engine, tutti::State& state, tutti::TensorLoader& loader) {
  double sum = 0;
  loader.start(state.timestamp.epoch);
  engine.template fire<tutti::EpochStart>(state);
  while (auto batch = loader.next()) {
    state.batch = *batch;
    engine.template fire<tutti::BatchStart>(state);
    state.optimizers[0]->zero_grad();
    engine.template fire<tutti::BeforeForward>(state);
    state.outputs = state.task.forward(state.batch);
    engine.template fire<tutti::AfterForward>(state);
    engine.template fire<tutti::BeforeLoss>(state);
    state.loss_parts = state.task.loss(state.outputs, state.batch);
    state.loss = state.loss_parts.total();
    engine.template fire<tutti::AfterLoss>(state);
    engine.template fire<tutti::BeforeBackward>(state);
    state.loss.backward();
    engine.template fire<tutti::AfterBackward>(state);
    engine.template fire<tutti::AfterTrainBatch>(state);
    state.optimizers[0]->step();
    sum += state.loss.item<double>();
    state.previous_timestamp = state.timestamp;
    state.timestamp = state.timestamp.to_next_batch(batch->num_samples());
    engine.template fire<tutti::BatchEnd>(state);
  }
  const double mean = sum / static_cast<double>(state.timestamp.batch_in_epoch);
  state.previous_timestamp = state.timestamp;
  state.timestamp = state.timestamp.to_next_epoch();
  engine.template fire<tutti::EpochEnd>(state);
  return mean;
}

template <class Engine>
double accuracy(Engine& engine, tutti::State& state, tutti::TensorLoader& loader) {
  const torch::NoGradGuard no_grad;
  state.model->eval();
  engine.template fire<tutti::EvalStart>(state);  // EMA puts its weights in
  std::int64_t right = 0, all = 0;
  loader.start(0);
  while (auto batch = loader.next()) {
    const at::Tensor chosen = state.task.forward(*batch).tensor().argmax(1);
    right += chosen.eq(batch->targets()).sum().template item<std::int64_t>();
    all += batch->num_samples();
  }
  engine.template fire<tutti::EvalEnd>(state);
  state.model->train();
  return 100.0 * static_cast<double>(right) / static_cast<double>(all);
}

int main(int argc, char** argv) try {
  tutti::State state;
  state.max_duration = "10ep";
  tutti::cli::Program program{"own_loop", "Fires a recipe's events from a loop of one's own."};
  program.add("--max-duration", state.max_duration, "how long").parse(argc, argv);

  tutti::seed_all(state.seed = 17);
  tutti::Engine engine{tutti::MixUp{.alpha = 0.4}, tutti::BlurPool{}, tutti::LabelSmoothing{},
                       tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                               .clipping_threshold = 2.0},
                       tutti::EMA{.half_life = "50ba"}};
  tutti::seed_policies(engine, state.seed);

  state.task = tutti::Classifier{
      tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}}), {.num_classes = 10}};
  state.model = state.task.module();
  state.optimizers = {std::make_shared<torch::optim::SGD>(
      state.model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4))};
  tutti::TensorLoader train = load(true), test = load(false);
  state.train_dataloader_len = train.size();

  engine.fire<tutti::Init>(state);
  engine.fire<tutti::AfterLoad>(state);
  engine.fire<tutti::FitStart>(state);
  while (state.timestamp < state.max_duration) {
    const double loss = train_epoch(engine, state, train);
    std::printf("epoch %2d   loss %.3f   accuracy %.2f %%\n",
                static_cast<int>(state.timestamp.epoch), loss, accuracy(engine, state, test));
  }
  engine.fire<tutti::FitEnd>(state);
  engine.close(state);
} catch (...) {
  return tutti::report_failure();
}
