#include <tutti/algorithms/augmix.hpp>

#include "support/catch.hpp"

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::AugMix;
using tutti::Rng;
using tutti::functional::augmix_image;

static_assert(tutti::Algorithm<AugMix>);
static_assert(sizeof(tutti::With<tutti::AugMix{.severity = 1, .width = 2}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<tutti::ColOut, AugMix>::order<tutti::FitStart>,
                             tutti::types<AugMix, tutti::ColOut>>);

at::Tensor noise(at::IntArrayRef shape) {
  at::manual_seed(9);
  return at::randint(256, shape, at::kByte);
}

struct Net : torch::nn::Module {
  Net() { head = register_module("head", torch::nn::Linear(3 * 6 * 6, 2)); }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return head->forward(batch.inputs().flatten(1));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    losses.push_back(outputs.tensor().sub(batch.targets().unsqueeze(1)).pow(2).mean());
    return losses.back();
  }
  torch::nn::Linear head{nullptr};
  std::vector<at::Tensor> losses;
};

tutti::TrainerOptions options(const std::string& folder, const std::string& load = "") {
  return {.train = tutti::ImageLoader(noise({12, 3, 6, 6}), at::arange(12).remainder(2),
                                      {.batch_size = 3, .shuffle = true}),
          .max_duration = "2ep",
          .optimizer = tutti::DecoupledSGDW{.lr = 0.01},
          .device = "cpu",
          .seed = 4,
          .progress_bar = false,
          .save_folder = folder,
          .save_interval = "3ba",
          .load_path = load};
}

}  // namespace

TEST_CASE("augmix_image with all the weight on one chain of one operation is that operation",
          "[functional][augmix][law]") {
  const at::Tensor x = noise({3, 8, 8});
  const auto tape = std::make_shared<tutti::Tape>();
  tape->weights = {at::ones({1}, at::kDouble)};
  tape->betas = {1.0};
  tape->integers = {1};
  Rng rng;
  rng.replay(tape);
  CHECK(augmix_image(x, rng, {.depth = 1, .width = 1}).equal(tutti::data::equalize(x)));
}

TEST_CASE("augmix_image leaves an image that no operation changes", "[functional][augmix]") {
  const at::Tensor x = at::full({3, 6, 6}, 200, at::kByte);
  const auto tape = std::make_shared<tutti::Tape>();
  tape->weights = {at::tensor({0.25, 0.75}, at::kDouble)};
  tape->betas = {0.3};
  tape->integers = {2, 0, 1, 3, 0, 0, 1};  // two, then three, of autocontrast and equalize
  Rng rng;
  rng.replay(tape);
  const at::Tensor mixed = augmix_image(x, rng, {.width = 2});
  CHECK(mixed.to(at::kInt).sub(200).abs().le(1).all().item<bool>());
  CHECK(tape->integers.empty());
  CHECK(augmix_image(x, rng, {.severity = 0}).is_same(x));
}

TEST_CASE("augmix_image keeps shapes and types", "[functional][augmix]") {
  Rng rng(1);
  for (int i = 0; i < 10; ++i) {
    CHECK(augmix_image(noise({3, 8, 9}), rng).sizes() == at::IntArrayRef{3, 8, 9});
    CHECK(augmix_image(noise({4, 3, 8, 9}), rng).sizes() == at::IntArrayRef{4, 3, 8, 9});
    CHECK(augmix_image(at::rand({2, 3, 8, 9}, at::kHalf), rng).scalar_type() == at::kHalf);
    CHECK(augmix_image(at::rand({1, 8, 9}), rng).scalar_type() == at::kFloat);
  }
}

TEST_CASE("AugMix: stands before ColOut and beside RandAugment in the loader's transforms",
          "[augmix]") {
  tutti::ImageLoader loader(noise({8, 3, 20, 20}), at::arange(8), {.batch_size = 4});
  tutti::State state;
  state.train_transforms = &loader.transforms();
  AugMix{}.apply(tutti::FitStart{}, state);
  tutti::RandAugment{}.apply(tutti::FitStart{}, state);
  tutti::ColOut{.batch = false}.apply(tutti::FitStart{}, state);
  CHECK(loader.transforms().entries().size() == 3);
  CHECK(loader.transforms().entries()[0].name == "AugMix");
  loader.start(0);
  CHECK(loader.next()->inputs().sizes() == at::IntArrayRef{4, 3, 17, 17});
  AugMix{}.close(state);
  CHECK(loader.transforms().entries().size() == 2);
}

TEST_CASE("AugMix: a run that is resumed inside an epoch goes on bit for bit", "[augmix][resume]") {
  const TemporaryFolder first;
  const TemporaryFolder second;
  const auto weights = [](const TemporaryFolder& folder, const std::string& load) {
    at::manual_seed(2);
    const auto model = std::make_shared<Net>();
    tutti::Trainer<AugMix> trainer{model, options(folder.path().string(), load)};
    trainer.fit();
    return tiny::flat(*model);
  };
  const at::Tensor whole = weights(first, "");
  std::string middle;
  for (const auto& entry : std::filesystem::directory_iterator(first.path())) {
    const std::string name = entry.path().filename().string();
    middle = name.find("ba3") != std::string::npos ? entry.path().string() : middle;
  }
  REQUIRE_FALSE(middle.empty());
  CHECK(weights(second, middle).equal(whole));
}

TEST_CASE("AugMix: is closed without the loader of a fit before the one that fails", "[augmix]") {
  const TemporaryFolder folder;
  tutti::Trainer<AugMix> trainer{std::make_shared<Net>(), options(folder.path().string(), "")};
  trainer.fit();
  const tutti::ImageLoader other(noise({3, 3, 6, 6}), at::arange(3), {.batch_size = 3});
  const auto* own = trainer.state().train_transforms;
  CHECK_THROWS_WITH(trainer.fit({.train = other}), ContainsSubstring("nothing is left to train"));
  CHECK(trainer.state().train_transforms == own);  // refused, so that nothing has changed
  CHECK_THROWS_WITH(trainer.fit({.reset_time = true, .train = other}),
                    ContainsSubstring("later than"));  // in the folder
  CHECK(trainer.state().train_transforms == nullptr);
  trainer.close();
}

TEST_CASE("AugMix: options out of range are refused", "[augmix]") {
  CHECK_THROWS_WITH(AugMix{.severity = 11}.validate(),
                    ContainsSubstring("severity is 11, expected a number from 0 to 10"));
  CHECK_THROWS_WITH(AugMix{.width = 0}.validate(), ContainsSubstring("width is 0"));
  CHECK_THROWS_WITH(AugMix{.depth = 0}.validate(), ContainsSubstring("or -1 to draw it"));
  CHECK_THROWS_WITH(AugMix{.alpha = 0}.validate(), ContainsSubstring("alpha is 0"));
  AugMix{.severity = 10, .depth = -1, .width = 1, .alpha = 0.01}.validate();
  CHECK_THROWS_AS(AugMix{.severity = -0.5}.validate(), c10::ValueError);
  CHECK_THROWS_AS(AugMix{.depth = -2}.validate(), c10::ValueError);
  Rng rng;
  const auto refused = [&](const tutti::functional::AugMixOptions& options, const char* why) {
    CHECK_THROWS_WITH(augmix_image(noise({3, 4, 4}), rng, options), ContainsSubstring(why));
  };
  refused({.width = 0}, "width is 0");
  refused({.severity = 11}, "severity is 11");
  refused({.severity = -1}, "severity is -1");
  refused({.depth = 0}, "depth is 0");
  refused({.depth = -2}, "depth is -2");
  refused({.alpha = 0}, "alpha is 0");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
