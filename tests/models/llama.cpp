#include <tutti/models/llama.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/language.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
namespace models = tutti::models;
using models::LlamaType;

models::LlamaOptions small() {
  return {.vocab_size = 11,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 32};
}

// One of each type, with the windows and normalisations that it has.
std::vector<models::LlamaOptions> all_types() {
  std::vector<models::LlamaOptions> out(5, small());
  out[1].model_type = LlamaType::mistral;
  out[1].sliding_window = 3;
  out[2].model_type = LlamaType::qwen2;
  out[2].sliding_window = 4;
  out[2].max_window_layers = 1;
  out[2].tie_word_embeddings = true;
  out[3].model_type = LlamaType::qwen3;
  out[3].head_dim = 8;
  out[3].sliding_window = 2;
  out[3].layer_types = {"sliding_attention", "full_attention", "sliding_attention"};
  out[4].attention_bias = out[4].mlp_bias = true;
  out[4].rope_parameters = {
      .rope_type = tutti::nn::RopeType::yarn, .factor = 4, .original_max_position_embeddings = 8};
  return out;
}

models::PretrainedConfig config_of(const std::string& text) {
  const tutti::detail::Json json = tutti::detail::parse_json(text);
  return models::PretrainedConfig(json.object());
}

// `text` with its last brace replaced by more keys.
models::PretrainedConfig llama_with(const std::string& more) {
  return config_of(R"({"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4, )" +
                   more + "}");
}

static_assert(tutti::Model<models::LlamaForCausalLMImpl>);

}  // namespace

TEST_CASE("a Llama has the size of the original and Hugging Face's names", "[models][llama]") {
  auto net = models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = 100,
                                                           .hidden_size = 64,
                                                           .intermediate_size = 96,
                                                           .num_hidden_layers = 1,
                                                           .num_attention_heads = 4,
                                                           .num_key_value_heads = 2});
  std::int64_t count = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    count += parameter.numel();
  }
  CHECK(count == 2 * 100 * 64 + 3 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64);
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) {
    names.push_back(item.key());
  }
  const std::string layer = "model.layers.0.";
  CHECK(names == std::vector<std::string>{
                     "model.embed_tokens.weight", layer + "self_attn.q_proj.weight",
                     layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
                     layer + "self_attn.o_proj.weight", layer + "mlp.gate_proj.weight",
                     layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight",
                     layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight",
                     "model.norm.weight", "lm_head.weight"});
}

TEST_CASE("the types differ in biases, normalised heads and windows", "[models][llama]") {
  const auto types = all_types();
  const auto biases = [&](std::size_t i) {
    std::string out;
    for (const auto& item : models::LlamaForCausalLM(types[i])->named_parameters()) {
      if (item.key().find("layers.1") != std::string::npos &&
          (item.key().ends_with("bias") || item.key().find("_norm.") != std::string::npos)) {
        out += item.key().substr(15) + " ";
      }
    }
    return out;
  };
  CHECK(biases(0).empty());
  CHECK(biases(1).empty());
  CHECK(biases(2) == "self_attn.q_proj.bias self_attn.k_proj.bias self_attn.v_proj.bias ");
  CHECK(biases(3) == "self_attn.q_norm.weight self_attn.k_norm.weight ");
  CHECK(biases(4) ==
        "self_attn.q_proj.bias self_attn.k_proj.bias self_attn.v_proj.bias self_attn.o_proj.bias "
        "mlp.gate_proj.bias mlp.up_proj.bias mlp.down_proj.bias ");
  const auto windows = [](const models::LlamaOptions& options) {
    return std::vector<std::int64_t>{options.window_of(0), options.window_of(1),
                                     options.window_of(2)};
  };
  CHECK(windows(types[0]) == std::vector<std::int64_t>{0, 0, 0});
  CHECK(windows(types[1]) == std::vector<std::int64_t>{3, 3, 3});
  CHECK(windows(types[2]) == std::vector<std::int64_t>{0, 4, 4});
  CHECK(windows(types[3]) == std::vector<std::int64_t>{2, 0, 2});
}

TEST_CASE("weights of a Llama are drawn as Hugging Face draws them", "[models][llama]") {
  at::manual_seed(5);
  auto options = small();
  options.vocab_size = 500;
  options.hidden_size = options.intermediate_size = 64;
  options.attention_bias = true;
  options.initializer_range = 0.05;
  options.pad_token_id = 3;
  auto net = models::LlamaForCausalLM(options);
  for (const auto& item : net->named_parameters()) {
    INFO(item.key());
    if (item.key().ends_with("bias")) {
      CHECK(item.value().eq(0).all().item<bool>());
    } else if (item.key().find("norm") != std::string::npos) {
      CHECK(item.value().eq(1).all().item<bool>());
    } else {
      CHECK(std::abs(item.value().std().item<double>() - 0.05) < 0.005);
    }
  }
  const at::Tensor& table = net->model->embed_tokens->weight;
  CHECK(table[3].eq(0).all().item<bool>());
  CHECK(table[4].ne(0).any().item<bool>());
}

TEST_CASE("no position of a Llama sees later tokens, nor padding, nor what is behind its window",
          "[models][llama][law]") {
  at::manual_seed(1);
  const at::Tensor ids = at::randint(11, {2, 12}, at::kLong);
  for (const auto& options : all_types()) {
    INFO(to_string(options.model_type));
    auto net = models::LlamaForCausalLM(options);
    net->eval();
    const at::Tensor y = net->forward(ids).tensor();
    at::Tensor other = ids.clone();
    other.slice(1, 7).fill_(3);
    CHECK(net->forward(other).tensor().slice(1, 0, 7).allclose(y.slice(1, 0, 7), 1e-5, 1e-6));
    CHECK_FALSE(net->forward(other).tensor().slice(1, 7).allclose(y.slice(1, 7), 1e-5, 1e-6));

    at::Tensor mask = at::ones({2, 12}, at::kLong);
    mask[1].slice(0, 0, 4).zero_();  // padding on the left of one row
    at::Tensor padded = ids.clone();
    padded[1].slice(0, 0, 4).fill_(7);
    const auto masked = [&](const at::Tensor& of) {
      return net->forward(Batch{{"input_ids", of}, {"attention_mask", mask}}).tensor();
    };
    CHECK(masked(padded)[1].slice(0, 4).allclose(masked(ids)[1].slice(0, 4), 1e-5, 1e-6));
    CHECK(masked(ids)[0].allclose(y[0], 1e-5, 1e-6));
    CHECK(masked(ids).isfinite().all().item<bool>());
  }
  // With windows of 3 in three layers, position 11 depends on no position before 5.
  auto mistral = models::LlamaForCausalLM(all_types()[1]);
  mistral->eval();
  at::Tensor early = ids.clone();
  early.slice(1, 0, 5).fill_(3);
  const at::Tensor last = mistral->forward(ids).tensor().slice(1, 11);
  CHECK(mistral->forward(early).tensor().slice(1, 11).allclose(last, 1e-5, 1e-6));
  early.slice(1, 5, 6).fill_(3);
  CHECK_FALSE(mistral->forward(early).tensor().slice(1, 11).allclose(last, 1e-5, 1e-6));
}

TEST_CASE("with a cache the logits are those without one, however the text is cut",
          "[models][llama][law]") {
  at::manual_seed(2);
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = at::randint(11, {2, 12}, at::kLong);
  at::Tensor mask = at::ones({2, 12}, at::kLong);
  mask[1].slice(0, 0, 3).zero_();
  for (const auto& options : all_types()) {
    auto net = models::LlamaForCausalLM(options);
    net->eval();
    for (const bool padded : {false, true}) {
      const at::Tensor whole =
          net->logits({.input_ids = ids, .attention_mask = padded ? mask : at::Tensor()});
      for (const std::vector<std::int64_t>& cuts : std::vector<std::vector<std::int64_t>>{
               {12}, {6, 1, 1, 1, 1, 1, 1}, {1, 1, 10}, {4, 5, 3}}) {
        INFO(to_string(options.model_type) << ", padded " << padded << ", parts " << cuts.size());
        tutti::nn::KeyValueCache cache = net->make_cache(2, 12);
        std::vector<at::Tensor> parts;
        std::int64_t at = 0;
        for (const std::int64_t count : cuts) {
          parts.push_back(
              net->logits({.input_ids = ids.narrow(1, at, count),
                           .attention_mask = padded ? mask.slice(1, 0, at + count) : at::Tensor(),
                           .cache = &cache}));
          at += count;
        }
        const at::Tensor got = at::cat(parts, 1);
        const at::Tensor counted = padded ? mask : at::ones_like(mask);
        const at::Tensor seen = counted.ne(0).unsqueeze(-1);
        CHECK(
            got.where(seen, at::zeros({})).allclose(whole.where(seen, at::zeros({})), 1e-4, 1e-5));
      }
    }
    const at::Tensor last = net->logits({.input_ids = ids, .last_only = true});
    CHECK(last.allclose(net->logits({.input_ids = ids}).slice(1, -1), 1e-5, 1e-6));
  }
}

TEST_CASE("padding on the left changes nothing, since positions count from the first token",
          "[models][llama][law]") {
  at::manual_seed(3);
  auto net = models::LlamaForCausalLM(small());
  net->eval();
  const at::Tensor ids = at::randint(11, {1, 6}, at::kLong);
  const at::Tensor padded = at::cat({at::full({1, 4}, 5, at::kLong), ids}, 1);
  const at::Tensor mask = at::cat({at::zeros({1, 4}, at::kLong), at::ones_like(ids)}, 1);
  const at::Tensor plain = net->logits({.input_ids = ids});
  CHECK(net->logits({.input_ids = padded, .attention_mask = mask})
            .slice(1, 4)
            .allclose(plain, 1e-4, 1e-5));
  const at::Tensor shifted = at::arange(3, 9).unsqueeze(0);
  Batch batch{{"input_ids", ids}, {"position_ids", shifted}};
  CHECK(net->forward(batch).tensor().allclose(plain, 1e-4, 1e-5));  // distances alone count
}

TEST_CASE("packed texts see only themselves with a mask for each query", "[models][llama][law]") {
  at::manual_seed(4);
  auto net = models::LlamaForCausalLM(small());
  net->eval();
  const at::Tensor first = at::randint(11, {1, 4}, at::kLong);
  const at::Tensor second = at::randint(11, {1, 5}, at::kLong);
  at::Tensor mask = at::zeros({1, 1, 9, 9});
  mask.slice(2, 0, 4).slice(3, 0, 4).fill_(1);
  mask.slice(2, 4).slice(3, 4).fill_(1);
  const Batch packed{{"input_ids", at::cat({first, second}, 1)}, {"attention_mask", mask}};
  const at::Tensor y = net->forward(packed).tensor();
  CHECK(y.slice(1, 0, 4).allclose(net->forward(first).tensor(), 1e-4, 1e-5));
  CHECK(y.slice(1, 4).allclose(net->forward(second).tensor(), 1e-4, 1e-5));
}

TEST_CASE("activation checkpointing of a Llama changes no gradient", "[models][llama][law]") {
  at::manual_seed(6);
  auto options = all_types()[3];
  options.attention_dropout = 0.3;
  auto net = models::LlamaForCausalLM(options);
  const at::Tensor ids = at::randint(11, {2, 8}, at::kLong);
  at::Tensor mask = at::ones_like(ids);
  mask[0].slice(0, 6).zero_();
  const Batch batch{{"input_ids", ids}, {"attention_mask", mask}, {"labels", ids}};
  CHECK(language::same_gradients_checkpointed(*net, batch));
}

TEST_CASE("a Llama learns to count, and clones", "[models][llama][trainer]") {
  at::manual_seed(3);
  auto net = models::LlamaForCausalLM(small());
  net->set_activation_checkpointing(true);
  const auto trainer = std::make_unique<tutti::Trainer<>>(
      net.ptr(), tutti::TrainerOptions{.train = language::counting(8, 11),
                                       .max_duration = "15ep",
                                       .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                                       .device = "cpu",
                                       .seed = 3,
                                       .progress_bar = false});
  trainer->fit();
  CHECK(trainer->state().total_loss.at("total").item<double>() < 0.2);
  CHECK(trainer->state().train_metric_values.at("LanguagePerplexity") < 1.3);

  net->eval();
  const auto copy = std::dynamic_pointer_cast<models::LlamaForCausalLMImpl>(net->clone());
  const at::Tensor ids = at::arange(8).view({1, 8});
  CHECK(copy->forward(ids).tensor().equal(net->forward(ids).tensor()));
  CHECK(copy->model->activation_checkpointing());
  CHECK_FALSE(copy->lm_head->weight.is_same(net->lm_head->weight));
}

TEST_CASE("surgery reaches the layers of a Llama", "[models][llama][surgery]") {
  namespace nn = tutti::nn;
  auto options = all_types()[3];
  options.attention_dropout = 0.1;
  auto net = models::LlamaForCausalLM(options);
  CHECK(tutti::surgery::count<nn::Linear>(*net) == 7 * 3 + 1);
  CHECK(tutti::surgery::count<nn::RMSNorm>(*net) == 4 * 3 + 1);
  CHECK(tutti::surgery::count<nn::Embedding>(*net) == 1);
  CHECK(tutti::surgery::count<nn::Dropout>(*net) == 3);
}

TEST_CASE("the options of a Llama survive config.json", "[models][llama]") {
  for (const auto& options : all_types()) {
    auto net = models::LlamaForCausalLM(options);
    const models::PretrainedConfig config = net->config();
    auto again = models::LlamaForCausalLM(models::LlamaForCausalLMImpl::options_from(config));
    CHECK(again->config() == config);
    CHECK(again->named_parameters().keys() == net->named_parameters().keys());
    const at::Tensor ids = at::arange(8).view({1, 8});
    const torch::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      again->named_parameters()[item.key()].copy_(item.value());
    }
    CHECK(again->forward(ids).tensor().equal(net->forward(ids).tensor()));
  }
  auto net = models::LlamaForCausalLM(small());
  net->source_config =
      llama_with(R"("use_cache": true, "num_hidden_layers": 3, "rope_theta": 5.0)");
  const models::PretrainedConfig config = net->config();
  CHECK(config.flag("use_cache", false));
  CHECK(config.values().front().first == "model_type");
  CHECK_FALSE(config.has("rope_parameters"));
}

TEST_CASE("absent keys of config.json take the defaults of their type", "[models][llama]") {
  const auto options = [](const std::string& text) {
    return models::LlamaForCausalLMImpl::options_from(config_of(text));
  };
  const auto llama = options(R"({"model_type": "llama"})");
  CHECK(llama.vocab_size == 32000);
  CHECK(llama.key_value_heads() == 32);
  CHECK(llama.head_size() == 128);
  CHECK(llama.max_position_embeddings == 2048);
  const auto mistral = options(R"({"model_type": "mistral"})");
  CHECK(mistral.sliding_window == 4096);
  CHECK(mistral.intermediate_size == 14336);
  CHECK(options(R"({"model_type": "mistral", "sliding_window": null})").sliding_window == 0);
  CHECK(options(R"({"model_type": "llama", "sliding_window": 7})").sliding_window == 0);
  const auto qwen2 = options(R"({"model_type": "qwen2", "sliding_window": 9})");
  CHECK(qwen2.sliding_window == 0);
  CHECK(qwen2.has_qkv_bias());
  const auto windowed = options(
      R"({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": true,
          "max_window_layers": 30})");
  CHECK(windowed.window_of(29) == 0);
  CHECK(windowed.window_of(30) == 9);
  CHECK(options(R"({"model_type": "qwen3"})").head_size() == 128);
  CHECK(options(R"({"model_type": "llama", "pad_token_id": -1})").pad_token_id == 31999);
  CHECK(options(R"({"model_type": "llama", "pad_token_id": [7]})").pad_token_id == 7);
}

TEST_CASE("RoPE of old and new config.json is read alike", "[models][llama]") {
  const auto rope = [](const std::string& more) {
    return models::LlamaForCausalLMImpl::options_from(llama_with(more)).rope_parameters;
  };
  const auto plain = rope(R"("rope_theta": 500000.0, "rope_scaling": null)");
  CHECK(plain.rope_type == tutti::nn::RopeType::plain);
  CHECK(plain.rope_theta == 500000);
  const auto old = rope(R"("rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0})");
  const auto now =
      rope(R"("rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0})");
  for (const auto& one : {old, now}) {
    CHECK(one.rope_type == tutti::nn::RopeType::linear);
    CHECK(one.factor == 2.0);
    CHECK(one.rope_theta == 7);
  }
  CHECK(rope(R"("rope_scaling": {"rope_type": "yarn", "factor": 2.0, "finetuned": true,
                                 "truncate": false, "mscale": 0.5})")
            .mscale == 0.5);
  const auto zero = rope(R"("rope_parameters": {"rope_type": "yarn", "factor": 2.0,
                                                "beta_fast": 0, "beta_slow": 0})");
  CHECK(zero.beta_fast == 32);
  CHECK(zero.beta_slow == 1);
}

TEST_CASE("a Llama refuses what it cannot compute, by name and value", "[models][llama]") {
  const auto refused = [](const std::string& more, const std::string& name,
                          const std::string& value) {
    INFO(more);
    CHECK_THROWS_WITH(models::LlamaForCausalLMImpl::options_from(llama_with(more)),
                      ContainsSubstring(name) && ContainsSubstring(value));
  };
  refused(R"("pretraining_tp": 2)", "pretraining_tp", "2");
  refused(R"("hidden_act": "prelu")", "hidden_act", "prelu");
  refused(R"("rope_scaling": {"type": "mrope", "factor": 2.0})", "type", "mrope");
  refused(R"("rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]})", "mrope_section",
          "[1");
  refused(R"("quantization_config": {"bits": 4})", "quantization_config", "4");
  refused(R"("layer_types": ["sliding_attention"])", "layer_types", "sliding_attention");
  refused(R"("num_key_value_heads": 3)", "num_key_value_heads", "3");
  refused(R"("pad_token_id": 32000)", "pad_token_id", "32000");
  refused(R"("pad_token_id": [1, 2])", "pad_token_id", "[1,2]");
  CHECK_THROWS_WITH(
      models::LlamaForCausalLMImpl::options_from(config_of(R"({"model_type": "gemma"})")),
      ContainsSubstring("gemma"));
  auto odd = small();
  odd.sliding_window = 3;
  CHECK_THROWS_WITH(models::LlamaForCausalLM(odd), ContainsSubstring("sliding_window is 3"));
  odd = small();
  odd.layer_types = {"full_attention"};
  CHECK_THROWS_WITH(models::LlamaForCausalLM(odd), ContainsSubstring("layer_types has 1"));
}

TEST_CASE("a Llama says when tokens, mask and cache do not fit", "[models][llama]") {
  auto net = models::LlamaForCausalLM(small());
  const at::Tensor ids = at::ones({2, 3}, at::kLong);
  CHECK_THROWS_WITH(net->forward(at::ones({3}, at::kLong)), ContainsSubstring("[3]"));
  CHECK_THROWS_WITH(net->logits({.input_ids = ids, .attention_mask = at::ones({2, 4})}),
                    ContainsSubstring("[2, 4]") && ContainsSubstring("[2, 3]"));
  const torch::NoGradGuard no_grad;
  tutti::nn::KeyValueCache cache = net->make_cache(2, 4);
  net->logits({.input_ids = ids, .cache = &cache});
  CHECK_THROWS_WITH(net->logits({.input_ids = ids, .cache = &cache}),
                    ContainsSubstring("max_length 4"));
}

TEST_CASE("packed documents teach a Llama what they teach by themselves", "[models][llama][law]") {
  at::manual_seed(6);
  for (const models::LlamaOptions& options : all_types()) {
    auto net = models::LlamaForCausalLM(options);
    net->eval();
    CHECK(language::packed_as_alone(*net, options.vocab_size));
  }
}

TEST_CASE("RoPE that depends on the length has that of the longest document, not of the row",
          "[models][llama][law]") {
  using tutti::nn::RopeType;
  at::manual_seed(7);
  models::LlamaOptions dynamic = small();  // the rows have 14 tokens, documents up to 7
  dynamic.max_position_embeddings = 8;
  dynamic.rope_parameters = {.rope_type = RopeType::dynamic, .factor = 4};
  models::LlamaOptions longrope = small();
  longrope.rope_parameters = {.rope_type = RopeType::longrope,
                              .original_max_position_embeddings = 8,
                              .short_factor = {1, 1},
                              .long_factor = {4, 8}};
  for (const models::LlamaOptions& options : {dynamic, longrope}) {
    auto net = models::LlamaForCausalLM(options);
    net->eval();
    CHECK(language::packed_as_alone(*net, options.vocab_size));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
