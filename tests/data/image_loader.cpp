#include <tutti/data/image_loader.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::ImageLoader;
using tutti::Rng;

at::Tensor bytes(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape)).remainder(256).to(at::kByte).view(shape);
}

at::Tensor add_noise(const at::Tensor& image, Rng& rng) {
  return image.add(rng.integer(0, 100)).to(at::kByte);
}

std::vector<tutti::Batch> epoch_of(ImageLoader& loader, std::int64_t epoch, std::int64_t from = 0) {
  std::vector<tutti::Batch> out;
  loader.start(epoch, from);
  while (auto batch = loader.next()) {
    out.push_back(*batch);
  }
  return out;
}

}  // namespace

TEST_CASE("ImageLoader: bytes become floats from 0 to 1, normalised channel by channel",
          "[data][image_loader]") {
  const at::Tensor images = bytes({5, 3, 4, 6});
  const at::Tensor labels = at::arange(5);
  ImageLoader plain(images, labels, {.batch_size = 5});
  plain.start(0);
  const auto batch = plain.next();
  CHECK(batch->inputs().equal(images.to(at::kFloat).div(255)));
  CHECK(batch->targets().equal(labels));
  CHECK(batch->size() == 2);

  ImageLoader normal(images, labels,
                     {.batch_size = 5, .mean = {0.5, 0.25, 0.1}, .std = {0.2, 0.3, 0.4}});
  normal.start(0);
  const at::Tensor mean = at::tensor({0.5F, 0.25F, 0.1F}).view({3, 1, 1});
  const at::Tensor std = at::tensor({0.2F, 0.3F, 0.4F}).view({3, 1, 1});
  CHECK(normal.next()->inputs().equal(images.to(at::kFloat).div(255).sub(mean).div(std)));

  ImageLoader raw(images, labels, {.batch_size = 5, .to_float = false});
  raw.start(0);
  CHECK(raw.next()->inputs().equal(images));
}

TEST_CASE("ImageLoader: order, sizes and sharding are those of TensorLoader",
          "[data][image_loader]") {
  const at::Tensor images = bytes({7, 1, 2, 2});
  const at::Tensor labels = at::arange(7);
  ImageLoader loader(images, labels, {.batch_size = 2, .shuffle = true, .seed = 5});
  tutti::TensorLoader reference(labels, labels, {.batch_size = 2, .shuffle = true, .seed = 5});
  loader.shard(1, 2);
  reference.shard(1, 2);
  CHECK(loader.size() == reference.size());
  CHECK(loader.dataset_size() == 7);
  for (const std::int64_t epoch : {0, 3}) {
    loader.start(epoch);
    reference.start(epoch);
    while (auto batch = loader.next()) {
      CHECK(batch->targets().equal(reference.next()->targets()));
      CHECK(loader.repeated() == reference.repeated());
    }
    CHECK_FALSE(reference.next());
  }
}

TEST_CASE("ImageLoader: draws depend on seed, epoch and image, not on threads or the start",
          "[data][image_loader][resume]") {
  const auto make = [](std::uint64_t seed) {
    return ImageLoader(bytes({23, 3, 4, 4}), at::arange(23),
                       {.batch_size = 5,
                        .shuffle = true,
                        .seed = seed,
                        .transforms = {{"noise", add_noise}, {"more noise", add_noise}}});
  };
  ImageLoader loader = make(1);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = epoch_of(loader, 2);
  at::set_num_threads(4);
  const auto together = epoch_of(loader, 2);
  at::set_num_threads(threads);
  REQUIRE(alone.size() == 5);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(alone[i].inputs().equal(together[i].inputs()));
  }
  CHECK(epoch_of(loader, 2, 3).front().inputs().equal(alone[3].inputs()));
  CHECK_FALSE(epoch_of(loader, 1)[0].inputs().equal(alone[0].inputs()));
  ImageLoader other = make(2);
  CHECK_FALSE(epoch_of(other, 2)[0].inputs().equal(alone[0].inputs()));
}

TEST_CASE("ImageLoader follows the run's seed, order and draws, unless it has one of its own",
          "[data][image_loader][law]") {
  const auto make = [](std::optional<std::uint64_t> seed) {
    return ImageLoader(bytes({23, 3, 4, 4}), at::arange(23),
                       {.batch_size = 5,
                        .shuffle = true,
                        .seed = seed,
                        .transforms = {{"noise", add_noise}},
                        .num_workers = 2});
  };
  const auto same = [](const std::vector<tutti::Batch>& a, const std::vector<tutti::Batch>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const tutti::Batch& x, const tutti::Batch& y) {
                        return x.inputs().equal(y.inputs()) && x.targets().equal(y.targets());
                      });
  };
  ImageLoader three = make(3);
  ImageLoader zero = make(0);
  const auto of_three = epoch_of(three, 1);
  const auto of_zero = epoch_of(zero, 1);
  ImageLoader loader = make(std::nullopt);
  CHECK(same(epoch_of(loader, 1), of_zero));
  loader.follow_seed(3);
  CHECK(same(epoch_of(loader, 1), of_three));
  zero.follow_seed(3);
  CHECK(same(epoch_of(zero, 1), of_zero));
  CHECK_FALSE(same(of_zero, of_three));
}

TEST_CASE("ImageLoader: batches prepared ahead are the same, also after a copy and a restart",
          "[data][image_loader][law]") {
  const auto make = [](std::int64_t workers) {
    return ImageLoader(bytes({23, 3, 4, 4}), at::arange(23),
                       {.batch_size = 5,
                        .shuffle = true,
                        .transforms = {{"noise", add_noise}},
                        .mean = {0.5, 0.4, 0.3},
                        .num_workers = workers});
  };
  ImageLoader plain = make(0);
  plain.shard(1, 2);
  const auto alone = epoch_of(plain, 2);
  REQUIRE(alone.size() == 3);
  CHECK(plain.repeated() == 1);
  for (const std::int64_t workers : {1, 4}) {
    ImageLoader loader = make(workers);
    loader.shard(1, 2);
    const auto again = epoch_of(loader, 2);
    REQUIRE(again.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(again[i].inputs().equal(alone[i].inputs()));
      CHECK(again[i].targets().equal(alone[i].targets()));
    }
    CHECK_FALSE(loader.next());
    loader.start(2);
    CHECK(loader.next()->inputs().equal(alone[0].inputs()));
    CHECK(loader.repeated() == 0);
    ImageLoader copy = loader;
    CHECK(loader.next()->inputs().equal(alone[1].inputs()));
    CHECK(copy.next()->inputs().equal(alone[1].inputs()));
    CHECK(copy.next()->inputs().equal(alone[2].inputs()));
    CHECK(copy.repeated() == 1);
    CHECK_FALSE(copy.next());
    CHECK(epoch_of(loader, 2, 2).front().inputs().equal(alone[2].inputs()));
  }
}

TEST_CASE("ImageLoader: a transform's draws do not depend on the transforms beside it",
          "[data][image_loader][law]") {
  const at::Tensor images = bytes({6, 1, 2, 2});
  ImageLoader one(images, at::arange(6), {.transforms = {{"noise", add_noise}}});
  ImageLoader two(images, at::arange(6), {.transforms = {{"noise", add_noise}}});
  two.transforms().put("nothing", [](const at::Tensor& image, Rng& rng) {
    static_cast<void>(rng.uniform());
    return image;
  });
  CHECK(epoch_of(one, 0)[0].inputs().equal(epoch_of(two, 0)[0].inputs()));
  two.transforms().remove("nothing");
  two.transforms().put("noise", [](const at::Tensor& image, Rng&) { return image; });
  CHECK(two.transforms().entries().size() == 1);
  CHECK(epoch_of(two, 0)[0].inputs().equal(images.to(at::kFloat).div(255)));
}

TEST_CASE("ImageLoader: what a transform throws comes out, also from other threads",
          "[data][image_loader]") {
  std::atomic<int> calls{0};
  const auto fails = [&](const at::Tensor& image, Rng&) {
    TORCH_CHECK(++calls != 5, "the fifth image is bad");
    return image;
  };
  ImageLoader loader(bytes({8, 1, 2, 2}), at::arange(8), {.transforms = {{"fails", fails}}});
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  loader.start(0);
  CHECK_THROWS_WITH(loader.next(), ContainsSubstring("the fifth image is bad"));
  at::set_num_threads(threads);
  CHECK(calls == 8);
}

TEST_CASE(
    "ImageLoader: the batch whose transform throws says which image, and the next one follows",
    "[data][image_loader]") {
  const auto fails = [](const at::Tensor& image, Rng&) {
    TORCH_CHECK(image.flatten()[0].item<int>() != 12, "no twelves");
    return image;
  };
  for (const std::int64_t workers : {0, 2}) {
    ImageLoader loader(bytes({8, 1, 2, 2}), at::arange(8),
                       {.batch_size = 2, .transforms = {{"fails", fails}}, .num_workers = workers});
    CHECK(loader.next());
    CHECK_THROWS_WITH(loader.next(),
                      ContainsSubstring("image 3 of the data set cannot be transformed: no twelv"));
    CHECK(loader.next()->targets().equal(at::arange(4, 6)));
  }
  CHECK_THROWS_WITH(ImageLoader(bytes({2, 1, 2, 2}), at::arange(2), {.num_workers = -1}),
                    ContainsSubstring("num_workers is -1 and prefetch_factor 2, expected 0 or"));
  CHECK_THROWS_WITH(ImageLoader(bytes({2, 1, 2, 2}), at::arange(2), {.prefetch_factor = 0}),
                    ContainsSubstring("num_workers is 0 and prefetch_factor 0, expected 0 or"));
  ImageLoader least(bytes({3, 1, 2, 2}), at::arange(3),
                    {.batch_size = 1, .num_workers = 1, .prefetch_factor = 1});
  CHECK(epoch_of(least, 0).size() == 3);
}

TEST_CASE("ImageLoader: pinned memory where there is a CUDA device", "[data][image_loader][cuda]") {
  const auto check = [](tutti::ImageLoaderOptions options) {
    INFO("shuffle: " << options.shuffle << ", to_float: " << options.to_float << ", transforms: "
                     << !options.transforms.empty() << ", workers: " << options.num_workers);
    ImageLoader plain(bytes({7, 3, 4, 4}), at::arange(7), options);
    options.pin_memory = true;
    ImageLoader loader(bytes({7, 3, 4, 4}), at::arange(7), options);
    const auto batches = epoch_of(loader, 1);
    const auto expected = epoch_of(plain, 1);
    REQUIRE(batches.size() == expected.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      CHECK(batches[i].inputs().equal(expected[i].inputs()));
      CHECK(batches[i].targets().equal(expected[i].targets()));
      CHECK(batches[i].inputs().is_pinned() == at::hasCUDA());
      CHECK(batches[i].targets().is_pinned() == at::hasCUDA());
    }
  };
  for (const bool shuffle : {false, true}) {
    for (const bool to_float : {false, true}) {
      for (const std::int64_t workers : {0, 2}) {
        tutti::ImageLoaderOptions options{
            .batch_size = 3, .shuffle = shuffle, .to_float = to_float, .num_workers = workers};
        check(options);
        options.transforms.put("noise", add_noise);
        check(options);
      }
    }
  }
}

TEST_CASE("ImageLoader: batches of another size go on in the same order", "[data][image_loader]") {
  const at::Tensor images = bytes({10, 1, 4, 4});
  for (const std::int64_t workers : {0, 2}) {
    ImageLoader expected(images, at::arange(10),
                         {.batch_size = 4, .shuffle = true, .transforms = {{"noise", add_noise}}});
    ImageLoader loader(images, at::arange(10),
                       {.batch_size = 3,
                        .shuffle = true,
                        .transforms = {{"noise", add_noise}},
                        .num_workers = workers});
    loader.start(1);
    (void)loader.next();
    loader.set_batch_size(4);
    CHECK(loader.batch_size() == 4);
    CHECK(loader.options().batch_size == 4);
    const auto theirs = epoch_of(expected, 1, 1);
    const auto ours = epoch_of(loader, 1, 1);
    REQUIRE(ours.size() == 2);
    REQUIRE(theirs.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(ours[i].inputs().equal(theirs[i].inputs()));
      CHECK(ours[i].targets().equal(theirs[i].targets()));
    }
    CHECK_THROWS_WITH(loader.set_batch_size(0), ContainsSubstring("batch_size is 0, expected 1"));
  }
}

TEST_CASE("ImageLoader: ranks that do not divide a batch share it all the same",
          "[data][image_loader]") {
  for (const std::int64_t workers : {0, 2}) {
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      ImageLoader loader(bytes({16, 1, 4, 4}), at::arange(16),
                         {.batch_size = 5, .num_workers = workers});
      loader.shard(rank, 3);
      CHECK(loader.global_batch_size() == 15);
      loader.set_global_batch_size(8);
      CHECK(loader.global_batch_size() == 8);
      CHECK(loader.options().batch_size == (rank < 2 ? 3 : 2));
      const auto second = epoch_of(loader, 0, 1);
      REQUIRE(second.size() == 1);
      CHECK(second.front().targets().equal(at::arange(8 + rank, 16, 3)));
    }
  }
}

TEST_CASE("ImageLoader: images and options that cannot be meant are refused",
          "[data][image_loader]") {
  CHECK_THROWS_WITH(ImageLoader(at::ones({2, 3, 4, 4}), at::arange(2)),
                    ContainsSubstring("expected uint8 [N, C, H, W]"));
  CHECK_THROWS_WITH(ImageLoader(bytes({2, 3, 4, 4}), at::arange(2), {.mean = {0.5}}),
                    ContainsSubstring("mean has 1 values and std 0, expected none, or"));
  CHECK_THROWS_WITH(ImageLoader(bytes({2, 1, 4, 4}), at::arange(2), {.std = {0}}),
                    ContainsSubstring("std is 0 in channel 0, expected more than 0"));
  ImageLoader uneven(
      bytes({2, 1, 4, 4}), at::arange(2),
      {.transforms = {{"crop", [](const at::Tensor& image, Rng&) {
                         return image[0][0][0].item<int>() == 0 ? image : image.slice(1, 0, 2);
                       }}}});
  uneven.start(0);
  CHECK_THROWS_WITH(uneven.next(), ContainsSubstring("one size for all"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
