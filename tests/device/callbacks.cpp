#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <torch/csrc/jit/serialization/pickle.h>

#include <tutti/callbacks/memory_monitor.hpp>
#include <tutti/callbacks/memory_snapshot.hpp>
#include <tutti/callbacks/oom_observer.hpp>
#include <tutti/loggers/in_memory.hpp>

#include "device/run.hpp"
#include "device/stand_in.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using device_tests::options;

c10::IValue unpickled(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return torch::jit::unpickle(text.data(), text.size());
}

// What the allocator did, as a snapshot tells it.
std::vector<std::string> actions(const c10::IValue& snapshot) {
  std::vector<std::string> out;
  const auto traces = snapshot.toGenericDict().at("device_traces").toList();
  REQUIRE(traces.size() == 1);
  for (const c10::IValue& event : traces.get(0).toListRef()) {
    out.push_back(event.toGenericDict().at("action").toStringRef());
  }
  return out;
}

auto count(const std::vector<std::string>& all, const std::string& one) {
  return std::count(all.begin(), all.end(), one);
}

}  // namespace

TEST_CASE("a snapshot tells what LibTorch's allocator did", "[device]") {
  const TemporaryFolder folder;
  Trainer trainer{device_tests::wide(), options(tiny::batches(3, 64)),
                  MemorySnapshot{.folder = folder.path().string()}};
  trainer.fit();
  const c10::IValue snapshot = unpickled(folder / "rank0.4.memory_snapshot.pickle");
  const auto done = actions(snapshot);
  CHECK(count(done, "alloc") > 10);
  CHECK(count(done, "free_completed") > 10);
  CHECK(snapshot.toGenericDict().at("segments").toList().size() > 0);
}

TEST_CASE("a run that has no memory left leaves a snapshot of it", "[device]") {
  const TemporaryFolder folder;
  Trainer trainer{device_tests::wide(), options(tiny::batches(1, 64)),
                  OOMObserver{.folder = folder.path().string()}};
  const device_tests::SpareMemory limit(std::size_t{24} << 20);
  CHECK_THROWS_AS(trainer.fit(), c10::OutOfMemoryError);
  const auto done = actions(unpickled(folder / "rank0_oom_snapshot.pickle"));
  CHECK(count(done, "oom") >= 1);
  CHECK(count(done, "segment_alloc") >= 1);
}

TEST_CASE("the memory that LibTorch's allocator counts is logged", "[device]") {
  Trainer trainer{device_tests::wide(), options(tiny::batches(3, 64)), MemoryMonitor{},
                  InMemoryLogger{}};
  trainer.fit();
  const auto gib = [&](const char* key) {
    return trainer.get<InMemoryLogger>().latest("memory/" + std::string(key)) * 1e9;
  };
  CHECK(gib("current_allocated_mem") > 0);
  CHECK(gib("peak_allocated_mem") - gib("current_allocated_mem") > 2 * (16 << 20));  // activations
  CHECK(gib("current_reserved_mem") == Approx(stand_in::memory_in_use()).epsilon(0.1));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
