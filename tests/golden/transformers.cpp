#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>

#include "golden/run_algorithms.hpp"
#include "golden/runner.hpp"
#include "models/language.hpp"
#include "models/vision.hpp"
#include "nn/golden_model.hpp"

// ALiBi and gated linear units on GPT-2 and BERT with the weights of Hugging Face's, and a vision
// transformer with those of torchvision's.

namespace golden {
namespace {

namespace functional = tutti::functional;

void alibi_slopes(const Case& c, Verdict& verdict) {
  for (const Json& heads : c.params["n_heads"].array()) {
    verdict.tensor("slopes." + std::to_string(heads.integer()),
                   at::tensor(functional::alibi_slopes(heads.integer()), at::kDouble));
  }
}

void alibi_bias(const Case& c, Verdict& verdict) {
  verdict.tensor("alibi",
                 functional::alibi_bias(c.params["n_heads"].integer(), c.params["length"].integer(),
                                        c.params["causal"].boolean()));
}

void check_table(const Case& c, Verdict& verdict, const at::Tensor& table) {
  verdict.check(table.eq(0).all().item<bool>(), "the position embeddings are not zero");
  if (const Json* shape = c.expect.find("wpe_shape")) {
    verdict.check(table.size(0) == (*shape)[0].integer() && table.size(1) == (*shape)[1].integer(),
                  "the position embeddings have another shape");
    verdict.check(table.requires_grad() == c.expect["wpe_requires_grad"].boolean(),
                  "requires_grad of the position embeddings differs");
  }
}

void apply_alibi_gpt2(const Case& c, Verdict& verdict) {
  auto model = tutti::models::GPT2LMHeadModel(language::gpt2_options(c.params["config"]));
  language::load(*model, c.ins("state."));
  model->eval();
  const tutti::Batch batch{{"input_ids", c.in("input_ids")}};
  if (c.has_out("logits_before")) {
    verdict.tensor("logits_before", model->forward(batch).tensor());
  }
  const std::int64_t length = c.params["max_sequence_length"].integer();
  functional::apply_alibi(*model, length);
  verdict.tensor("logits", model->forward(batch).tensor());
  auto& first = model->transformer->block(0);
  const auto qkv = first.attn->heads_of(first.ln_1(model->transformer->wte(c.in("input_ids"))));
  verdict.tensor("attention0", first.attn->probabilities(qkv[0], qkv[1], {}));
  verdict.tensor("alibi", functional::alibi_bias(first.attn->heads(), length, true));
  check_table(c, verdict, model->transformer->wpe->weight);
}

void apply_alibi_bert(const Case& c, Verdict& verdict) {
  auto model = tutti::models::BertForMaskedLM(language::bert_options(c.params["config"]));
  language::load(*model, c.ins("state."));
  model->eval();
  const tutti::Batch batch{{"input_ids", c.in("input_ids")},
                           {"attention_mask", c.in("attention_mask")}};
  verdict.tensor("logits_before", model->forward(batch).tensor());
  const std::int64_t length = c.params["max_sequence_length"].integer();
  functional::apply_alibi(*model, length);
  verdict.tensor("logits", model->forward(batch).tensor());
  const auto self =
      model->bert->encoder->layer->at<tutti::models::BertLayerImpl>(0).attention->self;
  const at::Tensor x = model->bert->embeddings->forward(batch);
  const at::Tensor keep = c.in("attention_mask").ne(0).unsqueeze(1).unsqueeze(1);
  auto query = self->query;
  auto key = self->key;
  verdict.tensor("attention0",
                 self->probabilities(self->split_heads(query(x)), self->split_heads(key(x)), keep));
  verdict.tensor("alibi", functional::alibi_bias(self->heads(), length, false));
  check_table(c, verdict, model->bert->embeddings->position_embeddings->weight);
}

void apply_gated_linear_units(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "apply_gated_linear_units");
  const bool gated_bias = a.flag("gated_layer_bias", false);
  const bool non_gated_bias = a.flag("non_gated_layer_bias", false);
  const std::string act = a.text("act_fn", "");
  auto model = tutti::models::BertForMaskedLM(language::bert_options(a.json("config")));
  a.done();
  tutti::Maybe<tutti::nn::Activation> activation;
  if (!act.empty()) {
    activation = activation_of(act);
  }
  functional::apply_gated_linear_units(*model, {}, activation, gated_bias, non_gated_bias);
  std::vector<std::string> expected;
  for (const Json& key : c.expect["state_keys_after"].array()) {
    expected.push_back(key.string());
  }
  std::vector<std::string> keys = state_keys(*model);
  std::erase_if(keys,
                [](const std::string& key) { return key.rfind("bert.encoder.layer.0.", 0) != 0; });
  verdict.check(keys == expected, "the state's names differ");
  language::load(*model, c.ins("after."));
  model->eval();
  const tutti::Batch batch{{"input_ids", c.in("input_ids")},
                           {"attention_mask", c.in("attention_mask")}};
  verdict.tensor("logits", model->forward(batch).tensor());

  const auto gated = model->bert->encoder->layer->at<tutti::models::BertLayerImpl>(0).gated();
  const at::Tensor h = c.in("ffn_h").requires_grad_();
  const at::Tensor y = gated->forward(h, h);
  verdict.tensor("ffn_y", y);
  y.mul(c.in("ffn_g")).sum().backward();
  verdict.tensor("ffn_grad_h", h.grad());
  for (const auto& parameter : gated->named_parameters()) {
    verdict.tensor("ffn_grad." + parameter.key(), parameter.value().grad());
  }
}

void vision_transformer(const Case& c, Verdict& verdict) {
  tutti::models::VisionTransformer net(vision::options(c.params));
  vision::run(c, net,
              [&](const std::string& key, const at::Tensor& got) { verdict.tensor(key, got); });
}

}  // namespace

Handlers transformer_handlers() {
  return {{"alibi_slopes", alibi_slopes},
          {"alibi_bias", alibi_bias},
          {"apply_alibi_gpt2", apply_alibi_gpt2},
          {"apply_alibi_bert", apply_alibi_bert},
          {"apply_gated_linear_units", apply_gated_linear_units},
          {"vision_transformer", vision_transformer}};
}

}  // namespace golden
