#include <algorithm>
#include <utility>

#include "device/runtime.hpp"

// Recording streams into graphs, with the rules of when nothing else may be done, and replay.
namespace stand_in {
namespace {

thread_local cudaStreamCaptureMode own_mode = cudaStreamCaptureModeGlobal;

// Those that go on.
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const made = new std::vector<std::shared_ptr<Capture>>;
  return *made;
}

using Graph = std::vector<Work>;
Graph& graph_of(cudaGraph_t graph) {
  return *reinterpret_cast<Graph*>(graph);
}
std::shared_ptr<const Graph>& graph_of(cudaGraphExec_t graph) {
  return *reinterpret_cast<std::shared_ptr<const Graph>*>(graph);
}

// Whether the stream that began has waited for all that the others did.
bool joined(Capture& capture) {
  const Clocks& origin = capture.clocks[capture.origin];
  return std::all_of(capture.clocks.begin(), capture.clocks.end(), [&](const auto& each) {
    const auto own = each.second.find(each.first);
    const auto seen = origin.find(each.first);
    return own == each.second.end() || (seen != origin.end() && seen->second >= own->second);
  });
}

}  // namespace

cudaError_t forbidden() {
  cudaError_t error = cudaSuccess;
  for (const auto& each : captures()) {
    const bool own = each->thread == std::this_thread::get_id();
    const bool all =
        each->mode == cudaStreamCaptureModeGlobal && own_mode == cudaStreamCaptureModeGlobal;
    if (own_mode != cudaStreamCaptureModeRelaxed &&
        ((own && each->mode != cudaStreamCaptureModeRelaxed) || all)) {
      each->invalid = true;
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return say(error);
}

cudaError_t recorded(Stream& stream) {
  if (stream.capture == nullptr) {
    return cudaSuccess;
  }
  stream.capture->invalid = true;
  return say(cudaErrorStreamCaptureUnsupported);
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, own_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock;
  static unsigned long long ids = 0;
  Stream& on = stream_of(stream);
  if (&on == &stream_of(nullptr) || on.capture != nullptr) {
    return say(cudaErrorStreamCaptureUnsupported);
  }
  on.capture = std::make_shared<Capture>();
  on.capture->origin = &on;
  on.capture->mode = mode;
  on.capture->thread = std::this_thread::get_id();
  on.capture->id = ++ids;
  captures().push_back(on.capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  const Lock lock;
  const auto capture = stream_of(stream).capture;
  *out = nullptr;
  if (capture == nullptr) {
    return say(cudaErrorIllegalState);
  }
  if (capture->origin != &stream_of(stream)) {
    return say(cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return say(cudaErrorStreamCaptureWrongThread);
  }
  for (Stream* each : streams()) {
    if (each->capture == capture) {
      each->capture = nullptr;
    }
  }
  std::erase(captures(), capture);
  if (capture->invalid || !joined(*capture)) {
    return say(capture->invalid ? cudaErrorStreamCaptureInvalidated
                                : cudaErrorStreamCaptureUnjoined);
  }
  *out = reinterpret_cast<cudaGraph_t>(new Graph(std::move(capture->nodes)));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock;
  const auto& capture = stream_of(stream).capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  const Lock lock;
  const auto& capture = stream_of(stream).capture;
  const auto set = [](auto* to, auto value) {
    if (to != nullptr) {
      *to = value;
    }
  };
  set(id, capture == nullptr ? 0 : capture->id);
  set(graph, nullptr);
  set(nodes, nullptr);
  set(edges, nullptr);
  set(count, std::size_t{0});
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* /*nodes*/, std::size_t* count) {
  *count = graph_of(graph).size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {
  *out = reinterpret_cast<cudaGraphExec_t>(
      new std::shared_ptr<const Graph>(std::make_shared<const Graph>(graph_of(graph))));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Lock lock;
  return give(stream, [held = graph_of(graph)] {
    for (const Work& node : *held) {
      node();
    }
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}

}  // extern "C"
