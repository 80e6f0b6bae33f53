#include <tutti/dist/ddp.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/fake_communicator.hpp"

#include <unistd.h>

#include <chrono>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using dist::DataParallelOptions;
using dist::SyncStrategy;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

struct Net final : torch::nn::Module {
  explicit Net(std::int64_t width = 16)
      : first(register_module("first", torch::nn::Linear(8, width))),
        second(register_module("second", torch::nn::Linear(width, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x).relu()); }
  torch::nn::Linear first, second;
};

/// Three independent weights of one element, all 0; the loss of one is (w - y)^2 / 2.
struct Weights final : torch::nn::Module {
  Weights() {
    for (const char* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, at::zeros({1, 1})));
    }
  }
  std::vector<at::Tensor> weights;
};

at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters()) {
    parts.push_back(parameter.detach().reshape({-1}));
  }
  return at::cat(parts);
}

/// A gradient of one element as text, "-" where there is none.
std::string value(const at::Tensor& gradient) {
  std::ostringstream text;
  if (gradient.defined()) {
    text << gradient.item<double>();
  }
  return gradient.defined() ? text.str() : "-";
}

bool same_on_all_ranks(const at::Tensor& tensor, dist::Communicator& group) {
  const auto all = group.all_gather(tensor);
  return all[0].equal(all[1]);
}

/// One step on this rank's rows of `x`, in `microbatches` parts; `share` weights each row's loss.
void step(Net& net, dist::DataParallel* parallel, torch::optim::Optimizer& optimizer,
          const at::Tensor& x, const at::Tensor& y, std::int64_t microbatches, double share) {
  for (const at::Tensor& parameter : net.parameters()) {
    parameter.mutable_grad().reset();
  }
  const auto xs = x.chunk(microbatches);
  const auto ys = y.chunk(microbatches);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    if (parallel != nullptr) {
      parallel->before_forward(i + 1 == xs.size());
    }
    const at::Tensor loss = at::mse_loss(net.forward(xs[i]), ys[i], at::Reduction::Sum) * share;
    if (parallel != nullptr) {
      parallel->before_backward(loss);
    }
    loss.backward();
    if (parallel != nullptr) {
      parallel->after_backward();
    }
  }
  optimizer.step();
}

/// Trains on two ranks and, beside it, one model on all rows; both must agree.
void compare_with_one_process(const DataParallelOptions& options, std::int64_t microbatches,
                              std::int64_t rows_of_rank_zero) {
  const auto group = dist::initialize();
  constexpr std::int64_t rows = 8;
  torch::manual_seed(1 + static_cast<std::uint64_t>(group->rank()));  // rank 0's weights must win
  Net net;
  torch::manual_seed(1);
  Net alone;
  const auto parallel = dist::wrap(net, group, options);
  REQUIRE(parallel != nullptr);
  CHECK(flat(net).equal(flat(alone)));
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD optimizer_alone(alone.parameters(),
                                    torch::optim::SGDOptions(0.05).momentum(0.9));
  const std::int64_t begin = group->rank() == 0 ? 0 : rows_of_rank_zero;
  const std::int64_t count = group->rank() == 0 ? rows_of_rank_zero : rows - rows_of_rank_zero;
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = at::randn({rows, 8});
    const at::Tensor y = at::randn({rows, 3});
    const double local = static_cast<double>(count) / group->all_reduce_value(double(count));
    const double share = local * group->size() / static_cast<double>(count);
    step(net, parallel.get(), optimizer, x.narrow(0, begin, count), y.narrow(0, begin, count),
         microbatches, share);
    step(alone, nullptr, optimizer_alone, x, y, 1, 1.0 / rows);
    CHECK(same_on_all_ranks(flat(net), *group));
    CHECK(flat(net).allclose(flat(alone), 1e-5, 1e-5));
    for (std::size_t p = 0; p < net.parameters().size(); ++p) {
      CHECK(net.parameters()[p].grad().allclose(alone.parameters()[p].grad(), 1e-5, 1e-5));
    }
  }
}

/// Rank 0's gradients after microbatch 0, after microbatch 1 and at the end of the two-rank test.
std::string gradients_under(SyncStrategy strategy) {
  const auto group = dist::initialize();
  Weights model;
  const auto parallel =
      dist::wrap(model, group, {.sync_strategy = strategy, .find_unused_parameters = true});
  const auto look = [&] {
    const auto& weights = model.weights;
    return value(weights[0].grad()) + " " + value(weights[1].grad()) + " " +
           value(weights[2].grad());
  };
  std::string seen;
  for (std::size_t i = 0; i < 2; ++i) {
    parallel->before_forward(i == 1);
    const at::Tensor loss = (model.weights[i] - (group->rank() + 1)).square().sum() / 2;
    parallel->before_backward(loss);
    loss.backward();
    seen += look() + " | ";
    parallel->after_backward();
  }
  return seen + look();
}

}  // namespace

TEST_CASE("rank body: training as one process", "[.rank]") {
  SECTION("one microbatch") {
    compare_with_one_process({}, 1, 4);
  }
  SECTION("two microbatches, synchronised in the last") {
    compare_with_one_process({}, 2, 4);
  }
  SECTION("two microbatches, synchronised in each") {
    compare_with_one_process({.sync_strategy = SyncStrategy::multi_auto_sync}, 2, 4);
  }
  SECTION("reduced after the backward pass, in several messages") {
    compare_with_one_process({.sync_strategy = SyncStrategy::forced_sync, .bucket_cap_mb = 0.0003},
                             2, 4);
  }
  SECTION("3 rows on one rank and 5 on the other") {
    compare_with_one_process({}, 1, 3);
  }
  SECTION("gradients are views of the buckets") {
    compare_with_one_process({.gradient_as_bucket_view = true}, 2, 4);
  }
  SECTION("small buckets and unused parameters looked for") {
    compare_with_one_process({.find_unused_parameters = true, .bucket_cap_mb = 0.0003}, 2, 4);
  }
}

TEST_CASE("rank body: strategies", "[.rank]") {
  const std::string mine = dist::rank() == 0 ? "-1" : "-2";
  CHECK(gradients_under(SyncStrategy::single_auto_sync) ==
        mine + " - - | -1.5 -1.5 - | -1.5 -1.5 -");
  CHECK(gradients_under(SyncStrategy::multi_auto_sync) == "-1.5 - - | -1.5 -1.5 - | -1.5 -1.5 -");
  CHECK(gradients_under(SyncStrategy::forced_sync) ==
        mine + " - - | " + mine + " " + mine + " - | -1.5 -1.5 -");
}

TEST_CASE("rank body: local gradients", "[.rank]") {
  const auto group = dist::initialize();
  Net net;
  const auto parallel = dist::wrap(net, group);
  const at::Tensor x = at::full({2, 8}, group->rank() + 1.0);
  const auto pass = [&] {
    parallel->before_forward(true);
    const at::Tensor loss = net.forward(x).sum();
    parallel->before_backward(loss);
    loss.backward();
    parallel->after_backward();
    return net.second->bias.grad().clone();
  };
  CHECK(same_on_all_ranks(net.first->weight, *group));
  pass();
  CHECK(same_on_all_ranks(net.first->weight.grad(), *group));
  {
    const dist::NoSync local(parallel.get());
    net.zero_grad();
    CHECK(pass()[0].item<double>() == 2);
    CHECK_FALSE(same_on_all_ranks(net.first->weight.grad(), *group));
    CHECK(pass()[0].item<double>() == 4);
  }
  CHECK(parallel->requires_sync());
  CHECK(pass()[0].item<double>() == 6);  // what was accumulated before is averaged too
  CHECK(same_on_all_ranks(net.first->weight.grad(), *group));
}

TEST_CASE("rank body: a parameter that one rank alone does not use", "[.rank]") {
  const auto group = dist::initialize();
  Weights model;
  const auto parallel = dist::wrap(model, group);
  parallel->before_forward(true);
  const at::Tensor used = model.weights[0].sum() + model.weights[1].sum();
  const at::Tensor loss = group->rank() == 0 ? used + model.weights[2].sum() : used;
  parallel->before_backward(loss);
  const std::string said = error_of([&] {
    try {
      loss.backward();
    } catch (const std::exception& error) {
      parallel->explain(error);
      throw;
    }
    parallel->after_backward();
  });
  if (group->rank() == 1) {
    CHECK_THAT(said, ContainsSubstring("no gradient in a backward pass: c; expected one"));
    dist::shutdown();
  } else {  // waits for a gradient that does not come
    CHECK_THAT(said, ContainsSubstring("DistributedDataParallel::backward"));
  }
}

TEST_CASE("rank body: unused parameters", "[.rank]") {
  const auto group = dist::initialize();
  Weights model;
  const auto pass = [&](dist::DataParallel& parallel) {
    parallel.before_forward(true);
    const at::Tensor loss = model.weights[0].sum();
    parallel.before_backward(loss);
    loss.backward();
    parallel.after_backward();
  };
  {
    const auto parallel = dist::wrap(model, group, {.find_unused_parameters = true});
    pass(*parallel);
    pass(*parallel);
  }
  const auto parallel = dist::wrap(model, group);
  CHECK_THAT(
      error_of([&] { pass(*parallel); }),
      ContainsSubstring("parameters got no gradient in a backward pass: b, c; expected one") &&
          ContainsSubstring("or set find_unused_parameters"));
  parallel->reset();
  parallel->before_forward(true);
  const at::Tensor loss = model.weights[0].sum() + model.weights[1].sum() + model.weights[2].sum();
  parallel->before_backward(loss);
  loss.backward();
  CHECK(value(model.weights[2].grad()) == "1");
}

TEST_CASE("rank body: buffers", "[.rank]") {
  const auto group = dist::initialize();
  torch::nn::BatchNorm1d norm(4);
  const auto parallel = dist::wrap(*norm, group);
  const auto train = [&] {
    parallel->before_forward(true);
    const at::Tensor loss = norm(at::randn({6, 4}) + group->rank()).sum();
    parallel->before_backward(loss);
    loss.backward();
    parallel->after_backward();
  };
  torch::manual_seed(static_cast<std::uint64_t>(group->rank()));
  train();
  CHECK_FALSE(same_on_all_ranks(norm->running_mean, *group));
  const at::Tensor of_rank_zero = group->all_gather(norm->running_mean)[0];
  parallel->broadcast_buffers();
  CHECK(norm->running_mean.equal(of_rank_zero));
  train();
  parallel->before_forward(true);
  CHECK(same_on_all_ranks(norm->running_mean, *group));
  CHECK(norm->num_batches_tracked.item<std::int64_t>() == 2);
}

TEST_CASE("rank body: different models", "[.rank]") {
  const auto group = dist::initialize();
  const bool odd = group->rank() == 1;
  Net wide(odd ? 17 : 16);
  CHECK(error_of([&] { dist::wrap(wide, group); }) ==
        "DistributedDataParallel: rank 1's model has [parameter first.weight float [17, 8]] where "
        "rank 0 has [parameter first.weight float [16, 8]]; build the same model, with the same "
        "options, on every rank");
  Net frozen;
  frozen.second->bias.set_requires_grad(!odd);
  CHECK_THAT(error_of([&] { dist::wrap(frozen, group); }),
             ContainsSubstring("[parameter second.bias float [3] without gradient]"));
  Net more;
  if (odd) {
    more.register_buffer("extra", at::zeros({1}));
  }
  CHECK_THAT(error_of([&] { dist::wrap(more, group); }),
             ContainsSubstring("has [buffer extra float [1]] where rank 0 has [nothing more]"));
  Net same;
  CHECK(dist::wrap(same, group) != nullptr);
}

TEST_CASE("rank body: special parameters", "[.rank]") {
  const auto group = dist::initialize();
  torch::nn::Linear frozen(2, 2);
  for (at::Tensor& parameter : frozen->parameters()) {
    parameter.set_requires_grad(false);
  }
  CHECK(dist::wrap(*frozen, group) == nullptr);

  Net tied;  // the same weight under two names
  tied.register_parameter("again", tied.first->weight);
  const auto parallel = dist::wrap(tied, group);
  parallel->before_forward(true);
  at::Tensor loss = tied.forward(at::full({1, 8}, group->rank() + 1.0)).sum();
  parallel->before_backward(loss);
  loss.backward();
  CHECK(same_on_all_ranks(tied.first->weight.grad(), *group));

  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  const auto parallel_sparse = dist::wrap(*sparse, group);
  parallel_sparse->before_forward(true);
  loss = sparse(at::full({1}, group->rank(), at::kLong)).sum();
  parallel_sparse->before_backward(loss);
  loss.backward();
  CHECK(sparse->weight.grad().is_sparse());
  CHECK(sparse->weight.grad().to_dense().sum().item<double>() == 2);
}

TEST_CASE("rank body: joined as the trainer does", "[.rank]") {
  const auto group = dist::join(dist::Environment::read(), at::kCPU, std::chrono::seconds(30));
  CHECK(group->backend() == "gloo");
  CHECK(dist::join(dist::here(), at::kCPU, std::chrono::seconds(30)) == group);
  Net net;
  CHECK(dist::backend().wrap(net, group, {}) != nullptr);
}

TEST_CASE("rank body: a rank that dies in a backward pass", "[.rank]") {
  const auto group = dist::initialize();
  Net net;
  const auto parallel = dist::wrap(net, group);
  parallel->before_forward(true);
  const at::Tensor loss = net.forward(at::randn({2, 8})).sum();
  parallel->before_backward(loss);
  if (group->rank() == 1) {
    _exit(3);
  }
  std::string said = "no error";
  try {
    loss.backward();
  } catch (const std::exception& error) {
    said = error_of([&] { parallel->explain(error); });
  }
  CHECK_THAT(said, ContainsSubstring("tutti::dist::DistributedDataParallel::backward: rank 0 of 2 "
                                     "(local rank 0 of 2, node 0) failed (timeout 300 s): ") &&
                       ContainsSubstring("Another rank failed, left, or did not make the same "
                                         "call in time; look for its own error first"));
  // This rank's own errors are left as they are.
  parallel->explain(std::runtime_error("the disk is full"));
  parallel->explain(std::runtime_error("tutti::dist::barrier: rank 0 of 2 failed: gloo/pair.cc"));
}

TEST_CASE("a rank that loses another in a backward pass says where it waited", "[dist][ddp]") {
  const std::string report = run_ranks("rank body: a rank that dies in a backward pass");
  CHECK_THAT(report, ContainsSubstring("--- rank 1 failed"));
  CHECK_THAT(report, !ContainsSubstring("--- rank 0"));
}

TEST_CASE("rank body: a wrapper that is gone", "[.rank]") {
  const auto group = dist::initialize();
  Net net;
  const at::Tensor x = at::full({1, 8}, group->rank() + 1.0);
  {
    const auto parallel = dist::wrap(net, group);
    parallel->before_forward(true);
    const at::Tensor loss = net.forward(x).sum();
    parallel->before_backward(loss);
    loss.backward();
  }
  net.zero_grad();
  net.forward(x).sum().backward();  // its hooks are gone: no message is sent
  CHECK_FALSE(same_on_all_ranks(net.first->weight.grad(), *group));
  dist::shutdown();
  CHECK_FALSE(dist::is_initialized());
}

TEST_CASE("two ranks train as one process on all rows", "[dist][ddp]") {
  CHECK(run_ranks("rank body: training as one process") == all_passed);
}

TEST_CASE("each strategy averages when it says", "[dist][ddp]") {
  CHECK(run_ranks("rank body: strategies") == all_passed);
}

TEST_CASE("NoSync keeps gradients local until the next pass", "[dist][ddp]") {
  CHECK(run_ranks("rank body: local gradients") == all_passed);
}

TEST_CASE("unused parameters are an error unless they are looked for", "[dist][ddp]") {
  CHECK(run_ranks("rank body: unused parameters") == all_passed);
  CHECK(run_ranks("rank body: a parameter that one rank alone does not use") == all_passed);
}

TEST_CASE("rank 0's buffers are everybody's", "[dist][ddp]") {
  CHECK(run_ranks("rank body: buffers") == all_passed);
}

TEST_CASE("a model that differs on a rank is refused on all", "[dist][ddp]") {
  CHECK(run_ranks("rank body: different models") == all_passed);
}

TEST_CASE("frozen, tied and sparse parameters are understood", "[dist][ddp]") {
  CHECK(run_ranks("rank body: special parameters") == all_passed);
}

TEST_CASE("a destroyed wrapper leaves the module as it was", "[dist][ddp]") {
  CHECK(run_ranks("rank body: a wrapper that is gone") == all_passed);
}

TEST_CASE("including ddp.hpp lets the trainer join other processes", "[dist][ddp]") {
  CHECK(run_ranks("rank body: joined as the trainer does") == all_passed);
}

TEST_CASE("a bucket that no memory could hold is refused, and one that holds nothing",
          "[dist][ddp]") {
  for (const double size : {0.0, -1.0, 1e13, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_WITH(dist::DistributedDataParallel(*torch::nn::Linear(2, 2),
                                                    std::make_shared<FakeCommunicator>(),
                                                    {.bucket_cap_mb = size}),
                      ContainsSubstring("DistributedDataParallel: bucket_cap_mb is ") &&
                          ContainsSubstring(", expected more than 0 and at most 1e12"));
  }
}

TEST_CASE("one process needs no wrapper", "[dist][ddp]") {
  Net net;
  CHECK(dist::wrap(net, dist::default_group()) == nullptr);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
