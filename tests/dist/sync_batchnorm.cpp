#include <tutti/algorithms/sync_batchnorm.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/recompute.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

struct BlockImpl : torch::nn::Module, nn::Block {
  at::Tensor forward(const at::Tensor& x) {
    return in_block(x, [this](const at::Tensor& y) { return y + down(norm(up(y)).tanh()); });
  }
  nn::Linear up = register_module("up", nn::Linear(4, 8));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(8));
  nn::Linear down = register_module("down", nn::Linear(8, 4));
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  Outputs forward(const Batch& batch) { return out(blocks->forward(batch.inputs())); }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  nn::Sequential blocks = register_module("blocks", nn::Sequential(Block(), Block()));
  nn::Linear out = register_module("out", nn::Linear(4, 2));
};

std::shared_ptr<Net> net() {
  at::manual_seed(2);
  const auto model = std::make_shared<Net>();
  model->to(at::kDouble);
  return model;
}

at::Tensor trained(std::int64_t batch_size, const Recompute& recompute) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({24, 4}, at::kDouble);
  const at::Tensor y = at::randn({24, 2}, at::kDouble);
  const auto model = net();
  Trainer trainer{model,
                  {.train = TensorLoader{x, y, {.batch_size = batch_size}},
                   .max_duration = "3ep",
                   .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
                   .device = tutti_test::device_name(),
                   .seed = 3,
                   .run_name = "synchronized",
                   .progress_bar = false},
                  SyncBatchNorm{},
                  recompute};
  trainer.fit();
  CHECK(surgery::count<nn::SyncBatchNorm>(*model) == (dist::world_size() > 1 ? 2 : 0));
  std::vector<at::Tensor> parts;
  for (const auto& tensor : model->parameters()) {
    parts.push_back(tensor.detach().flatten());
  }
  for (const auto& tensor : model->buffers()) {
    parts.push_back(tensor.flatten().to(at::kDouble));
  }
  return at::cat(parts);
}

}  // namespace

TEST_CASE("rank body: ranks normalise as one process with the whole batch", "[.rank]") {
  const auto group = tutti_test::initialize();
  const at::Device where = tutti_test::device();
  for (const bool floats : {false, true}) {
    const auto type = floats ? at::kFloat : at::kDouble;
    const double bound = floats ? 2e-5 : 1e-11;
    at::manual_seed(5);
    const at::Tensor whole = (at::randn({7, 3, 4, 2}, type) * 2 + 5).to(where);
    const at::Tensor weights = at::randn({7, 3, 4, 2}, type).to(where);
    const auto plain = std::make_shared<nn::BatchNorm2dImpl>(torch::nn::BatchNormOptions(3));
    torch::nn::init::uniform_(plain->weight);
    plain->to(where, type);
    const auto model = std::make_shared<nn::SequentialImpl>();
    model->push_back("norm", std::dynamic_pointer_cast<nn::BatchNorm2dImpl>(plain->clone()));
    functional::apply_sync_batchnorm(*model, group);

    const at::Tensor x = whole.clone().requires_grad_();
    const at::Tensor y = plain->forward(x);
    (y * weights).sum().backward();

    // Ranks have batches of different sizes: 2 and 5 examples.
    const std::int64_t begin = group->rank() == 0 ? 0 : 2;
    const std::int64_t end = group->rank() == 0 ? 2 : 7;
    const at::Tensor own = whole.slice(0, begin, end).clone().requires_grad_();
    const at::Tensor found = model->forward(own);
    (found * weights.slice(0, begin, end)).sum().backward();
    CHECK(found.allclose(y.slice(0, begin, end), bound, bound));
    CHECK(own.grad().allclose(x.grad().slice(0, begin, end), bound * 10, bound * 10));
    const auto mine = model->named_parameters();
    for (const auto& parameter : plain->named_parameters()) {
      at::Tensor sum = mine["norm." + parameter.key()].grad().clone();
      group->all_reduce(sum);
      CHECK(sum.allclose(parameter.value().grad(), bound * 10, bound * 10));
    }
    const auto buffers = model->named_buffers();
    for (const auto& buffer : plain->named_buffers()) {
      INFO(buffer.key());
      CHECK(buffers["norm." + buffer.key()].allclose(buffer.value(), bound, bound));
    }
    model->eval();
    plain->eval();
    CHECK(model->forward(own).allclose(plain->forward(own), bound, bound));
  }

  // A rank without examples takes part.
  const auto model = std::make_shared<nn::SequentialImpl>(nn::BatchNorm1d(2));
  functional::apply_sync_batchnorm(*model, group);
  model->to(where);
  const at::Tensor x = at::arange(8.0, where).view({4, 2}).slice(0, 0, group->rank() == 0 ? 4 : 0);
  const at::Tensor input = x.clone().requires_grad_();
  const at::Tensor y = model->forward(input);
  CHECK(y.size(0) == x.size(0));
  y.pow(3).sum().backward();
  CHECK(input.grad().isfinite().all().item<bool>());
  if (where.is_cpu()) {  // to look at how many there are is to wait for a GPU
    CHECK_THROWS_WITH(model->forward(x.slice(0, 0, 1)),
                      Catch::Matchers::ContainsSubstring("more than one number per channel"));
  }
}

TEST_CASE("ranks normalise as one process with the whole batch", "[dist][nccl]") {
  CHECK(run_ranks("rank body: ranks normalise as one process with the whole batch") == all_passed);
}

TEST_CASE("rank body: a run of ranks is the run of one process", "[.rank]") {
  const at::Tensor together = trained(4, {.share = 0.5});
  const at::Tensor again = trained(4, {});
  CHECK(together.equal(again));
  const at::Tensor single = alone([] { return trained(8, {.share = 0.5}); });
  CHECK(together.allclose(single, 1e-9, 1e-10));
}

TEST_CASE("a run with SyncBatchNorm and Recompute is the run of one process", "[dist][nccl]") {
  CHECK(run_ranks("rank body: a run of ranks is the run of one process") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
