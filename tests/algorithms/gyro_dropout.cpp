#include <tutti/algorithms/gyro_dropout.hpp>

#include "support/catch.hpp"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/sam.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::GyroDropout;
using tutti::functional::apply_gyro_dropout;
using Layer = tutti::nn::GyroDropoutImpl;

static_assert(tutti::Algorithm<GyroDropout>);
static_assert(tutti::Recipe<GyroDropout, tutti::SAM>::valid);
static_assert(sizeof(tutti::With<GyroDropout{.p = 0.3, .sigma = 64, .tau = 4}>) > 0);

// A network with Dropouts where a typed member and a Sequential hold them.
struct Dropped : torch::nn::Module {
  Dropped() {
    in = register_module("in", torch::nn::Linear(4, 8));
    dropout = register_module("dropout", tutti::nn::Dropout(0.2));
    rest = register_module("rest",
                           tutti::nn::Sequential(torch::nn::Linear(8, 6), torch::nn::Dropout(0.1),
                                                 torch::nn::Linear(6, 2)));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return rest->forward(dropout(in(batch.inputs()).relu()));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear in{nullptr};
  tutti::nn::Dropout dropout{nullptr};
  tutti::nn::Sequential rest{nullptr};
};

std::shared_ptr<Dropped> dropped(std::uint64_t seed) {
  at::manual_seed(seed);
  return std::make_shared<Dropped>();
}

tutti::TrainerOptions options(const char* length) {
  return {.train = tiny::batches(4),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::DecoupledSGDW{.lr = 0.05, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// Rows at which the mask differs from the row before.
std::set<std::int64_t> changes(const at::Tensor& mask) {
  std::set<std::int64_t> out;
  for (std::int64_t i = 1; i < mask.size(0); ++i) {
    if (!mask[i].equal(mask[i - 1])) {
      out.insert(i);
    }
  }
  return out;
}

std::string row(const at::Tensor& mask) {
  std::string out;
  for (std::int64_t i = 0; i < mask.size(0); ++i) {
    out += mask[i].item<float>() > 0 ? '1' : '0';
  }
  return out;
}

}  // namespace

TEST_CASE("rows are dealt to the masks in order, divisible or not", "[functional][gyro_dropout]") {
  Layer layer({.p = 0.5, .sigma = 1000, .tau = 4, .period = 10}, tutti::Rng(1));
  const at::Tensor ones = at::ones({32, 64});
  CHECK(changes(layer.forward(ones)) == std::set<std::int64_t>{8, 16, 24});
  CHECK(changes(layer.forward(ones.slice(0, 0, 10))) == std::set<std::int64_t>{3, 5, 8});
  CHECK(changes(layer.forward(ones.slice(0, 0, 2))) == std::set<std::int64_t>{1});
}

TEST_CASE("what is kept is scaled up in training and nothing happens in evaluation",
          "[functional][gyro_dropout][law]") {
  Layer layer({.p = 0.5, .sigma = 8, .tau = 2, .period = 3}, tutti::Rng(2));
  const at::Tensor x = at::randn({6, 5});
  CHECK(layer.forward(x).equal(x * layer.mask(6) / 0.5));
  layer.eval();
  CHECK(layer.forward(x).is_same(x));
  CHECK(layer.state().calls == 1);
  layer.train();
  CHECK(layer.forward(x.to(at::kBFloat16)).scalar_type() == at::kBFloat16);
  Layer none({.p = 0, .sigma = 4, .tau = 2, .period = 1});
  CHECK(none.forward(x).equal(x));
}

TEST_CASE("the same masks stay for a period and there are never more than sigma",
          "[functional][gyro_dropout][law]") {
  Layer layer({.p = 0.5, .sigma = 5, .tau = 3, .period = 4}, tutti::Rng(3));
  const at::Tensor ones = at::ones({3, 24});
  std::set<std::string> seen;
  at::Tensor last;
  int redrawn = 0;
  for (int call = 0; call < 40; ++call) {
    layer.forward(ones);
    const at::Tensor mask = layer.mask(3);
    for (int i = 0; i < 3; ++i) {
      seen.insert(row(mask[i]));
    }
    if (last.defined() && !mask.equal(last)) {
      CHECK(call % 4 == 0);
      ++redrawn;
    }
    last = mask;
  }
  CHECK(redrawn > 5);
  CHECK(seen.size() == 5);
}

TEST_CASE("features are dropped at every position, and whole channels of images",
          "[functional][gyro_dropout]") {
  Layer text({.p = 0.5, .sigma = 4, .tau = 2, .period = 1}, tutti::Rng(4));
  const at::Tensor y = text.forward(at::ones({2, 7, 16}));
  CHECK(y.eq(y.narrow(1, 0, 1)).all().item<bool>());
  CHECK(y.select(1, 0).equal(text.mask(2) / 0.5));
  Layer image({.p = 0.5, .sigma = 4, .tau = 2, .period = 1}, tutti::Rng(4));
  const at::Tensor z = image.forward(at::ones({2, 16, 3, 3}));
  CHECK(z.select(3, 0).select(2, 0).equal(image.mask(2) / 0.5));
  CHECK(z.eq(z.narrow(3, 0, 1).narrow(2, 0, 1)).all().item<bool>());
  CHECK_THROWS_WITH(image.forward(at::ones({2, 8, 3, 3})),
                    ContainsSubstring("8 features, expected 16"));
  CHECK_THROWS_WITH(image.forward(at::ones({16})), ContainsSubstring("two dimensions or more"));
}

TEST_CASE("every Dropout is replaced once, and the period follows from the training's length",
          "[gyro_dropout]") {
  const auto model = dropped(1);
  const auto report = apply_gyro_dropout(*model, 196, 100, 0.5, 256, 4);
  CHECK(report.replaced == std::vector<std::string>{"dropout", "rest.1"});
  std::vector<std::uint64_t> streams;
  tutti::surgery::for_each<tutti::nn::GyroDropout>(*model,
                                                   [&](Layer& layer, const tutti::surgery::Visit&) {
                                                     CHECK(layer.options.period == 304);
                                                     streams.push_back(layer.state().rng.stream());
                                                   });
  CHECK(streams.size() == 2);
  CHECK(streams.at(0) != streams.at(1));
  CHECK(apply_gyro_dropout(*model, 196, 100).replaced.empty());

  tutti::nn::Sequential none(torch::nn::Linear(2, 2));
  CHECK_THROWS_WITH(apply_gyro_dropout(*none, 10, 100), ContainsSubstring("GyroDropout"));
  CHECK_THROWS_WITH(apply_gyro_dropout(*model, 10, 2), ContainsSubstring("20 batches"));
  CHECK_THROWS_AS(apply_gyro_dropout(*dropped(2), 10, 100, 1.0), c10::ValueError);
}

TEST_CASE("the length of a fit sets the period, a second one too", "[gyro_dropout][trainer]") {
  const auto model = dropped(3);
  tutti::Trainer trainer{model, options("2ep"), GyroDropout{.sigma = 4, .tau = 3}};
  trainer.fit();
  auto& layers = *trainer.get<GyroDropout>().run.layers;
  CHECK(layers.size() == 2);
  CHECK(layers.at("dropout")->options.period == 6);  // 8 batches / 4 masks * 3
  CHECK(layers.at("dropout")->state().calls == 8);
  const at::Tensor masks = layers.at("dropout")->state().masks;
  trainer.fit({.duration = "2ep"});
  CHECK(layers.at("dropout")->options.period == 12);
  CHECK(layers.at("dropout")->state().calls == 16);
  CHECK(layers.at("dropout")->state().masks.is_same(masks));

  tutti::Trainer samples{dropped(3), options("100sp"), GyroDropout{.sigma = 4}};
  CHECK_THROWS_WITH(samples.fit(), ContainsSubstring("expected a time in ep or ba"));
}

TEST_CASE("both passes of SAM see the same masks, and only one of them counts",
          "[gyro_dropout][sam]") {
  struct Spy final {
    std::vector<std::string> seen{};
    void apply(tutti::AfterBackward, tutti::State& state) {
      auto& net = dynamic_cast<Dropped&>(*state.model);
      const auto layer = std::dynamic_pointer_cast<Layer>(net.dropout->slot().module());
      seen.push_back(row(layer->mask(2).flatten()));
    }
  };
  const auto model = dropped(4);
  tutti::Trainer trainer{model, options("3ep"), GyroDropout{.sigma = 6, .tau = 2}, tutti::SAM{},
                         Spy{}};
  trainer.fit();
  const auto& seen = trainer.get<Spy>().seen;
  REQUIRE(seen.size() == 24);
  for (std::size_t i = 0; i < seen.size(); i += 2) {
    CHECK(seen[i] == seen[i + 1]);
  }
  CHECK(std::set<std::string>(seen.begin(), seen.end()).size() > 1);
  CHECK(trainer.get<GyroDropout>().run.layers->at("dropout")->state().calls == 12);
}

TEST_CASE("GyroDropout: a resumed run goes on as the saved one", "[gyro_dropout][resume]") {
  const TemporaryFolder folder;
  const GyroDropout gyro{.sigma = 5, .tau = 2};
  auto saving = options("4ep");
  saving.save_folder = folder.path().string();
  saving.save_interval = "1ba";
  const auto whole = dropped(5);
  tutti::Trainer first{whole, saving, gyro};
  first.fit();
  for (const char* checkpoint : {"/ep0-ba3", "/ep1-ba6", "/ep2-ba11"}) {
    auto loading = options("4ep");
    loading.load_path = folder.path().string() + checkpoint;
    const auto part = dropped(6);
    tutti::Trainer second{part, loading, gyro};
    second.fit();
    INFO(checkpoint);
    CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
  }
}

TEST_CASE("GyroDropout refuses numbers out of range", "[gyro_dropout]") {
  const auto refused = [](const GyroDropout& gyro, const char* why) {
    CHECK_THROWS_WITH(gyro.validate(), ContainsSubstring(why));
  };
  GyroDropout{}.validate();
  refused({.p = 1.0}, "p is 1, expected a number from 0 to below 1");
  refused({.sigma = 0}, "sigma is 0, expected 1 or more");
  refused({.tau = 0}, "tau is 0, expected 1 or more");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
