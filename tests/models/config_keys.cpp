// Every key that the configurations of Transformers 4.57 and 5.23 and of PEFT 0.21 have: read,
// refused where it is not what the model computes, or kept without an effect.
#include <tutti/models/auto_model.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/algorithms/lora.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vision_layout.hpp>
#include <tutti/models/vit.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
using Catch::Matchers::ContainsSubstring;
using models::PretrainedConfig;
using tutti::detail::Json;

enum class Is {
  read,     // another value makes another model
  refused,  // another value is refused by name and value
  kept,     // without an effect on what is computed here, and written again
};

// A key, a value that is not its default, and what comes of it.
struct Key {
  std::string_view name;
  std::string_view value;
  Is is = Is::read;
};

struct Family {
  std::string_view name;
  std::string_view base;                                        // a small model
  std::function<std::string(const PretrainedConfig&)> options;  // all of them as a text
  std::vector<Key> keys;
};

PretrainedConfig config_of(std::string_view text) {
  const Json json = tutti::detail::parse_json(text);
  return PretrainedConfig(json.object());
}

PretrainedConfig with(const Family& family, std::string_view key, std::string_view value) {
  PretrainedConfig out = config_of(family.base);
  out.set(key, tutti::detail::parse_json(value));
  return out;
}

template <class M>
std::string written(const PretrainedConfig& config, void (*write)(const M&, PretrainedConfig&),
                    M (*read)(const PretrainedConfig&)) {
  PretrainedConfig out;
  write(read(config), out);
  return tutti::detail::to_text(Json(out.values()));
}

std::string named(const models::detail::NamedOptions& options) {
  std::string out;
  for (const auto& [name, value] : options) {
    out += std::string(name) + "=" + std::string(value) + ";";
  }
  return out;
}

// What all configurations of Transformers have, of this version or older.
const std::vector<Key> common{{"architectures", "[\"Other\"]", Is::kept},
                              {"dtype", "\"float16\"", Is::kept},
                              {"torch_dtype", "\"float16\"", Is::kept},
                              {"transformers_version", "\"1.2\"", Is::kept},
                              {"_name_or_path", "\"somewhere\"", Is::kept},
                              {"return_dict", "false", Is::kept},
                              {"output_hidden_states", "true", Is::kept},
                              {"output_attentions", "true", Is::kept},
                              {"torchscript", "true", Is::kept},
                              {"chunk_size_feed_forward", "3", Is::kept},
                              {"finetuning_task", "\"x\"", Is::kept},
                              {"task_specific_params", "{\"a\": 1}", Is::kept},
                              {"tokenizer_class", "\"x\"", Is::kept},
                              {"prefix", "\"x\"", Is::kept},
                              {"sep_token_id", "3", Is::kept},
                              {"decoder_start_token_id", "3", Is::kept},
                              {"tf_legacy_loss", "true", Is::kept},
                              {"use_bfloat16", "true", Is::kept},
                              {"num_beams", "4", Is::kept},
                              {"temperature", "0.5", Is::kept},
                              {"auto_map", "{\"AutoModel\": \"x.Y\"}", Is::kept}};

const std::vector<Key> of_language{{"is_encoder_decoder", "true", Is::refused},
                                   {"add_cross_attention", "true", Is::refused},
                                   {"pruned_heads", "{\"0\": [1]}", Is::refused},
                                   {"quantization_config", "{\"bits\": 4}", Is::refused},
                                   {"cross_attention_hidden_size", "8", Is::kept},
                                   {"tie_encoder_decoder", "true", Is::kept},
                                   {"use_cache", "false", Is::kept},
                                   {"bos_token_id", "3", Is::kept},
                                   {"eos_token_id", "[3, 4]", Is::kept}};

const std::vector<Key> of_llama{
    {"vocab_size", "40"},
    {"hidden_size", "16"},
    {"intermediate_size", "24"},
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "4"},
    {"num_key_value_heads", "1"},
    {"head_dim", "8"},
    {"hidden_act", "\"relu\""},
    {"hidden_act", "\"prelu\"", Is::refused},
    {"max_position_embeddings", "16"},
    {"initializer_range", "0.5"},
    {"rms_norm_eps", "0.5"},
    {"pad_token_id", "3"},
    {"tie_word_embeddings", "true"},
    {"attention_dropout", "0.5"},
    {"rope_theta", "7.0"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}"},
    {"rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 2.0}"},
    {"rope_parameters", "{\"rope_type\": \"mrope\"}", Is::refused},
    {"rope_parameters", "{\"mrope_section\": [1]}", Is::refused},
    {"rope_parameters", "{\"full_attention\": {}}", Is::refused},
    {"partial_rotary_factor", "0.5"},
    {"original_max_position_embeddings", "8"},
    {"is_decoder", "true", Is::kept}};

std::vector<Key> joined(std::initializer_list<std::vector<Key>> lists) {
  std::vector<Key> out = common;
  for (const std::vector<Key>& list : lists) {
    out.insert(out.end(), list.begin(), list.end());
  }
  return out;
}

std::string llama_text(const PretrainedConfig& config) {
  return written<models::LlamaOptions>(config, models::detail::write_llama_options,
                                       models::detail::llama_options);
}

constexpr std::string_view llama_sizes =
    R"("vocab_size": 32, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
       "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32})";

std::vector<Family> families() {
  static const std::string llama = R"({"model_type": "llama", )" + std::string(llama_sizes);
  static const std::string mistral = R"({"model_type": "mistral", )" + std::string(llama_sizes);
  static const std::string qwen2 =
      R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 9, )" +
      std::string(llama_sizes);
  static const std::string qwen3 =
      R"({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 9, )" +
      std::string(llama_sizes);
  const auto bert = [](std::string_view head) {
    return [head](const PretrainedConfig& config) {
      const auto options = head == "BertForMaskedLM"
                               ? models::BertForMaskedLMImpl::options_from(config)
                               : models::BertForSequenceClassificationImpl::options_from(config);
      PretrainedConfig out;
      models::detail::write_bert_options(options, head, out);
      out.set("num_labels", config.num_labels());
      return tutti::detail::to_text(Json(out.values()));
    };
  };
  constexpr std::string_view bert_base =
      R"({"model_type": "bert", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 32})";
  const std::vector<Key> of_bert{{"model_type", "\"gpt2\"", Is::refused},
                                 {"vocab_size", "40"},
                                 {"hidden_size", "16"},
                                 {"num_hidden_layers", "3"},
                                 {"num_attention_heads", "4"},
                                 {"intermediate_size", "16"},
                                 {"hidden_act", "\"relu\""},
                                 {"hidden_act", "\"prelu\"", Is::refused},
                                 {"hidden_dropout_prob", "0.5"},
                                 {"attention_probs_dropout_prob", "0.5"},
                                 {"max_position_embeddings", "16"},
                                 {"type_vocab_size", "3"},
                                 {"initializer_range", "0.5"},
                                 {"layer_norm_eps", "0.5"},
                                 {"pad_token_id", "3"},
                                 {"pad_token_id", "null"},
                                 {"pad_token_id", "-1"},
                                 {"position_embedding_type", "\"relative_key\"", Is::refused},
                                 {"classifier_dropout", "0.5"},
                                 {"is_decoder", "true", Is::refused}};
  return {
      {"gpt2",
       R"({"model_type": "gpt2", "vocab_size": 32, "n_positions": 32, "n_embd": 8, "n_layer": 2,
           "n_head": 2})",
       [](const PretrainedConfig& config) {
         return written<models::GPT2Options>(config, models::detail::write_gpt2_options,
                                             models::detail::gpt2_options);
       },
       joined({of_language,
               {{"model_type", "\"bert\"", Is::refused},
                {"vocab_size", "40"},
                {"n_positions", "16"},
                {"n_embd", "16"},
                {"n_layer", "3"},
                {"n_head", "4"},
                {"hidden_size", "16", Is::refused},  // n_embd says otherwise
                {"max_position_embeddings", "16", Is::refused},
                {"num_attention_heads", "4", Is::refused},
                {"num_hidden_layers", "3", Is::refused},
                {"n_ctx", "16", Is::kept},
                {"n_inner", "16"},
                {"activation_function", "\"relu\""},
                {"activation_function", "\"prelu\"", Is::refused},
                {"resid_pdrop", "0.5"},
                {"embd_pdrop", "0.5"},
                {"attn_pdrop", "0.5"},
                {"layer_norm_epsilon", "0.5"},
                {"initializer_range", "0.5"},
                {"scale_attn_weights", "false"},
                {"scale_attn_by_inverse_layer_idx", "true"},
                {"reorder_and_upcast_attn", "true", Is::refused},
                {"tie_word_embeddings", "false"},
                {"pad_token_id", "3", Is::kept},
                {"is_decoder", "true", Is::kept},
                {"problem_type", "\"regression\"", Is::kept},
                {"summary_type", "\"last\"", Is::kept},  // of another head
                {"summary_use_proj", "false", Is::kept},
                {"summary_activation", "\"tanh\"", Is::kept},
                {"summary_proj_to_labels", "false", Is::kept},
                {"summary_first_dropout", "0.5", Is::kept}}})},
      {"bert, masked tokens", bert_base, bert("BertForMaskedLM"),
       joined({of_language,
               of_bert,
               {{"tie_word_embeddings", "false"}, {"problem_type", "\"regression\"", Is::kept}}})},
      {"bert, classes", bert_base, bert("BertForSequenceClassification"),
       joined({of_language,
               of_bert,
               {{"tie_word_embeddings", "false", Is::kept},  // it has no such table
                {"num_labels", "5"},
                {"id2label", "{\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}"},
                {"problem_type", "\"multi_label_classification\"", Is::refused},
                {"problem_type", "\"regression\"", Is::refused}}})},
      {"llama", llama, llama_text,
       joined({of_language,
               of_llama,
               {{"model_type", "\"gemma\"", Is::refused},
                {"attention_bias", "true"},
                {"mlp_bias", "true"},
                {"pretraining_tp", "2", Is::refused},
                {"layer_types", R"(["sliding_attention", "full_attention"])", Is::refused},
                {"sliding_window", "4", Is::kept}}})},
      {"mistral", mistral, llama_text,
       joined({of_language,
               of_llama,
               {{"sliding_window", "4"},
                {"sliding_window", "null"},
                {"layer_types", R"(["sliding_attention", "full_attention"])", Is::refused},
                {"attention_bias", "true", Is::kept}}})},
      {"qwen2", qwen2, llama_text,
       joined({of_language,
               of_llama,
               {{"sliding_window", "4"},
                {"use_sliding_window", "false"},
                {"max_window_layers", "1"},
                {"layer_types", R"(["sliding_attention", "full_attention"])"},
                {"layer_types", R"(["chunked_attention", "full_attention"])", Is::refused},
                {"layer_types", R"(["full_attention"])", Is::refused},
                {"attention_bias", "true", Is::kept}}})},
      {"qwen3", qwen3, llama_text,
       joined({of_language,
               of_llama,
               {{"sliding_window", "4"},
                {"use_sliding_window", "false"},
                {"max_window_layers", "1"},
                {"layer_types", R"(["sliding_attention", "full_attention"])"},
                {"attention_bias", "true"}}})},
      {"vit",
       R"({"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
           "intermediate_size": 8, "image_size": 32, "patch_size": 8})",
       [](const PretrainedConfig& config) {
         return named(
             models::detail::named_options(models::VisionTransformerImpl::options_from(config)));
       },
       joined({{{"hidden_size", "16"},
                {"num_hidden_layers", "3"},
                {"num_attention_heads", "4"},
                {"intermediate_size", "16"},
                {"hidden_act", "\"relu\""},
                {"hidden_act", "\"prelu\"", Is::refused},
                {"hidden_dropout_prob", "0.5"},
                {"attention_probs_dropout_prob", "0.5"},
                {"initializer_range", "0.5", Is::kept},  // new heads are drawn as torchvision's
                {"layer_norm_eps", "0.5"},
                {"image_size", "64"},
                {"image_size", "[32, 64]", Is::refused},
                {"patch_size", "16"},
                {"patch_size", "[8, 4]", Is::refused},
                {"num_channels", "1"},
                {"qkv_bias", "false"},
                {"num_labels", "5"},
                {"id2label", "{\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}"},
                {"problem_type", "\"regression\"", Is::kept},  // the Classifier has the loss
                {"encoder_stride", "8", Is::kept},
                {"pooler_output_size", "4", Is::kept},
                {"pooler_act", "\"relu\"", Is::kept}}})},
      {"resnet",
       R"({"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16],
            "depths": [1, 1]})",
       [](const PretrainedConfig& config) {
         return named(models::detail::named_options(models::ResNetImpl::options_from(config)));
       },
       joined({{{"num_channels", "1"},
                {"embedding_size", "4"},
                {"hidden_sizes", "[8, 32]"},
                {"depths", "[2, 1]"},
                {"layer_type", "\"basic\""},
                {"layer_type", "\"other\"", Is::refused},
                {"hidden_act", "\"silu\""},
                {"hidden_act", "\"prelu\"", Is::refused},
                {"downsample_in_first_stage", "true"},
                {"downsample_in_bottleneck", "true"},
                {"num_labels", "5"},
                {"id2label", "{\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}"},
                {"problem_type", "\"regression\"", Is::kept},
                {"stage_names", "[\"stem\"]", Is::kept},
                {"out_features", "[\"stage1\"]", Is::kept},
                {"out_indices", "[1]", Is::kept}}})},
  };
}

// The first line of what a call throws; empty: nothing.
template <class F>
std::string refusal(F&& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST_CASE("every key of a config.json is read, refused or kept", "[models][pretrained][config]") {
  for (const Family& family : families()) {
    const std::string base = family.options(config_of(family.base));
    for (const Key& key : family.keys) {
      INFO(family.name << ": " << key.name << " = " << key.value);
      const PretrainedConfig config = with(family, key.name, key.value);
      if (key.is == Is::refused) {
        const std::string said = refusal([&] { static_cast<void>(family.options(config)); });
        const Json value = tutti::detail::parse_json(key.value);
        const bool nested = value.is_object() && key.name == "rope_parameters";
        CHECK_THAT(
            said, ContainsSubstring(std::string(nested ? value.object().front().first : key.name)));
        const bool counted = key.name == "layer_types";  // one entry of it, or how many there are
        CHECK_THAT(said, counted || nested ? ContainsSubstring("expected")
                                           : ContainsSubstring(tutti::detail::to_text(value)));
      } else {
        CHECK((family.options(config) != base) == (key.is == Is::read));
      }
    }
  }
}

TEST_CASE("keys without an effect come out of a model as they went in",
          "[models][pretrained][config]") {
  const Family gpt2 = families().front();
  for (const Key& key : gpt2.keys) {
    if (key.is == Is::kept && key.name != "architectures") {  // which says the class
      INFO(key.name);
      const PretrainedConfig config = with(gpt2, key.name, key.value);
      auto net = models::GPT2LMHeadModel(models::GPT2LMHeadModelImpl::options_from(config));
      net->source_config = config;
      CHECK(*net->config().find(key.name) == tutti::detail::parse_json(key.value));
    }
  }
}

TEST_CASE("a value of another kind or out of range is refused by the key's name",
          "[models][pretrained][config]") {
  for (const Family& family : families()) {
    for (const Key& key : family.keys) {
      if (key.is != Is::read) {
        continue;
      }
      const Json good = tutti::detail::parse_json(key.value);
      const bool is_labels = key.name == "id2label";
      std::vector<std::string> bad{is_labels ? "[1]" : "{\"a\": 1}"};
      if (good.is_number()) {
        bad.insert(bad.end(), {"\"7\"", "true", "[[1]]"});
        if (key.name != "rope_theta" && key.name != "partial_rotary_factor" &&
            key.name != "original_max_position_embeddings") {
          bad.insert(bad.end(), {"-100", "1e18", "-9223372036854775808"});
        }
      } else if (good.is_string() || good.is_bool()) {
        bad.insert(bad.end(), {"7", "[true]"});
      }
      if (key.name == "rope_scaling" || key.name == "rope_parameters") {
        bad = {"7", "\"linear\"", R"({"rope_type": 3})", R"({"factor": "2"})"};
      }
      for (const std::string& value : bad) {
        INFO(family.name << ": " << key.name << " = " << value);
        const std::string said =
            refusal([&] { static_cast<void>(family.options(with(family, key.name, value))); });
        const bool inside = value.find("rope_type") != std::string::npos ||
                            value.find("factor") != std::string::npos;
        const bool renamed = family.name == "vit" || family.name == "resnet";
        CHECK(!said.empty());
        CHECK((inside || renamed || said.find(key.name) != std::string::npos));
        CHECK_THAT(said, ContainsSubstring("expected"));
      }
    }
  }
}

TEST_CASE("GPT-2 is read by the names that other models have", "[models][pretrained][config]") {
  const auto options = models::detail::gpt2_options(
      config_of(R"({"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3,
                    "max_position_embeddings": 16})"));
  CHECK(options.n_embd == 8);
  CHECK(options.n_head == 2);
  CHECK(options.n_layer == 3);
  CHECK(options.n_positions == 16);
}

TEST_CASE("two spellings of RoPE that differ are refused, equal ones read",
          "[models][pretrained][config]") {
  const auto read = [](const std::string& now, const std::string& old) {
    return models::detail::llama_options(
        config_of(R"({"model_type": "llama", "rope_parameters": )" + now + R"(, "rope_scaling": )" +
                  old + "}"));
  };
  const std::string linear = R"({"rope_type": "linear", "factor": 2.0})";
  CHECK(read(linear, linear).rope_parameters.factor == 2.0);
  CHECK(read("{}", linear).rope_parameters.factor == 2.0);
  CHECK(read(linear, "null").rope_parameters.factor == 2.0);
  CHECK_THROWS_WITH(read(linear, R"({"rope_type": "linear", "factor": 4.0})"),
                    ContainsSubstring("rope_scaling is") && ContainsSubstring("rope_parameters"));
}

TEST_CASE("windows of layers without a window's size are refused", "[models][pretrained][config]") {
  CHECK_THROWS_WITH(models::detail::llama_options(config_of(
                        R"({"model_type": "qwen2", "num_hidden_layers": 1,
              "layer_types": ["sliding_attention"]})")),
                    ContainsSubstring("layer_types is [\"sliding_attention\"]") &&
                        ContainsSubstring("use_sliding_window"));
}

TEST_CASE("a folder of hostile sizes is refused before a model of them is made",
          "[models][pretrained][config]") {
  const TemporaryFolder folder;
  write_bytes(folder / "model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  const auto load = [&](const std::string& config) {
    write_bytes(folder / "config.json", config);
    return models::auto_model_for_causal_lm(folder.path().string());
  };
  CHECK_THROWS_WITH(load(R"({"model_type": "gpt2", "n_layer": 1000000000})"),
                    ContainsSubstring("config.json': n_layer is 1000000000, expected an integer"));
  CHECK_THROWS_WITH(load(R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 9999984,
                             "n_inner": 10000000, "n_head": 1})"),
                    ContainsSubstring("config.json': a model of these sizes does not fit"));
  CHECK_THROWS_WITH(load(R"({"model_type": "llama", "num_hidden_layers": -1})"),
                    ContainsSubstring("num_hidden_layers is -1"));
  CHECK_THROWS_WITH(load("{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}"),
                    ContainsSubstring("nested deeper than"));
  CHECK_THROWS_WITH(load(R"({"model_type": ["gpt2"]})"), ContainsSubstring("model_type is"));
  CHECK_THROWS_WITH(load(R"({"model_type": "gpt2", "n_head": 2, "n_head": 4})"),
                    ContainsSubstring("'n_head' occurs twice"));
  CHECK_THROWS_WITH(load("[]"), ContainsSubstring("expected an object"));
  CHECK_THROWS_WITH(load("{"), ContainsSubstring("config.json"));
}

TEST_CASE("every key of an adapter_config.json is read, refused or without an effect",
          "[models][lora][config]") {
  using tutti::detail::to_text;
  const auto read = [](std::string_view key, std::string_view value) {
    const TemporaryFolder folder;
    PretrainedConfig config = config_of(R"({"peft_type": "LORA", "target_modules": ["q_proj"]})");
    config.set(key, tutti::detail::parse_json(value));
    write_bytes(folder / "adapter_config.json", tutti::detail::to_text(Json(config.values())));
    tutti::LoRA lora = tutti::functional::read_lora(folder.path().string());
    lora.validate();
    return lora;
  };
  const auto options = [](const tutti::LoRA& lora) {
    return to_text(Json(tutti::detail::adapter_keys(lora, false)));
  };
  const std::vector<Key> keys{
      {"task_type", "\"CAUSAL_LM\""},
      {"peft_type", "\"IA3\"", Is::refused},
      {"auto_mapping", "{\"a\": 1}", Is::kept},
      {"peft_version", "\"0.21.2\"", Is::kept},
      {"base_model_name_or_path", "\"x\""},
      {"revision", "\"main\"", Is::kept},
      {"inference_mode", "false", Is::kept},
      {"r", "4"},
      {"target_modules", "\"all-linear\""},
      {"exclude_modules", "[\"v\"]"},
      {"lora_alpha", "3"},
      {"lora_dropout", "0.5"},
      {"fan_in_fan_out", "true", Is::kept},  // the layer knows
      {"bias", "\"all\""},
      {"bias", "\"some\"", Is::refused},
      {"use_rslora", "true"},
      {"modules_to_save", "[\"classifier\"]"},
      {"init_lora_weights", "\"gaussian\"", Is::kept},  // the file has them
      {"init_lora_weights", "\"eva\"", Is::kept},
      {"init_lora_weights", "\"orthogonal\"", Is::kept},
      {"init_lora_weights", "\"pissa\"", Is::refused},
      {"init_lora_weights", "\"pissa_niter_4\"", Is::refused},
      {"init_lora_weights", "\"olora\"", Is::refused},
      {"init_lora_weights", "\"corda\"", Is::refused},
      {"init_lora_weights", "\"loftq\"", Is::refused},
      {"init_lora_weights", "\"lora_ga\"", Is::refused},
      {"init_lora_weights", "\"mica\"", Is::refused},
      {"layers_to_transform", "[1]"},
      {"rank_pattern", "{\"a\": 2}"},
      {"alpha_pattern", "{\"a\": 2}"},
      {"megatron_config", "{\"a\": 1}", Is::refused},
      {"megatron_core", "\"megatron.core\"", Is::kept},
      {"trainable_token_indices", "[1]", Is::refused},
      {"trainable_token_indices", "{\"wte\": [1]}", Is::refused},
      {"loftq_config", "{\"a\": 1}", Is::kept},  // init_lora_weights says it
      {"eva_config", "{\"a\": 1}", Is::kept},
      {"corda_config", "{\"a\": 1}", Is::kept},
      {"lora_ga_config", "{\"a\": 1}", Is::kept},
      {"use_dora", "true"},
      {"velora_config", "{\"a\": 1}", Is::refused},
      {"alora_invocation_tokens", "[5]", Is::refused},
      {"use_qalora", "true", Is::refused},
      {"qalora_group_size", "8", Is::kept},
      {"monteclora_config", "{\"a\": 1}", Is::refused},
      {"layer_replication", "[[0, 4]]", Is::refused},
      {"runtime_config", "{\"ephemeral_gpu_offload\": true}", Is::refused},
      {"lora_bias", "true", Is::refused},
      {"target_parameters", "[\"w\"]", Is::refused},
      {"use_bdlora", "{\"a\": 1}", Is::refused},
      {"arrow_config", "{\"a\": 1}", Is::refused},
      {"kasa_config", "{\"a\": 1}", Is::refused},
      {"ensure_weight_tying", "true", Is::refused}};
  const std::string base = options(read("r", "8"));
  for (const Key& key : keys) {
    INFO(key.name << " = " << key.value);
    if (key.is == Is::refused) {
      const std::string said = refusal([&] { static_cast<void>(read(key.name, key.value)); });
      const Json value = tutti::detail::parse_json(key.value);
      CHECK_THAT(said,
                 ContainsSubstring(std::string(key.name) + " is " + tutti::detail::to_text(value)));
    } else {
      const tutti::LoRA lora = read(key.name, key.value);
      CHECK((options(lora) != base) == (key.is == Is::read));
      if (key.name != "inference_mode") {  // what is written is there to be used
        const Json written = tutti::detail::adapter_config(lora, false);
        CHECK(written[key.name] == tutti::detail::parse_json(key.value));
      }
    }
    if (key.name == "r" || key.name == "lora_alpha" || key.name == "use_dora") {
      CHECK_THAT(refusal([&] { static_cast<void>(read(key.name, "\"x\"")); }),
                 ContainsSubstring(std::string(key.name) + " is \"x\""));
    }
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
