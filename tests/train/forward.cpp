#include <tutti/train/forward.hpp>

#include <tutti/trainer.hpp>

#include <memory>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Trainer;

/// A table of five rows.
struct Table : torch::nn::Module {
  Table() { rows = register_module("rows", torch::nn::Embedding(5, 2)); }
  tutti::Outputs forward(const Batch& batch) { return rows->forward(batch.inputs()); }
  tutti::Loss loss(const tutti::Outputs& outputs, const Batch&) { return outputs.tensor().mean(); }
  torch::nn::Embedding rows{nullptr};
};

template <class Model>
void train(Model model, const Batch& batch) {
  Trainer<>(model, {.train = std::vector<Batch>{batch},
                    .max_duration = "1ba",
                    .optimizer = tutti::SGD{.lr = 0.1},
                    .progress_bar = false})
      .fit();
}

}  // namespace

TEST_CASE("inputs of another type than the parameters are named beside the model's error",
          "[train][forward]") {
  const at::Tensor targets = at::zeros({3, 2});
  CHECK_THROWS_WITH(train(tiny::net(), Batch(at::ones({3, 4}, at::kLong), targets)),
                    ContainsSubstring("The inputs are Long[3, 4]; give them the type of the "
                                      "parameters"));
  CHECK_THROWS_WITH(train(tiny::net(), Batch(at::ones({3, 4, 2, 2}, at::kByte), targets)),
                    ContainsSubstring("The inputs are bytes, uint8[3, 4, 2, 2]"));
  CHECK_THROWS_WITH(train(tiny::net(), Batch(at::ones({3, 5}), targets)),
                    !ContainsSubstring("The inputs are"));
}

TEST_CASE("indices beyond an embedding are named with the largest", "[train][forward]") {
  CHECK_THROWS_WITH(
      train(std::make_shared<Table>(), Batch(at::tensor({0, 3, 7}))),
      ContainsSubstring("those of the inputs are 0 to 7") && ContainsSubstring("vocab_size"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
