#include <tutti/data/image_set.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/cifar.hpp>
#include <tutti/data/image_loader.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::data::ImageSet;

static_assert(std::is_aggregate_v<ImageSet>);

TEST_CASE("an image loader makes batches of an image set", "[data][image_set]") {
  const ImageSet set{.images = at::arange(10 * 3 * 2 * 2).to(at::kByte).view({10, 3, 2, 2}),
                     .labels = at::arange(10).remainder(2),
                     .classes = {"cat", "dog"}};
  tutti::ImageLoader loader{set.images, set.labels, {.batch_size = 4, .to_float = false}};
  CHECK(loader.size() == 3);
  loader.start(0);
  const auto batch = loader.next();
  REQUIRE(batch);
  CHECK(batch->inputs().equal(set.images.narrow(0, 0, 4)));
  CHECK(batch->targets().equal(set.labels.narrow(0, 0, 4)));
}

TEST_CASE("an image loader takes what CIFAR-10's reader gives", "[data][image_set]") {
  const TemporaryFolder folder;
  std::string records;
  for (char label = 0; label < 10; ++label) {
    records += label + std::string(3072, static_cast<char>(20 * label));
  }
  write_bytes(folder / "some.bin", records);
  const ImageSet set = tutti::data::load_cifar10_batches({(folder / "some.bin").string()});
  REQUIRE(set.classes.size() == 10);
  CHECK(set.labels.max().item<int>() < 10);
  tutti::ImageLoader loader{set.images, set.labels, {.batch_size = 4}};
  loader.start(0);
  const auto batch = loader.next();
  REQUIRE(batch);
  CHECK(batch->inputs().sizes() == at::IntArrayRef({4, 3, 32, 32}));
  CHECK(batch->inputs().amax({1, 2, 3}).allclose(at::arange(4) * 20 / 255.0));
  CHECK(batch->targets().equal(at::arange(4)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
