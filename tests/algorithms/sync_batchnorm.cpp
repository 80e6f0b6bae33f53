#include <tutti/algorithms/sync_batchnorm.hpp>

#include "support/catch.hpp"

#include <memory>

#include <tutti/algorithms/ghost_batchnorm.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// Several ranks are in tests/dist/sync_batchnorm.cpp.

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::SyncBatchNorm;
using tutti::functional::apply_sync_batchnorm;
namespace models = tutti::models;
namespace nn = tutti::nn;

static_assert(tutti::Algorithm<SyncBatchNorm>);
static_assert(tutti::Recipe<SyncBatchNorm>::valid);
static_assert(!tutti::detail::can_be_combined<SyncBatchNorm, tutti::GhostBatchNorm>);
static_assert(sizeof(tutti::With<SyncBatchNorm{}>) > 0);

}  // namespace

TEST_CASE("every batch normalisation sums over the ranks, under its old names",
          "[functional][sync_batchnorm]") {
  at::manual_seed(3);
  models::ResNet net(models::ResNetOptions{
      .layers = {1, 1}, .widths = {4, 8}, .stem = models::Stem::small, .num_classes = 3});
  const auto names = net->named_parameters().keys();
  const at::Tensor x = at::randn({4, 3, 8, 8});
  const auto copy = std::dynamic_pointer_cast<models::ResNetImpl>(net->clone());
  int sums = 0;
  const auto report = apply_sync_batchnorm(*net, [&](const at::Tensor&) { ++sums; });
  CHECK(report.count() == tutti::surgery::count<torch::nn::BatchNorm2d>(*copy));
  CHECK(net->named_parameters().keys() == names);
  const at::Tensor y = net->forward(x);
  CHECK(sums == report.count());
  CHECK(y.allclose(copy->forward(x), 1e-4, 1e-5));
  y.sum().backward();
  CHECK(sums == 2 * report.count());
  net->eval();
  net->forward(x);
  CHECK(sums == 2 * report.count());
}

TEST_CASE("SyncBatchNorm says when there is nothing to change", "[sync_batchnorm]") {
  nn::Sequential none(nn::Linear(2, 2));
  CHECK_THROWS_WITH(apply_sync_batchnorm(*none, [](const at::Tensor&) {}),
                    ContainsSubstring("SyncBatchNorm: no BatchNorm1d, 2d or 3d was replaced"));
  nn::Sequential one(torch::nn::BatchNorm1d(2));
  CHECK(apply_sync_batchnorm(*one, [](const at::Tensor&) {}).count() == 1);
  CHECK_THROWS_WITH(apply_sync_batchnorm(*one, [](const at::Tensor&) {}),
                    ContainsSubstring("sums over ranks already"));
  CHECK_THROWS_WITH(apply_sync_batchnorm(*one, std::shared_ptr<tutti::dist::Communicator>()),
                    ContainsSubstring("dist::initialize() makes one"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
