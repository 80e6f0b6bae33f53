#include <tutti/fused/pass.hpp>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/catch.hpp"

#include <cmath>
#include <numeric>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/fused/stages.hpp>
#include <tutti/losses/mixed_cross_entropy.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::CutMix;
using tutti::MixUp;
using tutti::Rng;
using tutti::fused::Normalize;
using tutti::fused::Pass;
namespace functional = tutti::functional;

namespace {

// What the algorithms make of dense targets one after the other.
at::Tensor blended(const MixUp& stage, const at::Tensor& own) {
  return functional::mix(own, *stage.run.indices, stage.run.mixing);
}
at::Tensor blended(const CutMix& stage, const at::Tensor& own) {
  return own.mul(stage.run.adjusted_lambda)
      .add(own.index_select(0, *stage.run.indices).mul(1 - stage.run.adjusted_lambda));
}

template <class... Stages>
void check_loss(Stages... stages) {
  constexpr std::int64_t examples = 9;
  constexpr std::int64_t classes = 6;
  std::uint64_t seed = 0;
  ((stages.rng = Rng(++seed)), ...);
  Pass pass{Normalize{}, stages...};
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    const at::Tensor x = at::randint(0, 256, {examples, 3, 12, 10}, at::kByte);
    const at::Tensor y = at::randint(0, classes, {examples}, at::kLong);
    const at::Tensor a = at::randn({examples, classes}).requires_grad_();
    const at::Tensor b = a.detach().clone().requires_grad_();
    const auto [rows, weights] = pass.plan(x).targets();
    CHECK(rows.size(1) == std::ssize(weights));
    CHECK(std::ssize(weights) == 1LL << sizeof...(Stages));
    CHECK(std::abs(std::accumulate(weights.begin(), weights.end(), 0.0) - 1) < 1e-12);

    at::Tensor dense = functional::ensure_targets_one_hot(b, y);
    ((dense = blended(pass.template get<Stages>(), dense)), ...);
    const at::Tensor want =
        functional::soft_cross_entropy(b, functional::smooth_labels(b, dense, smoothing));
    const at::Tensor got = functional::mixed_cross_entropy(a, y, rows, weights, smoothing);
    CHECK(got.allclose(want, 1e-6, 1e-6));
    got.backward();
    want.backward();
    CHECK(a.grad().allclose(b.grad(), 1e-5, 1e-6));
  }
}

}  // namespace

TEST_CASE("the loss of a plan's targets is that of the dense ones", "[fused][law]") {
  at::manual_seed(5);
  for (int draw = 0; draw < 5; ++draw) {
    check_loss();
    check_loss(MixUp{.alpha = 1});
    check_loss(CutMix{});
    check_loss(MixUp{.alpha = 1}, CutMix{});
    check_loss(CutMix{}, MixUp{.alpha = 1});
  }
}

TEST_CASE("a box keeps its weight when images shrink after it", "[fused]") {
  Pass pass{Normalize{}, CutMix{}, tutti::ColOut{.p_row = 0.5, .p_col = 0.5}};
  const auto plan = pass.plan(at::zeros({4, 1, 9, 9}, at::kByte));
  const auto weights = plan.targets().weights;
  CHECK(weights[0] == pass.get<CutMix>().run.adjusted_lambda);
  CHECK(weights[0] == functional::part_outside(pass.get<CutMix>().run.box, 9, 9));
}

TEST_CASE("a loop of one's own trains with a fused pass", "[fused]") {
  at::manual_seed(6);
  const at::Tensor dark = at::randint(0, 100, {32, 3, 8, 8}, at::kByte);
  const at::Tensor bright = at::randint(156, 256, {32, 3, 8, 8}, at::kByte);
  tutti::ImageLoader loader{at::cat({dark, bright}),
                            at::cat({at::zeros({32}, at::kLong), at::ones({32}, at::kLong)}),
                            {.batch_size = 16, .shuffle = true, .to_float = false}};
  torch::nn::Linear net(3 * 8 * 8, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.01);

  Pass pass{Normalize{.mean = {0.5, 0.5, 0.5}, .std = {0.3, 0.3, 0.3}},
            tutti::CutOut{.length = 0.25}, MixUp{.alpha = 0.2}};
  pass.seed(17);
  for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
    loader.start(epoch);
    while (auto batch = loader.next()) {
      const at::Tensor images = batch->inputs();
      const auto plan = pass.plan(images);
      const at::Tensor logits = net->forward(plan(images).flatten(1));
      const auto [rows, weights] = plan.targets();
      const at::Tensor loss =
          functional::mixed_cross_entropy(logits, batch->targets(), rows, weights);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
  }
  const at::Tensor plain = at::cat({dark, bright}).to(at::kFloat).div(255).sub(0.5).div(0.3);
  const at::Tensor said = net->forward(plain.flatten(1)).argmax(1);
  CHECK(said.slice(0, 0, 32).sum().item<std::int64_t>() == 0);
  CHECK(said.slice(0, 32).sum().item<std::int64_t>() == 32);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
