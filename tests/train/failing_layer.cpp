#include <tutti/train/failing_layer.hpp>

#include <tutti/trainer.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <tutti/nn/linear.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/message.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;

struct Head : torch::nn::Module {
  Head() { fc = register_module("fc", tutti::nn::Linear(8, 2)); }
  tutti::nn::Linear fc{nullptr};
};

/// A convolution, a sum of what may not go together, and a linear layer; counts its calls.
struct Net : torch::nn::Module {
  Net() {
    stem = register_module("stem", torch::nn::Sequential(torch::nn::Conv2d(1, 2, 3)));
    head = register_module("head", std::make_shared<Head>());
  }
  tutti::Outputs forward(const Batch& batch) {
    ++calls;
    const at::Tensor x = stem->forward(batch.inputs()).relu();
    const at::Tensor y = x + at::ones({offset}, x.options());
    TORCH_CHECK(y.size(0) < 100, "too many examples");
    return head->fc->forward(y.flatten(1));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const Batch&) { return outputs.tensor().mean(); }

  std::int64_t offset = 1;
  int calls = 0;
  torch::nn::Sequential stem{nullptr};
  std::shared_ptr<Head> head;
};

const at::Tensor right = at::ones({3, 1, 4, 4});

/// A trainer whose model has seen nothing yet.
struct Setup {
  std::shared_ptr<Net> net = std::make_shared<Net>();
  tutti::Trainer<> trainer{
      net, {.optimizer = tutti::SGD{.lr = 0.1}, .device = "cpu", .progress_bar = false}};
};

std::string fit(at::Tensor inputs, std::int64_t offset = 1) {
  Setup setup;
  setup.net->offset = offset;
  return message(
      [&] { setup.trainer.fit({.duration = "1ba", .train = std::vector<Batch>{Batch(inputs)}}); });
}

}  // namespace

TEST_CASE("a wrong width is told with the layer and both shapes, wherever the model runs",
          "[train][failing_layer]") {
  const auto says_where = [](const std::string& text) {
    CHECK_THAT(text,
               ContainsSubstring("The layer \"head.fc\" (torch::nn::Linear) failed: aten::") &&
                   ContainsSubstring("Float[3, 18]") &&
                   ContainsSubstring("head.fc.weight Float[2, 8]") &&
                   ContainsSubstring("The batch's inputs are Float[3, 1, 5, 5]."));
  };
  const at::Tensor wide = at::ones({3, 1, 5, 5});
  says_where(fit(wide));
  Setup evaluation;
  const std::vector<Batch> data{Batch(wide)};
  says_where(message([&] { evaluation.trainer.eval({{"test", data}}); }));
  Setup prediction;
  says_where(message([&] { prediction.trainer.predict(data); }));
  CHECK_THAT(fit(at::ones({3, 2, 4, 4})),
             ContainsSubstring("The layer \"stem.0\" (torch::nn::Conv2d) failed: aten::") &&
                 ContainsSubstring("Float[3, 2, 4, 4], stem.0.weight Float[2, 1, 3, 3]"));
}

TEST_CASE("what fails between layers is told with the layer before it", "[train][failing_layer]") {
  CHECK_THAT(fit(right, 5), ContainsSubstring("aten::add was given Float[3, 2, 2, 2] and Float[5]; "
                                              "the last layer before it is \"stem.0\""));
  CHECK_THAT(fit(at::ones({100, 1, 4, 4})),
             ContainsSubstring("No operator of LibTorch failed; the last layer before it is "
                               "\"stem.0\" (torch::nn::Conv2d)."));
}

TEST_CASE("a forward pass that does not fail is run once", "[train][failing_layer]") {
  Setup setup;
  setup.trainer.predict(std::vector<Batch>{Batch(right), Batch(right)});
  CHECK(setup.net->calls == 2);
}

TEST_CASE("nothing is said of a pass that ends otherwise the second time",
          "[train][failing_layer]") {
  const Net net;
  const auto place = [&](const std::function<void()>& forward) {
    return tutti::train::failing_layer(net, "no", forward);
  };
  CHECK(place([] {}).empty());
  CHECK(place([] { TORCH_CHECK(false, "yes"); }).empty());
  CHECK(place([] { throw std::runtime_error("no"); }).empty());
  CHECK(place([] { TORCH_CHECK(false, "no"); }) ==
        "No operator of LibTorch failed; no layer of the model ran before it.");
}

TEST_CASE("what a trainer throws is text without a stack trace", "[train][failing_layer]") {
  const EnvironmentVariable untraced("TORCH_SHOW_CPP_STACKTRACES", nullptr);
  Setup setup;
  CHECK_THROWS_WITH(setup.trainer.predict(std::vector<Batch>{Batch(at::ones({3, 1, 5, 5}))}),
                    !ContainsSubstring("frame #") && ContainsSubstring("head.fc"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
