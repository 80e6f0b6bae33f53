#include <tutti/train/transfer.hpp>

#include "support/catch.hpp"

#include <atomic>
#include <thread>

#include <ATen/ATen.h>
#include <torch/cuda.h>

#if TUTTI_WITH_CUDA
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <tutti/core/batch.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using train::Transfer;

TEST_CASE("batches stay where they are on a CPU", "[train][transfer]") {
  Transfer transfer(at::kCPU);
  const Batch batch(at::ones({2, 3}), at::zeros({2}));
  const Batch same = transfer(batch);
  CHECK(same.inputs().is_same(batch.inputs()));
  CHECK(same.targets().is_same(batch.targets()));
  CHECK_FALSE(transfer.stream());
}

#if TUTTI_WITH_CUDA

namespace {

bool no_device() {
  if (torch::cuda::is_available()) {
    return false;
  }
  tutti_test::skip("there is no CUDA device");
  return true;
}

at::Tensor numbers(double value) {
  return at::full({1 << 16}, value).pin_memory();
}
Batch batch(double value) {
  return {numbers(value), at::full({1 << 16}, -value)};
}

// Work for the current stream that goes on until it may end.
class Busy {
 public:
  Busy() {
    cudaLaunchHostFunc(
        c10::cuda::getCurrentCUDAStream(),
        [](void* self) {
          auto* const busy = static_cast<Busy*>(self);
          while (!busy->may_end) {
            std::this_thread::yield();
          }
          busy->ended = true;
        },
        this);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    may_end = true;
    c10::cuda::getCurrentCUDAStream().synchronize();
  }

  std::atomic<bool> may_end = false, ended = false;
};

double mean_of(const at::Tensor& x) {
  return x.mean().item<double>();
}

}  // namespace

TEST_CASE("a batch is copied while the device is at work", "[train][transfer][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  Transfer transfer({at::kCUDA, 0});
  Batch there;
  {
    const Busy busy;
    there = transfer(batch(2));
    const at::Tensor back = numbers(0);
    {
      const c10::StreamGuard aside(*transfer.stream());
      back.copy_(there.inputs(), /*non_blocking=*/true);
    }
    transfer.stream()->synchronize();
    CHECK(mean_of(back) == 2);
    CHECK_FALSE(busy.ended);
  }
  CHECK(there.inputs().is_cuda());
  CHECK(mean_of(there.inputs()) == 2);
  CHECK(mean_of(there.targets()) == -2);
}

TEST_CASE("memory is used again once the work on it is done", "[train][transfer][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  Transfer transfer({at::kCUDA, 0});
  const at::Tensor seen = numbers(0);
  Batch first = transfer(batch(1));
  const void* const place = first.inputs().const_data_ptr();
  seen.copy_(first.inputs(), /*non_blocking=*/true);
  first = {};
  CHECK(transfer(batch(2)).inputs().const_data_ptr() != place);
  const Batch third = transfer(batch(3));
  CHECK(third.inputs().const_data_ptr() == place);
  transfer.stream()->synchronize();
  CHECK(mean_of(third.inputs()) == 3);
  CHECK(mean_of(seen) == 1);
}

TEST_CASE("memory that was given back is not taken from work on it",
          "[train][transfer][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  Transfer transfer({at::kCUDA, 0});
  const at::Tensor seen = numbers(0);
  Batch first = transfer(batch(1));
  seen.copy_(first.inputs(), /*non_blocking=*/true);
  first = {};
  transfer.forget();
  const Batch second = transfer(batch(2));
  transfer.stream()->synchronize();
  CHECK(mean_of(second.inputs()) == 2);
  CHECK(mean_of(seen) == 1);
}

TEST_CASE("a batch that is kept stays whole", "[train][transfer][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  Transfer transfer({at::kCUDA, 0});
  const at::Tensor view = transfer(batch(1)).inputs().slice(0, 0, 10);
  for (const int value : {2, 3, 4}) {
    CHECK(mean_of(transfer(batch(value)).inputs()) == value);
  }
  CHECK(mean_of(view) == 1);
  transfer.forget();
  CHECK(mean_of(transfer(batch(5)).inputs()) == 5);
  CHECK(mean_of(view) == 1);
}

TEST_CASE("a batch of other sizes, kinds and places is brought as well",
          "[train][transfer][cuda][gpu]") {
  if (no_device()) {
    return;
  }
  Transfer transfer({at::kCUDA, 0});
  const at::Tensor wide = at::arange(24.0).view({2, 3, 2, 2});
  const at::Tensor last = wide.contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& x : {wide, last, wide.to(at::kByte), wide.slice(0, 1, 2), last}) {
    for (int turn = 0; turn < 2; ++turn) {  // each takes its turn in both memories
      const at::Tensor there = transfer(Batch{{"x", x}}).inputs();
      CHECK(there.strides() == x.strides());
      CHECK(there.scalar_type() == x.scalar_type());
      CHECK(there.cpu().equal(x));
    }
  }
  const at::Tensor device = at::ones({2}, at::kCUDA);
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  const Batch mixed = transfer(Batch{{"device", device},
                                     {"none", at::Tensor()},
                                     {"leaf", leaf},
                                     {"sparse", at::eye(2).to_sparse()}});
  CHECK(mixed.at("device").is_same(device));
  CHECK_FALSE(mixed.at("none").defined());
  CHECK(mixed.at("sparse").is_sparse());
  CHECK(mixed.at("sparse").is_cuda());
  mixed.at("leaf").sum().backward();
  CHECK(leaf.grad().sum().item<double>() == 2);
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
