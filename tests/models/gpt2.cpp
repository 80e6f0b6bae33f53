#include <tutti/models/gpt2.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/language.hpp"
#include "nn/golden_model.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
namespace models = tutti::models;

models::GPT2Options small() {
  return {.vocab_size = 11, .n_positions = 12, .n_embd = 16, .n_layer = 2, .n_head = 4};
}

static_assert(tutti::Model<models::GPT2LMHeadModelImpl>);

}  // namespace

TEST_CASE("the logits of GPT-2 are those of Hugging Face", "[models][gpt2][golden]") {
  for (const golden::Case& c : golden::cases("apply_alibi_gpt2")) {
    if (!c.has_out("logits_before")) {
      continue;
    }
    auto model = models::GPT2LMHeadModel(language::gpt2_options(c.params["config"]));
    language::load(*model, c.ins("state."));
    model->eval();
    const Batch batch{{"input_ids", c.in("input_ids")}};
    CHECK_GOLDEN(c, "logits_before", model->forward(batch).tensor());

    // With dropout's own path, which computes the probabilities one by one.
    model->train();
    for (const auto& module : model->modules(false)) {
      if (auto* dropout = dynamic_cast<torch::nn::DropoutImpl*>(module.get())) {
        dropout->options.p(1e-300);
      }
    }
    CHECK_GOLDEN(c, "logits_before", model->forward(batch).tensor());
  }
}

TEST_CASE("GPT-2 has the size of the original, with the table of tokens once", "[models][gpt2]") {
  const auto model = models::GPT2LMHeadModel(models::GPT2Options{.n_layer = 1});
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    count += parameter.numel();
  }
  CHECK(count == 38'597'376 + 768 * 1024 + 7'087'872 + 1536);
  CHECK(model->named_parameters().contains("transformer.h.0.attn.c_attn.weight"));
  CHECK_FALSE(model->named_parameters().contains("lm_head.weight"));
  CHECK_THROWS_AS(models::GPT2LMHeadModel(models::GPT2Options{.n_embd = 10, .n_head = 3}),
                  c10::ValueError);
}

TEST_CASE("weights of GPT-2 are drawn as Hugging Face draws them", "[models][gpt2]") {
  at::manual_seed(5);
  const auto model = models::GPT2LMHeadModel(models::GPT2Options{
      .vocab_size = 500, .n_positions = 100, .n_embd = 64, .n_layer = 8, .n_head = 2});
  const auto all = model->named_parameters();
  const auto deviation = [&](const std::string& name) {
    return all["transformer." + name].std().item<double>();
  };
  for (const char* name :
       {"wte.weight", "wpe.weight", "h.7.attn.c_attn.weight", "h.0.mlp.c_fc.weight"}) {
    INFO(name);
    CHECK(std::abs(deviation(name) - 0.02) < 0.001);
  }
  for (const char* name : {"h.7.attn.c_proj.weight", "h.0.mlp.c_proj.weight"}) {
    INFO(name);
    CHECK(std::abs(deviation(name) - 0.02 / 4) < 0.00025);  // sqrt(2 * 8)
  }
  for (const auto& item : all) {
    const bool is_norm = item.key().find("ln_") != std::string::npos;
    CHECK((is_norm || std::abs(item.value().mean().item<double>()) < 0.001));
    if (item.key().ends_with("bias")) {
      INFO(item.key());
      CHECK(item.value().eq(0).all().item<bool>());
    }
  }
  CHECK(all["transformer.ln_f.weight"].eq(1).all().item<bool>());
}

TEST_CASE("no position of GPT-2 sees later tokens, nor padding", "[models][gpt2][law]") {
  at::manual_seed(1);
  auto model = models::GPT2LMHeadModel(small());
  model->eval();
  const at::Tensor ids = at::randint(11, {2, 8}, at::kLong);
  at::Tensor other = ids.clone();
  other.slice(1, 5).fill_(3);
  const at::Tensor y = model->forward(ids).tensor();
  CHECK(model->forward(other).tensor().slice(1, 0, 5).allclose(y.slice(1, 0, 5), 1e-5, 1e-6));

  at::Tensor mask = at::ones({2, 8}, at::kLong);
  mask.slice(1, 0, 2).zero_();  // padding on the left
  at::Tensor padded = ids.clone();
  padded.slice(1, 0, 2).fill_(7);
  const auto masked = [&](const at::Tensor& of) {
    return model->forward(Batch{{"input_ids", of}, {"attention_mask", mask}}).tensor();
  };
  CHECK(masked(padded).slice(1, 2).allclose(masked(ids).slice(1, 2), 1e-5, 1e-6));
  CHECK(masked(ids).isfinite().all().item<bool>());
  CHECK_THROWS_WITH(model->forward(at::zeros({1, 13}, at::kLong)),
                    ContainsSubstring("length 13 and the model 12 positions"));
}

TEST_CASE("the loss of GPT-2 is that of the next token", "[models][gpt2]") {
  at::manual_seed(2);
  auto model = models::GPT2LMHeadModel(small());
  model->eval();
  const at::Tensor ids = at::randint(11, {2, 5}, at::kLong);
  at::Tensor labels = ids.clone();
  labels[1].slice(0, 3).fill_(-100);
  const Batch batch{{"input_ids", ids}, {"labels", labels}};
  const auto outputs = model->forward(batch);
  const at::Tensor logs = outputs.tensor().log_softmax(-1);
  at::Tensor sum = at::zeros({});
  for (int n = 0; n < 2; ++n) {
    for (int t = 0; t + 1 < (n == 0 ? 5 : 3); ++t) {
      sum = sum - logs[n][t][ids[n][t + 1].item<std::int64_t>()] / 6;
    }
  }
  CHECK(model->loss(outputs, batch).total().allclose(sum, 1e-5, 1e-6));
  const at::Tensor each = model->sample_losses(outputs, batch);
  CHECK(each.sizes() == at::IntArrayRef{2});
  CHECK((each[0] * 4 + each[1] * 2).div(6).allclose(sum, 1e-5, 1e-6));
  tutti::LanguageCrossEntropy metric;
  model->update_metric(batch, outputs, metric);
  CHECK(std::abs(metric.compute() - sum.item<double>()) < 1e-5);
}

TEST_CASE("GPT-2 learns to count, and clones", "[models][gpt2][trainer]") {
  at::manual_seed(3);
  auto options = small();
  options.embd_pdrop = options.attn_pdrop = options.resid_pdrop = 0;
  auto model = models::GPT2LMHeadModel(options);
  const auto trainer = std::make_unique<tutti::Trainer<>>(
      model.ptr(), tutti::TrainerOptions{.train = language::counting(8, 11),
                                         .max_duration = "15ep",
                                         .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                                         .device = "cpu",
                                         .seed = 3,
                                         .progress_bar = false});
  trainer->fit();
  CHECK(trainer->state().total_loss.at("total").item<double>() < 0.2);
  CHECK(trainer->state().train_metric_values.at("LanguagePerplexity") < 1.3);

  model->eval();
  const auto copy = std::dynamic_pointer_cast<models::GPT2LMHeadModelImpl>(model->clone());
  const at::Tensor ids = at::arange(8).view({1, 8});
  CHECK(copy->forward(ids).tensor().equal(model->forward(ids).tensor()));
}

TEST_CASE("surgery reaches the layers of GPT-2", "[models][gpt2][surgery]") {
  namespace nn = tutti::nn;
  auto model = models::GPT2LMHeadModel(small());
  CHECK(tutti::surgery::count<nn::Dropout>(*model) == 1 + 3 * 2);
  CHECK(tutti::surgery::count<nn::LayerNorm>(*model) == 2 * 2 + 1);
  CHECK(tutti::surgery::count<nn::TransposedLinear>(*model) == 4 * 2);
  CHECK(tutti::surgery::count<nn::Embedding>(*model) == 2);
}

TEST_CASE("with a cache the logits of GPT-2 are those without one, also under ALiBi",
          "[models][gpt2][law]") {
  at::manual_seed(6);
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = at::randint(11, {2, 10}, at::kLong);
  at::Tensor mask = at::ones_like(ids);
  mask[1].slice(0, 0, 3).zero_();  // padding on the left
  for (const bool alibi : {false, true}) {
    auto options = small();
    options.scale_attn_by_inverse_layer_idx = true;
    auto model = models::GPT2LMHeadModel(options);
    model->eval();
    if (alibi) {
      tutti::functional::apply_alibi(*model, 12);
    }
    const at::Tensor whole = model->logits({.input_ids = ids, .attention_mask = mask});
    tutti::nn::KeyValueCache cache = model->make_cache(2, 10);
    std::vector<at::Tensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t count : {4, 3, 1, 1, 1}) {
      parts.push_back(model->logits({.input_ids = ids.narrow(1, at, count),
                                     .attention_mask = mask.slice(1, 0, at + count),
                                     .cache = &cache}));
      at += count;
    }
    INFO("ALiBi " << alibi);
    const at::Tensor seen = mask.ne(0).unsqueeze(-1);
    const at::Tensor none = at::zeros({});
    CHECK(at::cat(parts, 1).where(seen, none).allclose(whole.where(seen, none), 1e-4, 1e-5));
    CHECK(model->logits({.input_ids = ids, .last_only = true}).size(1) == 1);
  }
}

TEST_CASE("positions of GPT-2 may be given, and count from the first token behind padding",
          "[models][gpt2][law]") {
  at::manual_seed(7);
  auto model = models::GPT2LMHeadModel(small());
  model->eval();
  const at::Tensor ids = at::randint(11, {1, 6}, at::kLong);
  const at::Tensor plain = model->forward(ids).tensor();
  const Batch counted{{"input_ids", ids}, {"position_ids", at::arange(6).unsqueeze(0)}};
  CHECK(model->forward(counted).tensor().equal(plain));
  const Batch shifted{{"input_ids", ids}, {"position_ids", at::arange(3, 9).unsqueeze(0)}};
  CHECK_FALSE(model->forward(shifted).tensor().allclose(plain, 1e-4, 1e-5));
  const at::Tensor padded = at::cat({at::zeros({1, 4}, at::kLong), ids}, 1);
  const at::Tensor mask = at::cat({at::zeros({1, 4}, at::kLong), at::ones_like(ids)}, 1);
  CHECK(model->logits({.input_ids = padded, .attention_mask = mask})
            .slice(1, 4)
            .allclose(plain, 1e-4, 1e-5));
}

TEST_CASE("GPT-2 reads longer rows whose positions are in its table, and refuses the others",
          "[models][gpt2][law]") {
  at::manual_seed(9);
  auto options = small();
  options.n_positions = 8;
  auto model = models::GPT2LMHeadModel(options);
  model->eval();
  const at::Tensor ids = at::randint(11, {1, 7}, at::kLong);
  const at::Tensor plain = model->forward(ids).tensor();
  const at::Tensor padded = at::cat({at::zeros({1, 3}, at::kLong), ids}, 1);
  const at::Tensor mask = at::cat({at::zeros({1, 3}, at::kLong), at::ones_like(ids)}, 1);
  CHECK(model->logits({.input_ids = padded, .attention_mask = mask})
            .slice(1, 3)
            .allclose(plain, 1e-4, 1e-5));
  const Batch packed{{"input_ids", at::cat({ids, ids}, 1)},
                     {"sequence_id", at::arange(14).ge(7).to(at::kLong).unsqueeze(0)}};
  CHECK(model->forward(packed).tensor().slice(1, 7).allclose(plain, 1e-4, 1e-5));
  const auto says = ContainsSubstring("the sequences have length 10 and the model 8 positions");
  CHECK_THROWS_WITH(model->forward(padded), says);
  CHECK_THROWS_WITH(
      model->logits({.input_ids = padded, .attention_mask = at::ones({1, 10}, at::kLong)}), says);
}

TEST_CASE("scores of GPT-2 are scaled as its options say", "[models][gpt2]") {
  const auto logits = [](bool weights, bool by_layer, double keys) {
    at::manual_seed(8);
    auto options = small();
    options.n_layer = 1;  // layer 0 is divided by 1
    options.scale_attn_weights = weights;
    options.scale_attn_by_inverse_layer_idx = by_layer;
    auto model = models::GPT2LMHeadModel(options);
    model->eval();
    const torch::NoGradGuard no_grad;
    model->transformer->block(0).attn->c_attn->weight.mul_(10);
    model->transformer->block(0).attn->c_attn->weight.slice(1, 16, 32).mul_(keys);
    return model->forward(at::arange(8).view({1, 8})).tensor();
  };
  const at::Tensor usual = logits(true, false, 1);
  CHECK(logits(true, true, 1).allclose(usual, 1e-5, 1e-6));
  CHECK(logits(false, false, 0.5).allclose(usual, 1e-5, 1e-6));  // heads of 4 numbers
  CHECK_FALSE(logits(false, false, 1).allclose(usual, 1e-5, 1e-6));
}

TEST_CASE("an untied head of GPT-2 is a parameter of its own, drawn as the others",
          "[models][gpt2]") {
  at::manual_seed(9);
  auto options = small();
  options.vocab_size = 500;
  options.tie_word_embeddings = false;
  auto model = models::GPT2LMHeadModel(options);
  REQUIRE(model->named_parameters().contains("lm_head.weight"));
  CHECK(std::abs(model->lm_head->weight.std().item<double>() - 0.02) < 0.002);
  model->eval();
  const at::Tensor before = model->forward(at::zeros({1, 2}, at::kLong)).tensor();
  const torch::NoGradGuard no_grad;
  model->lm_head->weight.mul_(2);
  CHECK(model->forward(at::zeros({1, 2}, at::kLong)).tensor().allclose(before * 2, 1e-5, 1e-6));
}

TEST_CASE("activation checkpointing of GPT-2 changes no gradient", "[models][gpt2][law]") {
  at::manual_seed(10);
  auto model = models::GPT2LMHeadModel(small());
  const at::Tensor ids = at::randint(11, {2, 8}, at::kLong);
  const Batch batch{{"input_ids", ids}, {"labels", ids}};
  CHECK(language::same_gradients_checkpointed(*model, batch));
}

TEST_CASE("the options of GPT-2 survive config.json, and what it cannot compute is refused",
          "[models][gpt2]") {
  auto options = small();
  options.n_inner = 20;
  options.tie_word_embeddings = false;
  options.scale_attn_by_inverse_layer_idx = true;
  options.activation_function = tutti::nn::Activation::relu;
  auto model = models::GPT2LMHeadModel(options);
  const models::PretrainedConfig config = model->config();
  auto again = models::GPT2LMHeadModel(models::GPT2LMHeadModelImpl::options_from(config));
  CHECK(again->config() == config);
  CHECK(again->named_parameters().keys() == model->named_parameters().keys());

  const auto options_of = [](const std::string& text) {
    const tutti::detail::Json json = tutti::detail::parse_json(text);
    return models::GPT2LMHeadModelImpl::options_from(models::PretrainedConfig(json.object()));
  };
  CHECK(options_of(R"({"n_ctx": 7, "n_inner": null})").n_positions == 7);
  CHECK(options_of("{}").n_embd == 768);
  CHECK_THROWS_WITH(options_of(R"({"reorder_and_upcast_attn": true})"),
                    ContainsSubstring("reorder_and_upcast_attn is true"));
  CHECK_THROWS_WITH(options_of(R"({"add_cross_attention": true})"),
                    ContainsSubstring("add_cross_attention is true"));
  CHECK_THROWS_WITH(options_of(R"({"activation_function": "prelu"})"), ContainsSubstring("prelu"));
  CHECK_THROWS_WITH(options_of(R"({"model_type": "bert"})"), ContainsSubstring("bert"));
}

TEST_CASE("packed documents teach GPT-2 what they teach by themselves", "[models][gpt2][law]") {
  at::manual_seed(5);
  auto options = small();
  options.n_positions = 14;
  auto model = models::GPT2LMHeadModel(options);
  model->eval();
  CHECK(language::packed_as_alone(*model, options.vocab_size));
  model->set_activation_checkpointing(true);
  CHECK(language::packed_as_alone(*model, options.vocab_size));

  tutti::functional::apply_alibi(*model, 14);
  CHECK(language::packed_as_alone(*model, options.vocab_size));

  const Batch odd{{"input_ids", at::zeros({2, 5}, at::kLong)},
                  {"sequence_id", at::zeros({2, 4}, at::kLong)}};
  CHECK_THROWS_WITH(model->forward(odd),
                    ContainsSubstring("the sequence_id is [2, 4], expected [2, 5]"));
  auto cache = model->make_cache(1, 4);
  CHECK_THROWS_WITH(model->logits({.input_ids = at::zeros({1, 2}, at::kLong),
                                   .sequence_id = at::zeros({1, 2}, at::kLong),
                                   .cache = &cache}),
                    ContainsSubstring("beside a cache"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
