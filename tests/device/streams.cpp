#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device/runtime.hpp"

// The one device, its streams and events. Work is done when somebody waits for it.
namespace stand_in {
namespace {

using Clock = std::chrono::steady_clock;

thread_local cudaError_t last_error = cudaSuccess;

struct Event {
  Stream* stream = nullptr;  // null: was never recorded
  std::uint64_t at = 0;
  std::shared_ptr<Clock::time_point> when;
  bool in_capture = false;
  std::weak_ptr<Capture> capture;
  Clocks clocks;
  int asked = 0;
};
Event& event_of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

std::recursive_mutex& mutex() {
  static auto* const made = new std::recursive_mutex;
  return *made;
}

}  // namespace

Lock::Lock() : scoped_lock(mutex()) {}

cudaError_t say(cudaError_t error) {
  last_error = error == cudaSuccess ? last_error : error;
  return error;
}

void Stream::finish(std::uint64_t upto) {
  while (done < upto) {
    if (work.empty()) {
      std::fputs("stand-in: a stream waits for itself\n", stderr);
      std::abort();
    }
    const Work next = std::move(work.front());
    work.pop_front();
    next();
    ++done;
  }
}

std::vector<Stream*>& streams() {
  static auto* const made = new std::vector<Stream*>{new Stream};
  return *made;
}

Stream& stream_of(cudaStream_t stream) {
  const bool standard =
      stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return standard ? *streams().front() : *reinterpret_cast<Stream*>(stream);
}

cudaError_t give(cudaStream_t stream, Work work) {
  Stream& to = stream_of(stream);
  if (to.capture == nullptr) {
    to.work.push_back(std::move(work));
    ++to.given;
    return cudaSuccess;
  }
  if (to.capture->invalid) {
    return say(cudaErrorStreamCaptureInvalidated);
  }
  to.capture->nodes.push_back(std::move(work));
  ++to.capture->clocks[&to][&to];
  return cudaSuccess;
}

void finish_all() {
  for (Stream* each : streams()) {
    each->finish();
  }
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {

// ---- The device --------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return say(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int /*device*/) {
  *out = {};
  std::strcpy(out->name, "NVIDIA stand-in");
  cudaMemGetInfo(&out->totalGlobalMem, &out->totalGlobalMem);
  out->sharedMemPerBlock = 48 << 10;
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->multiProcessorCount = 8;
  out->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  finish_all();
  return cudaSuccess;
}

// ---- Streams -----------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned /*flags*/, int /*priority*/) {
  const Lock lock;
  streams().push_back(new Stream);
  *out = reinterpret_cast<cudaStream_t>(streams().back());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock;
  stream_of(stream).finish();  // events still name it
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock;
  if (const auto error = recorded(stream_of(stream)); error != cudaSuccess) {
    return error;
  }
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  stream_of(stream).finish();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock;
  if (const auto error = recorded(stream_of(stream)); error != cudaSuccess) {
    return error;
  }
  return stream_of(stream).done == stream_of(stream).given ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                  unsigned /*flags*/) {
  const Lock lock;
  return give(stream, [=] { call(stream, cudaSuccess, data); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* data) {
  const Lock lock;
  return give(stream, [=] { call(data); });
}

// ---- Events ------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned /*flags*/) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return cudaEventCreateWithFlags(out, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock;
  delete &event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock;
  Stream& on = stream_of(stream);
  Event& e = event_of(event);
  e = Event();
  e.stream = &on;
  e.in_capture = on.capture != nullptr;
  if (e.in_capture) {
    e.capture = on.capture;
    e.clocks = on.capture->clocks[&on];
    return say(on.capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
  e.when = std::make_shared<Clock::time_point>();
  give(stream, [when = e.when] { *when = Clock::now(); });
  e.at = on.given;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const Lock lock;
  Stream& on = stream_of(stream);
  const Event& e = event_of(event);
  if (e.stream == nullptr) {
    return cudaSuccess;
  }
  if (!e.in_capture) {
    if (on.capture != nullptr) {  // what came before a recording is not in it
      on.capture->invalid = true;
      return say(cudaErrorStreamCaptureIsolation);
    }
    return give(stream, [other = e.stream, at = e.at] { other->finish(at); });
  }
  const auto capture = e.capture.lock();
  if (capture == nullptr || (on.capture != nullptr && on.capture != capture)) {
    return say(cudaErrorStreamCaptureIsolation);
  }
  on.capture = capture;
  Clocks& own = capture->clocks[&on];
  for (const auto& [other, at] : e.clocks) {
    own[other] = std::max(own[other], at);
  }
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  Event& e = event_of(event);
  if (e.in_capture) {
    return say(cudaErrorCapturedEvent);
  }
  if (e.stream == nullptr || e.stream->done >= e.at) {
    return cudaSuccess;
  }
  if (++e.asked == 1000) {  // for those who ask until it is
    e.stream->finish(e.at);
  }
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock;
  if (const auto error = forbidden(); error != cudaSuccess) {
    return error;
  }
  const Event& e = event_of(event);
  if (e.in_capture) {
    return say(cudaErrorCapturedEvent);
  }
  if (e.stream != nullptr) {
    e.stream->finish(e.at);
  }
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock;
  for (const cudaEvent_t each : {start, end}) {
    if (event_of(each).when == nullptr) {
      return say(cudaErrorInvalidResourceHandle);
    }
    if (event_of(each).stream->done < event_of(each).at) {
      return say(cudaErrorNotReady);
    }
  }
  const auto passed = *event_of(end).when - *event_of(start).when;
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return cudaSuccess;
}

}  // extern "C"
