#include <tutti/nn/ghost_batchnorm.hpp>

#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::GhostBatchNorm1d;
using tutti::nn::GhostBatchNorm2d;

TEST_CASE("parts of a batch are normalised as batches of their own, by both ways of computing",
          "[nn][law]") {
  torch::manual_seed(2);
  for (const std::int64_t n : {12, 36, 35}) {  // 3 parts; 9 in one call; 9, the last one short
    INFO(n << " examples");
    const at::Tensor x = torch::randn({n, 3, 2, 2});
    torch::nn::BatchNorm2dImpl plain(3);
    GhostBatchNorm2d ghost(plain, 4);
    const at::Tensor y = ghost.forward(x);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : x.split(4)) {
      parts.push_back(torch::nn::BatchNorm2dImpl(3).forward(part));
    }
    CHECK(y.allclose(torch::cat(parts), 1e-4, 1e-5));
    const at::Tensor last = ghost.forward(x.contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(last.allclose(y, 1e-4, 1e-5));
    CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST_CASE("running statistics learn from the parts one after the other", "[nn][law]") {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({36, 3, 2, 2}) * 2 + 1;
  torch::nn::BatchNorm2dImpl plain(3);
  GhostBatchNorm2d ghost(plain, 4);
  ghost.forward(x);
  torch::nn::BatchNorm2dImpl expected(torch::nn::BatchNorm2dOptions(3).momentum(0.1 / 9));
  for (const at::Tensor& part : x.split(4)) {
    expected.forward(part);
  }
  CHECK(ghost.batchnorm->running_mean.allclose(expected.running_mean, 1e-5, 1e-6));
  CHECK(ghost.batchnorm->running_var.allclose(expected.running_var, 1e-5, 1e-6));
}

TEST_CASE("in evaluation the layer is the plain one, whatever the batch", "[nn]") {
  torch::nn::BatchNorm1dImpl plain(3);
  GhostBatchNorm1d ghost(plain, 8);
  ghost.eval();
  plain.eval();
  const at::Tensor x = torch::randn({2, 3});
  CHECK(ghost.forward(x).equal(plain.forward(x)));
  ghost.train();
  CHECK_THROWS_WITH(ghost.forward(x), ContainsSubstring("smaller than ghost_batch_size 8"));
}

TEST_CASE("without running statistics parts are normalised in evaluation too", "[nn]") {
  torch::manual_seed(2);
  const auto options = torch::nn::BatchNorm2dOptions(3).track_running_stats(false);
  torch::nn::BatchNorm2dImpl plain(options);
  GhostBatchNorm2d ghost(plain, 4);
  ghost.eval();
  plain.eval();
  for (const std::int64_t n : {12, 36, 35}) {  // 3 parts; 9 in one call; 9, the last one short
    INFO(n << " examples");
    const at::Tensor x = torch::randn({n, 3, 2, 2});
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : x.split(4)) {
      parts.push_back(plain.forward(part));
    }
    CHECK(ghost.forward(x).allclose(torch::cat(parts), 1e-4, 1e-5));
  }
  const at::Tensor few = torch::randn({2, 3, 2, 2});
  CHECK(ghost.forward(few).equal(plain.forward(few)));
  const at::Tensor none = torch::randn({0, 3, 2, 2});
  CHECK(ghost.forward(none).sizes() == none.sizes());
}

TEST_CASE("a layer that is frozen alone, in eval mode in a model that trains, stays as it is",
          "[nn]") {
  torch::manual_seed(2);
  torch::nn::BatchNorm2dImpl plain(3);
  const torch::NoGradGuard no_grad;
  plain.running_mean.normal_();
  plain.eval();
  GhostBatchNorm2d ghost(plain, 4);
  ghost.train();
  ghost.batchnorm->eval();
  const at::Tensor mean = plain.running_mean.clone();
  for (const std::int64_t n : {2, 12, 36}) {  // too few, one call a part, one call
    const at::Tensor x = torch::randn({n, 3, 2, 2});
    CHECK(ghost.forward(x).equal(plain.forward(x)));
  }
  CHECK(ghost.batchnorm->running_mean.equal(mean));
  CHECK(ghost.batchnorm->num_batches_tracked.item<std::int64_t>() == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
