// Claims: a step of each optimizer that torch.optim has with foreach is at least as fast here, and
// over 161 tensors of 64 elements ten times as fast. CPU, one thread. Memory is the library's as in
// a run of a Trainer (train/cpu_memory.hpp).
//
// Usage: benchmark_optimizer_steps SIZES ROUNDS; SIZES: numbers of elements of the large model's
// parameters, separated by commas. Prints one line of JSON: for each optimizer the times of a step
// in microseconds of the CPU, small and large, one for each round. optimizer_steps.py runs it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <tutti/optim/adadelta.hpp>
#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/adagrad.hpp>
#include <tutti/optim/adamax.hpp>
#include <tutti/optim/asgd.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lars.hpp>
#include <tutti/optim/lion.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/nadam.hpp>
#include <tutti/optim/radam.hpp>
#include <tutti/optim/rmsprop.hpp>
#include <tutti/optim/rprop.hpp>
#include <tutti/optim/schedule_free.hpp>
#include <tutti/train/cpu_memory.hpp>

namespace {

using Tensors = std::vector<at::Tensor>;
using Shapes = std::vector<std::vector<std::int64_t>>;

Tensors parameters(const Shapes& shapes) {
  Tensors out;
  for (const auto& shape : shapes) {
    out.push_back(torch::randn(shape).requires_grad_());
    out.back().mutable_grad() = torch::randn(shape).mul_(0.01);
  }
  return out;
}

// Microseconds of the CPU of one step, `rounds` times the mean of `repeats`.
std::vector<double> times(torch::optim::Optimizer& optimizer, int rounds, int repeats) {
  std::vector<double> out;
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    const auto before = std::clock();
    for (int k = 0; k < repeats; ++k) {
      optimizer.step();
    }
    const auto passed = static_cast<double>(std::clock() - before);
    if (round >= 0) {
      out.push_back(1e6 * passed / CLOCKS_PER_SEC / repeats);
    }
  }
  return out;
}

void print(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.2f", i == 0 ? "" : ", ", values[i]);
  }
  std::printf("]");
}

struct Bench {
  Shapes small;
  Shapes large;
  int rounds;
  bool first = true;

  template <class Hyper>
  void operator()(const char* name, const Hyper& hyper) {
    std::printf("%s\"%s\": {", std::exchange(first, false) ? "{" : ", ", name);
    print("small", times(*hyper.build(parameters(small)), rounds, 50));
    std::printf(", ");
    print("large", times(*hyper.build(parameters(large)), rounds, 1));
    std::printf("}");
    std::fflush(stdout);
  }
};

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);
  at::manual_seed(0);
  const tutti::cpu::Cache cache;
  Bench bench{
      .small = Shapes(161, {64}), .large = {}, .rounds = count > 2 ? std::atoi(arguments[2]) : 10};
  std::istringstream sizes(count > 1 ? arguments[1] : "512x512,512");
  for (std::string size; std::getline(sizes, size, ',');) {
    std::vector<std::int64_t>& shape = bench.large.emplace_back();
    std::istringstream dimensions(size);
    for (std::string dimension; std::getline(dimensions, dimension, 'x');) {
      shape.push_back(std::atol(dimension.c_str()));
    }
  }
  bench("Adagrad", tutti::Adagrad{});
  bench("RMSprop", tutti::RMSprop{});
  bench("RMSprop centered momentum", tutti::RMSprop{.momentum = 0.9, .centered = true});
  bench("Adadelta", tutti::Adadelta{});
  bench("Adamax", tutti::Adamax{});
  bench("NAdam", tutti::NAdam{});
  bench("RAdam", tutti::RAdam{});
  bench("ASGD", tutti::ASGD{});
  bench("Rprop", tutti::Rprop{});
  bench("Lion", tutti::Lion{});
  bench("ScheduleFreeSGD", tutti::ScheduleFreeSGD{.lr = 1e-3});
  bench("ScheduleFreeAdamW", tutti::ScheduleFreeAdamW{});
  bench("LAMB", tutti::LAMB{});
  bench("LARS", tutti::LARS{.momentum = 0.9, .weight_decay = 1e-4});
  bench("Adafactor", tutti::Adafactor{});
  bench("Muon", tutti::Muon{.ns_dtype = "auto"});
  bench("Lookahead of AdamW", tutti::Lookahead<tutti::AdamW>{});
  std::printf("}\n");
}
