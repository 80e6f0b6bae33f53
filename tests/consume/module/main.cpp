// A program that imports tutti instead of including its headers.
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

import tutti;

namespace {

struct Net : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return layer->forward(batch.inputs()); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 2));
};

// A policy with a rule and a hook.
struct Counter final {
  static constexpr std::string_view name = "Counter";
  static constexpr tutti::Rules rules{.runs_last = {tutti::id<tutti::BatchEnd>}};
  int* batches;
  void apply(tutti::BatchEnd, const tutti::State&) const { ++*batches; }
};

}  // namespace

int main() {
  at::manual_seed(1);
  std::vector<tutti::Batch> batches;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor x = at::randn({16, 4});
    batches.emplace_back(x, x.narrow(1, 0, 2) * 2);
  }
  int seen = 0;
  tutti::Trainer<tutti::EMA, Counter> trainer(std::make_shared<Net>(),
                                              {.train = batches,
                                               .max_duration = "5ep",
                                               .optimizer = tutti::SGD{.lr = 0.1},
                                               .progress_bar = false},
                                              tutti::EMA{}, Counter{.batches = &seen});
  trainer.fit();
  const double loss = trainer.state().total_loss.at("total").item<double>();
  std::printf("%d batches, loss %.4f\n", seen, loss);
  return seen == 40 && loss < 0.1 ? 0 : 1;
}
