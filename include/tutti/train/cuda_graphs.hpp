// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/detail/graph_backend.hpp>
#include <tutti/train/graphs.hpp>

#if TUTTI_WITH_CUDA

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

/// Graphs of CUDA: include it in the file that makes the Trainer, and TrainerOptions::cuda_graphs
/// works.
namespace tutti::train {

/// Records with at::cuda::CUDAGraph, on a stream of its own. All graphs take their memory from one
/// pool, since they are replayed one after the other and what one leaves for later is kept alive.
/// Source: PyTorch, `torch.cuda.graph` and "CUDA semantics", section "CUDA Graphs".
class CudaGraphBackend final : public GraphBackend {
 public:
  explicit CudaGraphBackend(at::Device device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  /// On the stream that records, so that the leaves of autograd's graph belong to it.
  void run(const std::function<void()>& work) override {
    const c10::cuda::CUDAStream outside = c10::cuda::getCurrentCUDAStream(device_.index());
    follow(stream_, outside);
    try {
      const c10::cuda::CUDAStreamGuard inside(stream_);
      work();
    } catch (...) {
      follow(outside, stream_);
      throw;
    }
    follow(outside, stream_);
  }

  Recorded record(const std::function<Tensors()>& work) override {
    auto made = std::make_unique<Captured>(device_, pool());
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard inside(stream_);
    at::Generator numbers = at::globalContext().defaultGenerator(device_);
    const at::Generator before = numbers.clone();
    add_generator(made->graph, numbers);
    // Other threads may go on allocating: loaders pin memory while this records.
    made->graph.capture_begin(*made->pool, cudaStreamCaptureModeThreadLocal);
    Tensors tensors;
    bool worked = false;
    try {
      tensors = work();
      worked = true;
      made->graph.capture_end();
    } catch (...) {
      if (worked || !ends(made->graph)) {
        abandon(*made, numbers, before);
      }
      throw;
    }
    return {std::move(made), std::move(tensors)};
  }

 private:
  using Pool = std::shared_ptr<const at::cuda::MempoolId_t>;

  class Captured final : public Graph {
   public:
    Captured(at::Device device, Pool from) : pool(std::move(from)), device_(device) {}
    ~Captured() override {
      try {
        const c10::cuda::CUDAGuard here(device_);
        c10::cuda::device_synchronize();  // it may be running
      } catch (...) {  // NOLINT: the device has failed, which the next call to it says
      }
    }
    void replay() override { graph.replay(); }

    Pool pool;
    at::cuda::CUDAGraph graph;

   private:
    at::Device device_;
  };

  // That of the graphs that there are. The allocator does not take one again that had none left.
  Pool pool() {
    Pool pool = pool_.lock();
    if (pool == nullptr) {
      pool_ = pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
    }
    return pool;
  }

  // Newer LibTorch registers a generator when the recording first draws from it.
  template <class G>
  static void add_generator(G& graph, const at::Generator& numbers) {
    if constexpr (requires { graph.register_generator_state(numbers); }) {
      graph.register_generator_state(numbers);
    }
  }

  // What `first` does from now on comes after what `second` has been given.
  static void follow(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& second) {
    at::cuda::CUDAEvent now;
    now.record(second);
    now.block(first);
  }

  // Whatever made the work fail has mostly ended the recording, too.
  static bool ends(at::cuda::CUDAGraph& graph) {
    try {
      graph.capture_end();
      return true;
    } catch (const std::exception&) {  // the first exception is the one that counts
      return false;
    }
  }

  // Without this LibTorch would go on taking memory from the graph's pool, and numbers for it.
  static void abandon(Captured& made, at::Generator& numbers, const at::Generator& before) {
    numbers.graphsafe_set_state(before);
    const c10::DeviceIndex device = numbers.device().index();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, *made.pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, *made.pool);
    } catch (const std::exception&) {  // NOLINT: it had ended that by itself
    }
  }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::weak_ptr<const at::cuda::MempoolId_t> pool_;
};

namespace detail {

#if TUTTI_BODIES  // else the separate source does it
inline const bool has_cuda_graphs = [] {
  graph_support() = {.device = at::kCUDA,
                     .make = [](at::Device device) -> std::unique_ptr<StepGraphs> {
                       return std::make_unique<Graphs>(std::make_unique<CudaGraphBackend>(device));
                     }};
  return true;
}();
#endif

}  // namespace detail

}  // namespace tutti::train

#endif
