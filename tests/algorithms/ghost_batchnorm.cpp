#include <tutti/algorithms/ghost_batchnorm.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>
#include <tutti/nn/sequential.hpp>

#include "nn/golden_model.hpp"
#include "support/hyperparameters.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::GhostBatchNorm;
using tutti::functional::apply_ghost_batchnorm;
using Options = torch::nn::BatchNormOptions;

static_assert(tutti::Algorithm<GhostBatchNorm>);
static_assert(sizeof(tutti::With<GhostBatchNorm{.ghost_batch_size = 16}>) > 0);
static_assert(tutti::Recipe<GhostBatchNorm>::valid);

// The reference's way: one call for each part.
template <class Layer>
at::Tensor by_parts(Layer& layer, const at::Tensor& x, std::int64_t ghost) {
  const auto parts = x.split((x.size(0) + nn::GhostBatchNorm::parts(x.size(0), ghost) - 1) /
                             nn::GhostBatchNorm::parts(x.size(0), ghost));
  const auto momentum = layer->options.momentum();
  if (momentum) {
    layer->options.momentum(*momentum / static_cast<double>(parts.size()));
  }
  std::vector<at::Tensor> out;
  for (const at::Tensor& part : parts) {
    out.push_back(layer(part));
  }
  layer->options.momentum(momentum);
  return at::cat(out);
}

template <class Layer>
void agrees_with_calls_by_part(Layer layer, const at::Tensor& x, std::int64_t ghost) {
  Layer copy(std::dynamic_pointer_cast<typename Layer::Impl>(layer->clone()));
  nn::GhostBatchNormImpl<Layer> wrapped(*layer, ghost);
  const at::Tensor a = x.clone().requires_grad_();
  const at::Tensor b = x.clone().requires_grad_();
  for (int step = 0; step < 2; ++step) {
    const at::Tensor y = wrapped.forward(a);
    const at::Tensor want = by_parts(copy, b, ghost);
    CHECK(y.allclose(want, 1e-4, 1e-5));
    const at::Tensor g = torch::randn_like(y);
    y.mul(g).sum().backward();
    want.mul(g).sum().backward();
    CHECK(a.grad().allclose(b.grad(), 1e-3, 1e-4));
  }
  const auto got = golden::state_of(*layer);
  for (const auto& [name, tensor] : golden::state_of(*copy)) {
    INFO(name);
    CHECK(got.at(name).allclose(tensor, 1e-5, 1e-6));
  }
}

}  // namespace

TEST_CASE("a part of a batch is normalised on its own and moves the statistics by its share",
          "[nn][ghost_batchnorm]") {
  nn::BatchNorm1d layer(1);
  nn::GhostBatchNorm1d ghost(*layer, 2);
  const at::Tensor y = ghost.forward(torch::tensor({0.0F, 2.0F, 10.0F, 12.0F}).view({4, 1}));
  CHECK(y.flatten().allclose(torch::tensor({-1.0F, 1.0F, -1.0F, 1.0F}), 1e-4, 1e-4));
  CHECK(std::abs(layer->running_mean.item<double>() - 0.5975) < 1e-6);
  CHECK(std::abs(layer->running_var.item<double>() - 1.0975) < 1e-6);
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 2);
}

TEST_CASE("every part has mean 0 and variance 1", "[nn][ghost_batchnorm][law]") {
  const at::Tensor x = torch::randn({12, 3, 4, 4}, torch::kDouble);
  for (const std::int64_t size : {1, 2, 3, 5}) {
    nn::BatchNorm2d layer(Options(3).eps(0));
    layer->to(torch::kDouble);
    const at::Tensor y = nn::GhostBatchNorm2d(*layer, size).forward(x);
    const std::int64_t rows = size == 5 ? 4 : size;
    for (const at::Tensor& part : y.split(rows)) {
      CHECK(part.mean({0, 2, 3}).abs().max().item<double>() < 1e-9);
      CHECK((part.var({0, 2, 3}, false) - 1).abs().max().item<double>() < 1e-9);
    }
  }
}

TEST_CASE("one call for all parts and one for each give the same", "[nn][ghost_batchnorm][law]") {
  agrees_with_calls_by_part(nn::BatchNorm1d(3), torch::randn({12, 3}), 4);
  agrees_with_calls_by_part(nn::BatchNorm1d(Options(3).momentum(0.3)), torch::randn({8, 3, 5}), 2);
  agrees_with_calls_by_part(nn::BatchNorm2d(Options(3).affine(false)), torch::randn({9, 3, 4, 2}),
                            4);
  agrees_with_calls_by_part(nn::BatchNorm2d(Options(3).track_running_stats(false)),
                            torch::randn({6, 3, 4, 2}), 2);
  agrees_with_calls_by_part(nn::BatchNorm3d(2), torch::randn({7, 2, 2, 3, 2}), 2);
  agrees_with_calls_by_part(
      nn::BatchNorm2d(3), torch::randn({8, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast), 4);
  // From nine equal parts on there is one call, on a CPU too.
  agrees_with_calls_by_part(nn::BatchNorm1d(3), torch::randn({36, 3}), 4);
  agrees_with_calls_by_part(nn::BatchNorm1d(Options(3).momentum(0.3)), torch::randn({18, 3, 5}), 2);
  agrees_with_calls_by_part(nn::BatchNorm2d(Options(3).affine(false).eps(0.1)),
                            torch::randn({27, 3, 4, 2}), 3);
  agrees_with_calls_by_part(nn::BatchNorm2d(Options(3).track_running_stats(false)),
                            torch::randn({20, 3, 4, 2}), 2);
  agrees_with_calls_by_part(nn::BatchNorm3d(2), torch::randn({18, 2, 2, 3, 2}), 2);
}

TEST_CASE("a cumulative average of statistics counts the parts", "[nn][ghost_batchnorm]") {
  const auto cumulative = Options(2).momentum(std::nullopt);
  agrees_with_calls_by_part(nn::BatchNorm2d(cumulative), torch::randn({8, 2, 3, 3}), 2);
  agrees_with_calls_by_part(nn::BatchNorm2d(cumulative), torch::randn({7, 2, 3, 3}), 2);
  agrees_with_calls_by_part(nn::BatchNorm2d(cumulative), torch::randn({20, 2, 3, 3}), 2);
}

TEST_CASE("a last part of one number per channel joins the one before it",
          "[nn][ghost_batchnorm]") {
  nn::BatchNorm1d layer(2);
  nn::GhostBatchNorm1d ghost(*layer, 2);
  const at::Tensor x = torch::randn({5, 2});
  const at::Tensor y = ghost.forward(x);
  CHECK(y.slice(0, 2, 5).mean(0).abs().max().item<double>() < 1e-5);
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 2);
  CHECK(layer->options.momentum() == 0.1);
}

TEST_CASE("a batch below the ghost size is refused in training and fine in evaluation",
          "[nn][ghost_batchnorm]") {
  nn::BatchNorm2d layer(2);
  nn::GhostBatchNorm2d ghost(*layer, 8);
  const at::Tensor x = torch::randn({3, 2, 4, 4});
  CHECK_THROWS_AS(ghost.forward(x), c10::ValueError);
  CHECK_THROWS_WITH(ghost.forward(x), ContainsSubstring("a batch of 3 examples is smaller"));
  CHECK_THROWS_WITH(nn::GhostBatchNorm1d(*nn::BatchNorm1d(2), 1).forward(torch::randn({4, 2})),
                    ContainsSubstring("one number per channel"));
  ghost.eval();
  layer->eval();
  CHECK(ghost.forward(x).equal(layer(x)));
}

TEST_CASE("GhostBatchNorm keeps tensors and optimizers, and wraps once",
          "[surgery][ghost_batchnorm][law]") {
  nn::Sequential net(nn::Conv2d(2, 4, 1), nn::BatchNorm2d(4), torch::nn::Flatten(),
                     torch::nn::BatchNorm1d(16), nn::Linear(16, 2));
  const auto before = net->parameters();
  torch::optim::SGD optimizer(before, torch::optim::SGDOptions(0.1));
  CHECK(apply_ghost_batchnorm(*net, {.ghost_batch_size = 2}, optimizer).count() == 2);
  CHECK(net->named_buffers().contains("1.batchnorm.running_mean"));
  const auto after = net->parameters();
  REQUIRE(after.size() == before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    CHECK(after[i].is_same(before[i]));
    CHECK(optimizer.param_groups()[0].params()[i].is_same(before[i]));
  }
  const auto keys = golden::state_keys(*net);
  CHECK(apply_ghost_batchnorm(*net, {.if_none = surgery::IfNone::ignore}).count() == 0);
  CHECK(golden::state_keys(*net) == keys);
  CHECK_THROWS_WITH(
      apply_ghost_batchnorm(*net),
      ContainsSubstring("GhostBatchNorm: no BatchNorm1d, 2d or 3d was replaced: it passed "
                        "over ") &&
          ContainsSubstring("(wrapped already)."));
  CHECK_THROWS_AS(apply_ghost_batchnorm(*net, {.ghost_batch_size = 0}), c10::ValueError);
  CHECK(net->forward(torch::randn({6, 2, 2, 2})).sizes() == at::IntArrayRef{6, 2});
}

TEST_CASE("GhostBatchNorm leaves normalisation over all ranks alone",
          "[surgery][ghost_batchnorm]") {
  const nn::BatchNorm2d plain(4);
  const auto synced = std::make_shared<nn::SyncBatchNorm2d>(*plain, [](const at::Tensor&) {});
  nn::Sequential net(nn::BatchNorm2d(4), synced);
  const auto report = apply_ghost_batchnorm(*net, {.ghost_batch_size = 2});
  CHECK(report.count() == 1);
  REQUIRE(report.kept.size() == 1);
  CHECK(net->children()[1] == synced);
}

TEST_CASE("GhostBatchNorm changes the model at Init and logs how many layers it has wrapped",
          "[ghost_batchnorm]") {
  tutti::State state;
  nn::Sequential net(nn::BatchNorm2d(4), nn::BatchNorm2d(4));
  state.model = net.ptr();
  Hyperparameters seen(state);
  GhostBatchNorm{}.apply(tutti::Init{}, state);
  CHECK(seen.counts == Hyperparameters::Counts{{"GhostBatchNorm/num_new_modules", 2}});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
