#include <tutti/dist/sharded.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

// When units are gathered and reduced of which activations are computed again. That gradients are
// right over several ranks is in sharded.cpp.

namespace dist = tutti::dist;
using dist::ShardStage;

namespace {

using Trace = std::vector<std::string>;

/// A block that says when it is computed. Its parameters are 11 width + 5 numbers in four tensors.
struct TracedImpl final : torch::nn::Module, tutti::nn::Block {
  TracedImpl(std::string label, std::int64_t width, Trace& to)
      : up(register_module("up", torch::nn::Linear(5, width))),
        down(register_module("down", torch::nn::Linear(width, 5))),
        of(std::move(label)),
        trace(to) {}
  at::Tensor forward(const at::Tensor& x) {
    return in_block(x, [this](const at::Tensor& y) {
      trace.push_back("run " + of);
      return down(up(y).tanh());
    });
  }
  torch::nn::Linear up, down;
  std::string of;
  Trace& trace;
};
TORCH_MODULE(Traced);

/// The last two blocks are in a module that can be computed again as a whole.
struct TracedNet final : torch::nn::Module {
  explicit TracedNet(Trace& trace)
      : first(register_module("first", torch::nn::Linear(5, 5))),
        a(register_module("a", Traced("a", 2, trace))),
        rest(register_module("rest", tutti::nn::Sequential())),
        last(register_module("last", torch::nn::Linear(5, 2))) {
    rest->push_back(Traced("b", 3, trace));
    rest->push_back(Traced("c", 4, trace));
  }
  at::Tensor forward(const at::Tensor& x, bool a_twice) {
    at::Tensor h = a(first(x));
    h = a_twice ? a(h) : h;
    return last(rest(h));
  }
  void compute_again(const std::vector<std::string>& names) {
    for (const auto& module : named_modules()) {
      if (auto* const one = dynamic_cast<tutti::nn::Recomputable*>(module.value().get())) {
        one->set_activation_checkpointing(std::find(names.begin(), names.end(), module.key()) !=
                                          names.end());
      }
    }
  }
  torch::nn::Linear first;
  Traced a;
  tutti::nn::Sequential rest;
  torch::nn::Linear last;
};

std::shared_ptr<TracedNet> traced_net(Trace& trace) {
  torch::manual_seed(1);
  auto out = std::make_shared<TracedNet>(trace);
  out->to(at::kDouble);
  return out;
}

/// One process that says when messages begin, and of which part of a TracedNet they are.
struct TracingCommunicator final : FakeCommunicator {
  explicit TracingCommunicator(Trace& to) : FakeCommunicator(0, 1), trace(to) {}
  std::function<void()> start_all_gather_into(const at::Tensor& output,
                                              const at::Tensor& input) override {
    trace.push_back("gather " + of(input.numel()));
    return Communicator::start_all_gather_into(output, input);
  }
  std::function<void()> start_reduce_scatter_into(const at::Tensor& output,
                                                  const at::Tensor& input) override {
    trace.push_back("reduce " + of(input.numel() - 4));  // without a flag for each tensor
    return Communicator::start_reduce_scatter_into(output, input);
  }
  static std::string of(std::int64_t numbers) {
    return numbers == 27 ? "a" : numbers == 38 ? "b" : numbers == 49 ? "c" : "root";
  }
  Trace& trace;
};

at::Tensor rows() {
  torch::manual_seed(5);
  return at::randn({12, 5}, at::kDouble);
}

template <class Loss>
void pass(dist::Sharding& sharding, Loss&& loss) {
  sharding.before_forward(/*last=*/true);
  const at::Tensor value = loss();
  sharding.before_backward(value);
  value.backward();
  sharding.after_backward();
}

struct Recomputed {
  std::vector<std::string> names;
  bool a_twice;
  Trace trace;  // of a pass that is not the first
};

}  // namespace

TEST_CASE("units that are computed again are gathered ahead, and reduced when they have gradients",
          "[dist][sharded]") {
  const std::vector<Recomputed> cases{
      {{"a", "rest.0", "rest.1"},
       false,
       {"gather a", "gather b", "run a", "gather c", "run b", "run c",                 //
        "gather c", "gather b", "run c", "reduce c", "gather a", "run b", "reduce b",  //
        "run a", "reduce a", "reduce root"}},
      {{"rest.0"},
       false,
       {"gather a", "gather b", "run a", "gather c", "run b", "run c",        //
        "gather c", "gather b", "reduce c", "gather a", "run b", "reduce b",  //
        "reduce a", "reduce root"}},
      {{"a", "rest.0", "rest.1"},
       true,
       {"gather a", "gather b", "run a", "gather a", "run a",      "gather c", "run b",
        "run c",                                                                            //
        "gather c", "gather b", "run c", "reduce c", "gather a",   "run b",    "reduce b",  //
        "run a",    "gather a", "run a", "reduce a", "reduce root"}},
      // Units in what is computed again as a whole: not ahead of each other, and all at its end.
      {{"a", "rest"},
       false,
       {"gather a", "run a", "gather b", "run b", "gather c", "run c",                          //
        "gather b", "run b", "gather c", "run c", "gather a", "reduce c", "reduce b", "run a",  //
        "reduce a", "reduce root"}},
  };
  for (const Recomputed& recomputed : cases) {
    for (const bool overlaps : {false, true}) {
      INFO(recomputed.names.back() << (overlaps ? ", overlapping" : ""));
      Trace trace;
      const auto alone = traced_net(trace);
      const auto model = traced_net(trace);
      model->compute_again(recomputed.names);
      const auto sharding =
          dist::shard(*model, std::make_shared<TracingCommunicator>(trace),
                      {.stage = ShardStage::parameters, .overlap_reduce = overlaps});
      const auto loss = [&](TracedNet& of) {
        return of.forward(rows(), recomputed.a_twice).square().mean();
      };
      loss(*alone).backward();
      pass(*sharding, [&] { return loss(*model); });
      trace.clear();
      pass(*sharding, [&] { return loss(*model); });
      CHECK(trace == recomputed.trace);
      for (const auto& one : sharding->parameters()) {
        INFO(one.name);
        CHECK(one.shard.grad().allclose(alone->named_parameters()[one.name].grad() * 2, 1e-12,
                                        1e-14));
      }
    }
  }
}

TEST_CASE("a unit's gradients are gone before those of a unit below it come", "[dist][sharded]") {
  for (const ShardStage stage : {ShardStage::gradients, ShardStage::parameters}) {
    Trace trace;
    const auto model = traced_net(trace);
    model->compute_again({"a", "rest.0", "rest.1"});
    const auto sharding =
        dist::shard(*model, std::make_shared<dist::SingleProcess>(), {.stage = stage});
    const auto& all = sharding->parameters();
    const auto& above = *std::find_if(
        all.begin(), all.end(), [](const auto& one) { return one.name == "rest.1.up.weight"; });
    bool gone = false;
    pass(*sharding, [&] {
      const at::Tensor h = model->a(model->first(rows()));
      h.register_hook([&](const at::Tensor&) {
        gone = !above.whole.grad().defined() && above.shard.grad().defined();
      });
      return model->last(model->rest(h)).square().mean();
    });
    CHECK(gone);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
