// Models of timm and Transformers, exported by tutti_export.py: 20 steps have the losses that they
// have in PyTorch, and the trained weights go back into the same Python model.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/models/compiled.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

void train(const std::string& path) {
  INFO(path);
  const auto read = tutti::checkpoint::read_safetensors(path + ".safetensors");
  const std::map<std::string, at::Tensor> io(read.begin(), read.end());
  const at::Tensor x = io.at("x"), y = io.at("y"), losses = io.at("losses");
  auto net = tutti::load_compiled(path + ".tutti");
  torch::optim::SGD optimizer(net->parameters(), 0.005);
  for (std::int64_t i = 0; i < losses.size(0); ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(net->forward(x).flatten(0, -2), y.flatten());
    loss.backward();
    optimizer.step();
    const double want = losses[i].item<double>();
    INFO("step " << i);
    CHECK(std::abs(loss.item<double>() - want) <= 1e-4 * want);
  }
  net->eval();
  const at::Tensor logits = net->forward(x);
  const at::Tensor first = net->forward(x.slice(0, 0, 1));  // a batch of one
  CHECK((first - logits.slice(0, 0, 1)).abs().max().item<double>() <= 1e-4);
  net->save_weights(path + ".trained.safetensors");
  tutti::checkpoint::write_safetensors(path + ".logits.safetensors", {{"logits", logits}});
}

}  // namespace

TEST_CASE("models of timm and Transformers are exported, trained here and go back",
          "[round_trip][compiled][python]") {
  const std::string python = tutti_test::python_with(
      "timm, transformers, safetensors, torch._functorch._aot_autograd.descriptors");
  if (python.empty()) {
    return tutti_test::skip(
        "no Python with torch 2.11, timm, transformers and safetensors; name one in "
        "TUTTI_TEST_PYTHON, or in TUTTI_INTEROP_PYTHON when configuring");
  }
  const TemporaryFolder folder;
  const auto run = [&](const std::string& what) {
    const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/compiled.py";
    return std::system(
        (python + " -W ignore '" + script + "' " + what + " '" + folder.path().string() + "'")
            .c_str());
  };
  REQUIRE(run("make") == 0);
  for (const std::string name : {"vit", "resnet", "gpt2"}) {
    train((folder / name).string());
  }
  CHECK(run("check") == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
