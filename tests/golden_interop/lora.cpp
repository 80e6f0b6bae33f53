// Adapters of PEFT: read, computed, merged, and written again.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/algorithms/lora.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>

#include "golden_interop/runner.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using golden_interop::Case;
using golden_interop::Json;
using namespace tutti::models;

constexpr double of_logits = 1e-4;  // absolute
constexpr double of_merged = 1e-6;

tutti::Batch batch_of(const golden_interop::Tensors& io) {
  return tutti::Batch(std::map<std::string, at::Tensor>{{"input_ids", io.at("input_ids")},
                                                        {"labels", io.at("labels")}});
}

void near(const Case& c, const std::string& what, const at::Tensor& got, const at::Tensor& want,
          double tolerance) {
  c.check(got.sizes() == want.sizes(), what + " has another shape");
  if (got.sizes() == want.sizes()) {
    c.number(what, (got - want).abs().max().item<double>(), 0, 0, tolerance);
  }
}

// Each gradient of the adapter by its name in Python's memory.
void check_gradients(const Case& c, const torch::nn::Module& net) {
  double all = 0;
  for (const auto& [name, norm] : c.json["grad_norms"].object()) {
    all += norm.number() * norm.number();
  }
  const auto parameters = net.named_parameters();
  std::set<std::string> seen;
  for (const auto& [python, norm] : c.json["grad_norms"].object()) {
    std::string name = python.substr(std::string("base_model.model.").size());
    if (name.ends_with(".lora_magnitude_vector.weight")) {
      name.resize(name.size() - std::string(".weight").size());
    }
    if (const std::size_t at = name.find(".modules_to_save."); at != std::string::npos) {
      name.erase(at, std::string(".modules_to_save").size());
    }
    const at::Tensor* parameter = parameters.find(name);
    c.check(parameter != nullptr, "the model has no parameter " + name);
    if (parameter != nullptr && parameter->grad().defined()) {
      seen.insert(name);
      c.number("the gradient of " + name, parameter->grad().norm().item<double>(), norm.number(),
               1e-4, 2e-6 * std::sqrt(all));
    }
  }
  for (const auto& parameter : parameters) {
    c.check(parameter.value().requires_grad() == seen.contains(parameter.key()),
            parameter.key() + " is trained, and should not be, or the other way round");
  }
}

// What is written has the names, shapes and numbers of what was read.
void check_written(const Case& c, torch::nn::Module& net, const tutti::LoRA& lora) {
  const TemporaryFolder folder;
  tutti::functional::save_lora(net, lora, (folder / "adapter").string());
  const auto got = golden_interop::read_tensors(folder / "adapter/adapter_model.safetensors");
  const auto want = golden_interop::read_tensors(c.folder / "adapter/adapter_model.safetensors");
  for (const auto& [name, tensor] : want) {
    c.check(got.contains(name) && got.at(name).equal(tensor), name + " is written otherwise");
  }
  c.check(got.size() == want.size(), "more tensors are written");
  const Json mine = golden_interop::read_json(folder / "adapter/adapter_config.json");
  const Json theirs = c.read("adapter/adapter_config.json");
  for (const auto& [key, value] : mine.object()) {
    const Json* other = theirs.find(key);
    const bool numbers = other != nullptr && other->is_number() && value.is_number();
    c.check(other != nullptr && (numbers ? other->number() == value.number() : *other == value),
            "adapter_config.json has another " + key);
  }
}

template <class M>
void run_class(const Case& c) {
  const auto io = c.io();
  const TemporaryFolder base;
  c.write_pretrained(base.path());
  M net = from_pretrained<M>(base.path().string());
  net->eval();
  const auto logits = [&] {
    const at::NoGradGuard no_grad;
    return net->forward(batch_of(io)).tensor();
  };
  near(c, "logits_base", logits(), io.at("logits_base"), of_logits);

  const tutti::LoRA lora = tutti::functional::load_lora(*net, (c.folder / "adapter").string());
  near(c, "logits_adapter", logits(), io.at("logits_adapter"), of_logits);
  const tutti::Batch batch = batch_of(io);
  const at::Tensor loss = net->loss(net->forward(batch), batch).total();
  c.number("loss", loss.template item<double>(), c.json["loss"].number(), 1e-5);
  loss.backward();
  check_gradients(c, *net);
  check_written(c, *net, lora);

  tutti::functional::merge_lora(*net);
  near(c, "logits_merged", logits(), io.at("logits_merged"), of_logits);
  tutti::functional::unload_lora(*net);
  near(c, "logits after unloading", logits(), io.at("logits_merged"), of_logits);
  golden_interop::Tensors merged;
  for (const auto& tensor : net->weight_layout().tensors) {
    merged.emplace(tensor.name, tensor.tensor);
  }
  const auto want = golden_interop::read_tensors(c.folder / "merged_tensors.safetensors");
  for (const auto& [name, tensor] : want) {
    c.check(merged.contains(name), "no tensor of the merged model is called " + name);
    if (merged.contains(name)) {
      near(c, name, merged.at(name), tensor, of_merged);
    }
  }
  for (const auto& [name, tensor] : c.weights()) {
    if (!want.contains(name) && merged.contains(name)) {
      c.check(merged.at(name).equal(tensor), name + " was changed by merging");
    }
  }
}

void run(const Case& c) {
  const std::string model = c.json["class"].string();
  if (model == "GPT2LMHeadModel") {
    run_class<GPT2LMHeadModel>(c);
  } else if (model == "BertForMaskedLM") {
    run_class<BertForMaskedLM>(c);
  } else if (model == "BertForSequenceClassification") {
    run_class<BertForSequenceClassification>(c);
  } else if (model == "LlamaForCausalLM" || model == "MistralForCausalLM" ||
             model == "Qwen2ForCausalLM" || model == "Qwen3ForCausalLM") {
    run_class<LlamaForCausalLM>(c);
  } else {
    throw golden_interop::Unmapped("no class is called " + model);
  }
}

const bool registered = golden_interop::register_kind("lora", run);

}  // namespace

}  // namespace UNITY_BUILD_UNIQUE_ID
