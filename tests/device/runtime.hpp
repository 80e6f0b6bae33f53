// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

// What the parts of the stand-in's runtime share.
namespace stand_in {

// ---- Memory (memory.cpp) -----------------------------------------------------------------------

/// Where the device's own work finds what the program knows by this address; the same for memory of
/// the host.
void* own_address(const void* p);

// ---- Errors and streams (streams.cpp) ----------------------------------------------------------

using Work = std::function<void()>;

/// Held by every call.
struct Lock : std::scoped_lock<std::recursive_mutex> {
  Lock();
};

/// Remembers an error for cudaGetLastError.
cudaError_t say(cudaError_t error);

struct Stream;

/// How far into the work of other streams one has come.
using Clocks = std::map<const Stream*, int>;

/// A recording.
struct Capture {
  std::vector<Work> nodes;
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  unsigned long long id = 0;
  std::map<Stream*, Clocks> clocks;
};

struct Stream {
  std::deque<Work> work;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  std::shared_ptr<Capture> capture;

  /// Does what was given before `upto`, and all that this has to wait for.
  void finish(std::uint64_t upto);
  void finish() { finish(given); }
};

/// All there are, the default one first.
std::vector<Stream*>& streams();
Stream& stream_of(cudaStream_t stream);

/// Has the stream do the work in its turn, or notes it in the graph that is being recorded.
cudaError_t give(cudaStream_t stream, Work work);

/// Does all that was given to any stream.
void finish_all();

// ---- Graphs (graphs.cpp) -----------------------------------------------------------------------

/// The error of a call that must not be made now: this thread records, or one that forbids it to
/// all. Ends the recording.
cudaError_t forbidden();

/// The error of waiting for a stream that is being recorded. Ends the recording.
cudaError_t recorded(Stream& stream);

}  // namespace stand_in
