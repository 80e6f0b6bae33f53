#include <utility>

#include <ATen/ATen.h>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// That the stand-in is as strict as a GPU: mistakes that one forgives would pass unseen.

namespace {

at::Tensor pinned(double value) {
  return at::full({1000}, value).pin_memory();
}

// The same on the device, from another stream; `joined`: this stream waits for that one.
at::Tensor copied_aside(const at::Tensor& x, bool joined) {
  const auto aside = c10::cuda::getStreamFromPool();
  at::Tensor out;
  {
    const c10::cuda::CUDAStreamGuard guard(aside);
    out = x.to(at::kCUDA, /*non_blocking=*/true);
  }
  at::cuda::CUDAEvent there;
  there.record(aside);
  if (joined) {
    there.block(c10::cuda::getCurrentCUDAStream());
  }
  return out;
}

}  // namespace

TEST_CASE("a copy reads pinned memory when its turn comes", "[device]") {
  for (const bool waits : {true, false}) {
    const at::Tensor from = pinned(1);
    const at::Tensor to = from.to(at::kCUDA, /*non_blocking=*/true);
    if (waits) {
      c10::cuda::getCurrentCUDAStream().synchronize();
    }
    from.fill_(2);
    CHECK(to.sum().item<double>() == (waits ? 1000 : 2000));
  }
}

TEST_CASE("a copy to pinned memory is there when somebody has waited", "[device]") {
  const at::Tensor to = pinned(1);
  to.copy_(at::full({1000}, 3.0, at::kCUDA), /*non_blocking=*/true);
  CHECK(to.sum().item<double>() == 1000);
  c10::cuda::getCurrentCUDAStream().synchronize();
  CHECK(to.sum().item<double>() == 3000);
}

TEST_CASE("a stream that does not wait for another sees nothing of its work", "[device]") {
  const at::Tensor x = pinned(1);
  CHECK(copied_aside(x, true).sum().item<double>() == 1000);
  CHECK(copied_aside(x, false).sum().item<double>() != 1000);
}

TEST_CASE("a recording does nothing, and a replay reads what is there then", "[device]") {
  const at::Tensor x = at::ones({4}, at::kCUDA);
  const at::Tensor y = at::zeros({4}, at::kCUDA);
  at::cuda::CUDAGraph graph;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  c10::cuda::device_synchronize();
  graph.capture_begin();
  y.add_(x.mul(2));
  graph.capture_end();
  CHECK(y.sum().item<double>() == 0);
  x.fill_(3);
  graph.replay();
  graph.replay();
  CHECK(y.sum().item<double>() == 4 * 2 * 6);
}

TEST_CASE("operators take no tensors of two devices", "[device]") {
  const at::Tensor x = at::ones({4}, at::kCUDA);
  CHECK_THROWS_AS(x.add(at::ones({4})), c10::Error);
  CHECK(x.add(at::ones({})).sum().item<double>() == 8);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
