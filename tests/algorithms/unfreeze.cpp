#include <tutti/algorithms/unfreeze.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/backbone_finetuning.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "support/deep.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Unfreeze;
using tutti::functional::freeze_all_but;
using tutti::functional::unfreeze_from;

static_assert(tutti::Algorithm<Unfreeze>);
static_assert(tutti::Recipe<Unfreeze, tutti::Named<"all", Unfreeze>>::valid);
static_assert(!tutti::detail::can_be_combined<Unfreeze, tutti::BackboneFinetuning>);
static_assert(sizeof(tutti::With<Unfreeze{.at = "3ep", .from = "second"}>) > 0);

// Which layers require gradients: first, norm, second, last.
std::vector<bool> trained(Deep& model) {
  return {model.first->weight.requires_grad(), model.norm->weight.requires_grad(),
          model.second->weight.requires_grad(), model.last->weight.requires_grad()};
}

tutti::TrainerOptions options(const char* length) {
  return {.train = tiny::batches(3),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::DecoupledAdamW{.lr = 0.01, .weight_decay = 0.001},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

auto trainer(const std::shared_ptr<Deep>& model, tutti::TrainerOptions with, const char* at = "2ep",
             const char* all = "7ba") {
  return tutti::Trainer(model, std::move(with),
                        Unfreeze{.at = tutti::Time::parse(at), .from = "second"},
                        tutti::named<"all">(Unfreeze{.at = tutti::Time::parse(all)}));
}

}  // namespace

TEST_CASE("all but the head is frozen, and given back from a layer on", "[functional][unfreeze]") {
  const auto model = deep();
  CHECK(freeze_all_but(*model) == 3);
  CHECK(trained(*model) == std::vector{false, false, false, true});
  CHECK(unfreeze_from(*model, "second") == 1);
  CHECK(trained(*model) == std::vector{false, false, true, true});
  CHECK(unfreeze_from(*model) == 2);
  CHECK(trained(*model) == std::vector{true, true, true, true});
  CHECK(freeze_all_but(*model, {"norm", "l*"}) == 2);
  CHECK(trained(*model) == std::vector{false, true, false, true});
}

TEST_CASE("layers are trained from their time on", "[unfreeze][trainer]") {
  const auto model = deep();
  auto run = trainer(model, options("2ep"));
  CHECK(trained(*model) == std::vector{false, false, false, true});
  const at::Tensor first = model->first->weight.detach().clone();
  const at::Tensor second = model->second->weight.detach().clone();
  const at::Tensor last = model->last->weight.detach().clone();
  run.fit();  // given back at the very end
  CHECK(model->second->weight.equal(second));
  CHECK_FALSE(model->last->weight.equal(last));
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 0);
  CHECK(trained(*model) == std::vector{false, false, true, true});
  run.fit({.duration = "1ba"});
  CHECK_FALSE(model->second->weight.equal(second));
  CHECK(model->first->weight.equal(first));  // also of weight decay
  CHECK(trained(*model) == std::vector{true, true, true, true});
  run.fit({.duration = "2ba"});
  CHECK_FALSE(model->first->weight.equal(first));
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 2);
}

TEST_CASE("Unfreeze: a resumed run goes on as the saved one", "[unfreeze][resume]") {
  const TemporaryFolder folder;
  auto saving = options("4ep");
  saving.save_folder = folder.path().string();
  saving.save_interval = "1ba";
  const auto whole = deep(2);
  trainer(whole, saving).fit();
  for (const std::string checkpoint : {"/ep1-ba4", "/ep1-ba6", "/ep2-ba7", "/ep3-ba10"}) {
    auto loading = options("4ep");
    loading.load_path = folder.path().string() + checkpoint;
    const auto part = deep(3);
    trainer(part, loading).fit();
    INFO(checkpoint);
    CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
  }
}

TEST_CASE("a time may be a part of the run", "[unfreeze]") {
  const auto model = deep();
  auto run = trainer(model, options("2ep"), "0.5dur", "1dur");
  const at::Tensor first = model->first->weight.detach().clone();
  const at::Tensor second = model->second->weight.detach().clone();
  run.fit();
  CHECK(trained(*model) == std::vector{true, true, true, true});
  CHECK_FALSE(model->second->weight.equal(second));
  CHECK(model->first->weight.equal(first));
}

TEST_CASE("Unfreeze says what is missing", "[unfreeze]") {
  CHECK_THROWS_WITH(Unfreeze{}.validate(), ContainsSubstring("at is 0ep, expected a time after"));
  const auto model = deep();
  CHECK_THROWS_WITH(freeze_all_but(*model, {"head"}), ContainsSubstring("train has \"head\""));
  CHECK_THROWS_WITH(unfreeze_from(*model, "layer3"),
                    ContainsSubstring("its children are first, norm, second, last"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
