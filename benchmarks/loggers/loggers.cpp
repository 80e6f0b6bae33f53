// What it costs a training step to log 20 metrics.
//
//     benchmark_loggers [folder, /tmp by default]
//
// Claim: at most 1 % of a step of 3 ms for each logger that writes files or sends. First the
// loggers alone: 20 metrics in 8 calls and the end of a batch, 4000 times. Then whole steps of one
// trainer per logger and one without any, one thread, fp32, CPU, in turns; the fastest of 80 blocks
// of 10 steps each, in time and in the thread's own processor time, which other programs disturb
// less. Prints one line per logger.

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <time.h>

#include <tutti/core/switch.hpp>
#include <tutti/loggers/dashboard.hpp>
#include <tutti/loggers/file.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/loggers/mlflow.hpp>
#include <tutti/loggers/tensorboard.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

// Logs 15 numbers a step in six calls; the loop itself logs five in two more.
struct Talks final {
  std::array<std::string, 15> names = [] {
    std::array<std::string, 15> out;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = "monitor/group_" + std::to_string(i / 3) + "/value_" + std::to_string(i);
    }
    return out;
  }();

  void apply(tutti::BatchEnd, const tutti::State& state) const { talk(state); }
  void talk(const tutti::State& state) const {
    for (std::size_t i = 0; i < names.size(); i += i < 12 ? 3 : 1) {
      const double value = 1.0 / static_cast<double>(state.timestamp.batch + 1);
      if (i < 12) {
        state.log_metrics(
            {{names[i], value}, {names[i + 1], value + 1}, {names[i + 2], value + 2}});
      } else {
        state.log_metrics({{names[i], value}});
      }
    }
  }
};

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(0);
    net = register_module("net",
                          torch::nn::Sequential(torch::nn::Linear(256, 1536), torch::nn::ReLU(),
                                                torch::nn::Linear(1536, 10)));
  }
  tutti::Outputs forward(const tutti::Batch& batch) { return net->forward(batch.inputs()); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return torch::nn::functional::cross_entropy(outputs.tensor(), batch.targets());
  }
  torch::nn::Sequential net{nullptr};
};

std::vector<tutti::Batch> data() {
  torch::manual_seed(1);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < 50; ++i) {
    out.emplace_back(torch::randn({128, 256}), torch::randint(10, {128}, torch::kLong));
  }
  return out;
}

// Microseconds of the wall's clock and of this thread's.
std::array<double, 2> now() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return {Microseconds(Clock::now().time_since_epoch()).count(),
          1e6 * static_cast<double>(used.tv_sec) + 1e-3 * static_cast<double>(used.tv_nsec)};
}

double fastest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

template <class L>
void alone(const char* name, L logger) {
  tutti::State state;
  state.run_name = name;
  state.logger.add(logger);
  const auto fire = [&](auto event) {
    if constexpr (requires { logger.apply(event, state); }) {
      logger.apply(event, state);
    }
  };
  if constexpr (std::is_same_v<L, tutti::MLflowLogger>) {
    logger.connect(
        [](auto, const std::string& path, auto...) -> tutti::detail::HttpReply {
          return {200, path.find("runs/create") != std::string::npos
                           ? R"({"run": {"info": {"run_id": "r"}}})"
                           : R"({"experiment": {"experiment_id": "1"}})"};
        },
        "http://nobody", "run");
  } else {
    fire(tutti::Init{});
    fire(tutti::AfterLoad{});
  }
  const Talks talks;
  constexpr int steps = 4000;
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) {
    state.log_metrics({{"time/batch", 1.0 * i},
                       {"time/sample", 64.0 * i},
                       {"time/batch_in_epoch", 1.0 * i},
                       {"time/sample_in_epoch", 64.0 * i}});
    state.log_metrics({{"loss/train/total", 1.0 / (i + 1)}});
    state.timestamp = state.timestamp.to_next_batch(64);
    talks.talk(state);
    fire(tutti::BatchEnd{});
  }
  const double each = Microseconds(Clock::now() - start).count() / steps;
  logger.close(state);
  std::printf("%-18s alone: %6.2f us a step, %5.2f million metrics a second\n", name, each,
              20 / each);
}

using Trainer =
    tutti::Trainer<Talks, tutti::Switch<tutti::FileLogger>, tutti::Switch<tutti::JSONLinesLogger>,
                   tutti::Switch<tutti::TensorBoardLogger>, tutti::Switch<tutti::Dashboard>>;

// Without its page, which another process serves.
tutti::Dashboard dashboard(const std::string& file) {
  return {.filename = file, .report = "", .serve = false};
}

std::unique_ptr<Trainer> make(const std::string& folder, int which) {
  return std::make_unique<Trainer>(
      std::make_shared<Net>(),
      tutti::TrainerOptions{.train = data(),
                            .max_duration = "100000ba",
                            .optimizer = tutti::SGD{.lr = 0.01},
                            .device = "cpu",
                            .run_name = "run",
                            .progress_bar = false},
      Talks{},
      tutti::Switch(
          tutti::FileLogger{
              .filename = folder + "/log.txt", .capture_stdout = false, .capture_stderr = false},
          which == 1),
      tutti::Switch(tutti::JSONLinesLogger{.filename = folder + "/log.jsonl"}, which == 2),
      tutti::Switch(tutti::TensorBoardLogger{.log_dir = folder}, which == 3),
      tutti::Switch(dashboard(folder + "/dashboard.jsonl"), which == 4));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string root = std::string(argc > 1 ? argv[1] : "/tmp") + "/benchmark_loggers-" +
                           std::to_string(Clock::now().time_since_epoch().count());
  alone("FileLogger",
        tutti::FileLogger{
            .filename = root + "/alone.txt", .capture_stdout = false, .capture_stderr = false});
  alone("JSONLinesLogger", tutti::JSONLinesLogger{.filename = root + "/alone.jsonl"});
  alone("TensorBoardLogger", tutti::TensorBoardLogger{.log_dir = root});
  alone("MLflowLogger", tutti::MLflowLogger{});
  alone("Dashboard", dashboard(root + "/dashboard-alone.jsonl"));

  const std::array<const char*, 5> names{"no logger", "FileLogger", "JSONLinesLogger",
                                         "TensorBoardLogger", "Dashboard"};
  constexpr int blocks = 80;
  constexpr int steps = 10;
  std::array<std::unique_ptr<Trainer>, 5> trainers;
  std::array<std::array<std::vector<double>, 2>, 5> times;
  for (int round = -1; round < blocks; ++round) {  // the first is the warm-up
    for (std::size_t i = 0; i < trainers.size(); ++i) {
      if (!trainers[i]) {
        trainers[i] = make(root, static_cast<int>(i));
      }
      const auto start = now();
      trainers[i]->fit({.duration = tutti::Time::batches(steps)});
      const auto end = now();
      for (std::size_t k = 0; k < 2 && round >= 0; ++k) {
        times[i][k].push_back((end[k] - start[k]) / steps);
      }
    }
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    std::printf("%-18s step: %8.1f us, %.4f times; processor %8.1f us, %.4f times\n", names[i],
                fastest(times[i][0]), fastest(times[i][0]) / fastest(times[0][0]),
                fastest(times[i][1]), fastest(times[i][1]) / fastest(times[0][1]));
  }
  trainers = {};  // before their files go
  std::filesystem::remove_all(root);
  return 0;
}
