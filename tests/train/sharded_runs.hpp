// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of sharded and spread runs: a small GPT-2, texts, and what runs are compared
// by.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/state.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/train/options.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace sharded_runs {

constexpr tutti::dist::ShardStage stages[] = {tutti::dist::ShardStage::optimizer,
                                              tutti::dist::ShardStage::gradients,
                                              tutti::dist::ShardStage::parameters};

struct Gpt2Size {
  std::uint64_t seed = 1;
  std::int64_t width = 12;  ///< four for each head
  std::int64_t n_positions = 8;
  std::int64_t vocab_size = 37;
};

/// Two layers without dropout.
inline tutti::models::GPT2LMHeadModel gpt2(const Gpt2Size& given = {}) {
  at::manual_seed(given.seed);
  tutti::models::GPT2Options size{.vocab_size = given.vocab_size,
                                  .n_positions = given.n_positions,
                                  .n_embd = given.width,
                                  .n_layer = 2,
                                  .n_head = given.width / 4};
  size.resid_pdrop = size.embd_pdrop = size.attn_pdrop = 0;
  return tutti::models::GPT2LMHeadModel(size);
}

/// So many texts, in this order or each epoch in another.
inline tutti::TensorLoader texts(std::int64_t batch_size, std::int64_t count = 24,
                                 std::int64_t length = 8, bool shuffle = false) {
  at::manual_seed(7);
  const at::Tensor ids = at::randint(37, {count, length}, at::kLong);
  return tutti::TensorLoader{tutti::Batch{{"input_ids", ids}, {"labels", ids}},
                             {.batch_size = batch_size, .shuffle = shuffle}};
}

/// Two epochs.
inline tutti::TrainerOptions options(tutti::TensorLoader loader, tutti::OptimizerSpec optimizer) {
  return {.train = std::move(loader),
          .max_duration = "2ep",
          .optimizer = std::move(optimizer),
          .device = tutti_test::device_name(),
          .seed = 3,
          .progress_bar = false};
}

/// The loss of every batch.
struct Losses final {
  std::vector<double> all{};
  void apply(tutti::BatchEnd, tutti::State& state) {
    all.push_back(state.total_loss.at("total").item<double>());
  }
};

/// The largest difference of two lists; infinite where one is empty, or longer than the other.
inline double difference(const std::vector<double>& one, const std::vector<double>& other) {
  double most = one.size() == other.size() && !one.empty() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    const double off = std::abs(one[i] - other[i]);
    most = off <= most ? most : off;
  }
  return most;
}

using Tensors = std::map<std::string, at::Tensor>;

/// Tensors of a checkpoint by their path: of the model, and of optimizers and policies.
inline Tensors tensors_of(const std::string& path, bool with_state = true) {
  const auto snapshot = tutti::checkpoint::read_checkpoint(path);
  Tensors out;
  const auto take = [&](const std::string& prefix) {
    return [&out, prefix](const std::string& name, const tutti::ArchiveLeaf& leaf) {
      if (const at::Tensor* tensor = leaf.tensor()) {
        out[prefix + name] = *tensor;
      }
    };
  };
  snapshot.model.each_leaf(take("model/"));
  if (with_state) {
    snapshot.state.child("optimizers").each_leaf(take("optimizers/"));
    snapshot.state.child("policies").each_leaf(take("policies/"));
  }
  return out;
}

/// The largest difference of two runs' tensors, of the largest element of each.
inline double relative_difference(const Tensors& one, const Tensors& other) {
  double most = one.size() == other.size() && !one.empty() ? 0 : INFINITY;
  for (const auto& [name, tensor] : one) {
    const at::Tensor mine = tensor.to(at::kDouble);
    const at::Tensor off = (mine - other.at(name).to(at::kDouble)).abs().max();
    const double part = (off / mine.abs().max().clamp_min(1e-300)).item<double>();
    most = part <= most ? most : part;
  }
  return most;
}

/// at_least: so many tensors are compared.
inline void check_equal(const Tensors& one, const Tensors& other, std::size_t at_least) {
  CHECK(one.size() >= at_least);
  REQUIRE(one.size() == other.size());
  for (const auto& [name, tensor] : one) {
    INFO(name);
    CHECK(tensor.equal(other.at(name)));
  }
}

}  // namespace sharded_runs
