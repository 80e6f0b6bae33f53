#include <tutti/trainer.hpp>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <string>

#include "crash/runs.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

// Makes the disk fail from a batch on.
struct At final {
  std::int64_t batch = 3;
  void (*then)(const std::string& folder) = nullptr;
  std::string folder;
  void apply(BatchEnd, const State& state) const {
    if (state.timestamp.batch == batch) {
      while (!fs::exists(folder + "/saved/latest") ||
             fs::read_symlink(folder + "/saved/latest") != "ep0-ba2") {
        ::usleep(1000);  // what is written in the background before this is to be written
      }
      then(folder);
    }
  }
};

// What fit() throws; empty: nothing. Left in a file by the process that trained.
struct Outcome {
  std::string error;
  std::int64_t batch = 0;  // of the checkpoint that the folder points to
};

Outcome attempt(const TemporaryFolder& folder, const std::string& at, OnSaveError on_error,
                bool background, void (*prepare)(const std::string&),
                void (*then)(const std::string&)) {
  const std::string run = folder / at;
  const int status = crash::wait_for(crash::start([&] {
    prepare(run);
    TrainerOptions options = crash::options(run + "/saved", "8ba");
    options.save_on_error = on_error;
    options.save_async = background;
    std::string error;
    try {
      crash::train(options, folder / (at + "-weights"), At{.then = then, .folder = run});
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    const auto latest = checkpoint::find_latest(run + "/saved", "latest");
    const auto saved = checkpoint::read_snapshot(*latest);
    write_bytes(folder / (at + "-outcome"),
                std::to_string(saved.meta.get<int>("batch")) + '\n' + error);
    ::umount2(run.c_str(), MNT_DETACH);
  }));
  REQUIRE(crash::went_well(status));
  const std::string text = read_bytes(folder / (at + "-outcome"));
  return {.error = text.substr(text.find('\n') + 1), .batch = std::stoll(text)};
}

// A file system of its own, of 256 KiB, which only this process sees.
void mount_small(const std::string& folder) {
  fs::create_directory(folder);
  TORCH_CHECK(::unshare(CLONE_NEWNS) == 0 &&
                  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=256k") == 0,
              "cannot mount: ", std::strerror(errno));
}

// Fills the file system but for a little.
void fill(const std::string& folder) {
  std::string block(4096, 'x');
  std::FILE* file = std::fopen((folder + "/filler").c_str(), "wb");
  while (std::fwrite(block.data(), 1, block.size(), file) == block.size() &&
         std::fflush(file) == 0) {
  }
  std::fclose(file);
  TORCH_CHECK(::truncate((folder + "/filler").c_str(),
                         static_cast<off_t>(fs::file_size(folder + "/filler") - 8192)) == 0);
}

bool can_mount() {
  return crash::went_well(crash::wait_for(crash::start([] {
    const TemporaryFolder folder;
    mount_small(folder / "try");
    ::umount2((folder / "try").c_str(), MNT_DETACH);
  })));
}

void limit_files(const std::string&) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{2048, 2048};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}
void lift_limit(const std::string& folder) {
  fs::create_directory(folder);
}

// As somebody who may not write there; the superuser may write everywhere.
void forbid(const std::string& folder) {
  ::chmod((folder + "/saved").c_str(), 0555);
  if (::geteuid() == 0) {
    TORCH_CHECK(::seteuid(65534) == 0, "cannot drop rights");
  }
}
void open_to_all(const std::string& folder) {
  fs::create_directory(folder);
  ::chmod(folder.c_str(), 0777);
  ::chmod(fs::path(folder).parent_path().c_str(), 0777);
}

void check(const TemporaryFolder& folder, const std::string& name,
           void (*prepare)(const std::string&), void (*then)(const std::string&),
           const std::string& reason) {
  for (const bool background : {false, true}) {
    INFO(name << (background ? ", in the background" : ""));
    const std::string suffix = background ? "-background" : "";
    const Outcome stopped =
        attempt(folder, name + "-stop" + suffix, OnSaveError::stop, background, prepare, then);
    CHECK_THAT(stopped.error, ContainsSubstring("saved/.tmp-") && ContainsSubstring(reason));
    CHECK(stopped.batch == 2);
    CHECK_FALSE(fs::exists(folder / (name + "-stop" + suffix + "-weights")));
  }
}

}  // namespace

TEST_CASE("a full disk stops the run and the last checkpoint stays", "[crash][disk]") {
  if (!can_mount()) {
    return tutti_test::skip("this process may not mount a small file system");
  }
  const TemporaryFolder folder;
  check(folder, "full", mount_small, fill, "No space left on device");
  const Outcome warned = attempt(folder, "warn", OnSaveError::warn, false, mount_small, fill);
  CHECK(warned.error.empty());
  CHECK(warned.batch == 2);
  CHECK(fs::exists(folder / "warn-weights"));  // it trained to the end
}

TEST_CASE("a limit on the size of files is told like a full disk", "[crash][disk]") {
  const TemporaryFolder folder;
  check(folder, "limit", lift_limit, limit_files, "File too large");
}

TEST_CASE("a folder that may not be written stops the run and the last checkpoint stays",
          "[crash][disk]") {
  const TemporaryFolder folder;
  ::chmod(folder.path().c_str(), 0777);
  check(folder, "read-only", open_to_all, forbid, "Permission denied");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
