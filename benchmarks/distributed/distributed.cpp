// SPDX-License-Identifier: Apache-2.0
// Steps of a GPT-2 over ranks: memory, bytes and time of each ShardStage.
// benchmarks/distributed/run.py starts it, under tutti-run.
//   benchmark_distributed STAGE LAYERS WIDTH VOCABULARY LENGTH STEPS [bf16] [overlap] [cached]
// Rank 0 prints one line of JSON. Bytes are counted by the process's network namespace: run.py
// makes one.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>

#include <torch/torch.h>

#include <tutti/dist/ddp.hpp>
#include <tutti/dist/memory_plan.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/dist/sharded.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/train/cpu_memory.hpp>

#include "../../tests/support/counted_memory.hpp"

namespace {

namespace dist = tutti::dist;
using dist::ShardStage;
using tutti_test::CountedMemory;

// Seconds of this process's threads.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Bytes that went over loopback.
std::int64_t loopback_bytes() {
  std::ifstream file("/proc/net/dev");
  std::string line;
  while (std::getline(file, line)) {
    if (const auto at = line.find("lo:"); at != std::string::npos) {
      return std::strtoll(line.c_str() + at + 3, nullptr, 10);
    }
  }
  return 0;
}

ShardStage stage_of(const std::string& name) {
  for (const ShardStage stage :
       {ShardStage::none, ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
    if (name == to_string(stage)) {
      return stage;
    }
  }
  std::fprintf(stderr, "STAGE is %s, expected none, optimizer, gradients or parameters\n",
               name.c_str());
  std::exit(2);
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** words) {
  if (count < 7) {
    std::fprintf(stderr,
                 "usage: %s STAGE LAYERS WIDTH VOCABULARY LENGTH STEPS [bf16] [overlap] [cached]\n",
                 words[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoll(words[i], nullptr, 10); };
  const ShardStage stage = stage_of(words[1]);
  const std::int64_t steps = number(6);
  dist::ShardingOptions sharding{.stage = stage};
  std::optional<tutti::cpu::Cache> cache;  // as a Trainer has
  for (int i = 7; i < count; ++i) {
    if (std::string_view(words[i]) == "overlap") {
      sharding.overlap_reduce = true;
    } else if (std::string_view(words[i]) == "cached") {
      cache.emplace();
    } else {
      sharding.param_dtype = at::kBFloat16;
      sharding.reduce_dtype = at::kFloat;
    }
  }
  at::set_num_threads(1);
  const auto group = dist::initialize();
  std::optional<CountedMemory> counted;  // which takes the place of the cache
  if (!cache) {
    counted.emplace();
  }
  torch::manual_seed(1);
  tutti::models::GPT2LMHeadModel model(
      tutti::models::GPT2Options{.vocab_size = number(4),
                                 .n_positions = std::max<std::int64_t>(number(5), 8),
                                 .n_embd = number(3),
                                 .n_layer = number(2),
                                 .n_head = number(3) < 64 ? number(3) / 6 : number(3) / 64,
                                 .embd_pdrop = 0,
                                 .attn_pdrop = 0,
                                 .resid_pdrop = 0});
  const dist::MemoryPlan plan = dist::memory_plan(*model, {.world_size = group->size(),
                                                           .rank = group->rank(),
                                                           .sharding = sharding,
                                                           .optimizer_bytes = 8,
                                                           .gradient_as_bucket_view = true});
  std::unique_ptr<dist::DataParallel> parallel;
  dist::Sharding* shards = nullptr;
  std::vector<at::Tensor> parameters = model->parameters();
  if (stage == ShardStage::none) {
    parallel = dist::wrap(*model, group, {.gradient_as_bucket_view = true});
  } else {
    auto made = dist::shard(*model, group, sharding);
    shards = made.get();
    parameters.clear();
    for (const auto& one : shards->parameters()) {
      parameters.push_back(one.shard);
    }
    parallel = std::move(made);
  }
  const auto optimizer = tutti::DecoupledAdamW{.lr = 1e-4}.build(parameters);
  parameters.clear();
  torch::manual_seed(100 + group->rank());
  const at::Tensor ids = at::randint(number(4), {1, number(5)}, at::kLong);
  std::int64_t after_forward = 0;
  const auto step = [&] {
    for (const auto& parameter : optimizer->param_groups()[0].params()) {
      parameter.mutable_grad().reset();  // zero_grad() refuses views of buckets
    }
    if (parallel) {
      parallel->before_forward(true);
    }
    const tutti::Batch batch(ids, ids);
    at::Tensor loss = model->loss(model->forward(batch), batch).total();
    after_forward = CountedMemory::now;
    if (parallel) {
      parallel->before_backward(loss);
    }
    loss.backward();
    if (parallel) {
      parallel->after_backward();
    }
    optimizer->step();
    if (shards != nullptr) {
      shards->after_step();
    }
    return loss.detach();
  };
  step();
  step();
  group->barrier();
  CountedMemory::most = CountedMemory::now;
  const std::int64_t bytes = loopback_bytes();
  std::vector<double> cpu;
  std::vector<double> wall;
  double loss = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double cpu_before = cpu_seconds();
    const auto before = std::chrono::steady_clock::now();
    loss = step().item<double>();
    cpu.push_back(cpu_seconds() - cpu_before);
    wall.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  group->barrier();
  const double sent = static_cast<double>(loopback_bytes() - bytes) /
                      static_cast<double>(std::max<std::int64_t>(steps, 1));
  std::vector<double> most{static_cast<double>(CountedMemory::most),
                           static_cast<double>(after_forward), middle(wall)};
  std::vector<double> sums{middle(cpu), static_cast<double>(plan.sent)};
  group->all_reduce(std::span<double>(most), dist::ReduceOp::maximum);
  group->all_reduce(std::span<double>(sums), dist::ReduceOp::sum);
  if (group->is_rank_zero()) {
    std::printf(
        "{\"stage\": \"%s\", \"ranks\": %d, \"elements\": %lld, \"largest_unit\": %lld, \"root\": "
        "%lld, \"plan_between_steps\": %lld, "
        "\"plan_peak\": %lld, \"plan_sent\": %.0f, \"peak\": %.0f, \"after_forward\": %.0f, "
        "\"sent\": %.0f, \"wall\": %.6f, \"cpu\": %.6f, \"loss\": %.9f}\n",
        words[1], group->size(), static_cast<long long>(plan.elements),
        static_cast<long long>(plan.largest_unit), static_cast<long long>(plan.root),
        static_cast<long long>(plan.between_steps()), static_cast<long long>(plan.peak), sums[1],
        most[0], most[1], sent, most[2], sums[0], loss);
  }
  parallel.reset();
  dist::shutdown();
  return 0;
}
