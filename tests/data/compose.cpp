#include <tutti/data/compose.hpp>

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/crops.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/random_erasing.hpp>
#include <tutti/data/random_flip.hpp>
#include <tutti/views/batch.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>

#include "data/epochs.hpp"
#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::Batch;
using tutti::Rng;
namespace data = tutti::data;
using vision_golden::golden;

const data::Compose augment{data::RandomResizedCrop{.size = 12}, data::RandomHorizontalFlip{},
                            data::Normalize{.mean = {0.5, 0.4, 0.3}, .std = {0.2, 0.3, 0.4}},
                            data::RandomErasing{.random = true}};

struct Photos {
  at::Tensor image = golden("image");  // here, since threads that call get may not use Catch2
  std::int64_t size() const { return 10; }
  std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    return {image.narrow(2, i, 20).contiguous(), at::scalar_tensor(i, at::kLong)};
  }
};

static_assert(data::ChangesImages<data::Resize> && data::ChangesImages<data::Normalize>);
static_assert(data::ChangesImages<data::RandomErasing>);
static_assert(!data::ChangesImages<int> && !data::ChangesImages<Photos>);

}  // namespace

TEST_CASE("Compose runs transforms in their order on one stream, whatever holds the image",
          "[data][compose][law]") {
  const at::Tensor x = golden("image");
  Rng a(3);
  Rng b(3);
  at::Tensor expected = data::RandomResizedCrop{.size = 12}(x, a);
  expected = data::RandomHorizontalFlip{}(expected, a);
  expected = data::normalize(expected, {0.5, 0.4, 0.3}, {0.2, 0.3, 0.4});
  expected = data::RandomErasing{.random = true}(expected, a);
  CHECK(augment(x, b).equal(expected));
  Rng c(3);
  const std::pair<at::Tensor, std::string> pair = augment(std::pair(x, std::string("cat")), c);
  CHECK(pair.first.equal(expected));
  CHECK(pair.second == "cat");
  Rng d(3);
  const Batch batch = augment(Batch(x, at::scalar_tensor(4)), d);
  CHECK(batch.inputs().equal(expected));
  CHECK(batch.targets().item<double>() == 4);
  CHECK(data::Normalize{}(x).equal(x.to(at::kFloat).div(255)));
}

TEST_CASE("loaders give the same bits with any number of threads, and from the middle of an epoch",
          "[data][compose][law]") {
  const auto with = [](std::int64_t threads) {
    return tutti::DataLoader(Photos{}, {.batch_size = 4,
                                        .shuffle = true,
                                        .seed = 5,
                                        .num_workers = threads,
                                        .transform = augment});
  };
  const auto alone = epoch_of(with(0), 2);
  CHECK(alone.size() == 3);
  CHECK(alone[0].inputs().sizes() == at::IntArrayRef{4, 3, 12, 12});
  CHECK(same(epoch_of(with(3), 2), alone));
  CHECK(same(epoch_of(with(2), 2, 1), {alone.begin() + 1, alone.end()}));
  CHECK_FALSE(same(epoch_of(with(0), 3), alone));
}

TEST_CASE("pipelines of views map it over pairs, the same with any number of threads",
          "[data][compose]") {
  std::vector<std::pair<at::Tensor, at::Tensor>> examples;
  for (std::int64_t i = 0; i < 10; ++i) {
    examples.push_back(Photos{}.get(i));
  }
  const auto with = [&](std::int64_t threads) {
    return examples | tutti::views::shuffle(17) | tutti::views::map(augment, threads) |
           tutti::views::batch(4);
  };
  const auto alone = epoch_of(with(0), 1);
  CHECK(alone.size() == 3);
  CHECK(alone[0].inputs().scalar_type() == at::kFloat);
  CHECK(same(epoch_of(with(3), 1), alone));
  CHECK_FALSE(same(epoch_of(with(0), 2), alone));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
