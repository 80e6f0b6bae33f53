// The language models: gpt2, bert, and llama, which stands for mistral, qwen2 and qwen3 too.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/models/bert.hpp>
#include <tutti/models/generate.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>

#include "golden_interop/runner.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using golden_interop::Case;
using golden_interop::Json;
using golden_interop::Tensors;
using tutti::Batch;
namespace models = tutti::models;

// Gives a model its weights: each tensor of the layout, and no others.
void fill(const Case& c, const models::WeightLayout& layout) {
  Tensors weights = c.weights();
  const torch::NoGradGuard no_grad;
  for (const models::DiskTensor& one : layout.tensors) {
    const auto found = weights.find(one.name);
    if (found == weights.end() || found->second.sizes() != one.tensor.sizes()) {
      c.check(false, one.name + " is not among the tensors, or has another shape");
      continue;
    }
    at::Tensor(one.tensor).copy_(found->second);
    weights.erase(found);
  }
  for (const auto& [name, tensor] : weights) {
    c.check(false, "the layout has no tensor " + name);
  }
  for (const auto& [alias, name] : c.json["tied"].object()) {
    const std::pair<std::string, std::string> tie(alias, name.string());
    c.check(std::find(layout.tied.begin(), layout.tied.end(), tie) != layout.tied.end(),
            alias + " is not tied to " + name.string());
  }
}

template <class Model>
std::shared_ptr<Model> load(const Case& c) {
  const Json written = c.read("config.json");
  const models::PretrainedConfig config(written.object());
  std::shared_ptr<Model> net;
  if constexpr (requires { Model::from_config(config); }) {
    net = Model::from_config(config);
  } else {
    net = std::make_shared<Model>(Model::options_from(config));
  }
  net->source_config = config;
  fill(c, net->weight_layout());
  net->eval();
  const models::PretrainedConfig again = net->config();
  for (const auto& [key, value] : again.values()) {
    const Json* was = config.find(key);
    c.check(was == nullptr || *was == value, "config.json: " + key + " has changed");
  }
  return net;
}

// Logits, the loss and its gradients.
template <class Model>
void check_training(const Case& c, Model& net) {
  Tensors io = c.io();
  Batch batch;
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids", "labels"}) {
    if (io.count(name) > 0) {
      batch[name] = io.at(name);
    }
  }
  const auto outputs = net.forward(batch);
  if (outputs.tensor().dim() == 3) {
    c.close_where("logits", io.at("attention_mask"), outputs.tensor(), io.at("logits"));
  } else {
    c.close("logits", outputs.tensor(), io.at("logits"));
  }
  const at::Tensor loss = net.loss(outputs, batch).total();
  c.number("loss", loss.template item<double>(), c.json["loss"].number(), 1e-5);
  loss.backward();
  c.gradient_norms(net, net.weight_layout());
}

at::Tensor token_rows(const Json& rows) {
  std::vector<std::int64_t> values;
  for (const Json& row : rows.array()) {
    for (const Json& value : row.array()) {
      values.push_back(value.integer());
    }
  }
  return at::tensor(values, at::kLong).view({static_cast<std::int64_t>(rows.size()), -1});
}

// The most likely tokens one by one: all at once from the prompt, then from the cache.
template <models::CausalLM Model>
void check_greedy(const Case& c, Model& net, const std::string& key) {
  if (!c.json.contains(key)) {
    return;
  }
  const Json& text = c.json[key];
  const at::Tensor prompt = token_rows(text["prompt"]);
  const at::Tensor want = token_rows(text["new_tokens"]);
  const at::Tensor got = tutti::models::generate(net, prompt, {.max_new_tokens = want.size(1)},
                                                 token_rows(text["attention_mask"]));
  c.check(got.slice(1, prompt.size(1)).equal(want), key + ": other tokens");
}

template <models::CausalLM Model>
void check_cache(const Case& c, Model& net, std::int64_t layers) {
  const Tensors io = c.io();
  if (io.count("prompt") == 0) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor& prompt = io.at("prompt");
  tutti::nn::KeyValueCache cache = net.make_cache(prompt.size(0), prompt.size(1));
  net.logits({.input_ids = prompt, .cache = &cache});
  for (const std::int64_t layer : {std::int64_t{0}, layers - 1}) {
    const tutti::nn::KeyValues all = cache.at(layer);
    const auto compare = [&](const std::string& what, const at::Tensor& got) {
      const std::string name = "cache." + std::to_string(layer) + "." + what;
      const at::Tensor& want = io.at(name);
      c.close(name, got.slice(2, got.size(2) - want.size(2)), want);
    };
    compare("key", all.keys);
    compare("value", all.values);
  }
}

template <class Model>
void check_causal(const Case& c, Model& net, std::int64_t layers) {
  check_training(c, net);
  check_greedy(c, net, "greedy");
  check_greedy(c, net, "greedy_left_padded");
  check_cache(c, net, layers);
}

void run_gpt2(const Case& c) {
  const auto net = load<models::GPT2LMHeadModelImpl>(c);
  check_causal(c, *net, net->options().n_layer);
}

void run_llama(const Case& c) {
  const auto net = load<models::LlamaForCausalLMImpl>(c);
  const tutti::nn::Rotary& rotary = net->model->rotary();
  std::vector<double> frequencies;
  for (const Json& one : c.json["inv_freq"].array()) {
    frequencies.push_back(one.number());
  }
  c.close("inv_freq", rotary.frequencies(c.io().at("input_ids").size(1)),
          at::tensor(frequencies, at::kDouble), 1e-6);
  c.number("attention_scaling", rotary.attention_factor(), c.json["attention_scaling"].number(),
           1e-12);
  check_causal(c, *net, net->options().num_hidden_layers);
}

void run_bert(const Case& c) {
  const std::string& name = c.json["class"].string();
  if (name == "BertForMaskedLM") {
    check_training(c, *load<models::BertForMaskedLMImpl>(c));
  } else if (name == "BertForSequenceClassification") {
    check_training(c, *load<models::BertForSequenceClassificationImpl>(c));
  } else {
    throw golden_interop::Unmapped("the class " + name);
  }
}

const bool registered = golden_interop::register_kind("gpt2", run_gpt2) &&
                        golden_interop::register_kind("llama", run_llama) &&
                        golden_interop::register_kind("bert", run_bert);

}  // namespace

}  // namespace UNITY_BUILD_UNIQUE_ID
