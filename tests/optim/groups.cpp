#include <tutti/optim/groups.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/rprop.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

struct Block : torch::nn::Module {
  Block() {
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_module("fc", torch::nn::Linear(4, 4));
  }
};

// The names of a small vision transformer.
struct Net : torch::nn::Module {
  Net() {
    register_parameter("cls_token", torch::zeros({1, 1, 4}));
    register_module("patch_embed", torch::nn::Linear(4, 4));
    register_module("blocks",
                    torch::nn::ModuleList(std::make_shared<Block>(), std::make_shared<Block>()));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_module("head", torch::nn::Linear(4, 2));
  }
};

const optim::ParameterGroup& named(const std::vector<optim::ParameterGroup>& groups,
                                   const std::string& name) {
  for (const auto& group : groups) {
    if (group.name == name) {
      return group;
    }
  }
  throw std::invalid_argument("no group " + name);
}

template <class Hyper>
const Hyper& numbers(torch::optim::Optimizer& optimizer, std::size_t group) {
  return static_cast<const optim::GroupOptions<Hyper>&>(optimizer.param_groups()[group].options())
      .hyper;
}

}  // namespace

TEST_CASE("groups takes the first rule that matches, and the others first", "[optim][groups]") {
  const Net net;
  const auto groups =
      optim::groups(net, {{"head.*", {.lr = 1e-2}}, {"*.bias", {.weight_decay = 0.0}}});
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].name == "others");
  CHECK(groups[1].names == Names{"head.weight", "head.bias"});
  CHECK(groups[2].names == Names{"patch_embed.bias", "blocks.0.norm.bias", "blocks.0.fc.bias",
                                 "blocks.1.norm.bias", "blocks.1.fc.bias", "norm.bias"});
  const auto optimizer = optim::build(AdamW{.lr = 1e-3, .weight_decay = 0.1}, groups);
  CHECK(numbers<AdamW>(*optimizer, 0).lr == 1e-3);
  CHECK(numbers<AdamW>(*optimizer, 1).lr == 1e-2);
  CHECK(numbers<AdamW>(*optimizer, 1).weight_decay == 0.1);
  CHECK(numbers<AdamW>(*optimizer, 2).weight_decay == 0.0);
  CHECK(optim::groups(net, {{"*", {}}}).size() == 1);  // no empty group
}

TEST_CASE("no_decay spares biases, norms and what is named", "[optim][groups]") {
  const Net net;
  const auto groups = optim::no_decay(net, {"cls_token"});
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].names ==
        Names{"patch_embed.weight", "blocks.0.fc.weight", "blocks.1.fc.weight", "head.weight"});
  CHECK(groups[1].names.front() == "cls_token");
  CHECK(groups[1].settings.weight_decay == 0.0);
  std::size_t all = 0;
  for (const auto& group : groups) {
    all += group.parameters.size();
  }
  CHECK(all == net.parameters().size());
}

TEST_CASE("layer_decay gives timm's scales", "[optim][groups]") {
  const Net net;
  const auto groups = optim::layer_decay(net, 0.5);
  CHECK(named(groups, "layer_0_decay").names == Names{"cls_token", "patch_embed.weight"});
  CHECK(named(groups, "layer_0_no_decay").names == Names{"patch_embed.bias"});
  CHECK(named(groups, "layer_2_decay").names == Names{"blocks.1.fc.weight"});
  CHECK(named(groups, "layer_3_no_decay").names == Names{"norm.weight", "norm.bias", "head.bias"});
  for (int layer = 0; layer < 4; ++layer) {
    CHECK(named(groups, "layer_" + std::to_string(layer) + "_decay").settings.lr_scale ==
          std::pow(0.5, 3 - layer));
  }
  const auto optimizer = optim::build(Lookahead<AdamW>{.optimizer = {.lr = 0.8}}, groups);
  CHECK(optimizer->param_groups().front().options().get_lr() == Approx(0.1));
}

TEST_CASE("tied parameters are in one group", "[optim][groups]") {
  torch::nn::Module tied;
  const at::Tensor weight = torch::zeros({2, 2});
  tied.register_parameter("embed", weight);
  torch::nn::Linear head(2, 2);
  head->weight = head->register_parameter("tied", weight);
  tied.register_module("head", head);
  std::size_t count = 0;
  for (const auto& group : optim::no_decay(tied)) {
    count += group.parameters.size();
  }
  CHECK(count == 3);  // embed, and the layer's own weight and bias
}

TEST_CASE("embeddings and heads leave Muon for AdamW", "[optim][groups][muon]") {
  const Net net;
  const auto optimizer = optim::build(
      Muon{.lr = 0.02, .adamw_lr = 3e-3},
      optim::groups(
          net, {{"head.*", {.use_muon = false}}, {"cls_token", {.lr = 0.5, .use_muon = false}}}));
  CHECK(numbers<Muon>(*optimizer, 0).use_muon);
  CHECK_FALSE(numbers<Muon>(*optimizer, 1).use_muon);
  CHECK(numbers<Muon>(*optimizer, 1).lr == 3e-3);
  CHECK(numbers<Muon>(*optimizer, 2).lr == 0.5);
  const at::Tensor head = net.named_parameters()["head.weight"];
  const at::Tensor twin = head.detach().clone().requires_grad_();
  const auto adamw = AdamW{.lr = 3e-3, .betas = {0.9, 0.95}, .eps = 1e-10, .weight_decay = 0}.build(
      std::vector<at::Tensor>{twin});
  for (const at::Tensor& parameter : {head, twin}) {
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  optimizer->step();
  adamw->step();
  CHECK(at::equal(head, twin));
}

TEST_CASE("groups say what cannot be", "[optim][groups][error]") {
  const Net net;
  CHECK_THROWS_WITH(optim::groups(net, {{"haed.*", {}}}),
                    ContainsSubstring("no parameter is left for \"haed.*\""));
  CHECK_THROWS_WITH(optim::build(Rprop{}, optim::no_decay(net)),
                    ContainsSubstring("group \"no_decay\": weight_decay is set, which Rprop"));
  CHECK_THROWS_WITH(optim::build(AdamW{}, optim::groups(net, {{"*", {.use_muon = false}}})),
                    ContainsSubstring("use_muon is set, and AdamW is not Muon"));
  CHECK_THROWS_WITH(optim::build(AdamW{}, optim::groups(net, {{"*", {.lr = -1.0}}})),
                    ContainsSubstring("AdamW: lr is -1"));
  CHECK_THROWS_WITH(optim::layer_decay(net, 0), ContainsSubstring("layer_decay: decay is 0"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
