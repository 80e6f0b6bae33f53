#include <tutti/algorithms/randaugment.hpp>

#include "support/catch.hpp"

#include <memory>

#include <tutti/algorithms/colout.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/data/image_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::RandAugment;
using tutti::Rng;
using tutti::functional::randaugment_image;

static_assert(tutti::Algorithm<RandAugment>);
static_assert(sizeof(tutti::With<tutti::RandAugment{.severity = 5, .depth = 1}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<tutti::ColOut, RandAugment>::order<tutti::FitStart>,
                             tutti::types<RandAugment, tutti::ColOut>>);

at::Tensor noise(at::IntArrayRef shape) {
  at::manual_seed(8);
  return at::randint(256, shape, at::kByte);
}

}  // namespace

TEST_CASE("randaugment_image of depth 0 or severity 0 gives the image back",
          "[functional][randaugment]") {
  Rng rng;
  const at::Tensor x = noise({3, 8, 8});
  CHECK(randaugment_image(x, rng, {.depth = 0}).is_same(x));
  CHECK(randaugment_image(x, rng, {.severity = 0}).is_same(x));
}

TEST_CASE("randaugment_image keeps shapes and types, of one channel too",
          "[functional][randaugment]") {
  Rng rng(1);
  for (int i = 0; i < 20; ++i) {
    CHECK(randaugment_image(noise({3, 8, 9}), rng).sizes() == at::IntArrayRef{3, 8, 9});
    CHECK(randaugment_image(noise({4, 1, 8, 9}), rng).sizes() == at::IntArrayRef{4, 1, 8, 9});
    CHECK(randaugment_image(at::rand({2, 3, 8, 9}, at::kHalf), rng).scalar_type() == at::kHalf);
    CHECK(randaugment_image(at::rand({3, 8, 9}, at::kDouble), rng).scalar_type() == at::kDouble);
  }
}

TEST_CASE("randaugment_image draws operations evenly, depth times",
          "[functional][randaugment][law]") {
  std::array<int, 13> counts{};
  Rng rng(7);
  const int draws = 13000;
  for (int i = 0; i < draws; ++i) {
    ++counts[static_cast<std::size_t>(
        rng.integer(0, tutti::data::size_of(tutti::AugmentationSet::all)))];
  }
  double chi = 0;
  for (const int count : counts) {
    chi += (count - 1000.0) * (count - 1000.0) / 1000.0;
  }
  CHECK(chi < 32.9);  // 12 degrees of freedom, one in a thousand

  auto tape = std::make_shared<tutti::Tape>();
  tape->integers = {9, 9, 9};
  tape->uniforms = {0.6, 0.125, 0.4, 1, 0.6, 0.25};
  Rng replayed;
  replayed.replay(tape);
  const at::Tensor x = noise({3, 8, 8});
  const at::Tensor out = randaugment_image(x, replayed, {.depth = 3});
  namespace data = tutti::data;
  CHECK(out.equal(data::color(data::color(data::color(x, 2), 1), 3)));
  CHECK(tape->integers.empty());
}

TEST_CASE("RandAugment: the policy goes into the loader's transforms once, and out on close",
          "[randaugment]") {
  tutti::ImageLoader loader(noise({8, 3, 8, 8}), at::arange(8),
                            {.batch_size = 4, .to_float = false});
  tutti::State state;
  state.train_transforms = &loader.transforms();
  const RandAugment policy{.rng = Rng::for_policy(3, "RandAugment")};
  policy.apply(tutti::FitStart{}, state);
  policy.apply(tutti::FitStart{}, state);
  CHECK(loader.transforms().entries().size() == 1);
  loader.start(0);
  const at::Tensor first = loader.next()->inputs();
  CHECK_FALSE(first.equal(noise({8, 3, 8, 8}).slice(0, 0, 4)));
  loader.start(0);
  CHECK(loader.next()->inputs().equal(first));
  loader.start(1);
  CHECK_FALSE(loader.next()->inputs().equal(first));
  policy.close(state);
  CHECK(loader.transforms().empty());

  state.train_transforms = nullptr;
  policy.close(state);
  CHECK_THROWS_WITH(policy.apply(tutti::FitStart{}, state),
                    ContainsSubstring("RandAugment changes every image on its own"));
}

TEST_CASE("RandAugment: options out of range are refused", "[randaugment]") {
  CHECK_THROWS_WITH(RandAugment{.severity = 11}.validate(),
                    ContainsSubstring("severity is 11, expected a number from 0 to 10"));
  CHECK_THROWS_WITH(RandAugment{.depth = -1}.validate(), ContainsSubstring("depth is -1"));
  Rng rng;
  const auto refused = [&](const tutti::functional::RandAugmentOptions& options, const char* why) {
    CHECK_THROWS_WITH(randaugment_image(noise({3, 4, 4}), rng, options), ContainsSubstring(why));
  };
  refused({.severity = 11}, "severity is 11");
  refused({.severity = -1}, "severity is -1");
  refused({.depth = -1}, "depth is -1");
  RandAugment{.severity = 10, .depth = 0}.validate();
  CHECK_THROWS_AS(RandAugment{.severity = -0.5}.validate(), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
