#include <tutti/algorithms/backbone_finetuning.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using tutti::BackboneFinetuning;

static_assert(tutti::Algorithm<BackboneFinetuning>);
static_assert(tutti::Recipe<BackboneFinetuning>::valid);
static_assert(sizeof(tutti::With<BackboneFinetuning{.backbone = "net", .growth = 1.5}>) > 0);

struct Net : torch::nn::Module {
  Net() {
    backbone = register_module(
        "backbone", tutti::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6)));
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return head(backbone->forward(batch.inputs()).relu());
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  tutti::nn::Sequential backbone{nullptr};
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<Net> net(std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return std::make_shared<Net>();
}

tutti::TrainerOptions options(const char* length) {
  return {.train = tiny::batches(3),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// The rates of every batch: of the others and of the backbone.
struct Rates final {
  std::vector<double> head{}, backbone{};
  void apply(tutti::BatchStart, const tutti::State& state) {
    const auto& groups = state.optimizers.front()->param_groups();
    head.push_back(groups.front().options().get_lr());
    backbone.push_back(groups.back().options().get_lr());
  }
};

auto trainer(const std::shared_ptr<Net>& model, tutti::TrainerOptions with,
             const BackboneFinetuning& finetuning) {
  return tutti::Trainer(model, std::move(with), finetuning, Rates{});
}

}  // namespace

TEST_CASE("the backbone's rate grows from its epoch on, up to that of the others",
          "[backbone_finetuning][trainer]") {
  const auto model = net();
  auto run =
      trainer(model, options("7ep"), {.backbone = "backbone", .unfreeze_backbone_at_epoch = 2});
  const auto& groups = run.state().optimizers.front()->param_groups();
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].params().size() == 4);  // the head, and the batch normalisation
  CHECK(groups[1].params().size() == 2);
  const auto weight = [&] { return model->parameters()[0].detach().clone(); };
  const at::Tensor before = weight();
  const at::Tensor scale = model->parameters()[2].detach().clone();
  run.fit({.duration = "2ep"});
  CHECK(weight().equal(before));
  CHECK_FALSE(model->parameters()[2].equal(scale));  // train_bn
  run.fit({.duration = "5ep"});
  CHECK_FALSE(weight().equal(before));
  // Lightning's: 0.1 of the head's rate, then twice as much each epoch, at most the head's.
  const std::vector<double> expected{0.01, 0.02, 0.04, 0.08, 0.1};
  const auto& rates = run.get<Rates>();
  REQUIRE(rates.backbone.size() == 21);
  for (std::size_t i = 6; i < 21; ++i) {
    CHECK_THAT(rates.backbone[i], WithinRel(expected[i / 3 - 2], 1e-12));
    CHECK(rates.head[i] == 0.1);
  }
}

TEST_CASE("a schedule multiplies the backbone's rate as the others'", "[backbone_finetuning]") {
  const auto model = net();
  auto with = options("4ep");
  with.schedule = tutti::Linear{.alpha_i = 1.0, .alpha_f = 0.0};
  auto run = trainer(model, with,
                     {.backbone = "backbone",
                      .unfreeze_backbone_at_epoch = 1,
                      .growth = 3,
                      .backbone_initial_lr = 0.02,
                      .should_align = false});
  run.fit();
  const auto& rates = run.get<Rates>();
  const std::vector<double> part{0.2, 0.6, 1.8};
  for (std::size_t i = 3; i < 12; ++i) {
    CHECK_THAT(rates.backbone[i], WithinRel(rates.head[i] * part[i / 3 - 1], 1e-9));
  }
  CHECK(rates.head[11] < 0.02);
}

TEST_CASE("batch normalisation of the backbone can stay as it is", "[backbone_finetuning]") {
  const auto model = net();
  const at::Tensor before = tiny::flat(*model->backbone->children()[1]);
  const at::Tensor first = model->parameters()[0].detach().clone();
  trainer(model, options("3ep"),
          {.backbone = "backbone", .unfreeze_backbone_at_epoch = 1, .train_bn = false})
      .fit();
  CHECK(tiny::flat(*model->backbone->children()[1]).equal(before));
  CHECK_FALSE(model->parameters()[0].equal(first));
}

TEST_CASE("BackboneFinetuning: a resumed run goes on as the saved one",
          "[backbone_finetuning][resume]") {
  const TemporaryFolder folder;
  const BackboneFinetuning finetuning{.backbone = "backbone", .unfreeze_backbone_at_epoch = 2};
  auto saving = options("5ep");
  saving.schedule = tutti::Linear{.alpha_i = 1.0, .alpha_f = 0.1};
  auto loading = saving;
  saving.save_folder = folder.path().string();
  saving.save_interval = "1ba";
  const auto whole = net(2);
  trainer(whole, saving, finetuning).fit();
  for (const std::string checkpoint : {"/ep1-ba4", "/ep1-ba6", "/ep2-ba7", "/ep3-ba10"}) {
    loading.load_path = folder.path().string() + checkpoint;
    const auto part = net(3);
    trainer(part, loading, finetuning).fit();
    INFO(checkpoint);
    CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
  }
}

TEST_CASE("BackboneFinetuning says what is missing", "[backbone_finetuning]") {
  CHECK_THROWS_WITH(BackboneFinetuning{}.validate(), ContainsSubstring("backbone is empty"));
  CHECK_THROWS_WITH((BackboneFinetuning{.backbone = "a", .growth = 0}.validate()),
                    ContainsSubstring("growth is 0, expected more than 0"));
  CHECK_THROWS_WITH(trainer(net(), options("1ep"), {.backbone = "encoder"}),
                    ContainsSubstring("its children are backbone, head"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
