#include <tutti/loggers/file.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::FileLogger;

static_assert(tutti::Recipe<FileLogger>::valid);
static_assert(tutti::role_of<FileLogger> == tutti::Role::logger);

namespace {

FileLogger quiet(const std::filesystem::path& path) {
  return {.filename = path.string(), .capture_stdout = false, .capture_stderr = false};
}

// Sends stdout and stderr into a file, as a cluster does, until the end of its life.
class Redirected {
 public:
  explicit Redirected(const std::filesystem::path& path) {
    std::fflush(stdout);
    std::FILE* file = std::fopen(path.c_str(), "a");
    for (int i = 0; i < 2; ++i) {
      saved_[i] = ::dup(i + 1);
      ::dup2(fileno(file), i + 1);
    }
    std::fclose(file);
  }
  ~Redirected() {
    std::fflush(stdout);
    for (int i = 0; i < 2; ++i) {
      ::dup2(saved_[i], i + 1);
      ::close(saved_[i]);
    }
  }

 private:
  int saved_[2]{};
};

}  // namespace

TEST_CASE("every line of the file has its prefix", "[loggers][trace]") {
  const TemporaryFolder folder;
  FileLogger logger = quiet(folder / "deep/er/logs-rank{rank}.txt");
  FakeRun run{logger, "1ep", 3};
  run.fire(tutti::AfterLoad{});
  run.batch();
  run.evaluate();
  run.state.logger.log_hyperparameters({{"poem", std::string("two\nlines")}});
  const std::vector<std::string> columns{"a"};
  const std::vector<std::vector<std::string>> rows{{"1\n2"}};
  run.state.logger.log_table({.name = "t", .columns = columns, .rows = rows}, 1);
  logger.close(run.state);
  CHECK(read_bytes(folder / "deep/er/logs-rank3.txt") ==
        "[hyperparameter]: lr: 0.1\n"
        "[hyperparameter]: run_name: brisk-otter\n"
        "[metric][batch=0]: loss/train/total: 1\n"
        "[metric][batch=0]: time/batch: 0\n"
        "[metric][batch=1]: metrics/test/MulticlassAccuracy: 0.9844\n"
        "[hyperparameter]: poem: two\n"
        "[hyperparameter]: lines\n"
        "[table][batch=1]: t: {\"columns\": [\"a\"], \"data\": [[\"1\\n2\"]]}\n");
}

TEST_CASE("lines wait for their buffer, and no longer than the batch", "[loggers][law]") {
  const TemporaryFolder folder;
  const auto path = folder / "log.txt";
  FileLogger logger = quiet(path);
  logger.buffer_size = 3;
  FakeRun run{logger, "1ep"};
  run.fire(tutti::AfterLoad{});  // writes what came before it
  const std::string begun = read_bytes(path);
  run.state.log_metrics({{"a", 1}, {"b", 2}});
  CHECK(read_bytes(path) == begun);
  run.state.log_metrics({{"c", 3}});
  const std::string full = begun +
                           "[metric][batch=0]: a: 1\n[metric][batch=0]: b: 2\n"
                           "[metric][batch=0]: c: 3\n";
  CHECK(read_bytes(path) == full);
  run.state.log_metrics({{"d", 4}});
  CHECK(read_bytes(path) == full);
  run.fire(tutti::BatchEnd{});
  CHECK(read_bytes(path) == full + "[metric][batch=0]: d: 4\n");
}

TEST_CASE("a resumed run appends and ends a line that was left half; a new one refuses",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto path = folder / "log.txt";
  write_bytes(path, "[stderr]: half a li");
  {
    FileLogger logger = quiet(path);
    FakeRun run{logger, "4ep"};
    run.state.timestamp = run.state.timestamp.to_next_batch(16);
    run.fire(tutti::AfterLoad{});
    logger.close(run.state);
  }
  const std::string text = read_bytes(path);
  CHECK(text.starts_with("[stderr]: half a li\n[hyperparameter]: lr: 0.1\n"));
  FileLogger logger = quiet(path);
  FakeRun run{logger, "4ep"};
  CHECK_THROWS_WITH(run.fire(tutti::AfterLoad{}), ContainsSubstring("is from an earlier run"));
  logger.close(run.state);
  CHECK(read_bytes(path) == text);
  {
    FileLogger after = quiet(path);  // an earlier start died before its first checkpoint
    FakeRun again{after, "4ep"};
    again.state.autoresume = true;
    again.fire(tutti::AfterLoad{});
    after.close(again.state);
    CHECK(read_bytes(path).starts_with(text));
    CHECK(read_bytes(path).size() > text.size());
  }

  FileLogger may = quiet(path);
  may.overwrite = true;
  FakeRun fresh{may, "4ep"};
  fresh.fire(tutti::AfterLoad{});
  CHECK(read_bytes(path).starts_with("[hyperparameter]: lr: 0.1\n"));
}

TEST_CASE("what is printed reaches the file as well as its own place", "[loggers][trace]") {
  const TemporaryFolder folder;
  const auto log = folder / "log.txt";
  const auto screen = folder / "screen.txt";
  {
    const Redirected cluster(screen);
    FileLogger logger{.filename = log.string()};
    FakeRun run{logger, "1ep"};
    run.fire(tutti::AfterLoad{});
    std::fprintf(stderr, "one\ntw");
    std::fprintf(stderr, "o\nhalf");
    std::printf("%s\n", std::string(20000, 'x').c_str());
    std::fflush(stdout);
    CHECK(std::system("echo from a child") == 0);
    logger.close(run.state);
    std::fprintf(stderr, "\nafter\n");
  }
  std::string text = read_bytes(log);
  CHECK_THAT(text, ContainsSubstring("[stderr]: one\n"));
  CHECK_THAT(text, ContainsSubstring("[stderr]: two\n"));
  CHECK_THAT(text, ContainsSubstring("[stderr]: half\n"));
  CHECK_THAT(text, ContainsSubstring("[stdout]: from a child\n"));
  CHECK(std::count(text.begin(), text.end(), 'x') == 20000);
  CHECK(text.find("after") == std::string::npos);
  text = read_bytes(screen);
  CHECK_THAT(text, ContainsSubstring("one\ntwo\nhalf"));
  CHECK_THAT(text, ContainsSubstring("from a child\n"));
  CHECK_THAT(text, ContainsSubstring("after\n"));
  CHECK(std::count(text.begin(), text.end(), 'x') == 20000);
}

TEST_CASE("the last words of a program that aborts are in the file", "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto log = folder / "log.txt";
  const auto screen = folder / "screen.txt";
  const pid_t child = ::fork();
  if (child == 0) {
    const Redirected cluster(screen);
    FileLogger logger{.filename = log.string()};
    FakeRun run{logger, "1ep"};
    run.fire(tutti::AfterLoad{});
    std::fprintf(stderr, "terminate called\n");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  for (int i = 0; i < 500 && read_bytes(log).find("terminate") == std::string::npos; ++i) {
    ::usleep(10000);  // the copier needs a moment
  }
  CHECK_THAT(read_bytes(log), ContainsSubstring("[stderr]: terminate called\n"));
  CHECK(read_bytes(screen) == "terminate called\n");
}

TEST_CASE("several ranks need a file each, and sizes are checked", "[loggers]") {
  FileLogger logger = quiet("one.txt");
  tutti::State state;
  state.world_size = 2;
  CHECK_THROWS_WITH(logger.apply(tutti::Init{}, state),
                    ContainsSubstring("filename is \"one.txt\", but 2 ranks write"));
  CHECK_THROWS_WITH(FileLogger{.buffer_size = 0}.validate(), ContainsSubstring("buffer_size is 0"));
  CHECK_THROWS_WITH(FileLogger{.flush_interval = 0}.validate(),
                    ContainsSubstring("flush_interval is 0"));
  CHECK_NOTHROW((FileLogger{.buffer_size = 1, .flush_interval = 1}.validate()));
  CHECK_THROWS_WITH(FileLogger{.filename = ""}.validate(), ContainsSubstring("filename is empty"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
