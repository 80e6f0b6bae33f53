#include <tutti/checkpoint/folder_lock.hpp>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::checkpoint::CannotLock;
using tutti::checkpoint::FolderLock;
namespace fs = std::filesystem;

namespace {

thread_local bool no_locks = false;

// A process that does something, says so, and waits to be killed.
class Child {
 public:
  template <class F>
  explicit Child(F&& body) {
    int ends[2] = {};
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      body();
      const ssize_t told = ::write(ends[1], "x", 1);
      while (told == 1) {
        ::pause();
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    CHECK(::read(ends[0], &byte, 1) == 1);
    ::close(ends[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    }
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace

// This program's own, so that a file system without locks can be had.
extern "C" int flock(int descriptor, int operation) {
  if (no_locks) {
    errno = ENOLCK;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

TEST_CASE("a folder is one trainer's at a time, also within a process",
          "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  auto first = std::make_unique<FolderLock>(folder.path());
  CHECK(first->held());
  CHECK_THROWS_WITH(FolderLock(folder.path()),
                    ContainsSubstring("another trainer of this process saves into the folder '" +
                                      folder.path().string() + "'") &&
                        ContainsSubstring("close() it first, or choose another save_folder"));
  first.reset();
  CHECK(sorted_names(folder.path()).empty());
  CHECK(FolderLock(folder.path()).held());
}

TEST_CASE("another process is refused with who holds the folder, and a dead one holds nothing",
          "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  Child child([&] { static_cast<void>(new FolderLock(folder.path())); });
  char host[256] = {};
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  CHECK_THROWS_WITH(FolderLock(folder.path()),
                    ContainsSubstring("process " + std::to_string(child.pid()) + " on host '" +
                                      host + "' saves into the folder '"));
  CHECK_THROWS_AS(FolderLock(folder.path(), CannotLock::passes), c10::Error);
  child.kill();
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{FolderLock::filename});
  CHECK(FolderLock(folder.path()).held());
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("a child that has a copy of a lock does not give it back", "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  auto mine = std::make_unique<FolderLock>(folder.path());
  {
    Child child([&] { mine.reset(); });
    CHECK_THROWS_WITH(FolderLock(folder.path()), ContainsSubstring("of this process"));
  }
  CHECK_THROWS_WITH(FolderLock(folder.path()), ContainsSubstring("of this process"));
  Child child([] {});  // which has the descriptor, too
  mine.reset();
  CHECK(FolderLock(folder.path()).held());
}

TEST_CASE("a child that outlives its process is waited for", "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  const pid_t owner = ::fork();
  if (owner == 0) {
    static_cast<void>(new FolderLock(folder.path()));
    if (::fork() == 0) {
      ::usleep(300000);
      ::_exit(0);
    }
    ::_exit(0);
  }
  ::waitpid(owner, nullptr, 0);
  CHECK(FolderLock(folder.path()).held());
}

TEST_CASE("a lock goes with its folder, and is removed where that is then",
          "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "here");
  auto lock = std::make_unique<FolderLock>(folder / "here");
  fs::rename(folder / "here", folder / "there");
  fs::create_directory(folder / "here");
  CHECK(FolderLock(folder / "here").held());
  CHECK_THROWS_WITH(FolderLock(folder / "there"), ContainsSubstring("saves into the folder"));
  lock.reset();
  CHECK(sorted_names(folder / "there").empty());
  CHECK(FolderLock(folder / "there").held());
}

TEST_CASE("a lock's file that is another's now is left alone", "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  auto lock = std::make_unique<FolderLock>(folder.path());
  fs::remove(folder / FolderLock::filename);
  auto second = std::make_unique<FolderLock>(folder.path());
  lock.reset();
  CHECK_THROWS_WITH(FolderLock(folder.path()), ContainsSubstring("saves into the folder"));
  second.reset();
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("where its file cannot be made a lock says why, or holds nothing",
          "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / FolderLock::filename);
  CHECK_THROWS_WITH(FolderLock(folder.path()),
                    ContainsSubstring("cannot lock '") && ContainsSubstring("Is a directory"));
  CHECK_FALSE(FolderLock(folder.path(), CannotLock::passes).held());
  CHECK_THROWS_WITH(FolderLock(folder / "none"), ContainsSubstring("No such file"));
  fs::remove(folder / FolderLock::filename);
  fs::create_symlink("elsewhere", folder / FolderLock::filename);
  CHECK_THROWS_WITH(FolderLock(folder.path()), ContainsSubstring("cannot lock '"));
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_CASE("a file system without locks is warned of, and saved into", "[checkpoint][folder_lock]") {
  const TemporaryFolder folder;
  const Warnings warnings;
  no_locks = true;
  {
    const FolderLock lock(folder.path());
    CHECK(lock.held());
    CHECK(sorted_names(folder.path()).empty());
  }
  no_locks = false;
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("has no locks") && ContainsSubstring("see to it that none does"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
