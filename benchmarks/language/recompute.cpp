// Claims: with every block of a GPT-2 recomputed a training step keeps no more memory than with
// torch.utils.checkpoint, and becomes no more times as long as without. One thread, fp32, dropout.
//
// Usage: benchmark_recompute WAY STEPS, WAY being none, half or all. Prints one line of JSON: the
// median CPU time of a step, and how far the process grew beyond what it had before the step.
// recompute.py runs it and Transformers beside, and sets MALLOC_MMAP_THRESHOLD_ where memory is
// measured, so that freed tensors leave the process.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <tutti/algorithms/recompute.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>

#include "support.hpp"

namespace {

constexpr std::int64_t sequences = 8;
constexpr std::int64_t length = 256;
constexpr std::int64_t vocabulary = 512;
constexpr int warm_up = 2;

double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: benchmark_recompute none|half|all STEPS\n", stderr);
    return 2;
  }
  const std::string way = argv[1];
  const int steps = std::atoi(argv[2]);
  at::manual_seed(17);
  tutti::models::GPT2LMHeadModel model(tutti::models::GPT2Options{
      .vocab_size = vocabulary, .n_positions = length, .n_embd = 256, .n_layer = 12, .n_head = 8});
  if (way != "none") {
    tutti::functional::apply_recompute(*model, {.share = way == "half" ? 0.5 : 1.0});
  }
  const auto optimizer = tutti::Adam{.lr = 1e-4}.build({model->parameters()});
  tutti::Batch batch;
  batch["input_ids"] = at::randint(vocabulary, {sequences, length}, at::kLong);
  batch["labels"] = batch["input_ids"];
  std::vector<double> times;
  std::vector<double> grown;
  double loss = 0;
  for (int step = 0; step < warm_up + steps; ++step) {
    optimizer->zero_grad();
    const double before = bench::kib("VmRSS");
    bench::clear_peak();
    const double begin = milliseconds();
    const at::Tensor total = model->loss(model->forward(batch), batch).total();
    total.backward();
    optimizer->step();
    loss = total.item<double>();
    if (step >= warm_up) {
      times.push_back(milliseconds() - begin);
      grown.push_back((bench::kib("VmHWM") - before) / 1024);
    }
  }
  std::printf("{\"ms\": %.2f, \"mib\": %.1f, \"loss\": %.4f}\n", bench::median(times),
              bench::median(grown), loss);
  return 0;
}
