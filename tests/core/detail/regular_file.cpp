#include <tutti/core/detail/regular_file.hpp>

#include <stdexcept>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::open_regular_file;
using tutti::detail::read_regular_file;

namespace {

constexpr std::uint64_t little = 64 << 20;

// Why a file cannot be read, by a process that would be stopped if it waited.
std::string problem_of(const std::string& path) {
  std::string words = tutti_test::in_bounds(little, [&] {
    std::string problem;
    read_regular_file(path, problem);
    throw std::runtime_error(problem);
  });
  return words;
}

}  // namespace

TEST_CASE("a regular file opens with its size and gives its bytes", "[core]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", std::string("b\0c", 3));
  const auto file = open_regular_file((folder / "a").string());
  CHECK(file.descriptor >= 0);
  CHECK(file.size == 3);
  CHECK(file.problem.empty());
  ::close(file.descriptor);
  std::string problem = "old";
  CHECK(read_regular_file((folder / "a").string(), problem) == std::string("b\0c", 3));
  CHECK(problem.empty());
}

TEST_CASE("what is no regular file is refused at once, and in words", "[core]") {
  const TemporaryFolder folder;
  const std::string pipe = (folder / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(problem_of(pipe) == "it is a named pipe, not a regular file");
  std::filesystem::create_symlink(pipe, folder / "link");
  CHECK(problem_of((folder / "link").string()) == "it is a named pipe, not a regular file");
  CHECK(problem_of(folder.path().string()) == "it is a folder, not a regular file");
  CHECK(problem_of("/dev/zero") == "it is a device, not a regular file");
  CHECK(problem_of((folder / "none").string()) == "No such file or directory");
  CHECK(problem_of((folder / "none/a").string()) ==
        "No such file or directory; there is no folder '" + (folder / "none").string() + "'");
  CHECK(open_regular_file(pipe).descriptor == -1);
}

TEST_CASE("a file with more bytes than allowed is not read", "[core]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "12345");
  std::string problem;
  CHECK(read_regular_file((folder / "a").string(), problem, 5) == "12345");
  CHECK_FALSE(read_regular_file((folder / "a").string(), problem, 4));
  CHECK(problem == "it has 5 bytes, expected at most 4");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
