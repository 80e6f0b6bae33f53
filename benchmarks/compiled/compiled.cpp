// SPDX-License-Identifier: Apache-2.0
// A training step of a model that tutti_export.py has exported, beside PyTorch's (run.py, which
// alternates them and prints the table of docs/compiled.md): CPU time, one thread.
//
//   benchmark_compiled [own] FOLDER/NAME LOSS OPTIMIZER SAMPLES INPUT...
//
// own: the network of tutti::models that NAME says, resnet18 or resnet50, with the package's
// weights; its LOSS is not step. FOLDER/NAME.tutti is the package and FOLDER/NAME.batch.safetensors
// the batch. LOSS: classes, tokens, next, noise, step (that of classes by forward_and_loss).
// OPTIMIZER: sgd, adamw. Prints a line of JSON: 20 losses, then the microseconds of a step, SAMPLES
// of half a second each, and the most memory that the process had, beyond what it had before the
// first step.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/models/compiled.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/backward.hpp>
#include <tutti/train/cpu_memory.hpp>

#include "support.hpp"

namespace {

double cpu_microseconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

at::Tensor loss_of(const std::string& kind, const at::Tensor& out, const at::Tensor& y) {
  if (kind == "classes") {
    return at::cross_entropy_loss(out, y);
  }
  if (kind == "tokens") {
    return at::cross_entropy_loss(out.flatten(0, 1), y.flatten());
  }
  if (kind == "noise") {
    return at::mse_loss(out, y);
  }
  return at::cross_entropy_loss(out.slice(1, 0, -1).flatten(0, 1), y.slice(1, 1).flatten());
}

void print(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.9g", i == 0 ? "" : ", ", values[i]);
  }
  std::printf("]");
}

std::shared_ptr<tutti::models::ResNetImpl> own_network(const std::string& path) {
  const bool large = path.ends_with("/resnet50");
  TORCH_CHECK(large || path.ends_with("/resnet18"),
              "own: NAME has to be resnet18 or resnet50, got ", path);
  tutti::models::ResNet net = large ? tutti::models::resnet50({.num_classes = 100})
                                    : tutti::models::resnet18({.num_classes = 100});
  tutti::models::load_pretrained(net->weight_layout(), path + ".tutti/model.safetensors");
  net->train();
  return net.ptr();
}

}  // namespace

int main(int argc, char** argv) {
  const bool own = argc > 1 && std::string(argv[1]) == "own";
  argc -= own ? 1 : 0;
  argv += own ? 1 : 0;
  if (argc < 6 || (own && std::string(argv[2]) == "step")) {
    std::fprintf(stderr, "benchmark_compiled [own] FOLDER/NAME LOSS OPTIMIZER SAMPLES INPUT...\n");
    return 2;
  }
  at::set_num_threads(1);
  const tutti::cpu::Cache cache;  // as a Trainer has it
  const std::string path = argv[1], loss_kind = argv[2], optimizer_kind = argv[3];
  const int samples = std::atoi(argv[4]);
  const std::shared_ptr<tutti::CompiledNet> net =
      own ? nullptr : tutti::load_compiled(path + ".tutti");
  const std::shared_ptr<tutti::models::ResNetImpl> resnet = own ? own_network(path) : nullptr;
  const tutti::checkpoint::SafetensorsFile batch(path + ".batch.safetensors");
  std::vector<at::Tensor> inputs;
  for (int i = 5; i < argc; ++i) {
    inputs.push_back(batch.read(std::string("x.") + argv[i]));
  }
  const at::Tensor y = batch.read("y");
  const std::vector<at::Tensor> parameters = own ? resnet->parameters() : net->parameters();
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (optimizer_kind == "sgd") {
    optimizer = tutti::SGD{.lr = 0.01, .momentum = 0.9}.build(parameters);
  } else {
    optimizer = tutti::AdamW{.lr = 1e-3, .weight_decay = 1e-2}.build(parameters);
  }
  tutti::train::Backward backward;
  const auto step = [&] {
    optimizer->zero_grad();
    const at::Tensor loss = loss_kind == "step" ? net->forward_and_loss(inputs, y).value().second
                            : own               ? loss_of(loss_kind, resnet->forward(inputs[0]), y)
                                                : loss_of(loss_kind, net->forward(inputs)[0], y);
    backward(loss);
    optimizer->step();
    return loss;
  };
  const double before = bench::kib("VmRSS");
  bench::clear_peak();
  std::vector<double> losses, times;
  for (int i = 0; i < 20; ++i) {
    losses.push_back(step().item<double>());
  }
  double begin = cpu_microseconds();
  step();
  const auto count = std::max(1L, std::lround(5e5 / (cpu_microseconds() - begin)));
  for (int i = 0; i < samples; ++i) {
    begin = cpu_microseconds();
    for (long k = 0; k < count; ++k) {
      step();
    }
    times.push_back((cpu_microseconds() - begin) / static_cast<double>(count));
  }
  std::printf("{");
  print("losses", losses);
  std::printf(", ");
  print("us", times);
  std::printf(", \"memory_mib\": %.1f}\n", (bench::kib("VmHWM") - before) / 1024);
}
