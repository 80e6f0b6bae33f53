#include <tutti/dist/ddp.hpp>

#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <tutti/checkpoint/safetensors.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using dist::DataParallelOptions;
using dist::GradientCompression;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

torch::nn::Sequential net(std::int64_t width = 64) {
  torch::manual_seed(1);
  torch::nn::Sequential out(torch::nn::Linear(40, width), torch::nn::ReLU(),
                            torch::nn::Linear(width, 5));
  out->to(tutti_test::device());
  return out;
}

// This rank's rows of a batch, averaged with the others' gradients.
void pass(torch::nn::Sequential& model, dist::DataParallel& parallel, const at::Tensor& batch,
          dist::Communicator& group) {
  model->zero_grad();
  parallel.before_forward(true);
  const at::Tensor mine = batch.chunk(group.size())[static_cast<std::size_t>(group.rank())];
  const at::Tensor loss = model->forward(mine).pow(2).mean();
  parallel.before_backward(loss);
  loss.backward();
  parallel.after_backward();
}

double relative(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

// The largest difference from one process's gradients in several steps.
double error_of(const DataParallelOptions& options) {
  const auto group = tutti_test::initialize();
  torch::nn::Sequential model = net();
  const auto parallel = dist::wrap(*model, group, options);
  torch::manual_seed(3);
  double worst = 0;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor batch = at::randn({8, 40}).to(tutti_test::device());
    pass(model, *parallel, batch, *group);
    std::vector<at::Tensor> got;
    for (const at::Tensor& parameter : model->parameters()) {
      got.push_back(parameter.grad().clone());
    }
    model->zero_grad();
    model->forward(batch).pow(2).mean().backward();
    for (std::size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, relative(got[i], model->parameters()[i].grad()));
    }
  }
  return worst;
}

// Compares with the gradients of PyTorch's DistributedDataParallel; files/comm_hooks.py made them.
double difference_from_pytorch(const std::string& hook, const DataParallelOptions& options) {
  const auto read = tutti::checkpoint::read_safetensors(TUTTI_SOURCE_DIR
                                                        "/tests/dist/files/comm_hooks.safetensors");
  const std::map<std::string, at::Tensor> file(read.begin(), read.end());
  const auto group = tutti_test::initialize();
  torch::nn::Sequential model = net();
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 4; ++i) {
      model->parameters()[i].copy_(file.at("init." + std::to_string(i)));
    }
  }
  const auto parallel = dist::wrap(*model, group, options);
  for (std::int64_t step = 0; step < 6; ++step) {
    pass(model, *parallel, file.at("x")[step].to(tutti_test::device()), *group);
  }
  double worst = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    worst = std::max(worst, relative(model->parameters()[i].grad().cpu(),
                                     file.at(hook + "." + std::to_string(i))));
  }
  return worst;
}

// Bytes that this process has written, to sockets too.
std::int64_t bytes_written() {
  std::ifstream file("/proc/self/io");
  std::string word;
  std::int64_t count = -1;
  file >> word >> count >> word >> count;
  return count;
}

bool counts_sockets() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  const std::int64_t before = bytes_written();
  const std::array<char, 1000> bytes{};
  CHECK(::write(ends[0], bytes.data(), bytes.size()) == 1000);
  const std::int64_t count = bytes_written() - before;
  ::close(ends[0]);
  ::close(ends[1]);
  return count >= 1000;
}

std::int64_t bytes_of_a_pass(const DataParallelOptions& options) {
  const auto group = tutti_test::initialize();
  torch::nn::Sequential model = net(4096);
  const auto parallel = dist::wrap(*model, group, options);
  const at::Tensor batch = at::randn({8, 40}).to(tutti_test::device());
  std::int64_t last = 0;
  for (int step = 0; step < 4; ++step) {
    const std::int64_t before = bytes_written();
    pass(model, *parallel, batch, *group);
    group->barrier();
    last = bytes_written() - before;
  }
  return last;
}

}  // namespace

TEST_CASE("rank body: compressed gradients", "[.rank]") {
  CHECK(error_of({}) < 1e-6);
  const double half = error_of({.compression = GradientCompression::fp16});
  CHECK(half < 1e-3);
  CHECK(half > 1e-6);  // it is compressed
  const double brain = error_of({.compression = GradientCompression::bf16});
  CHECK(brain < 1e-2);
  CHECK(brain > 1e-4);
  const DataParallelOptions full{
      .compression = GradientCompression::power_sgd,
      .power_sgd = {.rank = 64, .start_iteration = 2, .min_compression_rate = 1e-9}};
  CHECK(error_of(full) < 1e-5);
  const DataParallelOptions thin{.compression = GradientCompression::power_sgd,
                                 .power_sgd = {.rank = 1, .start_iteration = 2}};
  CHECK(error_of(thin) > 1e-2);
}

TEST_CASE("rank body: PyTorch's hooks", "[.rank]") {
  CHECK(difference_from_pytorch("fp16", {.compression = GradientCompression::fp16}) < 1e-3);
  CHECK(difference_from_pytorch("bf16", {.compression = GradientCompression::bf16}) < 1e-2);
  const DataParallelOptions one{.compression = GradientCompression::power_sgd,
                                .power_sgd = {.rank = 1, .start_iteration = 2, .seed = 5}};
  CHECK(difference_from_pytorch("power1", one) < 1e-4);
  const DataParallelOptions two{
      .compression = GradientCompression::power_sgd,
      .power_sgd = {.rank = 2, .start_iteration = 2, .error_feedback = false, .seed = 5}};
  CHECK(difference_from_pytorch("power2", two) < 1e-4);
}

TEST_CASE("rank body: fewer bytes", "[.rank]") {
  const auto whole = static_cast<double>(bytes_of_a_pass({}));
  REQUIRE(whole > 500'000);
  const auto of = [](GradientCompression compression) {
    return static_cast<double>(
        bytes_of_a_pass({.compression = compression, .power_sgd = {.start_iteration = 2}}));
  };
  CHECK(of(GradientCompression::fp16) < 0.55 * whole);
  CHECK(of(GradientCompression::bf16) < 0.55 * whole);
  CHECK(of(GradientCompression::power_sgd) < 0.2 * whole);
}

TEST_CASE("rank body: a static graph", "[.rank]") {
  CHECK(error_of({.static_graph = true}) < 1e-6);
  CHECK(error_of({.compression = GradientCompression::bf16, .static_graph = true}) < 1e-2);
  // Unused parameters are found in the first pass.
  const auto group = tutti_test::initialize();
  torch::nn::Sequential model = net();
  const auto parallel = dist::wrap(*model, group, {.static_graph = true});
  torch::manual_seed(3);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor batch = at::randn({8, 40}).to(tutti_test::device());
    model->zero_grad();
    parallel->before_forward(true);
    const at::Tensor mine = batch.chunk(2)[static_cast<std::size_t>(group->rank())];
    const at::Tensor loss = model->ptr<torch::nn::LinearImpl>(0)->forward(mine).pow(2).mean();
    parallel->before_backward(loss);
    loss.backward();
    parallel->after_backward();
    const at::Tensor got = model->parameters()[0].grad().clone();
    model->zero_grad();
    model->ptr<torch::nn::LinearImpl>(0)->forward(batch).pow(2).mean().backward();
    CHECK(relative(got, model->parameters()[0].grad()) < 1e-6);
  }
}

TEST_CASE("rank body: microbatches of a static graph", "[.rank]") {
  const auto group = tutti_test::initialize();
  torch::nn::Sequential model = net();
  const auto parallel = dist::wrap(*model, group, {.static_graph = true});
  torch::manual_seed(3);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor batch = at::randn({8, 40}).to(tutti_test::device());
    const auto parts = batch.chunk(2)[static_cast<std::size_t>(group->rank())].chunk(2);
    model->zero_grad();
    for (const std::size_t i : {0U, 1U}) {
      parallel->before_forward(i == 1);
      const at::Tensor loss = model->forward(parts[i]).pow(2).mean() / 2;
      parallel->before_backward(loss);
      loss.backward();
      parallel->after_backward();
    }
    const at::Tensor got = model->parameters()[0].grad().clone();
    model->zero_grad();
    model->forward(batch).pow(2).mean().backward();
    CHECK(relative(got, model->parameters()[0].grad()) < 1e-6);
  }
  const dist::NoSync local(parallel.get());
  try {
    parallel->before_forward(true);
    FAIL("a local pass was begun");
  } catch (const c10::Error& error) {
    CHECK_THAT(error.what_without_backtrace(), ContainsSubstring("(NoSync) was begun"));
  }
}

TEST_CASE("compressed gradients are near the exact ones, and exact where nothing is left out",
          "[dist][ddp][nccl]") {
  CHECK(run_ranks("rank body: compressed gradients") == all_passed);
}

TEST_CASE("compressed gradients are those of PyTorch's hooks", "[dist][ddp][nccl]") {
  CHECK(run_ranks("rank body: PyTorch's hooks") == all_passed);
}

TEST_CASE("compressed gradients take fewer bytes", "[dist][ddp]") {
  if (!counts_sockets()) {
    return tutti_test::skip("this system does not count the bytes that sockets send");
  }
  CHECK(run_ranks("rank body: fewer bytes") == all_passed);
}

TEST_CASE("a static graph gives the same gradients, with unused parameters too",
          "[dist][ddp][nccl]") {
  CHECK(run_ranks("rank body: a static graph") == all_passed);
  CHECK(run_ranks("rank body: microbatches of a static graph") == all_passed);
}

TEST_CASE("options of compression that fit nothing are refused", "[dist][ddp]") {
  const auto refusal = [](const DataParallelOptions& options) {
    try {
      dist::detail::check_compression(options);
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing");
  };
  const auto power = [&](const dist::PowerSGDOptions& options) {
    return refusal({.compression = GradientCompression::power_sgd, .power_sgd = options});
  };
  CHECK(power({}) == "nothing");
  CHECK_THAT(power({.rank = 0}), ContainsSubstring("power_sgd.rank is 0, expected at least 1"));
  CHECK_THAT(power({.start_iteration = 1}),
             ContainsSubstring("power_sgd.start_iteration is 1, expected at least 2"));
  CHECK_THAT(power({.min_compression_rate = 0}),
             ContainsSubstring("min_compression_rate is 0, expected more than 0"));
  CHECK_THAT(refusal({.sync_strategy = dist::SyncStrategy::forced_sync,
                      .compression = GradientCompression::fp16}),
             ContainsSubstring("forced_sync does not do"));
  for (const auto strategy :
       {dist::SyncStrategy::forced_sync, dist::SyncStrategy::single_auto_sync}) {
    CHECK_THAT(refusal({.sync_strategy = strategy, .static_graph = true}),
               ContainsSubstring("static_graph averages in every backward pass"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
