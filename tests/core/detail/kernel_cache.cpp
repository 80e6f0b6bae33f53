#include <tutti/core/detail/kernel_cache.hpp>

#include "support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "support/bounded.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::detail::kept;
using tutti::detail::kernel_folder;

namespace fs = std::filesystem;

// Counts how often something is built.
struct Builder {
  std::string result{};
  int built = 0;
  std::string operator()(const std::string& folder, std::string_view key) {
    return kept(folder, key, [&] {
      ++built;
      return result;
    });
  }
};

fs::path only_file(const fs::path& folder) {
  REQUIRE(std::distance(fs::directory_iterator(folder), {}) == 1);
  return fs::directory_iterator(folder)->path();
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a kernel is built once for each key and found by later programs", "[cuda]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "a" / "b").string();  // made when needed
  Builder build;
  build.result = std::string("co\0de", 5);
  CHECK(build(path, "one") == build.result);
  CHECK(build.built == 1);
  Builder later{.result = "never"};
  CHECK(later(path, "one") == build.result);
  CHECK(later.built == 0);
  CHECK(later(path, "two") == "never");
  CHECK(later.built == 1);
  CHECK(std::distance(fs::directory_iterator(path), {}) == 2);  // nothing temporary is left
}

TEST_CASE("a damaged kernel on the disk is built anew", "[cuda]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  Builder build{.result = "some code"};
  build(path, "key");
  const fs::path file = only_file(path);
  const std::string whole = read(file);
  int expected = 1;
  const auto damaged = [&](const std::string& bytes) {
    write(file, bytes);
    CHECK(build(path, "key") == "some code");
    CHECK(build.built == ++expected);
    CHECK(read(file) == whole);
  };
  damaged("");
  for (std::size_t length = 1; length < whole.size(); ++length) {
    damaged(whole.substr(0, length));
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    damaged(flipped);
  }
  CHECK(build(path, "key") == "some code");
  CHECK(build.built == expected);
}

TEST_CASE("a named pipe in a kernel's place is replaced", "[cuda]") {
  const TemporaryFolder folder;
  Builder build{.result = "code"};
  build(folder.path().string(), "key");
  const fs::path file = only_file(folder.path());
  fs::remove(file);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK(tutti_test::in_bounds(64 << 20, [&] { build(folder.path().string(), "key"); }) ==
        "nothing");
  CHECK(fs::is_regular_file(file));
}

TEST_CASE("a key with the same hash is not taken for another", "[cuda]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  Builder build{.result = "for one"};
  build(path, "one");
  fs::rename(only_file(path), folder / tutti::detail::hexadecimal(tutti::detail::hash("two")));
  Builder other{.result = "for two"};
  CHECK(other(path, "two") == "for two");
}

TEST_CASE("a folder that cannot be written is no error", "[cuda]") {
  const TemporaryFolder folder;
  Builder build{.result = "code"};
  write(folder / "file", "a file, and no folder");
  CHECK(build((folder / "file").string(), "key") == "code");
  CHECK(build((folder / "file" / "under").string(), "key") == "code");
  CHECK(build("", "key") == "code");
  CHECK(build.built == 3);
  const fs::path closed = folder / "closed";
  fs::create_directory(closed);
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(closed.c_str(), 0555);
  const bool superuser = ::geteuid() == 0;  // who may write everywhere
  REQUIRE((!superuser || ::seteuid(65534) == 0));
  CHECK(build(closed.string(), "key") == "code");
  REQUIRE((!superuser || ::seteuid(0) == 0));
  CHECK(fs::is_empty(closed));
  ::chmod(closed.c_str(), 0700);
}

TEST_CASE("kernels are kept where the environment says", "[cuda]") {
  {
    const EnvironmentVariable cache("XDG_CACHE_HOME", "/somewhere");
    CHECK(kernel_folder() == "/somewhere/tutti/kernels");
  }
  const EnvironmentVariable relative("XDG_CACHE_HOME",
                                     "relative");  // which the standard has ignored
  {
    const EnvironmentVariable home("HOME", "/home/me");
    CHECK(kernel_folder() == "/home/me/.cache/tutti/kernels");
  }
  const EnvironmentVariable home("HOME", nullptr);
  CHECK(kernel_folder().empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
