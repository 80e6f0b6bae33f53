#include <tutti/train/forward.hpp>

#include <tutti/trainer.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <tutti/models/classifier.hpp>
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

TEST_CASE("an error says how far training was, and in which evaluation it came",
          "[train][forward]") {
  std::vector<Batch> bad = tiny::batches(3);
  bad[2] = Batch(at::ones({3, 5}), at::zeros({3, 2}));
  tutti::TrainerOptions options{.train = bad,
                                .max_duration = "1ep",
                                .optimizer = tutti::SGD{.lr = 0.1},
                                .device = "cpu",
                                .progress_bar = false};
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), options).fit(),
                    ContainsSubstring("It came in epoch 0 behind 2 of its batches, 2 of the run."));
  options.train = tiny::batches(2);
  options.eval = {{"fine", tiny::batches(1)}, {"odd", bad}};
  CHECK_THROWS_WITH(
      Trainer<>(tiny::net(), options).fit(),
      ContainsSubstring("It came in the evaluation of \"odd\" behind 2 of its batches.") &&
          ContainsSubstring("It came in epoch 1 behind 0 of its batches, 2 of the run."));
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), options).eval(),
                    ContainsSubstring("It came in the evaluation of \"odd\"") &&
                        !ContainsSubstring("of the run"));
}

TEST_CASE("indices beyond an embedding are named with the largest", "[train][forward]") {
  CHECK_THROWS_WITH(
      train(std::make_shared<Table>(), Batch(at::tensor({0, 3, 7}))),
      ContainsSubstring("those of the inputs are 0 to 7") && ContainsSubstring("vocab_size"));
  CHECK_THROWS_WITH(train(std::make_shared<Table>(), Batch{{"input_ids", at::tensor({0, 3, 7})},
                                                           {"position_ids", at::arange(3)}}),
                    ContainsSubstring("inputs are 0 to 7, position_ids are 0 to 2: compare"));
  CHECK_THROWS_WITH(train(std::make_shared<Table>(), Batch(at::ones({3}))),
                    ContainsSubstring("The inputs are Float[3]; what an embedding looks up are "
                                      "int64 numbers"));
}

TEST_CASE("a loss that fails is told with what it was computed of", "[train][forward]") {
  const auto net = [] { return tutti::Classifier{torch::nn::Linear(4, 2), {.num_classes = 2}}; };
  const at::Tensor x = at::ones({3, 4});
  CHECK_THROWS_WITH(train(net(), Batch(x, at::tensor({0, 5, 1}))),
                    ContainsSubstring("outputs, outputs Float[3, 2], and the batch") &&
                        ContainsSubstring("The targets are 0 to 5; a class is a number"));
}

TEST_CASE("a loss that trains nothing is refused with the reason", "[train][forward]") {
  struct Odd : torch::nn::Module {
    explicit Odd(std::string what) : kind(std::move(what)) {
      scale = register_parameter("scale", at::ones({1}));
    }
    tutti::Outputs forward(const Batch& batch) { return scale * batch.inputs(); }
    tutti::Loss loss(const tutti::Outputs& outputs, const Batch&) {
      const at::Tensor loss = outputs.tensor().sum();
      return kind == "undefined" ? at::Tensor()
             : kind == "integer" ? loss.to(at::kLong)
                                 : loss.detach();
    }
    std::string kind;
    at::Tensor scale;
  };
  const auto with = [](const char* kind) {
    return [kind] { train(std::make_shared<Odd>(kind), Batch(at::ones({3}))); };
  };
  CHECK_THROWS_WITH(with("undefined")(),
                    ContainsSubstring("loss has \"total\", an undefined tensor"));
  CHECK_THROWS_WITH(with("integer")(), ContainsSubstring("loss is Long, expected floating point"));
  CHECK_THROWS_WITH(with("detached")(), ContainsSubstring("needs no gradient, so that nothing"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
