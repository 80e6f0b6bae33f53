#include <tutti/algorithms/stochastic_depth.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/sam.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::DropDistribution;
using tutti::DropMethod;
using tutti::Rng;
using tutti::StochasticDepth;
using tutti::functional::apply_stochastic_depth;

static_assert(tutti::Algorithm<StochasticDepth>);
static_assert(sizeof(tutti::With<StochasticDepth{.drop_rate = 0.1, .drop_warmup = "5ba"}>) > 0);
static_assert(tutti::Recipe<StochasticDepth, tutti::SAM>::valid);

// A network that says it is of another kind.
struct Transformer {
  using model_features = tutti::types<tutti::takes_tokens, tutti::has_attention>;
};
static_assert(tutti::Supports<StochasticDepth, models::ResNetImpl>);
static_assert(!tutti::Supports<StochasticDepth, Transformer>);

models::Bottleneck block(bool projects = false) {
  return models::Bottleneck(models::BlockOptions{.in_channels = projects ? 6 : 8, .width = 2});
}

models::ResNet small_net(models::Block kind = models::Block::basic) {
  at::manual_seed(3);
  return models::ResNet(models::ResNetOptions{.block = kind,
                                              .layers = {1, 2},
                                              .widths = {4, 8},
                                              .stem = models::Stem::small,
                                              .num_classes = 3});
}

// A module with one block.
template <class Holder>
std::shared_ptr<torch::nn::Module> around(const Holder& block) {
  auto module = std::make_shared<torch::nn::Module>("net");
  module->register_module("block", block);
  return module;
}

std::vector<tutti::Batch> images(int count) {
  at::manual_seed(11);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({4, 3, 8, 8}), at::randint(3, {4}, at::kLong));
  }
  return out;
}

struct Rates final {
  static constexpr std::string_view name = "Rates";
  static constexpr tutti::Role role = tutti::Role::logger;
  std::map<std::string, std::vector<double>> seen{};

  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t) {
    for (const auto& metric : metrics) {
      seen[std::string(metric.name)].push_back(metric.value);
    }
  }
};

tutti::TrainerOptions run_of(std::vector<tutti::Batch> batches, tutti::Time length) {
  return {.train = std::move(batches),
          .max_duration = length,
          .optimizer = tutti::DecoupledSGDW{.lr = 0.05, .momentum = 0.9},
          .device = "cpu",
          .seed = 5,
          .progress_bar = false};
}

tutti::AnyModel classifier(const models::ResNet& net) {
  return tutti::Classifier(net.ptr(), {.num_classes = 3, .train_metrics = tutti::Metrics{}});
}

}  // namespace

TEST_CASE("a block that is always skipped gives its shortcut alone", "[stochastic_depth]") {
  auto one = block();
  apply_stochastic_depth(*around(one), {.drop_rate = 1});
  const at::Tensor x = torch::randn({2, 8, 4, 4});
  CHECK(one(x).is_same(x));

  auto other = block(/*projects=*/true);
  apply_stochastic_depth(*around(other), {.drop_rate = 1});
  const at::Tensor y = torch::randn({2, 6, 4, 4});
  CHECK(other(y).equal(other->shortcut(y).relu()));

  auto samples = block();
  apply_stochastic_depth(*around(samples),
                         {.stochastic_method = DropMethod::sample, .drop_rate = 1});
  CHECK(samples(x.abs()).equal(x.abs()));
}

TEST_CASE("a block that is never skipped is the plain block", "[stochastic_depth][law]") {
  for (const auto method : {DropMethod::block, DropMethod::sample}) {
    models::BasicBlock one(models::BlockOptions{.in_channels = 4, .width = 4});
    const at::Tensor x = torch::randn({2, 4, 4, 4});
    const at::Tensor expected = one(x);
    const Warnings warnings;
    apply_stochastic_depth(*around(one), {.stochastic_method = method, .drop_rate = 0});
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0], ContainsSubstring("drop_rate is 0"));
    CHECK(one(x).allclose(expected));
  }
}

TEST_CASE("evaluation scales each residual by how often it is kept", "[stochastic_depth]") {
  auto one = block();
  apply_stochastic_depth(*around(one), {.drop_rate = 0.3});
  one->eval();
  const at::Tensor x = torch::randn({2, 8, 4, 4});
  CHECK(one(x).allclose((one->residual(x) * 0.7 + x).relu(), 1e-5, 1e-6));
}

TEST_CASE("rates rise linearly over the 16 blocks of ResNet-50, or are all the same",
          "[stochastic_depth]") {
  auto net = models::resnet50(models::ResNetOptions{.num_classes = 2});
  const auto linear = apply_stochastic_depth(*net, {.drop_rate = 0.5})->drop_rates();
  REQUIRE(linear.size() == 16);
  for (std::size_t l = 0; l < linear.size(); ++l) {
    CHECK(linear[l] == 0.03125 * static_cast<double>(l + 1));
  }
  const auto uniform = apply_stochastic_depth(
      *net, {.drop_rate = 0.5, .drop_distribution = DropDistribution::uniform});
  CHECK(uniform->drop_rates() == std::vector<double>(16, 0.5));
}

TEST_CASE("examples are skipped one by one, at the rate asked for", "[stochastic_depth][law]") {
  auto one = block();
  apply_stochastic_depth(*around(one), {.stochastic_method = DropMethod::sample, .drop_rate = 0.25},
                         Rng(7));
  const at::Tensor x = torch::rand({2000, 8, 2, 2});
  const at::Tensor y = one(x);
  const double skipped = y.eq(x).flatten(1).all(1).to(at::kDouble).mean().item<double>();
  CHECK(std::abs(skipped - 0.25) < 0.04);
}

TEST_CASE("the target's name chooses the blocks, and none is an error", "[stochastic_depth]") {
  auto basic = small_net();
  CHECK(apply_stochastic_depth(*basic, {.target_layer_name = "ResNetBasicBlock"})->size() == 3);
  CHECK_THROWS_WITH(apply_stochastic_depth(*basic, {.target_layer_name = "ResNetBottleneck"}),
                    ContainsSubstring("(layer_name() is \"ResNetBasicBlock\", target_layer_name is "
                                      "\"ResNetBottleneck\")"));
  auto bottleneck = small_net(models::Block::bottleneck);
  CHECK(apply_stochastic_depth(*bottleneck, {.target_layer_name = "ResNetBottleneck"})->size() ==
        3);
  CHECK_THROWS_WITH(apply_stochastic_depth(*basic, {.target_layer_name = "Other"}),
                    ContainsSubstring("target_layer_name is Other"));
}

TEST_CASE("StochasticDepth refuses rates that are none and a warm-up of single examples",
          "[stochastic_depth]") {
  for (const double rate : {-0.5, 1.7}) {
    CHECK_THROWS_AS(StochasticDepth{.drop_rate = rate}.validate(), c10::ValueError);
  }
  CHECK_THROWS_WITH(
      (StochasticDepth{.stochastic_method = DropMethod::sample, .drop_warmup = "0.5dur"}
           .validate()),
      ContainsSubstring("has no warm-up"));
}

TEST_CASE("the rate reaches its target at the end of the warm-up", "[stochastic_depth]") {
  for (const tutti::Time warmup :
       {tutti::Time("0.25dur"), tutti::Time("2ba"), tutti::Time("1ep")}) {
    tutti::Trainer trainer(classifier(small_net()), run_of(images(2), "4ep"),
                           StochasticDepth{.drop_rate = 0.5, .drop_warmup = warmup}, Rates{});
    trainer.fit();
    const auto& seen = trainer.get<Rates>().seen;
    CHECK(seen.at("stochastic_depth/num_stochastic_layers") == std::vector<double>{3});
    const std::vector<double> want{0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    CHECK(seen.at("stochastic_depth/drop_rate") == want);
    CHECK((*trainer.get<StochasticDepth>().run.blocks)->drop_rates().back() == 0.5);
  }
}

TEST_CASE("a resumed run skips the same blocks, at the same rates", "[stochastic_depth][resume]") {
  const TemporaryFolder folder;
  const StochasticDepth policy{.drop_rate = 0.6, .drop_warmup = "6ba"};
  auto whole = small_net();
  auto options = run_of(images(3), "3ep");
  options.save_folder = folder.path().string();
  options.save_interval = "1ep";
  tutti::Trainer first(classifier(whole), options, policy);
  first.fit();

  auto resumed = small_net();
  auto again = run_of(images(3), "3ep");
  again.load_path = folder.path().string() + "/ep1-ba3";
  tutti::Trainer second(classifier(resumed), again, policy);
  CHECK(std::abs((*second.get<StochasticDepth>().run.blocks)->drop_rates().back() - 0.3) < 1e-12);
  second.fit();
  CHECK(tiny::flat(*resumed).equal(tiny::flat(*whole)));
}

TEST_CASE("both passes of SAM skip the same blocks", "[stochastic_depth][sam]") {
  const StochasticDepth policy{.drop_rate = 0.5};
  tutti::Trainer plain(classifier(small_net()), run_of(images(4), "1ep"), policy);
  plain.fit();
  tutti::Trainer sharp(classifier(small_net()), run_of(images(4), "1ep"), policy, tutti::SAM{});
  sharp.fit();
  CHECK(plain.get<StochasticDepth>().rng.position() > 0);
  CHECK(sharp.get<StochasticDepth>().rng.position() == plain.get<StochasticDepth>().rng.position());
}

TEST_CASE("a model outlives the policy that made it stochastic", "[stochastic_depth]") {
  auto net = small_net();
  {
    tutti::Trainer trainer(classifier(net), run_of(images(1), "1ep"),
                           StochasticDepth{.drop_rate = 0.9});
    trainer.fit();
  }
  net->train();
  for (int i = 0; i < 5; ++i) {
    CHECK(net->forward(torch::randn({2, 3, 8, 8})).sizes() == at::IntArrayRef{2, 3});
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
