// Claim: on a machine with other work, num_threads = "auto" takes about as long as the better
// number of threads, with the bits of the starting number, and on an idle one no longer than that.
// Usage: benchmark_threads mlp|resnet auto|COUNT EPOCHS FOLDER; FOLDER: examples/data. The number
// of threads that LibTorch starts with is OMP_NUM_THREADS. benchmarks/threads/run.py calls it.
// Prints one line of JSON: seconds of fit on the wall, a hash of the weights, steps by thread
// count.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <tutti/core/detail/xxh64.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

namespace {

// The digits as examples/digits.cpp has them.
tutti::TensorLoader load(const std::string& folder, bool train) {
  at::Tensor images = tutti::data::load_idx(folder + "/digits-images.idx3-ubyte");
  at::Tensor labels = tutti::data::load_idx(folder + "/digits-labels.idx1-ubyte").to(at::kLong);
  images = images.to(at::kFloat).unsqueeze(1).div(8).sub(1);
  const at::Tensor is_test = at::arange(images.size(0)).remainder(5).eq(0);
  const at::Tensor rows = (train ? is_test.logical_not() : is_test).nonzero().flatten();
  return {images.index_select(0, rows),
          labels.index_select(0, rows),
          {.batch_size = 64, .shuffle = train, .drop_last = train}};
}

template <class Model>
int run(Model model, tutti::TrainerOptions options) {
  tutti::Trainer trainer{std::move(model), std::move(options), tutti::InMemoryLogger{}};
  const auto begin = std::chrono::steady_clock::now();
  trainer.fit();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  tutti::detail::Xxh64 hash;
  for (const at::Tensor& parameter : trainer.state().model->parameters()) {
    hash.update(parameter.const_data_ptr(), parameter.nbytes());
  }
  std::map<int, std::int64_t> steps;
  const auto& data = trainer.template get<tutti::InMemoryLogger>().data;
  if (const auto found = data.find("trainer/num_threads"); found != data.end()) {
    for (const double count : found->second.values) {
      ++steps[static_cast<int>(count)];
    }
  }
  std::printf("{\"seconds\": %.4f, \"weights\": \"%s\", \"steps\": {", passed.count(),
              hash.text().c_str());
  const char* comma = "";
  for (const auto& [count, times] : steps) {
    std::printf("%s\"%d\": %lld", std::exchange(comma, ", "), count, static_cast<long long>(times));
  }
  std::printf("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s mlp|resnet auto|COUNT EPOCHS FOLDER\n", argv[0]);
    return 2;
  }
  const std::string threads = argv[2];
  tutti::TrainerOptions options{
      .train = load(argv[4], true),
      .eval = {{"test", load(argv[4], false)}},
      .max_duration = tutti::Time(std::stoll(argv[3])),
      .optimizer = tutti::DecoupledSGDW{.lr = 0.05, .momentum = 0.9},
      .device = "cpu",
      .num_threads = threads == "auto" ? tutti::CountOrAuto("auto") : std::stoi(threads),
      .seed = 17,
      .progress_bar = false};
  tutti::seed_all(17);
  if (std::string(argv[1]) == "mlp") {
    using torch::nn::Linear, torch::nn::ReLU;
    return run(
        tutti::Classifier{torch::nn::Sequential(torch::nn::Flatten(), Linear(64, 512), ReLU(),
                                                Linear(512, 512), ReLU(), Linear(512, 10)),
                          {.num_classes = 10}},
        std::move(options));
  }
  return run(tutti::Classifier{tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}}),
                               {.num_classes = 10}},
             std::move(options));
}
