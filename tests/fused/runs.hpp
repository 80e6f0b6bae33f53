// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small run of which everything that could differ is kept: recipes that fuse against those that
// do not.

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/trace.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/fused/stages.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace fused_runs {

using tutti::InMemoryLogger;
using tutti::TrainerOptions;
using tutti::fused::Normalize;

inline constexpr std::int64_t classes = 5;

// Keeps what it is given.
struct Net : torch::nn::Module {
  Net() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    out = register_module("out", torch::nn::Linear(4, classes));
  }
  at::Tensor forward(at::Tensor x) {
    seen.push_back(x);
    return out->forward(conv->forward(x).relu().mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear out{nullptr};
  std::vector<at::Tensor> seen;
};

// All that a run shows.
struct Outcome {
  std::vector<at::Tensor> inputs;  // of every forward pass
  at::Tensor weights;
  std::map<std::string, std::vector<double>> logged;
  std::vector<std::uint64_t> positions;  // of the random streams
  std::vector<std::string> trace;
};

inline const std::vector<double> mean{0.485, 0.456, 0.406};
inline const std::vector<double> deviation{0.229, 0.224, 0.225};

inline tutti::ImageLoader images(bool raw, std::int64_t count = 10, std::int64_t batch = 5) {
  at::manual_seed(3);
  const at::Tensor x = at::randint(0, 256, {count, 3, 16, 20}, at::kByte);
  const at::Tensor y = at::randint(0, classes, {count}, at::kLong);
  return tutti::ImageLoader(x, y,
                            {.batch_size = batch,
                             .shuffle = true,
                             .to_float = !raw,
                             .mean = raw ? std::vector<double>{} : mean,
                             .std = raw ? std::vector<double>{} : deviation});
}

inline TrainerOptions options(bool raw) {
  return {.train = images(raw),
          .eval = {{"test", images(raw, 4, 4)}},
          .max_duration = "3ep",
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device_train_microbatch_size = 3,
          .seed = 11,
          .progress_bar = false};
}

inline at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return tutti::functional::soft_cross_entropy(logits, targets);
}

// dense: the loss is one of the user's, so that targets have to be dense.
template <class... Ps>
Outcome train(TrainerOptions with, bool dense, Ps... policies) {
  at::manual_seed(1);
  auto net = std::make_shared<Net>();
  tutti::ClassifierOptions how{.num_classes = classes};
  if (dense) {
    how.loss = plain_loss;
  }
  tutti::Trainer trainer(tutti::Classifier(net, how), std::move(with), std::move(policies)...,
                         InMemoryLogger{}, tutti::Trace{});
  trainer.fit();
  Outcome out;
  out.inputs = net->seen;
  out.weights = tiny::flat(*net);
  for (const auto& [name, series] : trainer.template get<InMemoryLogger>().data) {
    if (!name.starts_with("time/")) {
      out.logged[name] = series.values;
    }
  }
  trainer.for_each_policy([&]<class P>(const P& policy) {
    if (const auto* rng = tutti::rng_of(const_cast<P&>(policy))) {
      out.positions.push_back(rng->position());
    }
  });
  out.trace = trainer.template get<tutti::Trace>().lines;
  return out;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

inline void check_inputs(const Outcome& got, const Outcome& want) {
  REQUIRE(got.inputs.size() == want.inputs.size());
  for (std::size_t i = 0; i < got.inputs.size(); ++i) {
    INFO("forward pass " << i);
    CHECK(same_bits(got.inputs[i], want.inputs[i]));
  }
  CHECK(got.positions == want.positions);
}

inline void check_same(const Outcome& got, const Outcome& want) {
  check_inputs(got, want);
  CHECK(same_bits(got.weights, want.weights));
  CHECK(got.logged == want.logged);
}

// Losses of the pairs of targets are those of the dense ones but for rounding.
inline void check_close(const Outcome& got, const Outcome& want) {
  check_inputs(got, want);
  CHECK(got.weights.allclose(want.weights, 1e-4, 1e-5));
  REQUIRE(got.logged.size() == want.logged.size());
  for (const auto& [name, values] : want.logged) {
    INFO(name);
    REQUIRE(got.logged.at(name).size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(got.logged.at(name)[i] == Approx(values[i]).margin(1e-5));
    }
  }
}

/// What makes floats of bytes, fused with what stands beside it or not.
inline Normalize normalize(bool fuse) {
  return {.mean = mean, .std = deviation, .fuse = fuse};
}

/// The recipe on bytes, fused and not: one run in every bit.
template <class... Ps>
void check_fusing(const TrainerOptions& with, const Ps&... policies) {
  const Outcome fused = train(with, true, normalize(true), policies...);
  const Outcome separate = train(with, true, normalize(false), policies...);
  check_same(fused, separate);
  CHECK(fused.trace == separate.trace);
}

}  // namespace fused_runs
