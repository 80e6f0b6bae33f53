#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/backend.hpp>
#include <tutti/dist/sharded.hpp>
#include <tutti/nn/unit.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "device/run.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using device_tests::options;
using device_tests::SpareMemory;
using device_tests::wide;

// Pairs of an example and its target that say of each batch where it is.
struct Rows {
  at::Tensor x = at::randn({12, 4});
  [[nodiscard]] std::int64_t size() const { return x.size(0); }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    return {x[i], x[i].slice(0, 0, 2)};
  }
};

struct Places final {
  std::vector<std::string> devices{};
  void apply(BeforeForward, const State& state) {
    devices.push_back(state.batch.inputs().device().str());
  }
};

struct Block : torch::nn::Module, nn::Unit {
  Block()
      : in(register_module("in", torch::nn::Linear(4, 8))),
        out(register_module("out", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return in_unit(x, [&](const at::Tensor& y) { return out->forward(in->forward(y).tanh()); });
  }
  torch::nn::Linear in, out;
};

// The same, and no unit.
struct PlainBlock : torch::nn::Module {
  PlainBlock()
      : in(register_module("in", torch::nn::Linear(4, 8))),
        out(register_module("out", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out->forward(in->forward(x).tanh()); }
  torch::nn::Linear in, out;
};

template <class B>
struct Blocks : torch::nn::Module {
  Blocks()
      : first(register_module("first", std::make_shared<B>())),
        second(register_module("second", std::make_shared<B>())),
        third(register_module("third", std::make_shared<B>())),
        head(register_module("head", torch::nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(third->forward(second->forward(first->forward(x))));
  }
  std::shared_ptr<B> first, second, third;
  torch::nn::Linear head;
};

// The weights after two epochs of the loader's batches, 3 in each, on the device.
template <class L>
at::Tensor trained(const L& loader) {
  const auto model = tiny::net();
  TrainerOptions given = options({});
  given.train = loader;
  Trainer trainer{model, given, Places{}};
  trainer.fit();
  CHECK(trainer.get<Places>().devices == std::vector<std::string>(6, "cuda:0"));
  CHECK(model->in->weight.is_cuda());
  return tiny::flat(*model);
}

template <class L>
void check_pinned(L loader) {
  loader.start(0);
  const auto batch = loader.next();
  REQUIRE(batch);
  CHECK(batch->inputs().is_pinned());
  CHECK(batch->targets().is_pinned());
}

// make(pin_memory): a loader, whose batches train the same either way.
template <class Make>
void check_pinned_like_plain(const Make& make) {
  check_pinned(make(true));
  CHECK(trained(make(true)).equal(trained(make(false))));
}

// Copies on the device of an epoch's batches, none of which the host keeps or waits for.
std::vector<at::Tensor> copied(TensorLoader loader) {
  std::vector<at::Tensor> out;
  while (const auto batch = loader.next()) {
    out.push_back(batch->inputs().to(at::kCUDA, /*non_blocking=*/true));
  }
  return out;
}

}  // namespace

TEST_CASE("a device's memory that runs out shrinks the microbatches to what fits", "[device]") {
  const std::vector<Batch> batches = tiny::batches(3, 64);
  TrainerOptions automatic = options(batches);
  automatic.device_train_microbatch_size = "auto";
  const auto model = wide();
  std::int64_t found = 0;
  {
    Trainer trainer{model, automatic};
    const SpareMemory limit(std::size_t{40} << 20);
    trainer.fit();
    found = trainer.state().device_train_microbatch_size;
    CHECK(trainer.state().timestamp.batch == 6);
  }
  CHECK(found < 64);
  CHECK(found >= 8);
  const auto same = wide();
  TrainerOptions fixed = options(batches);
  fixed.device_train_microbatch_size = found;
  Trainer{same, fixed}.fit();
  CHECK(tiny::flat(*model).equal(tiny::flat(*same)));
}

TEST_CASE("memory of a device that no size fits ends the run with its own words", "[device]") {
  TrainerOptions automatic = options(tiny::batches(1, 4));
  automatic.device_train_microbatch_size = "auto";
  Trainer trainer{wide(), automatic};
  const SpareMemory limit(1024);
  CHECK_THROWS_WITH(trainer.fit(),
                    Catch::Matchers::ContainsSubstring("is too small for a single example"));
}

TEST_CASE("pinned batches of a loader are trained on the device", "[device]") {
  const DataLoader pinned{Rows{}, {.batch_size = 4, .num_workers = 1, .pin_memory = true}};
  check_pinned(pinned);
  trained(pinned);
}

TEST_CASE("pinned batches of tensors train as others do", "[device]") {
  const at::Tensor x = at::randn({12, 4});
  const at::Tensor y = at::randn({12, 2});
  for (const bool shuffle : {false, true}) {
    check_pinned_like_plain([&](bool pin) {
      return TensorLoader{x, y, {.batch_size = 4, .shuffle = shuffle, .pin_memory = pin}};
    });
  }
}

TEST_CASE("pinned batches of images train as others do", "[device]") {
  const at::Tensor images = at::randint(256, {12, 1, 1, 4}, at::kByte);
  const at::Tensor y = at::randn({12, 1, 1, 2});
  for (const std::int64_t workers : {0, 2}) {
    check_pinned_like_plain([&](bool pin) {
      return ImageLoader{
          images, y, {.batch_size = 4, .shuffle = true, .num_workers = workers, .pin_memory = pin}};
    });
  }
}

TEST_CASE("pinned batches stay whole until the device has read them", "[device]") {
  const at::Tensor x = at::randn({64, 8192});  // 256 KiB a batch
  for (const bool shuffle : {false, true}) {
    TensorLoaderOptions how{.batch_size = 8, .shuffle = shuffle, .pin_memory = true};
    const std::vector<at::Tensor> there = copied(TensorLoader{x, at::arange(64), how});
    how.pin_memory = false;
    TensorLoader plain{x, at::arange(64), how};
    for (const at::Tensor& one : there) {
      CHECK(one.cpu().equal(plain.next()->inputs()));
    }
  }
}

TEST_CASE("views of tensors that are pinned are the batches", "[device]") {
  const at::Tensor x = at::randn({12, 4}).pin_memory();
  TensorLoader loader{x, at::randn({12, 2}), {.batch_size = 12, .pin_memory = true}};
  const auto batch = loader.next();
  CHECK(batch->inputs().data_ptr() == x.data_ptr());
  CHECK(batch->targets().is_pinned());
}

TEST_CASE("a checkpoint written behind a run on the device is the one written in it", "[device]") {
  const TemporaryFolder folder;
  const auto saved = [&](bool background) {
    TrainerOptions saving = options(tiny::batches(3));
    saving.save_folder = (folder.path() / (background ? "behind" : "within")).string();
    saving.save_interval = "1ba";
    saving.save_async = background;
    const auto model = tiny::net(1, /*drop=*/0.5);
    Trainer{model, saving}.fit();
    TrainerOptions going_on = options(tiny::batches(3));
    going_on.load_path = saving.save_folder + "/ep1-ba4";
    const auto resumed = tiny::net(2, /*drop=*/0.5);
    Trainer{resumed, going_on}.fit();
    CHECK(tiny::flat(*resumed).equal(tiny::flat(*model)));
    return tiny::flat(*resumed);
  };
  CHECK(saved(true).equal(saved(false)));
}

namespace {

// The losses of a sharded model, on the device, of two passes of each batch.
template <class Model>
std::vector<double> sharded_losses(const dist::ShardingOptions& options) {
  const auto batches = tiny::batches(3);
  at::manual_seed(1);
  const auto model = std::make_shared<Model>();
  model->to(at::kCUDA);
  const auto group = dist::join({}, at::kCUDA, std::chrono::seconds(10));
  const auto sharding = dist::shard(*model, group, options);
  std::vector<at::Tensor> shards;
  for (const dist::ShardedParameter& one : sharding->parameters()) {
    CHECK(one.whole.is_cuda());
    CHECK(one.shard.is_cpu() == options.cpu_offload);
    CHECK(one.shard.is_pinned() == options.cpu_offload);
    shards.push_back(one.shard);
  }
  torch::optim::SGD optimizer(shards, torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (const Batch& batch : batches) {
    optimizer.zero_grad();
    for (int pass = 0; pass < 2; ++pass) {  // gradients add up
      sharding->before_forward(pass == 1);
      const at::Tensor y = model->forward(batch.inputs().to(at::kCUDA));
      const at::Tensor loss = (y - batch.targets().to(at::kCUDA)).pow(2).mean();
      losses.push_back(loss.item<double>());
      sharding->before_backward(loss);
      loss.backward();
      sharding->after_backward();
      const bool freed = options.stage == dist::ShardStage::parameters;
      CHECK((model->second->in->weight.storage().nbytes() == 0) == freed);
    }
    CHECK(shards.front().grad().is_cpu() == options.cpu_offload);
    optimizer.step();
    sharding->after_step();
  }
  const auto& first = sharding->parameters().front();
  const at::Tensor whole = sharding->whole_of(first, first.shard.detach());
  CHECK(whole.is_cpu() == options.cpu_offload);
  CHECK(sharding->part_of(first, whole.to(at::kCUDA)).is_cpu() == options.cpu_offload);
  const auto summoned = sharding->summon(/*write_back=*/true);
  CHECK(first.whole.cpu().equal(whole.cpu()));
  return losses;
}

}  // namespace

TEST_CASE("with cpu_offload a sharded model's parts, gradients and optimizer are on the host",
          "[device]") {
  for (const auto stage :
       {dist::ShardStage::optimizer, dist::ShardStage::gradients, dist::ShardStage::parameters}) {
    for (const bool half : {false, true}) {
      dist::ShardingOptions options{.stage = stage};
      if (half) {
        options.param_dtype = at::kBFloat16;
        options.reduce_dtype = at::kFloat;
      }
      const std::vector<double> expected = sharded_losses<Blocks<Block>>(options);
      options.cpu_offload = true;
      CHECK(sharded_losses<Blocks<Block>>(options) == expected);
    }
  }
}

TEST_CASE("units that are named come and go on a device as others", "[device]") {
  for (const auto stage : {dist::ShardStage::gradients, dist::ShardStage::parameters}) {
    for (const bool reshards : {false, true}) {
      dist::ShardingOptions options{.stage = stage, .reshard_after_forward = reshards};
      const std::vector<double> expected = sharded_losses<Blocks<Block>>(options);
      CHECK(expected.size() == 6);
      options.units = {"first", "second", "third"};
      CHECK(sharded_losses<Blocks<PlainBlock>>(options) == expected);
    }
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
