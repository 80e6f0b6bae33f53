#include <tutti/data/torch_dataset.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

#include <torch/data.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/loader.hpp>

#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::DataLoader;
using tutti::TorchDataset;
namespace td = torch::data;

// Changes while it is read, as only a data set that every thread has a copy of may.
struct Scratch : td::datasets::Dataset<Scratch> {
  at::Tensor room = at::zeros({1000});
  std::int64_t count = 40;

  Scratch() = default;
  Scratch(const Scratch& other)
      : td::datasets::Dataset<Scratch>(other), room(other.room.clone()), count(other.count) {}

  td::Example<> get(std::size_t index) override {
    for (int i = 0; i < 20; ++i) {
      room.fill_(static_cast<double>(index));
    }
    return {room.clone(), at::full({}, static_cast<std::int64_t>(index), at::kLong)};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return count < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(count));
  }
};

struct Stateful : td::datasets::StatefulDataset<Stateful, std::vector<td::Example<>>, std::size_t> {
  std::optional<std::vector<td::Example<>>> get_batch(std::size_t) override { return {}; }
  [[nodiscard]] std::optional<std::size_t> size() const override { return {}; }
  void reset() override {}
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

std::vector<Batch> epoch_of(tutti::AnyLoader loader, std::int64_t epoch = 0) {
  std::vector<Batch> out;
  loader.start(epoch);
  while (auto batch = loader.next()) {
    out.push_back(*batch);
  }
  return out;
}

}  // namespace

static_assert(tutti::detail::TorchMapDataset<Scratch>);
static_assert(!tutti::detail::TorchMapDataset<Stateful>);
static_assert(tutti::Dataset<TorchDataset<Scratch>>);

TEST_CASE("TorchDataset: MNIST with transforms gives what torch::data's loader gives",
          "[data][torch_dataset][golden]") {
  const TemporaryFolder folder;
  at::manual_seed(2);
  // MNIST insists on 60,000 images.
  const at::Tensor images = at::randint(0, 256, {60000, 28, 28}, at::kByte);
  const at::Tensor labels = at::randint(0, 10, {60000}, at::kByte);
  tutti::data::save_idx((folder / "train-images-idx3-ubyte").string(), images);
  tutti::data::save_idx((folder / "train-labels-idx1-ubyte").string(), labels);
  const auto mnist = [&] {
    return td::datasets::MNIST(folder.path().string())
        .map(td::transforms::Normalize<>(0.1307, 0.3081));
  };
  DataLoader ours{TorchDataset{mnist()}, {.batch_size = 64, .num_workers = 3}};
  CHECK(ours.dataset_size() == 60000);
  const auto theirs = td::make_data_loader<td::samplers::SequentialSampler>(
      mnist().map(td::transforms::Stack<>()), td::DataLoaderOptions(64));
  DataLoader stacked{TorchDataset{mnist().map(td::transforms::Stack<>())}, {.batch_size = 64}};
  auto batch = theirs->begin();
  for (int i = 0; i < 10; ++i, ++batch) {
    const Batch mine = *ours.next();
    CHECK(mine.inputs().equal(batch->data));
    CHECK(mine.targets().equal(batch->target));
    CHECK(stacked.next()->inputs().equal(mine.inputs()));
  }
  while (batch != theirs->end()) {
    ++batch;
  }
}

TEST_CASE("TorchDataset: every thread has a copy, and all give the same batches",
          "[data][torch_dataset][law]") {
  const auto draw = [](Batch example, tutti::Rng& rng) {
    example.inputs() = example.inputs() + rng.uniform();
    return example;
  };
  std::vector<Batch> alone;
  for (const std::int64_t workers : {0, 1, 4}) {
    const DataLoader loader{
        TorchDataset{Scratch{}},
        {.batch_size = 4, .shuffle = true, .num_workers = workers, .transform = draw}};
    const std::vector<Batch> batches = epoch_of(loader, 2);
    alone = alone.empty() ? batches : alone;
    REQUIRE(batches.size() == 10);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      CHECK(batches[i].inputs().equal(alone[i].inputs()));
      CHECK(batches[i].targets().equal(alone[i].targets()));
      CHECK(batches[i].inputs().floor().equal(
          batches[i].targets().to(at::kFloat).unsqueeze(1).expand({4, 1000})));
    }
  }
}

TEST_CASE("TorchDataset: examples without a target are batches of inputs",
          "[data][torch_dataset]") {
  const TorchDataset data{td::datasets::TensorDataset(at::arange(6).view({3, 2}))};
  CHECK(data.size() == 3);
  const Batch one = data.get(1);
  CHECK(one.inputs().equal(at::arange(2, 4)));
  CHECK_FALSE(one.has_targets());
  const auto batches = epoch_of(DataLoader{data});
  CHECK(batches.at(0).inputs().equal(at::arange(6).view({3, 2})));
}

TEST_CASE("TorchDataset: what a transform throws comes out with the example's number",
          "[data][torch_dataset]") {
  const auto fails = td::transforms::Lambda<td::Example<>>([](td::Example<> example) {
    TORCH_CHECK(example.target.item<int>() != 6, "the transform dislikes 6");
    return example;
  });
  DataLoader loader{TorchDataset{Scratch{}.map(fails)}, {.batch_size = 4, .num_workers = 2}};
  CHECK(loader.next());
  CHECK_THROWS_WITH(loader.next(),
                    ContainsSubstring("example 6 of the data set cannot be had: the transform "
                                      "dislikes 6"));
  CHECK(loader.next());
}

TEST_CASE("TorchDataset: sizes and numbers that cannot be meant are refused",
          "[data][torch_dataset]") {
  Scratch endless;
  endless.count = -1;
  CHECK_THROWS_WITH(TorchDataset{endless}, ContainsSubstring("the data set has no size"));
  const TorchDataset data{Scratch{}};
  CHECK_THROWS_WITH(data.get(40), ContainsSubstring("index is 40, expected 0 to 39"));
  CHECK_THROWS_WITH(data.get(-1), ContainsSubstring("index is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
