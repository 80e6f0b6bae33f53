#include <tutti/cli.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/core/detail/shell_text.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/trainer.hpp>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Precision;
using tutti::Time;
using tutti::TrainerOptions;
using tutti::cli::Program;

TEST_CASE("the trainer's options are read from the command line", "[cli]") {
  TrainerOptions options{.max_duration = "10ep", .progress_bar = false};
  double lr = 0.1;
  Program program{"test", "Tests."};
  program.add("--lr", lr, "learning rate").add(options);
  program.read({"--max-duration",
                "3ep",
                "--precision",
                "amp_bf16",
                "--save-folder",
                "run",
                "--seed=17",
                "--lr",
                "0.25",
                "--device-train-microbatch-size",
                "auto",
                "--grad-accum",
                "4",
                "--cuda-graphs",
                "auto",
                "--progress-bar",
                "--no-cache-cpu-memory",
                "--no-load-strict-model-weights",
                "--on-signal",
                "stop",
                "--load-ignore-keys",
                "state/optimizers",
                "rng",
                "--uneven-ranks"});
  CHECK(options.uneven_ranks);
  CHECK(options.max_duration == Time("3ep"));
  CHECK(options.precision == Precision::amp_bf16);
  CHECK(options.save_folder == "run");
  CHECK(options.seed == 17U);
  CHECK(lr == 0.25);
  CHECK(options.device_train_microbatch_size.automatic);
  CHECK(options.grad_accum.count == 4);
  CHECK(options.cuda_graphs.automatic);
  CHECK(options.progress_bar);
  CHECK_FALSE(options.cache_cpu_memory);
  CHECK_FALSE(options.load_strict_model_weights);
  CHECK(options.on_signal == tutti::OnSignal::stop);
  CHECK(options.load_ignore_keys == std::vector<std::string>{"state/optimizers", "rng"});
  CHECK(options.eval_interval == Time("1ep"));  // as it was
}

TEST_CASE("a program ends itself on a signal unless it is told otherwise", "[cli]") {
  const auto read = [](TrainerOptions options, std::vector<std::string> words) {
    Program{"test", "Tests."}.add(options).read(std::move(words));
    return options.on_signal;
  };
  CHECK(read({}, {}) == tutti::OnSignal::exit);
  CHECK(read({.on_signal = tutti::OnSignal::stop}, {}) == tutti::OnSignal::stop);
  CHECK(read({}, {"--on-signal", "ignore"}) == tutti::OnSignal::ignore);
}

TEST_CASE("every simple option of the trainer has a flag", "[cli]") {
  TrainerOptions options;
  Program program{"test", "Tests."};
  program.add(options);
  std::set<std::string> flags;
  for (const auto& [name, value] : program.values()) {
    flags.insert(name);
  }
  // What has no text is given in the program.
  const std::set<std::string> given{"train",       "eval",     "restore_best",  "optimizer",
                                    "optimizers",  "schedule", "data_parallel", "hyperparameters",
                                    "command_line"};
  std::ifstream header(TUTTI_SOURCE_DIR "/include/tutti/train/options.hpp");
  std::string line;
  while (std::getline(header, line) && line != "struct TrainerOptions {") {
  }
  int members = 0;
  while (std::getline(header, line) && line != "};") {
    const auto end = line.find_first_of("{=", 2);
    const bool is_member = line.starts_with("  ") && line.find("//") != 2 && end != line.npos &&
                           line.find_first_not_of(' ') == 2;
    if (is_member) {
      std::string name = line.substr(0, line.find_last_not_of(' ', end - 1) + 1);
      name = name.substr(name.find_last_of(' ') + 1);
      INFO(name);
      CHECK((given.count(name) == 1 || flags.count(tutti::cli::detail::flag_of(name).substr(2))));
      ++members;
    }
  }
  CHECK(members > 40);
}

TEST_CASE("a mistake on the command line names the option and what is right", "[cli]") {
  const auto read = [](std::vector<std::string> words) {
    TrainerOptions options;
    Program program{"test", "Tests."};
    program.add(options).read(std::move(words));
  };
  CHECK_THROWS_WITH(read({"--max-duration", "3 moons"}),
                    ContainsSubstring("--max-duration") && ContainsSubstring("3 moons"));
  CHECK_THROWS_WITH(
      read({"--precision", "fp8"}),
      ContainsSubstring(
          "--precision: expected one of fp32, amp_fp16, amp_bf16, bf16_true; got fp8"));
  CHECK_THROWS_WITH(read({"--cuda-graphs", "yes"}),
                    ContainsSubstring("expected true, false or auto; got yes"));
  CHECK_THROWS_WITH(read({"--max-durations", "3ep"}), ContainsSubstring("--max-durations"));
  CHECK_THROWS_WITH(read({"--seed", "-1"}),
                    ContainsSubstring("--seed: expected a whole number of 0 or more; got -1"));
}

TEST_CASE("an optional bool is true, false or not given", "[cli]") {
  const auto read = [](std::vector<std::string> words) {
    std::optional<bool> shuffle;
    Program program{"test", "Tests."};
    program.add("--shuffle", shuffle, "else by the data").read(std::move(words));
    return shuffle;
  };
  CHECK(read({"--shuffle", "true"}) == true);
  CHECK(read({"--shuffle", "false"}) == false);
  CHECK(read({"--shuffle=1"}) == true);
  CHECK(read({"--shuffle=0"}) == false);
  CHECK(!read({}).has_value());
  CHECK_THROWS_WITH(read({"--shuffle", "yes"}),
                    ContainsSubstring("--shuffle: expected true or false; got yes"));
}

TEST_CASE("only a finite number that fits is one, on the command line and in a file", "[cli]") {
  struct Numbers {
    double lr = 0.1;
    float drop = 0.5F;
    std::int64_t width = 8;
    std::int32_t depth = 2;
    std::optional<std::uint64_t> salt{};
    tutti::CountOrAuto size{};
    bool on = false;
    Time warmup = "1ep";
  };
  const auto read = [](std::vector<std::string> words) {
    Numbers numbers;
    Program program{"test", "Tests."};
    program.add(numbers).read(std::move(words));
    return numbers;
  };
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  for (const std::string flag : {"lr", "drop", "width", "depth", "salt", "size", "warmup"}) {
    for (const std::string value : {"nan", "inf", "-inf", "1e999", "", "0x", "2 3", "3x"}) {
      INFO("--" << flag << " " << value);
      CHECK_THROWS_WITH(read({"--" + flag, value}), ContainsSubstring("--" + flag));
      std::ofstream(path) << flag << " = " << value << '\n';
      CHECK_THROWS_WITH(read({"--config", path}), ContainsSubstring("--" + flag));
    }
  }
  CHECK_THROWS_WITH(
      read({"--lr", "1e999"}),
      ContainsSubstring("--lr: expected a finite number; got 1e999, which is beyond"));
  CHECK_THROWS_WITH(read({"--lr", ""}), ContainsSubstring("finite number; got nothing"));
  CHECK_THROWS_WITH(read({"--depth", "3000000000"}), ContainsSubstring("beyond the range"));
  CHECK_THROWS_WITH(read({"--width", "1.5"}), ContainsSubstring("a whole number; got 1.5"));
  CHECK_THROWS_WITH(read({"--salt", "-1"}), ContainsSubstring("of 0 or more; got -1"));
  std::ofstream(path) << "on =\n";
  CHECK_THROWS_WITH(read({"--config", path}), ContainsSubstring("--on: expected true or false"));
  std::ofstream(path) << "width = 4\nlr = 0.2\nwidth = 6\n";
  CHECK_THROWS_WITH(read({"--config", path}), ContainsSubstring("--width: the file gives it 2"));
  CHECK(read({"--lr", "+2.5e-1"}).lr == 0.25);
  CHECK(read({"--width", "-3"}).width == -3);
  CHECK(read({"--salt", "18446744073709551615"}).salt == 18446744073709551615U);
}

TEST_CASE("a number without a unit counts epochs, and 0 of them is never", "[cli]") {
  const auto read = [](std::vector<std::string> words) {
    TrainerOptions options;
    Program program{"test", "Tests."};
    program.add(options).read(std::move(words));
    return options;
  };
  CHECK(read({"--max-duration", "5"}).max_duration == Time("5ep"));
  CHECK(read({"--max-duration", "1_000"}).max_duration == Time("1000ep"));
  CHECK(!read({"--eval-interval", "0"}).eval_interval);
  CHECK(!read({"--eval-interval", "0ep"}).eval_interval);
  CHECK_THROWS_WITH(read({"--max-duration", "0.5"}),
                    ContainsSubstring("\"0.5\"") && ContainsSubstring("it has no unit"));
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  std::ofstream(path) << "max-duration = 7\neval-interval = 0\n";
  CHECK(read({"--config", path}).max_duration == Time("7ep"));
  CHECK(!read({"--config", path}).eval_interval);
  TrainerOptions asked{.save_interval = [](const tutti::State&, std::string_view) { return true; }};
  Program{"test", "Tests."}.add(asked).read({"--save-interval", "5ba"});
  CHECK(asked.save_interval == Time("5ba"));
}

TEST_CASE("the last of two flags counts, and lists add up", "[cli]") {
  const TemporaryFolder folder;
  const std::string first = (folder.path() / "first.toml").string();
  const std::string second = (folder.path() / "second.toml").string();
  std::ofstream(first) << "seed = 1\nrun-name = \"one run\"\n";
  std::ofstream(second) << "seed = 2\nload-ignore-keys = \"a\"\nload-ignore-keys = \"b\"\n";
  TrainerOptions options;
  double lr = 0.1;
  Program program{"test", "Tests."};
  program.add("--lr", lr, "").add(options);
  program.read({"--lr",
                "1",
                "--max-duration",
                "3ep",
                "--config",
                first,
                "--save-folder=a",
                "--lr",
                "2",
                "--save-folder=b",
                "--max-duration",
                "4ep",
                "--config",
                second,
                "--save-async",
                "--save-async",
                "--no-save-async",
                "--save-ignore-keys",
                "x",
                "--precision",
                "fp16",
                "--precision",
                "fp32",
                "--save-ignore-keys",
                "y"});
  CHECK(lr == 2);
  CHECK(options.max_duration == Time("4ep"));
  CHECK(options.save_folder == "b");
  CHECK_FALSE(options.save_async);
  CHECK(options.precision == Precision::fp32);
  CHECK(options.seed == 2U);
  CHECK(options.run_name.empty());
  CHECK(options.save_ignore_keys == std::vector<std::string>{"x", "y"});
  CHECK(options.load_ignore_keys == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a program says which tutti and which LibTorch it is", "[cli]") {
  Program program{"test", "Tests."};
  CHECK_THROWS_WITH(program.read({"--version"}),
                    ContainsSubstring("test (tutti " TUTTI_VERSION ", LibTorch " TORCH_VERSION));
}

TEST_CASE("a configuration file is read, and the command line has the last word", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  std::ofstream(path) << "max-duration = \"3ep\"\nprecision = \"bf16\"\nprogress-bar = false\n";
  TrainerOptions options;
  Program program{"test", "Tests."};
  program.add(options).read({"--config", path, "--max-duration", "5ep"});
  CHECK(options.max_duration == Time("5ep"));
  CHECK(options.precision == Precision::amp_bf16);
  CHECK_FALSE(options.progress_bar);

  std::ofstream(path) << "max-durations = \"3ep\"\n";
  TrainerOptions other;
  Program wrong{"test", "Tests."};
  CHECK_THROWS_WITH(wrong.add(other).read({"--config", path}),
                    ContainsSubstring("the file has 'max-durations', which is no option"));

  // A member's name, as TrainerOptions has it.
  std::ofstream(path) << "max_duration = \"4ep\"\n";
  TrainerOptions dashed;
  Program likewise{"test", "Tests."};
  likewise.add(dashed).read({"--config", path});
  CHECK(dashed.max_duration == Time("4ep"));
  const std::vector<std::pair<std::string, std::string>> no_options{
      {"[optim]", "[optim]\nlr = 1\n"}, {"max_durations", "max_durations = 1\n"}};
  for (const auto& [name, line] : no_options) {
    INFO(line);
    std::ofstream(path) << line;
    TrainerOptions none;
    Program refused{"test", "Tests."};
    CHECK_THROWS_WITH(refused.add(none).read({"--config", path}),
                      ContainsSubstring("--config: the file has '" + name + "', which"));
  }
}

TEST_CASE("a configuration file that is no regular or a huge file is refused at once", "[cli]") {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string large = (folder.path() / "large.toml").string();
  std::ofstream(large) << "seed = 1" << std::string(1 << 20, ' ') << "\n";
  const auto says = [](const std::string& path) {
    return tutti_test::in_bounds(64 << 20, [&] {
      TrainerOptions options;
      Program program{"test", "Tests."};
      program.add(options).read({"--config", path});
    });
  };
  CHECK_THAT(says("/dev/zero"), ContainsSubstring("--config: '/dev/zero' cannot be read: it is a "
                                                  "device, not a regular file"));
  CHECK_THAT(says(pipe), ContainsSubstring("it is a named pipe, not a regular file"));
  CHECK_THAT(says(folder.path().string()), ContainsSubstring("it is a folder, not a regular file"));
  CHECK_THAT(says(large), ContainsSubstring("it has 1048585 bytes, expected at most 1048576"));
  CHECK_THAT(says("/no/such"), ContainsSubstring("No such file or directory"));
}

namespace {

struct Ended {
  int status = -1;
  std::string text{};
};

// What a program prints to stdout and ends with that reads these words in a process of its own.
Ended parsed(std::vector<const char*> words) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    TrainerOptions options{.max_duration = "7ba"};
    Program program{"test", "Tests."};
    program.add(options).parse(static_cast<int>(words.size()), words.data());
    std::fflush(stdout);
    ::_exit(42);  // it goes on
  }
  ::close(ends[1]);
  Ended out;
  char piece[4096];
  for (ssize_t got; (got = ::read(ends[0], piece, sizeof piece)) > 0;) {
    out.text.append(piece, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

}  // namespace

TEST_CASE("a program prints its options when it is asked to, and only then", "[cli]") {
  const Ended silent = parsed({"./test", "--seed", "5"});
  CHECK(silent.status == 42);
  CHECK(silent.text.empty());
  const Ended printed = parsed({"./test", "--seed", "5", "--print-config"});
  CHECK(printed.status == 0);
  TrainerOptions options{.max_duration = "7ba"};
  Program program{"test", "Tests."};
  program.add(options).read({"--seed", "5"});
  CHECK(printed.text == program.text());
  CHECK_THAT(printed.text, ContainsSubstring("max-duration = \"7ba\"\n") &&
                               ContainsSubstring("\nseed = \"5\"\n"));
  CHECK_THAT(printed.text, !ContainsSubstring("print-config"));
  const EnvironmentVariable second("RANK", "1");
  const EnvironmentVariable two("WORLD_SIZE", "2");
  const EnvironmentVariable local("LOCAL_RANK", "1");
  const EnvironmentVariable both("LOCAL_WORLD_SIZE", "2");
  const EnvironmentVariable address("MASTER_ADDR", "127.0.0.1");
  const EnvironmentVariable port("MASTER_PORT", "29500");
  const Ended other = parsed({"./test", "--print-config"});
  CHECK(other.status == 0);
  CHECK(other.text.empty());  // the first rank has printed them
}

TEST_CASE("a trainer is told how its program was called", "[cli]") {
  TrainerOptions options;
  Program program{"test", "Tests."};
  const char* const words[] = {"./my test", "--run-folder", "runs/{run_name}", "--run-name=it's"};
  program.add(options).parse(4, words);
  CHECK(options.command_line.command ==
        "'./my test' --run-folder 'runs/{run_name}' '--run-name=it'\\''s'");
  CHECK(options.command_line.config == program.text());
  CHECK_THAT(options.command_line.config, ContainsSubstring("run-folder = \"runs/{run_name}\""));
  CHECK(tutti::detail::shell_text({"a", "", "$(b)", "--c=d,e/f:g@h+i%j_k.l"}) ==
        "a '' '$(b)' --c=d,e/f:g@h+i%j_k.l");
}

TEST_CASE("what a program prints is a configuration file of itself", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  TrainerOptions first{.max_duration = "7ba", .seed = 5, .save_metrics = true};
  Program writer{"test", "Tests."};
  writer.add(first).read({"--dist-timeout", "60.123456789"});
  std::ofstream(path) << writer.text();
  TrainerOptions second;
  Program reader{"test", "Tests."};
  reader.add(second).read({"--config", path});
  CHECK(second.max_duration == Time("7ba"));
  CHECK(second.seed == 5U);
  CHECK(second.save_metrics);
  CHECK(second.dist_timeout == 60.123456789);
  CHECK(reader.text() == writer.text());
}

TEST_CASE("lists and empty texts come back from the file that a program prints", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  TrainerOptions first;
  Program writer{"test", "Tests."};
  writer.add(first).read({"--save-ignore-keys", "state/optimizers", "--save-ignore-keys", "a,b #",
                          "--save-latest-filename=", "--run-folder", "here"});
  CHECK(first.save_latest_filename.empty());
  CHECK(first.run_folder == "here");
  std::ofstream(path) << writer.text();
  TrainerOptions second;
  Program reader{"test", "Tests."};
  reader.add(second).read({"--config", path});
  CHECK(second.save_ignore_keys == std::vector<std::string>{"state/optimizers", "a,b #"});
  CHECK(second.save_latest_filename.empty());
  CHECK(second.run_folder == "here");
  CHECK(reader.text() == writer.text());
}

TEST_CASE("a text of any marks comes back from the file that a program prints", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "run.toml").string();
  const auto read = [&](const std::string& content) {
    std::ofstream(path) << content;
    TrainerOptions options;
    Program program{"test", "Tests."};
    program.add(options).read({"--config", path});
    return options.run_name;
  };
  for (const std::string& name :
       {std::string("run #3"), std::string("#3"), std::string("the \"best\" run"),
        std::string("\"a\" b"), std::string("a 'b' \"c\""), std::string("back\\slash\\"),
        std::string("\\\""), std::string("x = [y], z"), std::string("two\nlines\r\\u000A"),
        std::string("ünï")}) {
    INFO(name);
    TrainerOptions options;
    Program program{"test", "Tests."};
    program.add(options).read({"--run-name", name});
    CHECK(read(program.text()) == name);
  }
  CHECK(read("run_name = 'a # \"b\"'  # which it is\r\n") == "a # \"b\"");
  CHECK(read("run-name=\"C:\\new\"") == "C:\\new");
}

TEST_CASE("a struct of one's own is bound by the names of its members", "[cli]") {
  struct Mine {
    std::int64_t batch_size = 64;
    double lr = 0.1;
    std::string data = "data";
    bool augment = true;
    Time warmup = "1ep";
    struct Run {
      std::map<std::string, double> seen{};
    } run{};  // no option, and so not bound
  } mine;
  Program program{"test", "Tests."};
  program.add(mine).read({"--batch-size", "32", "--no-augment", "--warmup", "50ba"});
  CHECK(mine.batch_size == 32);
  CHECK_FALSE(mine.augment);
  CHECK(mine.warmup == Time("50ba"));
  CHECK(mine.data == "data");
}

TEST_CASE("all options of a program are logged as hyperparameters", "[cli]") {
  TrainerOptions options{.train = tiny::batches(1), .max_duration = "1ep", .progress_bar = false};
  double lr = 0.1;
  Program program{"test", "Tests."};
  program.add("--lr", lr, "learning rate").add(options).read({"--lr", "0.5"});
  tutti::Trainer trainer{tiny::net(), options, tutti::InMemoryLogger{}};
  std::map<std::string, tutti::HyperparameterValue> logged;
  for (const auto& [name, value] : trainer.hyperparameters()) {
    logged[name] = value;
  }
  CHECK(*logged.at("lr").get_if<double>() == 0.5);
  CHECK(*logged.at("max-duration").get_if<std::string>() == "1ep");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
