#include <tutti/algorithms/blurpool.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/core/recipe.hpp>

#include "nn/golden_model.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using tutti::BlurPool;
using tutti::functional::apply_blurpool;

static_assert(tutti::Algorithm<BlurPool>);
static_assert(tutti::Recipe<BlurPool>::valid);

BlurPool options_of(const golden::Json& args) {
  BlurPool options;
  const auto flag = [&](const char* name, bool& value) {
    if (args.contains(name)) {
      value = args[name].boolean();
    }
  };
  flag("replace_convs", options.replace_convs);
  flag("replace_maxpools", options.replace_maxpools);
  flag("blur_first", options.blur_first);
  if (args.contains("min_channels")) {
    options.min_channels = args["min_channels"].integer();
  }
  return options;
}

// A net with members, as a user writes it: conv1 is too narrow, conv2 is strided, conv3 is not.
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return conv3(conv2(pool(conv1(x)))); }
  nn::Conv2d conv1 = register_module("conv1", strided(8, 16));
  nn::MaxPool2d pool = register_module("pool", nn::MaxPool2d(2));
  nn::Conv2d conv2 = register_module("conv2", strided(16, 16));
  nn::Conv2d conv3 = register_module("conv3", nn::Conv2d(16, 4, 1));

  static nn::Conv2d strided(std::int64_t in, std::int64_t out) {
    return nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1));
  }
};

struct Recorder {
  void log_hyperparameters(std::span<const tutti::Hyperparameter> values) {
    for (const auto& value : values) {
      seen.emplace_back(value.name);
      counts.push_back(*value.value.get_if<std::int64_t>());
    }
  }
  std::vector<std::string> seen;
  std::vector<std::int64_t> counts;
};

}  // namespace

TEST_CASE("apply_blurpool agrees with the reference on plain and on replaceable layers",
          "[surgery][blurpool][golden]") {
  for (const golden::Case& c : golden::cases("apply_blurpool")) {
    for (const auto layers : {golden::Layers::plain, golden::Layers::replaceable}) {
      auto model = golden::build_model(c.params["model"], layers);
      golden::load_state(*model, c.ins("state."));
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      apply_blurpool(*model, options_of(c.params["args"]), optimizer);

      std::vector<std::string> expected;
      for (const golden::Json& key : c.expect["state_keys_after"].array()) {
        expected.push_back(key.string());
      }
      CHECK(golden::state_keys(*model) == expected);
      CHECK(static_cast<std::int64_t>(optimizer.param_groups()[0].params().size()) ==
            c.info["optimizer_param_count"].integer());
      const at::Tensor x = c.in("x").requires_grad_();
      const at::Tensor y = model->forward(x);
      CHECK_GOLDEN(c, "y", y);
      (y * c.in("g")).sum().backward();
      CHECK_GOLDEN(c, "grad_x", x.grad());
      for (const auto& parameter : model->named_parameters()) {
        CHECK_GOLDEN(c, "grad." + parameter.key(), parameter.value().grad());
      }
      const auto state = golden::state_of(*model);
      for (const auto& [name, tensor] : c.outs("after.")) {
        CHECK_GOLDEN(c, "after." + name, state.at(name));
      }
    }
  }
}

TEST_CASE("weights stay the same objects, with their optimizer state", "[surgery][blurpool][law]") {
  NetImpl net;
  const at::Tensor weight = net.conv2->weight;
  weight.set_requires_grad(false);
  net.to(torch::kDouble);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
  const auto report = apply_blurpool(net, {}, optimizer);
  CHECK(report.convs.replaced == std::vector<std::string>{"conv2"});
  CHECK(report.maxpools.replaced == std::vector<std::string>{"pool"});
  const auto parameters = net.named_parameters();
  CHECK(parameters["conv2.conv.weight"].is_same(weight));
  CHECK_FALSE(parameters["conv2.conv.weight"].requires_grad());
  CHECK(net.named_buffers()["conv2.blur_filter"].scalar_type() == torch::kDouble);
  CHECK(optimizer.param_groups()[0].params().size() == 6);
  CHECK(net.forward(torch::randn({1, 8, 16, 16}, torch::kDouble)).sizes() ==
        at::IntArrayRef{1, 4, 2, 2});
}

TEST_CASE("the blur is in the path of a model with typed members", "[surgery][blurpool]") {
  NetImpl net;
  const at::Tensor x = torch::randn({2, 8, 16, 16});
  const at::Tensor pooled = tutti::functional::blurmax_pool2d(net.conv1(x));
  const at::Tensor expected = net.conv3(net.conv2(tutti::functional::blur_2d(pooled)));
  const at::Tensor unblurred = net.forward(x);
  apply_blurpool(net);
  CHECK(net.forward(x).allclose(expected, 1e-5, 1e-6));
  CHECK_FALSE(net.forward(x).allclose(unblurred, 1e-3, 1e-3));
}

TEST_CASE("a second application changes nothing", "[surgery][blurpool][law]") {
  NetImpl net;
  apply_blurpool(net, {.min_channels = 1});
  const auto keys = golden::state_keys(net);
  const at::Tensor x = torch::randn({1, 8, 16, 16});
  const at::Tensor expected = net.forward(x);
  const auto report = apply_blurpool(net, {.min_channels = 1, .if_none = surgery::IfNone::ignore});
  CHECK(report.convs.count() == 0);
  CHECK(report.maxpools.count() == 0);
  CHECK(golden::state_keys(net) == keys);
  CHECK(net.forward(x).equal(expected));
}

TEST_CASE("an option decides what is replaced and what the border is", "[surgery][blurpool]") {
  NetImpl convs_only;
  CHECK(apply_blurpool(convs_only, {.replace_maxpools = false}).maxpools.visited == 0);
  NetImpl pools_only;
  CHECK(apply_blurpool(pools_only, {.replace_convs = false}).convs.visited == 0);
  NetImpl wide;
  CHECK(apply_blurpool(wide, {.min_channels = 1}).convs.replaced ==
        std::vector<std::string>{"conv1", "conv2"});

  torch::nn::Sequential model(nn::MaxPool2d(torch::nn::MaxPool2dOptions(1).stride(2)));
  apply_blurpool(*model, {.border = tutti::BlurBorder::renormalize});
  CHECK(model->forward(torch::ones({1, 1, 4, 4})).allclose(torch::ones({1, 1, 2, 2})));
}

TEST_CASE("nothing to blur is refused with the layers that were passed over and the reasons",
          "[blurpool]") {
  struct PlainImpl : torch::nn::Module {
    torch::nn::MaxPool2d pool = register_module("pool", torch::nn::MaxPool2d(2));
    nn::Conv2d narrow = register_module("narrow", NetImpl::strided(8, 16));
    nn::Conv2d dense = register_module("dense", nn::Conv2d(16, 4, 1));
  };
  PlainImpl plain;
  CHECK_THROWS_WITH(
      apply_blurpool(plain, {.if_none = surgery::IfNone::error}),
      ContainsSubstring("BlurPool: no MaxPool2d or strided Conv2d was replaced: it passed over "
                        "pool (a plain member that its parent calls directly: declare it as "
                        "tutti::nn::MaxPool2d, or put it into a Sequential); narrow (input "
                        "channels below min_channels, which is 16); dense (stride 1)."));
  CHECK_THROWS_WITH(
      apply_blurpool(plain, {.replace_maxpools = false, .if_none = surgery::IfNone::error}),
      ContainsSubstring("no strided Conv2d was replaced: it passed over narrow"));
}

TEST_CASE("options that cannot be meant are refused", "[blurpool]") {
  NetImpl net;
  CHECK_THROWS_WITH(apply_blurpool(net, {.replace_convs = false, .replace_maxpools = false}),
                    ContainsSubstring("replace_convs and replace_maxpools are both false"));
  CHECK_THROWS_AS(apply_blurpool(net, {.min_channels = 0}), c10::ValueError);
  apply_blurpool(net);
  CHECK_THROWS_WITH(apply_blurpool(net, {.if_none = surgery::IfNone::error}),
                    ContainsSubstring("conv2.conv (blurred already)"));
  CHECK_THROWS_WITH(net.pool->forward_with_indices(torch::ones({1, 1, 4, 4})),
                    ContainsSubstring("which gives no indices"));
}

TEST_CASE("the policy changes the model at Init and logs how many layers are blurred",
          "[blurpool]") {
  tutti::State state;
  auto net = std::make_shared<NetImpl>();
  state.model = net;
  state.optimizers.push_back(
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1)));
  Recorder recorder;
  state.logger.add(recorder);
  BlurPool{.min_channels = 8}.apply(tutti::Init{}, state);
  CHECK(recorder.seen ==
        std::vector<std::string>{"blurpool/num_blurpool_layers", "blurpool/num_blurconv_layers"});
  CHECK(recorder.counts == std::vector<std::int64_t>{1, 2});
  CHECK(net->named_parameters().contains("conv1.conv.weight"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
