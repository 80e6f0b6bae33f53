#include <tutti/algorithms/detail/gradients.hpp>

#include <ATen/ATen.h>  // ahead of Catch2: it brings a CHECK of its own

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/detail/perturbed_weights.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// What runs on a GPU is the multi-tensor operators; they take tensors on the CPU as well.

namespace {

namespace inner = tutti::detail;

std::vector<at::Tensor> some_tensors() {
  return {at::randn({7}), at::randn({3, 5}), at::randn({300, 100}), at::randn({}),
          at::randn({4, 6}).t()};
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& tensor : tensors) {
    out.push_back(tensor.clone());
  }
  return out;
}

void check_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].allclose(b[i], 1e-5, 1e-7));
  }
}

}  // namespace

TEST_CASE("norms on the host and on a device are the same", "[algorithms][law]") {
  const auto tensors = some_tensors();
  const double host = inner::host_norm(tensors);
  CHECK(std::abs(inner::device_norm(tensors).item<double>() - host) < 1e-4 * host);
  CHECK(inner::host_norm({at::tensor({3.0, 4.0}), at::tensor({12.0F})}) == 13);
  CHECK(inner::device_norm({at::tensor({3.0, 4.0}), at::tensor({12.0F})}).item<double>() == 13);
  const at::Tensor half = at::full({1000}, 30).to(at::kHalf);  // its squares sum up beyond half
  CHECK(std::abs(inner::device_norm({half}).item<double>() - 948.683) < 0.01);
  CHECK(std::abs(inner::host_norm({half}) - 948.683) < 0.01);
}

TEST_CASE("the norm of large tensors is exact and the same on any number of threads",
          "[algorithms][law]") {
  const std::vector<at::Tensor> large{at::randn({1000, 1001}), at::randn({500'000}),
                                      at::randn({700, 600}).t()};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double norm = inner::host_norm(large);
  at::set_num_threads(4);
  CHECK(inner::host_norm(large) == norm);
  at::set_num_threads(threads);
  double exact = 0;
  for (const at::Tensor& tensor : large) {
    exact += tensor.to(at::kDouble).square().sum().item<double>();
  }
  CHECK(std::abs(norm - std::sqrt(exact)) < 1e-8 * norm);
}

TEST_CASE("clipping on the host and on a device is the same", "[gradient_clipping][law]") {
  const auto tensors = some_tensors();
  for (const double threshold : {0.5, 1e9}) {
    auto host = copies(tensors);
    auto device = copies(tensors);
    const double norm = inner::clip_host_norm(host, threshold);
    const at::Tensor same = inner::clip_device_norm(device, threshold);
    CHECK(std::abs(same.item<double>() - norm) < 1e-4 * norm);
    check_close(host, device);
    if (threshold > 1) {
      check_close(host, tensors);
    }
  }
}

TEST_CASE("climbing on the host and on a device ends at the same place", "[sam][law]") {
  const auto from = some_tensors();
  inner::Gradients slope;
  slope.parameters = from;
  slope.gradients = some_tensors();
  slope.gradients.back() = at::randn({6, 4});  // in another order than its parameter
  auto host = copies(from);
  auto device = copies(from);
  inner::point_uphill_on_host(from, slope, host, 0.5, 1e-12, nullptr);
  inner::point_uphill_on_device(from, slope, device, 0.5, 1e-12, nullptr);
  check_close(host, device);
  double moved = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    moved += (host[i] - from[i]).pow(2).sum().item<double>();
  }
  CHECK(std::abs(std::sqrt(moved) - 0.5) < 1e-4);
}

TEST_CASE("the parameters of all groups of all optimizers are visited", "[algorithms]") {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(at::ones({1}).requires_grad_());
  }
  auto first = std::make_shared<torch::optim::SGD>(
      std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup({tensors[0]}),
          torch::optim::OptimizerParamGroup({tensors[1]})},
      torch::optim::SGDOptions(0.1));
  auto second = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{tensors[2]},
                                                    torch::optim::SGDOptions(0.1));
  std::vector<at::Tensor> seen;
  inner::each_parameter({first, second}, [&](const at::Tensor& p) { seen.push_back(p); });
  REQUIRE(seen.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(seen[i].is_same(tensors[i]));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
