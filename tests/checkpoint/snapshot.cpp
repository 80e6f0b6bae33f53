#include <tutti/checkpoint/snapshot.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::checkpoint::point_latest;
using tutti::checkpoint::read_snapshot;
using tutti::checkpoint::Snapshot;
using tutti::checkpoint::write_snapshot;
namespace fs = std::filesystem;

namespace {

Snapshot sample(double lr = 0.1) {
  Snapshot out;
  out.meta.put("run_name", "gentle-fox");
  out.model.put("conv.weight", at::arange(6, at::kFloat).view({2, 3}));
  out.model.put("conv.bias", at::ones({2}, at::kHalf));
  out.state.put("optimizers/0/lr", lr);
  out.state.put("optimizers/0/momentum", at::full({2}, lr));
  out.state.put("timestamp/batch", 45);
  return out;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Runs `body` in a process of its own and returns how that ended.
template <class F>
int in_child(F&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a snapshot reads back what was written", "[checkpoint][snapshot][law]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "run/checkpoints/ep1-ba45", sample());
  CHECK(names_in(folder / "run/checkpoints") == std::vector<std::string>{"ep1-ba45"});
  CHECK(names_in(folder / "run/checkpoints/ep1-ba45") ==
        std::vector<std::string>{"manifest.json", "model.safetensors", "state.safetensors"});
  const Snapshot back = read_snapshot(folder / "run/checkpoints/ep1-ba45");
  CHECK(back.meta.get<std::string>("run_name") == "gentle-fox");
  CHECK(back.model.tensor("conv.weight").equal(sample().model.tensor("conv.weight")));
  CHECK(back.model.tensor("conv.bias").scalar_type() == at::kHalf);
  CHECK(back.state.get<double>("optimizers/0/lr") == 0.1);
  CHECK(back.state.tensor("optimizers/0/momentum").equal(at::full({2}, 0.1)));
  CHECK(back.state.get<int>("timestamp/batch") == 45);
}

TEST_CASE("a reader may leave out the state or the weights", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample());
  CHECK(read_snapshot(folder / "a", {.state = false}).state.empty());
  const Snapshot state = read_snapshot(folder / "a", {.model = false, .verify = false});
  CHECK(state.model.empty());
  CHECK(state.state.get<double>("optimizers/0/lr") == 0.1);
}

TEST_CASE("a snapshot of weights alone has no file for the state", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  Snapshot weights = sample();
  weights.state = {};
  write_snapshot(folder / "a", weights);
  CHECK(names_in(folder / "a") == std::vector<std::string>{"manifest.json", "model.safetensors"});
  CHECK(read_snapshot(folder / "a").state.empty());
}

TEST_CASE("an existing snapshot is replaced only when asked, and then whole",
          "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample(0.1));
  CHECK_THROWS_WITH(write_snapshot(folder / "a", sample(0.2)),
                    ContainsSubstring("exists; set overwrite"));
  CHECK(read_snapshot(folder / "a").state.get<double>("optimizers/0/lr") == 0.1);
  write_snapshot(folder / "a", sample(0.2), true);
  CHECK(read_snapshot(folder / "a").state.get<double>("optimizers/0/lr") == 0.2);
  write_snapshot(folder / "b", sample(0.3), true);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("every truncation of every file of a snapshot is refused by name",
          "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample());
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const std::string bytes = read_bytes(folder / ("a/" + name));
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      INFO(name << " cut to " << length << " of " << bytes.size());
      write_bytes(folder / ("a/" + name), bytes.substr(0, length));
      CHECK_THROWS_WITH(read_snapshot(folder / "a"),
                        ContainsSubstring(name) && ContainsSubstring("truncated"));
    }
    fs::remove(folder / ("a/" + name));
    CHECK_THROWS_WITH(read_snapshot(folder / "a"), ContainsSubstring(name));
    write_bytes(folder / ("a/" + name), bytes);
    CHECK_NOTHROW(read_snapshot(folder / "a"));
  }
}

TEST_CASE("every changed byte of every file of a snapshot is noticed", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample());
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const std::string bytes = read_bytes(folder / ("a/" + name));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
      write_bytes(folder / ("a/" + name), changed);
      INFO(name << " byte " << i);
      CHECK_THROWS_AS(read_snapshot(folder / "a"), c10::Error);
    }
    write_bytes(folder / ("a/" + name), bytes);
  }
}

TEST_CASE("files of two snapshots cannot be mixed", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample(0.1));
  write_snapshot(folder / "b", sample(0.2));
  write_bytes(folder / "a/state.safetensors", read_bytes(folder / "b/state.safetensors"));
  CHECK_THROWS_WITH(read_snapshot(folder / "a"),
                    ContainsSubstring("state.safetensors' has the checksum"));
  CHECK_NOTHROW(read_snapshot(folder / "a", {.state = false}));
}

TEST_CASE("what is no snapshot is refused in words", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_snapshot(folder / "none"), ContainsSubstring("there is no checkpoint"));
  fs::create_directory(folder / "empty");
  CHECK_THROWS_WITH(read_snapshot(folder / "empty"), ContainsSubstring("has no manifest.json"));
  write_bytes(folder / "empty/config.json", "{}");
  CHECK_THROWS_WITH(read_snapshot(folder / "empty"),
                    ContainsSubstring("read it by models::from_pretrained()"));
  Snapshot bad = sample();
  bad.model.put("epoch", 1);
  CHECK_THROWS_WITH(write_snapshot(folder / "a", bad),
                    ContainsSubstring("'epoch' of the model is no tensor"));
  bad = sample();
  bad.meta.put("x", at::ones({1}));
  CHECK_THROWS_WITH(write_snapshot(folder / "a", bad), ContainsSubstring("meta holds a tensor"));
  CHECK_THROWS_WITH(write_snapshot(folder.path().string() + "/a/", sample()),
                    ContainsSubstring("ends in a slash"));
  CHECK_THROWS_WITH(write_snapshot("", sample()), ContainsSubstring("is empty"));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"empty"});
}

TEST_CASE("a file or a folder of checkpoints in place of one is told what to give",
          "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "ep1", sample());
  point_latest(folder / "latest", "ep1");
  CHECK_THROWS_WITH(read_snapshot(folder / "."), ContainsSubstring("its newest checkpoint is '") &&
                                                     ContainsSubstring("latest'"));
  CHECK_THROWS_WITH(read_snapshot(folder / "ep1/model.safetensors"),
                    ContainsSubstring("that is a file, and a checkpoint is a folder"));
}

TEST_CASE("a writer that fails half way leaves nothing and keeps the old snapshot",
          "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample(0.1));
  Snapshot large = sample(0.2);
  large.state.put("zzz", at::ones({1 << 16}));
  const int status = in_child([&] {  // every write beyond 64 KiB fails, as on a full disk
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_snapshot(folder / "a", large, true);
      ::_exit(1);
    } catch (const c10::Error& error) {
      const std::string what = error.what();
      ::_exit(what.find("cannot write") != std::string::npos ? 42 : 2);
    }
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a"});
  CHECK(read_snapshot(folder / "a").state.get<double>("optimizers/0/lr") == 0.1);
}

TEST_CASE("a killed writer's leftovers are ignored, and removed by the next",
          "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "a", sample(0.1));
  Snapshot large = sample(0.2);
  large.state.put("zzz", at::ones({1 << 16}));
  const int status = in_child([&] {  // the default action of SIGXFSZ kills in the middle of a write
    const rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGXFSZ, SIG_DFL);
    write_snapshot(folder / "a", large, true);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGXFSZ);
  const auto names = names_in(folder.path());
  REQUIRE(names.size() == 2);
  CHECK_THAT(names[0], ContainsSubstring(".tmp-a-"));
  CHECK_THROWS_WITH(read_snapshot(folder / names[0]), ContainsSubstring("has no manifest.json"));
  CHECK(read_snapshot(folder / "a").state.get<double>("optimizers/0/lr") == 0.1);
  write_snapshot(folder / "b", sample());
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a living writer's temporary folder is not cleaned away", "[checkpoint][snapshot]") {
  const TemporaryFolder folder;
  {
    const tutti::checkpoint::detail::Staging living(folder / "a");
    const int status = in_child([&] { write_snapshot(folder / "b", sample()); });
    CHECK(status == 0);
    CHECK(fs::exists(living.path()));
    CHECK(names_in(folder.path()).size() == 2);
  }
  CHECK(names_in(folder.path()) == std::vector<std::string>{"b"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
