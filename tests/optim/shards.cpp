#include <tutti/optim/shards.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lars.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/muon.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

constexpr int ranks = 3;
using Tensors = std::vector<at::Tensor>;

// Of seven rows ranks have 3, 3, 1; of four 2, 2, 0; of two 1, 1, 0; of one 1, 0, 0.
const std::vector<std::vector<std::int64_t>> sizes{{7, 6}, {2, 3, 4}, {1, 6}, {7, 1}, {7},
                                                   {},     {7, 6},    {4, 6}, {0, 5}, {7, 2, 3}};

/// Ranks in threads of this process.
struct Ranks {
  std::barrier<> barrier{ranks};
  Tensors given = Tensors(ranks);

  /// What each rank gives; the calls of all ranks have to be alike.
  Tensors all(int rank, const at::Tensor& mine) {
    given[static_cast<std::size_t>(rank)] = mine.clone();
    barrier.arrive_and_wait();
    Tensors out = given;
    barrier.arrive_and_wait();
    return out;
  }
};

class ThreadShards final : public optim::Shards {
 public:
  ThreadShards(Ranks& all, int rank) : all_(all), rank_(rank) {}

  /// This rank's rows of a parameter.
  at::Tensor rows_of(const at::Tensor& whole) const {
    const at::Tensor rows = whole.dim() == 0 ? whole.view({1}) : whole;
    const std::int64_t chunk = rows_of_rank(rows.size(0));
    const std::int64_t first = std::min(rows.size(0), rank_ * chunk);
    return rows.narrow(0, first, std::min(rows.size(0) - first, chunk)).clone();
  }
  void know(const at::Tensor& shard, const at::Tensor& whole) {
    sizes_[shard.unsafeGetTensorImpl()] = whole.sizes().vec();
  }

  int ranks() const override { return static_cast<int>(all_.given.size()); }
  int rank() const override { return rank_; }
  at::IntArrayRef whole_sizes(const at::Tensor& shard) const override {
    return sizes_.at(shard.unsafeGetTensorImpl());
  }
  void sum(const at::Tensor& values) const override {
    ++calls;
    values.copy_(torch::stack(all_.all(rank_, values)).sum(0));
  }
  at::Tensor exchange(const at::Tensor& parts) const override {
    ++calls;
    Tensors out;
    for (const at::Tensor& one : all_.all(rank_, parts)) {
      out.push_back(one[rank_]);
    }
    return torch::stack(out);
  }

  mutable int calls = 0;

 private:
  Ranks& all_;
  int rank_;
  std::unordered_map<const void*, std::vector<std::int64_t>> sizes_;
};

/// Weights, and the gradients of each step; of the last weight there are none.
struct Task {
  explicit Task(at::ScalarType type) {
    torch::manual_seed(2);
    for (const auto& size : sizes) {
      weights.push_back(torch::randn(size, type));
    }
    for (int step = 0; step < 3; ++step) {
      gradients.emplace_back();
      for (const auto& size : sizes) {
        gradients.back().push_back(torch::randn(size, type));
      }
    }
  }
  Tensors weights;
  std::vector<Tensors> gradients;
};

/// Three steps, with the gradients that `part` makes of the task's.
template <class Optimizer, class Part>
void take_steps(Optimizer& optimizer, const Task& task, const Tensors& parameters, Part part) {
  for (const Tensors& gradients : task.gradients) {
    for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
      parameters[i].mutable_grad() = part(gradients[i]);
    }
    optimizer.step();
  }
}

/// Rows step as the tensors of which they are. Returns how many messages a step takes.
template <class Hyper>
int check(const Hyper& hyper, at::ScalarType type = at::kDouble, double tolerance = 1e-13) {
  const Task task(type);
  Tensors whole;
  for (const at::Tensor& weight : task.weights) {
    whole.push_back(weight.clone().requires_grad_());
  }
  const auto reference = hyper.build(whole);
  CHECK(reference->steps_on_shards());
  take_steps(*reference, task, whole, [](const at::Tensor& gradient) { return gradient.clone(); });

  Ranks all;
  std::vector<std::string> thrown(ranks);
  std::vector<int> calls(ranks);
  std::vector<double> off(ranks, 0.0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto place = static_cast<std::size_t>(rank);
      thrown[place] = message([&] {
        const auto shards = std::make_shared<ThreadShards>(all, rank);
        Tensors parts;
        for (const at::Tensor& weight : task.weights) {
          parts.push_back(shards->rows_of(weight).requires_grad_());
          shards->know(parts.back(), weight);
        }
        const auto optimizer = hyper.build(parts);
        optimizer->take_shards(shards);
        take_steps(*optimizer, task, parts,
                   [&](const at::Tensor& gradient) { return shards->rows_of(gradient); });
        calls[place] = shards->calls;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          const at::Tensor expected = shards->rows_of(whole[i].detach());
          if (expected.numel() > 0) {
            off[place] =
                std::max(off[place], (parts[i].detach() - expected).abs().max().item<double>());
          }
        }
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(thrown == std::vector<std::string>(ranks, "nothing"));
  CHECK(std::count(calls.begin(), calls.end(), calls.front()) == ranks);
  CHECK(calls.front() % 3 == 0);
  CHECK(*std::max_element(off.begin(), off.end()) < tolerance);
  CHECK((whole.front().detach() - task.weights.front()).abs().max().item<double>() > 1e-6);
  return calls.front() / 3;
}

}  // namespace

TEST_CASE("rows of parameters take LAMB's steps in one message", "[optim][shards]") {
  CHECK(check(LAMB{.lr = 0.1}) == 1);
  CHECK(check(LAMB{.lr = 0.1, .weight_decay = 0.1, .grad_averaging = false, .trust_clip = true}) ==
        1);
  CHECK(check(LAMB{.lr = 0.1, .weight_decay = 0, .always_adapt = true}) == 1);
  CHECK(check(LAMB{.lr = 0.1, .weight_decay = 0}) == 0);  // which is Adam
  CHECK(check(LAMB{.lr = 0.1}, at::kFloat, 1e-5) == 1);
}

TEST_CASE("rows of parameters take LARS' steps in one message", "[optim][shards]") {
  CHECK(check(LARS{.lr = 1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}) == 1);
  CHECK(check(LARS{.lr = 1, .weight_decay = 0.1, .trust_coeff = 0.1, .trust_clip = true}) == 1);
  CHECK(check(LARS{.lr = 0.1, .momentum = 0.9}) == 0);  // which is SGD
}

TEST_CASE("rows of parameters take Adafactor's steps in two messages", "[optim][shards]") {
  CHECK(check(Adafactor{.lr = 0.1}) == 2);
  CHECK(check(Adafactor{
            .lr = 0.1, .eps = {1e-2, 0.1}, .d = 2, .weight_decay = 0.1, .maximize = true}) == 2);
  CHECK(check(Adafactor{.lr = 0.1}, at::kFloat, 1e-5) == 2);
}

TEST_CASE("rows of parameters take Muon's steps in two messages for each shape",
          "[optim][shards]") {
  // Shapes [1, 6], [2, 12], [4, 6], [7, 1] and twice [7, 6].
  CHECK(check(Muon{.lr = 0.1}, at::kDouble, 1e-12) == 10);
  CHECK(check(Muon{.lr = 0.1, .nesterov = false, .adjust_lr_fn = "match_rms_adamw"}, at::kDouble,
              1e-12) == 10);
  CHECK(check(Muon{.lr = 0.1, .use_muon = false}) == 0);
  CHECK(check(Muon{.lr = 0.1, .ns_dtype = "float32"}, at::kFloat, 1e-4) == 10);
}

TEST_CASE("Lookahead takes rows as the optimizer within it", "[optim][shards]") {
  CHECK(check(Lookahead<LAMB>{.optimizer = {.lr = 0.1}, .k = 2}) == 1);
}

TEST_CASE("an optimizer says which of its state is cut as parameters are", "[optim][shards]") {
  using Sizes = std::vector<std::int64_t>;
  const auto adafactor = Adafactor{}.build(Tensors{torch::zeros({7, 6})});
  CHECK(adafactor->state_sizes("row_var", {7, 6}) == Sizes{7, 1});
  CHECK(adafactor->state_sizes("col_var", {7, 6}) == Sizes{1, 6});
  CHECK(adafactor->state_sizes("col_var", {0, 6}) == Sizes{0, 6});
  CHECK(adafactor->state_sizes("col_var", {5, 7, 6}) == Sizes{5, 1, 6});
  CHECK(adafactor->state_sizes("variance", {7}) == Sizes{7});
  const auto lamb = LAMB{}.build(Tensors{torch::zeros({7, 6})});
  CHECK(lamb->state_sizes("exp_avg", {7, 6}) == Sizes{7, 6});
  CHECK(Lookahead<Adafactor>{}.build(Tensors{torch::zeros({7, 6})})->state_sizes("slow", {7, 6}) ==
        Sizes{7, 6});
  CHECK_FALSE(lamb->elementwise());
  CHECK(AdamW{}.build(Tensors{torch::zeros({7, 6})})->steps_on_shards());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
