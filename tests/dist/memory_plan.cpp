#include <tutti/dist/memory_plan.hpp>

#include "support/catch.hpp"
#include "support/counted_memory.hpp"
#include "support/fake_communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <tutti/dist/sharded.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/nn/unit.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using dist::MemoryPlan;
using dist::ShardStage;
using tutti_test::CountedMemory;

namespace {

constexpr ShardStage stages[] = {ShardStage::optimizer, ShardStage::gradients,
                                 ShardStage::parameters};

/// Also counts the bytes that the rank would have sent, around a ring or in pieces.
class FakeRank final : public FakeCommunicator {
 public:
  FakeRank(int rank, int size, std::shared_ptr<std::int64_t> sent, bool exchanges = true)
      : FakeCommunicator(rank, size), sent_(std::move(sent)), exchanges_(exchanges) {}

  bool exchanges() const override { return exchanges_; }
  std::function<void()> start_exchange(const char*, std::vector<Piece> sent,
                                       std::vector<Piece> received) override {
    for (const Piece& piece : sent) {
      *sent_ += static_cast<std::int64_t>(piece.memory.nbytes());
    }
    for (const Piece& piece : received) {
      piece.memory.fill_(0.01);
    }
    return [sent = std::move(sent), received = std::move(received)] {};  // until they have arrived
  }
  void all_reduce(const at::Tensor& tensor, dist::ReduceOp) override { *sent_ += 2 * ring(tensor); }
  std::function<void()> start_all_gather_into(const at::Tensor& output,
                                              const at::Tensor& input) override {
    check_parts("all_gather_into", output, input);
    output.view({size(), -1}).copy_(input.view({1, -1}));
    *sent_ += ring(output);
    return [input] {};
  }
  std::function<void()> start_reduce_scatter_into(const at::Tensor& output,
                                                  const at::Tensor& input) override {
    check_parts("reduce_scatter_into", input, output);
    output.view({-1}).copy_(input.view({size(), -1}).select(0, rank()));
    *sent_ += ring(input);
    return [] {};
  }
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks) override {
    check_ranks(ranks);
    const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return std::make_shared<FakeRank>(static_cast<int>(place), static_cast<int>(ranks.size()),
                                      sent_, exchanges_);
  }

 private:
  [[nodiscard]] std::int64_t ring(const at::Tensor& all) const {
    return static_cast<std::int64_t>(all.nbytes()) * (size() - 1) / size();
  }

  std::shared_ptr<std::int64_t> sent_;
  bool exchanges_;
};

struct PartImpl final : torch::nn::Module, tutti::nn::Unit {
  explicit PartImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return in_unit(x, [&](const at::Tensor& y) { return down(up(y).tanh()); });
  }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Part);

/// The same, and no unit.
struct PlainImpl final : torch::nn::Module {
  explicit PlainImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Plain);

template <class Block>
struct NetOf final : torch::nn::Module {
  explicit NetOf(std::int64_t width = 96)
      : first(register_module("first", torch::nn::Linear(width, width))) {
    for (int i = 0; i < 4; ++i) {
      parts.push_back(register_module("part" + std::to_string(i), Block(width)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first(x);
    for (Block& part : parts) {
      y = part(y);
    }
    return y;
  }
  torch::nn::Linear first;
  std::vector<Block> parts;
};
using Net = NetOf<Part>;

MemoryPlan plan(const torch::nn::Module& module, int world, const dist::ShardingOptions& sharding,
                int rank = 0, double optimizer_bytes = 0,
                c10::DeviceType device = c10::DeviceType::CPU) {
  return dist::memory_plan(module, {.world_size = world,
                                    .rank = rank,
                                    .sharding = sharding,
                                    .optimizer_bytes = optimizer_bytes,
                                    .device = device});
}

template <class Model>
void step(dist::Sharding& sharding, Model& net, const at::Tensor& x) {
  sharding.before_forward(true);
  const at::Tensor loss = net.forward(x).sum();
  sharding.before_backward(loss);
  loss.backward();
  sharding.after_backward();
  sharding.after_step();
}

/// Bytes of the shapes of a GPT-2 of 124 million parameters that a rank has, in millions.
double gpt2_shard_mb(int world, int rank) {
  const std::int64_t d = 768;
  std::vector<std::vector<std::int64_t>> shapes{{50257, d}, {1024, d}, {d}, {d}};
  for (int block = 0; block < 12; ++block) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{d},
                                                                                         {d},
                                                                                         {d, 3 * d},
                                                                                         {3 * d},
                                                                                         {d, d},
                                                                                         {d},
                                                                                         {d},
                                                                                         {d},
                                                                                         {d, 4 * d},
                                                                                         {4 * d},
                                                                                         {4 * d, d},
                                                                                         {d}}) {
      shapes.push_back(shape);
    }
  }
  torch::nn::Module module;
  int number = 0;
  for (const auto& shape : shapes) {
    module.register_parameter("p" + std::to_string(number++),
                              at::empty(shape, at::TensorOptions().device(at::kMeta)));
  }
  return 4e-6 *
         static_cast<double>(plan(module, world, {.stage = ShardStage::parameters}, rank).shard);
}

}  // namespace

TEST_CASE("a plan has the parts that ranks really get, from 1 rank to 1,024",
          "[dist][memory_plan]") {
  const auto sent = std::make_shared<std::int64_t>(0);
  for (const auto& [world, ranks] : std::vector<std::pair<int, std::vector<int>>>{
           {1, {0}}, {3, {0, 1, 2}}, {64, {0, 31, 63}}, {1024, {0, 1, 95, 96, 500, 1023}}}) {
    for (const int rank : ranks) {
      INFO("rank " << rank << " of " << world);
      Net net;
      const MemoryPlan expected = plan(net, world, {.stage = ShardStage::parameters}, rank);
      const auto sharding = dist::shard(net, std::make_shared<FakeRank>(rank, world, sent),
                                        {.stage = ShardStage::parameters});
      std::int64_t elements = 0;
      for (const auto& one : sharding->parameters()) {
        elements += one.shard.numel();
      }
      CHECK(elements == expected.shard);
    }
  }
}

TEST_CASE("all parts together are the model, on 1,024 ranks", "[dist][memory_plan]") {
  const Net net(20);
  std::int64_t elements = 0;
  for (int rank = 0; rank < 1024; ++rank) {
    elements += plan(net, 1024, {.stage = ShardStage::parameters}, rank).shard;
  }
  const MemoryPlan whole = plan(net, 1024, {.stage = ShardStage::parameters});
  CHECK(elements == whole.elements);
  CHECK(whole.elements == 20 * 20 + 20 + 4 * (60 * 20 + 60 + 60 * 20 + 20));
  // Each of the 18 tensors has fewer rows than ranks, so that a part is one row.
  std::int64_t rows = 20 + 1 + 4 * (20 + 1 + 60 + 1);
  CHECK(whole.padding == 1024 * rows - whole.elements);
}

TEST_CASE("a GPT-2 of 124 million parameters has the parts that PyTorch's cut gives",
          "[dist][memory_plan]") {
  // Megabytes of the first and of the last rank.
  for (const auto& [world, first, last] : std::vector<std::tuple<int, double, double>>{
           {8, 62.2, 62.2}, {64, 7.78, 7.64}, {256, 1.95, 1.41}, {1024, 0.563, 0.114}}) {
    INFO(world << " ranks");
    CHECK_THAT(gpt2_shard_mb(world, 0), Catch::Matchers::WithinRel(first, 0.005));
    CHECK_THAT(gpt2_shard_mb(world, world - 1), Catch::Matchers::WithinRel(last, 0.005));
  }
}

TEST_CASE("a step has the memory that was planned, and no more than it", "[dist][memory_plan]") {
  const CountedMemory counted;
  const auto sent = std::make_shared<std::int64_t>(0);
  const std::int64_t width = 384;
  for (const int world : {1, 2, 4, 8}) {
    for (const ShardStage stage : stages) {
      for (const auto& [half, exchanges, overlaps, offloads] :
           std::vector<std::tuple<bool, bool, bool, bool>>{{false, true, false, false},
                                                           {false, true, true, false},
                                                           {false, false, false, false},
                                                           {false, false, true, false},
                                                           {true, true, false, false},
                                                           {true, false, false, false},
                                                           {false, true, false, true},
                                                           {true, true, false, true}}) {
        INFO(to_string(stage) << " on " << world << " ranks" << (half ? ", in bfloat16" : "")
                              << (exchanges ? ", exchanging pieces" : "")
                              << (overlaps ? ", overlapping" : "")
                              << (offloads ? ", offloading" : ""));
        dist::ShardingOptions options{
            .stage = stage, .cpu_offload = offloads, .overlap_reduce = overlaps};
        if (half) {
          options.param_dtype = at::kBFloat16;
          options.reduce_dtype = at::kFloat;
        }
        const std::int64_t before = CountedMemory::now;
        Net net(width);
        // Ranks on a GPU exchange nothing.
        const MemoryPlan expected =
            plan(net, world, options, 0, 0, exchanges || world == 1 ? at::kCPU : at::kCUDA);
        CHECK((expected.host > 0) == offloads);
        const auto between = static_cast<double>(expected.between_steps() + expected.host);
        const auto peak = static_cast<double>(expected.peak + expected.host);
        const auto sharding =
            dist::shard(net, std::make_shared<FakeRank>(0, world, sent, exchanges), options);
        const at::Tensor x =
            at::ones({1, width}, half ? at::kBFloat16 : at::kFloat);  // few activations
        step(*sharding, net, x);
        const double kept = static_cast<double>(CountedMemory::now - before);
        CHECK(kept <= 1.01 * between + 1e5);
        CHECK(kept >= 0.99 * between);
        for (const auto& one : sharding->parameters()) {
          one.shard.mutable_grad().reset();
        }
        CountedMemory::most = CountedMemory::now;
        *sent = 0;
        step(*sharding, net, x);
        const double most = static_cast<double>(CountedMemory::most - before);
        CHECK(most <= 1.02 * peak);
        if (offloads) {  // the host fills up meanwhile, which is the same memory here
          CHECK(most > between);
        } else {
          CHECK(most >= 0.90 * peak);
        }
        CHECK(*sent <= expected.sent);
        CHECK(*sent + 64 >= expected.sent);
      }
    }
  }
}

namespace {

/// A step of a model that is sharded so has the planned memory, and sends the planned bytes.
template <class Model>
void check_plan(int world, const dist::ShardingOptions& options, bool exchanges) {
  const auto sent = std::make_shared<std::int64_t>(0);
  const std::int64_t width = 384;
  const std::int64_t before = CountedMemory::now;
  Model net(width);
  const MemoryPlan expected = plan(net, world, options, 0, 0, exchanges ? at::kCPU : at::kCUDA);
  CHECK(expected.root == width * width + width);
  const auto sharding =
      dist::shard(net, std::make_shared<FakeRank>(0, world, sent, exchanges), options);
  const at::Tensor x = at::ones({1, width});
  step(*sharding, net, x);
  const auto between = static_cast<double>(expected.between_steps());
  const double kept = static_cast<double>(CountedMemory::now - before);
  CHECK(kept <= 1.01 * between + 1e5);
  CHECK(kept >= 0.99 * between);
  for (const auto& one : sharding->parameters()) {
    one.shard.mutable_grad().reset();
  }
  CountedMemory::most = CountedMemory::now;
  *sent = 0;
  step(*sharding, net, x);
  const double most = static_cast<double>(CountedMemory::most - before);
  CHECK(most <= 1.02 * static_cast<double>(expected.peak));
  CHECK(most >= 0.90 * static_cast<double>(expected.peak));
  CHECK(*sent <= expected.sent);
  CHECK(*sent + 64 >= expected.sent);
}

}  // namespace

TEST_CASE("a step has the memory that was planned for modules that are named",
          "[dist][memory_plan]") {
  const CountedMemory counted;
  for (const int world : {2, 4}) {
    for (const ShardStage stage : stages) {
      for (const bool exchanges : {false, true}) {
        for (const int among : {1, 2, 4}) {
          if (among > world) {
            continue;
          }
          INFO(to_string(stage) << " on " << world << " ranks"
                                << (exchanges ? ", exchanging pieces" : "") << ", of which "
                                << among << " keep a unit together");
          dist::ShardingOptions options{
              .stage = stage, .reshard_after_forward = among, .overlap_reduce = false};
          check_plan<Net>(world, options, exchanges);
          options.units = {"part?"};
          check_plan<NetOf<Plain>>(world, options, exchanges);
        }
      }
    }
  }
}

namespace {

/// The second part does not train.
struct HalfFrozen final : torch::nn::Module {
  explicit HalfFrozen(std::int64_t width)
      : net(register_module("net", std::make_shared<Net>(width))) {
    for (const at::Tensor& one : net->parts[1]->parameters()) {
      one.set_requires_grad(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  std::shared_ptr<Net> net;
};

}  // namespace

TEST_CASE("a plan has what options leave alone whole, and sends nothing of it",
          "[dist][memory_plan]") {
  const CountedMemory counted;
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    dist::ShardingOptions options{
        .stage = stage, .ignored = {"net.part1"}, .overlap_reduce = false};
    check_plan<HalfFrozen>(4, options, true);
    const HalfFrozen net(96);
    const MemoryPlan left = plan(net, 4, options);
    options.ignored.clear();
    const MemoryPlan sharded = plan(net, 4, options);
    CHECK(left.elements == sharded.elements);
    CHECK(left.sent < sharded.sent);
    CHECK((left.parameters > sharded.parameters) == (stage == ShardStage::parameters));
  }
}

TEST_CASE("with cpu_offload a rank's parts are on the host", "[dist][memory_plan]") {
  const Net net;
  for (const ShardStage stage : stages) {
    const MemoryPlan here = plan(net, 4, {.stage = stage}, 0, 8, c10::DeviceType::CUDA);
    const MemoryPlan there =
        plan(net, 4, {.stage = stage, .cpu_offload = true}, 0, 8, c10::DeviceType::CUDA);
    CHECK(there.host == here.optimizer + here.gradients + 4 * here.shard);
    CHECK(there.optimizer + there.gradients == 0);
    CHECK(there.parameters == 4 * (stage == ShardStage::parameters ? here.root : here.elements));
    CHECK(there.sent == here.sent);
    CHECK(there.peak < here.peak);
    CHECK(here.host == 0);
  }
}

TEST_CASE("copies send their parts' gradients to each other", "[dist][memory_plan]") {
  const auto sent = std::make_shared<std::int64_t>(0);
  Net net;
  const dist::ShardingOptions options{.stage = ShardStage::parameters, .shard_degree = 2};
  const MemoryPlan expected = plan(net, 6, options, 5);
  CHECK(expected.shard_degree == 2);
  CHECK(expected.shard == plan(net, 2, {.stage = ShardStage::parameters}, 1).shard);
  const auto sharding = dist::shard(net, std::make_shared<FakeRank>(5, 6, sent), options);
  const at::Tensor x = at::ones({1, 96});
  step(*sharding, net, x);
  *sent = 0;
  step(*sharding, net, x);
  CHECK(*sent <= expected.sent);
  CHECK(*sent + 64 >= expected.sent);
}

TEST_CASE("without sharding a rank has all, and buckets unless gradients are their views",
          "[dist][memory_plan]") {
  Net net;
  const MemoryPlan alone = dist::memory_plan(net, {.optimizer_bytes = 8});
  CHECK(alone.root == 96 * 96 + 96);
  CHECK(alone.largest_unit == 2 * 3 * 96 * 96 + 4 * 96);
  CHECK(alone.elements == alone.root + 4 * alone.largest_unit);
  const std::int64_t bytes = 4 * alone.elements;
  CHECK(alone.parameters == bytes);
  CHECK(alone.gradients == bytes);
  CHECK(alone.optimizer == 2 * bytes);
  CHECK(alone.between_steps() == 4 * bytes);
  CHECK(alone.peak == 4 * bytes);
  CHECK(alone.sent == 0);
  const MemoryPlan two = dist::memory_plan(net, {.world_size = 2});
  CHECK(two.gradients == 2 * bytes);
  CHECK(std::abs(two.sent - bytes) < 10);
  CHECK(dist::memory_plan(net, {.world_size = 2, .gradient_as_bucket_view = true}).gradients ==
        bytes);
  // What does not train has neither gradients nor a state.
  net.first->weight.set_requires_grad(false);
  const MemoryPlan frozen = dist::memory_plan(net, {.optimizer_bytes = 8});
  CHECK(frozen.gradients == bytes - 4 * 96 * 96);
  CHECK(frozen.optimizer == 2 * (bytes - 4 * 96 * 96));
  CHECK(frozen.parameters == bytes);
}

TEST_CASE("plans are a table in megabytes", "[dist][memory_plan]") {
  MemoryPlan plan{.world_size = 8, .stage = ShardStage::parameters, .shard_degree = 4};
  plan.parameters = 1'250'000;
  plan.gradients = 40'000;
  plan.peak = 12'345'678;
  CHECK(dist::to_table({plan}) ==
        "stage       ranks  copies  parameters  gradients  optimizer  between steps  peak  "
        "sent a step\n"
        "parameters      8       2         1.3        0.0        0.0            1.3  12.3  "
        "        0.0\n");
}

TEST_CASE("a plan of a run that cannot be is refused", "[dist][memory_plan]") {
  const Net net;
  CHECK_THROWS_WITH(plan(net, 0, {}), ContainsSubstring("rank 0 of 0 ranks, expected"));
  CHECK_THROWS_WITH(plan(net, 4, {}, 4), ContainsSubstring("rank 4 of 4 ranks, expected"));
  CHECK_THROWS_WITH(plan(net, 6, {.stage = ShardStage::parameters, .shard_degree = 4}),
                    ContainsSubstring("shard_degree is 4 in a run of 6 ranks"));
  CHECK_THROWS_WITH(plan(net, 2, {}, 0, -1), ContainsSubstring("optimizer_bytes is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
