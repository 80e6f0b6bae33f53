#include <tutti/algorithms/gated_linear_units.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adam.h>

#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/language.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::GatedLinearUnits;
using tutti::functional::apply_gated_linear_units;
using tutti::nn::Activation;
namespace models = tutti::models;
namespace nn = tutti::nn;

static_assert(tutti::Supports<GatedLinearUnits, std::shared_ptr<models::BertForMaskedLMImpl>>);
static_assert(!tutti::Supports<GatedLinearUnits, std::shared_ptr<models::GPT2LMHeadModelImpl>>);
static_assert(tutti::Algorithm<GatedLinearUnits>);
static_assert(tutti::Recipe<GatedLinearUnits>::valid);
static_assert(sizeof(tutti::With<GatedLinearUnits{.act_fn = Activation::relu}>) > 0);

models::BertForMaskedLM bert(std::uint64_t seed = 1, Activation act = Activation::gelu,
                             double eps = 1e-12) {
  at::manual_seed(seed);
  return models::BertForMaskedLM(models::BertOptions{.vocab_size = 11,
                                                     .hidden_size = 12,
                                                     .num_hidden_layers = 2,
                                                     .num_attention_heads = 3,
                                                     .intermediate_size = 20,
                                                     .hidden_act = act,
                                                     .hidden_dropout_prob = 0,
                                                     .attention_probs_dropout_prob = 0,
                                                     .max_position_embeddings = 16,
                                                     .layer_norm_eps = eps});
}

models::BertLayerImpl& layer(models::BertForMaskedLM& model, std::size_t i) {
  return model->bert->encoder->layer->at<models::BertLayerImpl>(i);
}

}  // namespace

TEST_CASE("a gated block is the formula over the block's own layers",
          "[functional][gated_linear_units]") {
  for (const Activation act : {Activation::gelu, Activation::relu}) {
    auto model = bert(1, act, 1e-6);
    auto& block = layer(model, 0);
    const at::Tensor up = block.intermediate->dense->weight;
    const auto down = block.output->dense;
    const auto norm = block.output->layer_norm;
    CHECK(apply_gated_linear_units(*model) ==
          std::vector<std::string>{"bert.encoder.layer.0", "bert.encoder.layer.1"});
    const auto gated = block.gated();
    const at::Tensor x = at::randn({1, 8, 12});
    const at::Tensor h =
        nn::activate(act, x.matmul(up.t())) * x.matmul(gated->non_gated_layer->weight.t());
    const at::Tensor sum = h.matmul(down->weight.t()) + down->bias + x;
    const at::Tensor expected = at::layer_norm(sum, {12}, norm->weight, norm->bias, 1e-6);
    CHECK(gated->forward(x, x).allclose(expected, 1e-5, 1e-6));
    CHECK(gated->gated_layer->weight.is_same(up));
    CHECK(gated->wo->weight.is_same(down->weight));
    CHECK(gated->layernorm->weight.is_same(norm->weight));
    CHECK(gated->non_gated_layer->weight.std().item<double>() < 0.03);
  }
}

TEST_CASE("the old halves are gone, and a second application changes nothing",
          "[gated_linear_units]") {
  auto model = bert();
  apply_gated_linear_units(*model);
  CHECK(tutti::surgery::count<models::BertIntermediate>(*model) == 0);
  CHECK(tutti::surgery::count<nn::GatedFeedForward>(*model) == 2);
  const auto names = model->named_parameters().keys();
  CHECK(apply_gated_linear_units(*model).empty());
  CHECK(model->named_parameters().keys() == names);
  CHECK_THROWS_WITH(model->clone(), ContainsSubstring("cannot be cloned"));
}

TEST_CASE("biases are there when asked for, and the activation can be another",
          "[gated_linear_units]") {
  auto model = bert();
  const at::Tensor bias = layer(model, 0).intermediate->dense->bias;
  apply_gated_linear_units(*model, {}, Activation::silu, true, true);
  const auto gated = layer(model, 0).gated();
  CHECK(gated->gated_layer->bias.is_same(bias));
  CHECK(gated->non_gated_layer->bias.eq(0).all().item<bool>());
  CHECK(gated->activation == Activation::silu);

  auto plain = bert();
  apply_gated_linear_units(*plain);
  const auto names = plain->named_parameters();
  CHECK_FALSE(names.contains("bert.encoder.layer.0.output.gated_layer.bias"));
  CHECK_FALSE(names.contains("bert.encoder.layer.0.output.non_gated_layer.bias"));
  CHECK(names.contains("bert.encoder.layer.0.output.wo.bias"));
  CHECK_FALSE(names.contains("bert.encoder.layer.0.intermediate.dense.weight"));
}

TEST_CASE("groups with and without decay get the weights that belong to them, state survives",
          "[gated_linear_units][surgery]") {
  auto model = bert();
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> no_decay;
  for (const auto& item : model->named_parameters()) {
    (item.value().dim() > 1 ? decay : no_decay).push_back(item.value());
  }
  auto optimizer = tutti::DecoupledAdamW{.lr = 1e-3}.build(
      {torch::optim::OptimizerParamGroup(decay), torch::optim::OptimizerParamGroup(no_decay)});
  const auto step = [&] {
    optimizer->zero_grad();
    const tutti::Batch batch = language::counting(8, 11, 1).front();
    model->loss(model->forward(batch), batch).total().backward();
    optimizer->step();
  };
  step();
  const auto state = optimizer->state().size();
  apply_gated_linear_units(*model, *optimizer, {}, false, true);
  const auto gated = layer(model, 1).gated();
  const auto& groups = optimizer->param_groups();
  CHECK(groups[0].params().size() == decay.size() + 2);         // two more matrices
  CHECK(groups[1].params().size() == no_decay.size() + 2 - 2);  // biases: two more, two fewer
  CHECK(groups[0].params().back().is_same(gated->non_gated_layer->weight));
  CHECK(groups[1].params().back().is_same(gated->non_gated_layer->bias));
  CHECK(optimizer->state().size() == state - 2);
  step();
  CHECK(optimizer->state().size() == state - 2 + 4);
}

TEST_CASE("a run with gates trains and resumes", "[gated_linear_units][trainer][resume]") {
  const TemporaryFolder folder;
  at::manual_seed(6);
  const auto data = language::counting(8, 11, 4);
  tutti::TrainerOptions saving{.train = data,
                               .max_duration = "3ep",
                               .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                               .device = "cpu",
                               .seed = 3,
                               .progress_bar = false};
  tutti::TrainerOptions loading = saving;
  saving.save_folder = folder.path().string();
  loading.load_path = folder.path().string() + "/ep2-ba8";
  auto whole = bert();
  tutti::Trainer first{whole.ptr(), saving, GatedLinearUnits{}};
  first.fit();
  auto part = bert(7);
  tutti::Trainer second{part.ptr(), loading, GatedLinearUnits{}};
  second.fit();
  CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
}

TEST_CASE("a model without such blocks is refused unless that is meant", "[gated_linear_units]") {
  const auto net = tiny::net();
  CHECK_THROWS_WITH(apply_gated_linear_units(*net), ContainsSubstring("tutti::nn::GatedHost"));
  CHECK(
      apply_gated_linear_units(*net, {}, {}, false, false, tutti::surgery::IfNone::ignore).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
