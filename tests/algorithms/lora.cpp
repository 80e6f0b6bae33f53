#include <tutti/algorithms/lora.hpp>

#include "support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gated_linear_units.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/message.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using tutti::LoRA;
using tutti::LoraBias;
using tutti::functional::apply_lora;
using tutti::functional::load_lora;
using tutti::functional::read_lora;
using tutti::functional::save_lora;

static_assert(tutti::Algorithm<LoRA>);
static_assert(!tutti::detail::can_be_combined<LoRA, tutti::Factorize>);
static_assert(!tutti::detail::can_be_combined<LoRA, tutti::LayerFreezing>);
static_assert(!tutti::detail::can_be_combined<LoRA, tutti::GatedLinearUnits>);
static_assert(tutti::detail::can_be_combined<LoRA, tutti::EMA>);

struct AttentionImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return q_proj(x).tanh() * v_proj(x); }
  nn::Linear q_proj = register_module("q_proj", nn::Linear(6, 6));
  nn::Linear v_proj =
      register_module("v_proj", nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + c_fc(self_attn(norm(x))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  Attention self_attn = register_module("self_attn", Attention());
  nn::TransposedLinear c_fc = register_module("c_fc", nn::TransposedLinear(6, 6));
};
TORCH_MODULE(Block);

struct BaseImpl : torch::nn::Module {
  BaseImpl() {
    layers->push_back(Block());
    layers->push_back(Block());
  }
  nn::Embedding embed_tokens = register_module("embed_tokens", nn::Embedding(9, 6));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Base);

/// A small model of texts, with the names of a large one.
struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed = 1) {
    at::manual_seed(seed);
    torch::NoGradGuard no_grad;
    for (at::Tensor parameter : parameters()) {
      parameter.normal_(0, 0.5);
    }
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    at::Tensor x = model->embed_tokens(batch.inputs());
    for (std::size_t i = 0; i < model->layers->size(); ++i) {
      x = model->layers->at<BlockImpl>(i).forward(x);
    }
    return lm_head(x);
  }
  static tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) {
    return outputs.tensor().square().mean();
  }
  Base model = register_module("model", Base());
  nn::Linear lm_head =
      register_module("lm_head", nn::Linear(torch::nn::LinearOptions(6, 9).bias(false)));
};

const tutti::Batch& batch() {
  static const tutti::Batch one{{"input_ids", torch::tensor({{1, 2, 3, 4}, {5, 6, 7, 8}})}};
  return one;
}

at::Tensor logits(Net& net) {
  torch::NoGradGuard no_grad;
  return net.forward(batch()).tensor();
}

std::set<std::string> trained(torch::nn::Module& net) {
  std::set<std::string> out;
  for (const auto& parameter : net.named_parameters()) {
    if (parameter.value().requires_grad()) {
      out.insert(parameter.key());
    }
  }
  return out;
}

std::vector<std::string> names_of(torch::nn::Module& net) {
  std::vector<std::string> out;
  for (const auto& parameter : net.named_parameters()) {
    out.push_back(parameter.key());
  }
  return out;
}

std::vector<std::string> adapters(const LoRA& lora) {
  Net net;
  return apply_lora(net, lora).adapters;
}

using Names = std::vector<std::string>;

// Gives adapters numbers other than those they start with.
void randomize(Net& net, std::uint64_t seed) {
  at::manual_seed(seed);
  torch::NoGradGuard no_grad;
  for (at::Tensor parameter : net.parameters()) {
    if (parameter.requires_grad()) {
      parameter.normal_(0, 0.3);
    }
  }
}

}  // namespace

TEST_CASE("LoRA changes nothing at first, and trains the adapters alone", "[algorithms][lora]") {
  Net net;
  const at::Tensor before = logits(net);
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  const auto report =
      apply_lora(net, {.r = 2, .alpha = 4, .target_modules = {"q_proj", "c_fc"}}, optimizer);
  CHECK(report.adapters == Names{"model.layers.0.self_attn.q_proj", "model.layers.0.c_fc",
                                 "model.layers.1.self_attn.q_proj", "model.layers.1.c_fc"});
  CHECK(logits(net).equal(before));
  CHECK(trained(net) ==
        std::set<std::string>{
            "model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.layers.0.self_attn.q_proj.lora_B.weight", "model.layers.0.c_fc.lora_A.weight",
            "model.layers.0.c_fc.lora_B.weight", "model.layers.1.self_attn.q_proj.lora_A.weight",
            "model.layers.1.self_attn.q_proj.lora_B.weight", "model.layers.1.c_fc.lora_A.weight",
            "model.layers.1.c_fc.lora_B.weight"});
  CHECK(report.trainable_parameters == 4 * (2 * 6 + 6 * 2));
  CHECK(optimizer.param_groups().at(0).params().size() == 8);
  net.forward(batch()).tensor().sum().backward();
  for (const auto& parameter : net.named_parameters()) {
    CHECK(parameter.value().grad().defined() == parameter.value().requires_grad());
  }
  CHECK_THROWS_WITH(apply_lora(net, {.target_modules = {"q_proj"}}),
                    ContainsSubstring("has adapters already"));
}

TEST_CASE("a name in a list that no module has is warned of", "[algorithms][lora]") {
  const Warnings warnings;
  CHECK(adapters({.target_modules = {"q_proj", "v_porj"}}).size() == 2);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("names 'v_porj', and no module of the model"));
}

TEST_CASE("layers are chosen by PEFT's rules", "[algorithms][lora]") {
  const std::string q0 = "model.layers.0.self_attn.q_proj";
  const std::string q1 = "model.layers.1.self_attn.q_proj";
  const std::string v1 = "model.layers.1.self_attn.v_proj";
  CHECK(adapters({.target_modules = {"q_proj"}}) == Names{q0, q1});
  CHECK(adapters({.target_modules = {q1}}) == Names{q1});
  CHECK(adapters({.target_modules = R"(.*\.1\.self_attn\..*)"}) == Names{q1, v1});
  CHECK(adapters({.target_modules = {"q_proj"}, .exclude_modules = {q0}}) == Names{q1});
  CHECK(adapters({.target_modules = {"q_proj"}, .exclude_modules = R"(.*\.1\..*)"}) == Names{q0});
  CHECK(adapters({.target_modules = {"q_proj"}, .layers_to_transform = {1}}) == Names{q1});
  CHECK(adapters({.target_modules = {"q_proj", q0}, .layers_to_transform = {1}}) == Names{q0, q1});
  CHECK(adapters({.target_modules = {"q_proj"},
                  .layers_to_transform = {0},
                  .layers_pattern = {"blocks", "layers"}}) == Names{q0});
  CHECK(adapters({.target_modules = {"q_proj"},
                  .layers_to_transform = {1},
                  .layers_pattern = {"model.layers"}}) == Names{q1});
  CHECK_THROWS_WITH(
      adapters(
          {.target_modules = {"q_proj"}, .layers_to_transform = {0}, .layers_pattern = {"blocks"}}),
      ContainsSubstring("no layer of the model is chosen"));
  CHECK(adapters({.target_modules = "all-linear"}) == Names{q0, "model.layers.0.self_attn.v_proj",
                                                            "model.layers.0.c_fc", q1, v1,
                                                            "model.layers.1.c_fc"});
  CHECK(adapters({.target_modules = {"embed_tokens", "lm_head"}}) ==
        Names{"model.embed_tokens", "lm_head"});
  CHECK(adapters({.target_modules = {"q_proj", "lm_head"}, .modules_to_save = {"lm_head"}}) ==
        Names{q0, q1});
}

TEST_CASE("a choice of layers that cannot be meant is refused and changes nothing",
          "[algorithms][lora]") {
  CHECK_THROWS_WITH(adapters({.target_modules = {"query"}}),
                    ContainsSubstring("called: c_fc, embed_tokens, lm_head, q_proj, v_proj"));
  Net net;
  const Names before = names_of(net);
  CHECK_THROWS_WITH(apply_lora(net, {.target_modules = {"q_proj", "self_attn"}}),
                    ContainsSubstring("names model.layers.0.self_attn, which is"));
  CHECK(names_of(net) == before);
  CHECK(trained(net).size() == before.size());
}

TEST_CASE("layers that cannot be replaced are no reason to freeze the model",
          "[algorithms][lora]") {
  const auto net = tiny::net();  // of layers of LibTorch, which it calls itself
  const Names before = names_of(*net);
  CHECK_THROWS_WITH(
      apply_lora(*net, {.target_modules = {"in", "out"}}),
      ContainsSubstring("LoRA: none of the 2 chosen layers can get an adapter, such as in"));
  CHECK(names_of(*net) == before);
  CHECK(trained(*net).size() == before.size());
}

TEST_CASE("ranks and alphas go by the first pattern that matches", "[algorithms][lora]") {
  Net net;
  apply_lora(net, {.r = 4,
                   .alpha = 8,
                   .target_modules = {"q_proj", "v_proj"},
                   .rank_pattern = {{"layers.0.self_attn.q_proj", 2}, {"v_proj", 3}, {".*", 5}},
                   .alpha_pattern = {{R"(layers\.\d\.self_attn\.v_proj)", 12}}});
  std::vector<std::pair<std::int64_t, double>> found;
  tutti::surgery::for_each<nn::LoraLayer>(net, [&](nn::LoraLayer& layer, const auto&) {
    found.emplace_back(layer.lora_options().r, layer.lora_options().scaling);
  });
  CHECK(found == std::vector<std::pair<std::int64_t, double>>{{2, 4}, {3, 4}, {5, 1.6}, {3, 4}});
  Net other;
  apply_lora(other, {.r = 4, .alpha = 8, .target_modules = {"q_proj"}, .use_rslora = true});
  tutti::surgery::for_each<nn::LoraLayer>(
      other, [&](nn::LoraLayer& layer, const auto&) { CHECK(layer.lora_options().scaling == 4); });
}

TEST_CASE("biases and modules to save are trained with the adapters", "[algorithms][lora]") {
  const auto rest = [](const LoRA& lora) {
    Net net;
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    apply_lora(net, lora, optimizer);
    std::set<std::string> out = trained(net);
    CHECK(optimizer.param_groups().at(0).params().size() == out.size());
    std::erase_if(out, [](const std::string& name) { return name.find("lora_") != name.npos; });
    return out;
  };
  CHECK(rest({.target_modules = {"v_proj", "c_fc"}, .bias = LoraBias::lora_only}) ==
        std::set<std::string>{"model.layers.0.c_fc.base_layer.bias",
                              "model.layers.1.c_fc.base_layer.bias"});
  CHECK(rest({.target_modules = {"c_fc"}, .bias = LoraBias::all}) ==
        std::set<std::string>{"model.layers.0.c_fc.base_layer.bias", "model.layers.0.norm.bias",
                              "model.layers.0.self_attn.q_proj.bias",
                              "model.layers.1.c_fc.base_layer.bias", "model.layers.1.norm.bias",
                              "model.layers.1.self_attn.q_proj.bias"});
  CHECK(rest({.target_modules = {"c_fc"}, .modules_to_save = {"lm_head", "score"}}) ==
        std::set<std::string>{"lm_head.weight"});
  CHECK(rest({.target_modules = {"c_fc"}, .modules_to_save = {"head"}}) ==  // the end of a name
        std::set<std::string>{"lm_head.weight"});
  Net net;
  net.lm_head->weight.set_requires_grad(false);
  std::vector<at::Tensor> some;
  for (const at::Tensor& parameter : net.parameters()) {
    if (parameter.requires_grad()) {
      some.push_back(parameter);
    }
  }
  torch::optim::SGD optimizer(some, 0.1);
  CHECK_THROWS_WITH(
      apply_lora(net, {.target_modules = {"c_fc"}, .modules_to_save = {"lm_head"}}, optimizer),
      ContainsSubstring("lm_head.weight is to be trained, but no optimizer has it"));
}

TEST_CASE("merged adapters compute the same, and unloading gives the model its names back",
          "[algorithms][lora]") {
  for (const bool use_dora : {false, true}) {
    Net net;
    const Names before = names_of(net);
    const at::Tensor plain = logits(net);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    apply_lora(net,
               {.r = 2,
                .target_modules = {"q_proj", "c_fc", "embed_tokens", "lm_head"},
                .use_dora = use_dora},
               optimizer);
    randomize(net, 5);
    const at::Tensor y = logits(net);
    CHECK_FALSE(at::allclose(y, plain, 1e-2, 1e-2));
    CHECK(tutti::functional::merge_lora(net, /*keep_weights=*/true) == 6);
    CHECK(at::allclose(logits(net), y, 1e-4, 1e-5));
    CHECK(tutti::functional::unmerge_lora(net) == 6);
    CHECK(logits(net).equal(y));
    tutti::functional::merge_lora(net);
    CHECK(tutti::functional::unload_lora(net, optimizer) == 6);
    CHECK(names_of(net) == before);
    CHECK(trained(net).size() == before.size());
    CHECK(optimizer.param_groups().at(0).params().empty());
    CHECK(at::allclose(logits(net), y, 1e-4, 1e-5));
    apply_lora(net, {.target_modules = {"q_proj"}});  // again
    CHECK(tutti::functional::unload_lora(net) == 2);
    CHECK(at::allclose(logits(net), y, 1e-4, 1e-5));
  }
}

TEST_CASE("plain layers in a Sequential get adapters, and come back", "[algorithms][lora]") {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Tanh(), nn::Linear(4, 2));
  const at::Tensor x = at::randn({3, 4});
  const at::Tensor before = net->forward(x);
  apply_lora(*net, {.target_modules = {"0", "2"}});
  CHECK(trained(*net).size() == 4);
  CHECK(net->forward(x).equal(before));
  tutti::surgery::for_each<nn::LoraLayer>(*net, [&](nn::LoraLayer& layer, const auto&) {
    torch::NoGradGuard no_grad;
    layer.factor_b().fill_(0.5);
  });
  const at::Tensor y = net->forward(x);
  CHECK_FALSE(y.equal(before));
  tutti::functional::merge_lora(*net);
  CHECK(tutti::functional::unload_lora(*net) == 2);
  CHECK(at::allclose(net->forward(x), y, 1e-5, 1e-5));
  CHECK(names_of(*net) == Names{"0.weight", "0.bias", "2.weight", "2.bias"});
}

TEST_CASE("an adapter comes out of its two files as it went in", "[algorithms][lora]") {
  const LoRA lora{.r = 2,
                  .alpha = 5,
                  .target_modules = {"q_proj", "c_fc", "embed_tokens"},
                  .use_dora = true,
                  .bias = LoraBias::lora_only,
                  .modules_to_save = {"lm_head"},
                  .rank_pattern = {{"c_fc", 3}},
                  .alpha_pattern = {{"c_fc", 1.5}},
                  .task_type = "CAUSAL_LM"};
  Net net;
  apply_lora(net, lora);
  randomize(net, 7);
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "adapter").string();
  save_lora(net, lora, path);
  CHECK(sorted_names(path) == Names{"adapter_config.json", "adapter_model.safetensors"});
  std::set<std::string> names;
  const tutti::checkpoint::SafetensorsFile file(path + "/adapter_model.safetensors");
  for (const auto& tensor : file.tensors()) {
    names.insert(tensor.name);
  }
  std::set<std::string> expected{"base_model.model.lm_head.weight",
                                 "base_model.model.model.embed_tokens.base_layer.weight",
                                 "base_model.model.model.embed_tokens.lora_embedding_A",
                                 "base_model.model.model.embed_tokens.lora_embedding_B",
                                 "base_model.model.model.embed_tokens.lora_magnitude_vector"};
  for (const std::string layer : {"0", "1"}) {
    for (const std::string one : {"c_fc", "self_attn.q_proj"}) {
      for (const std::string end :
           {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector", "base_layer.bias"}) {
        expected.insert("base_model.model.model.layers." + layer + "." + one + "." + end);
      }
    }
  }
  CHECK(names == expected);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.read("base_model.model.model.layers.0.c_fc.lora_A.weight").sizes() ==
        at::IntArrayRef{3, 6});

  const LoRA read = read_lora(path);
  CHECK(read.r == 2);
  CHECK(read.alpha == 5);
  CHECK(read.target_modules == lora.target_modules);
  CHECK(read.use_dora);
  CHECK(read.bias == LoraBias::lora_only);
  CHECK(read.modules_to_save == lora.modules_to_save);
  CHECK(read.rank_pattern == lora.rank_pattern);
  CHECK(read.alpha_pattern == lora.alpha_pattern);
  CHECK(read.task_type == "CAUSAL_LM");
  const auto config = tutti::checkpoint::read_json(path + "/adapter_config.json");
  CHECK(config["fan_in_fan_out"].boolean());
  CHECK(config["lora_alpha"].integer() == 5);
  CHECK(config["peft_type"].string() == "LORA");

  Net fresh;
  load_lora(fresh, path);
  CHECK(logits(fresh).equal(logits(net)));
  CHECK(trained(fresh) == trained(net));
  randomize(fresh, 8);
  CHECK_FALSE(logits(fresh).equal(logits(net)));
  load_lora(fresh, path);  // into the adapters that there are
  CHECK(logits(fresh).equal(logits(net)));
  CHECK_THROWS_WITH(save_lora(net, lora, path), ContainsSubstring("adapter_config.json"));
  tutti::functional::merge_lora(net);
  CHECK_THROWS_WITH(save_lora(net, lora, (folder.path() / "merged").string()),
                    ContainsSubstring("merged"));
}

TEST_CASE("biases of the whole model are in the adapter's file under their own names",
          "[algorithms][lora]") {
  const LoRA lora{.target_modules = {"c_fc"}, .bias = LoraBias::all};
  Net net;
  apply_lora(net, lora);
  randomize(net, 3);
  const TemporaryFolder folder;
  save_lora(net, lora, folder.path().string());
  const tutti::checkpoint::SafetensorsFile file(folder.path() / "adapter_model.safetensors");
  CHECK(file.contains("base_model.model.model.layers.0.norm.bias"));
  CHECK(file.contains("base_model.model.model.layers.1.c_fc.base_layer.bias"));
  Net fresh;
  load_lora(fresh, folder.path().string());
  CHECK(logits(fresh).equal(logits(net)));
}

TEST_CASE("biases of saved modules are in the file as they are and as they were",
          "[algorithms][lora]") {
  const LoRA lora{.target_modules = {"c_fc"}, .bias = LoraBias::all, .modules_to_save = {"0.norm"}};
  Net net;
  const at::Tensor before = net.model->layers->at<BlockImpl>(0).norm->bias.detach().clone();
  apply_lora(net, lora);
  randomize(net, 3);
  const at::Tensor after = net.model->layers->at<BlockImpl>(0).norm->bias.detach().clone();
  const TemporaryFolder folder;
  save_lora(net, lora, folder.path().string());
  const tutti::checkpoint::SafetensorsFile file(folder.path() / "adapter_model.safetensors");
  const std::string norm = "base_model.model.model.layers.0.norm.";
  CHECK(file.read(norm + "bias").equal(after));
  CHECK(file.read(norm + "modules_to_save.bias").equal(after));
  CHECK(file.read(norm + "original_module.bias").equal(before));
  CHECK_FALSE(file.contains("base_model.model.model.layers.1.norm.original_module.bias"));

  std::vector<tutti::checkpoint::NamedTensor> others;  // as files of other versions have them
  for (const auto& one : file.tensors()) {
    if (one.name.find("modules_to_save") == std::string::npos &&
        one.name.find("original_module") == std::string::npos) {
      others.emplace_back(one.name, file.read(one.name));
    }
  }
  const TemporaryFolder old;
  std::filesystem::copy_file(folder / "adapter_config.json", old / "adapter_config.json");
  tutti::checkpoint::write_safetensors((old / "adapter_model.safetensors").string(), others);
  for (const auto& path : {folder.path().string(), old.path().string()}) {
    Net fresh;
    load_lora(fresh, path);
    CHECK(logits(fresh).equal(logits(net)));
  }
}

TEST_CASE("what adapter_config.json said is written again as it was said", "[algorithms][lora]") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "adapter_config.json")
      << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3.5, "target_modules": ["q_proj"],
             "layers_to_transform": 1, "layers_pattern": "layers", "inference_mode": false,
             "init_lora_weights": "gaussian", "peft_version": "0.21.2", "lora_dropout": 0.5})";
  LoRA lora = read_lora(folder.path().string());
  lora.lora_dropout = 0;
  Net net;
  apply_lora(net, lora);
  const TemporaryFolder out;
  save_lora(net, lora, (out / "adapter").string());
  const auto said = tutti::checkpoint::read_json((out / "adapter/adapter_config.json").string());
  CHECK(said["layers_to_transform"].integer() == 1);
  CHECK(said["layers_pattern"].string() == "layers");
  CHECK(said["init_lora_weights"].string() == "gaussian");
  CHECK(said["peft_version"].string() == "0.21.2");
  CHECK(said["lora_dropout"].number() == 0);
  CHECK(said["inference_mode"].boolean());
  CHECK_FALSE(said["use_dora"].boolean());
}

TEST_CASE("a model with adapters is no folder of weights until they are merged",
          "[algorithms][lora]") {
  const TemporaryFolder folder;
  tutti::models::GPT2LMHeadModel net(tutti::models::GPT2Options{
      .vocab_size = 16, .n_positions = 8, .n_embd = 8, .n_layer = 1, .n_head = 2});
  tutti::functional::apply_lora(*net, tutti::LoRA{.target_modules = {"c_attn"}});
  const std::string path = (folder / "model").string();
  CHECK_THROWS_WITH(tutti::models::save_pretrained(net, path),
                    ContainsSubstring("adapters of LoRA"));
  CHECK_FALSE(std::filesystem::exists(path));
  tutti::functional::merge_lora(*net);
  tutti::functional::unload_lora(*net);
  tutti::models::save_pretrained(net, path);
  CHECK(std::filesystem::exists(path + "/model.safetensors"));
}

TEST_CASE("an adapter for another model is refused, and nothing is changed", "[algorithms][lora]") {
  Net net;
  const LoRA lora{.r = 2, .target_modules = {"q_proj"}};
  apply_lora(net, lora);
  const TemporaryFolder folder;
  save_lora(net, lora, folder.path().string());
  struct Other : torch::nn::Module {
    AttentionImpl& attention() { return *self_attn; }
    Attention self_attn = register_module("self_attn", Attention());
    nn::Linear q_proj = register_module("q_proj", nn::Linear(3, 3));
  } other;
  const Names before = names_of(other);
  const std::string error = message([&] { load_lora(other, folder.path().string()); });
  CHECK_THAT(error, ContainsSubstring("4 missing (the model needs them, the file has not)"));
  CHECK_THAT(error, ContainsSubstring("base_model.model.q_proj.lora_A.weight"));
  CHECK_THAT(error, ContainsSubstring("4 unexpected"));
  CHECK_THAT(error, ContainsSubstring("Was it trained on another model?"));
  CHECK(names_of(other) == before);
  CHECK(trained(other).size() == before.size());
  Net wide;
  apply_lora(wide, {.r = 3, .target_modules = {"q_proj"}});
  const Names with = names_of(wide);
  CHECK_THAT(message([&] { load_lora(wide, folder.path().string()); }),
             ContainsSubstring("[2, 6] in the file, [3, 6] in the model"));
}

TEST_CASE("keys of adapter_config.json that change the computation are refused by name and value",
          "[algorithms][lora]") {
  const auto read = [](const std::string& rest) {
    const TemporaryFolder folder;
    std::ofstream(folder.path() / "adapter_config.json")
        << R"({"peft_type": "LORA", "target_modules": ["q_proj"])" << rest << "}";
    return read_lora(folder.path().string());
  };
  CHECK(read("").r == 8);
  CHECK(read(R"(, "layers_to_transform": 3, "layers_pattern": "h")").layers_to_transform ==
        std::vector<std::int64_t>{3});
  CHECK(read(R"(, "target_parameters": [], "loftq_config": {}, "use_qalora": false)").alpha == 8);
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "use_qalora": true)", "use_qalora is true"},
           {R"(, "layer_replication": [[0, 4]])", "layer_replication is [[0,4]]"},
           {R"(, "trainable_token_indices": [1])", "trainable_token_indices is [1]"},
           {R"(, "target_parameters": ["w"])", "target_parameters is [\"w\"]"},
           {R"(, "lora_bias": true)", "lora_bias is true"},
           {R"(, "alora_invocation_tokens": [5])", "alora_invocation_tokens is [5]"},
           {R"(, "use_bdlora": true)", "use_bdlora is true"},
           {R"(, "megatron_config": {"a": 1})", "megatron_config is {\"a\":1}"},
           {R"(, "init_lora_weights": "pissa")", "init_lora_weights is \"pissa\""},
           {R"(, "bias": "some")", "bias is \"some\""}}) {
    CHECK_THAT(message([&, &config = text] { read(config); }), ContainsSubstring(said));
  }
}

TEST_CASE("options of LoRA out of range are refused", "[algorithms][lora]") {
  const auto refused = [](const LoRA& lora) { return message([&] { lora.validate(); }); };
  CHECK_THAT(refused({}), ContainsSubstring("target_modules is empty"));
  CHECK_THAT(refused({.r = 0, .target_modules = {"q"}}), ContainsSubstring("r is 0"));
  CHECK_THAT(refused({.target_modules = {"q"}, .lora_dropout = 1}),
             ContainsSubstring("lora_dropout is 1"));
  CHECK_THAT(refused({.target_modules = "q", .layers_to_transform = {1}}),
             ContainsSubstring("target_modules is an expression"));
  CHECK_THAT(refused({.target_modules = {"q"}, .layers_pattern = {"h"}}),
             ContainsSubstring("layers_to_transform is not"));
  CHECK_THAT(refused({.target_modules = {"q"}, .rank_pattern = {{"q", 0}}}),
             ContainsSubstring("rank_pattern of q is 0"));
  CHECK_THAT(refused({.target_modules = {"q"}, .alpha_pattern = {{"(q", 1}}}),
             ContainsSubstring("a ( without its )"));
}

namespace {

tutti::TrainerOptions options(const TemporaryFolder* folder = nullptr) {
  tutti::TrainerOptions out;
  out.train = std::vector<tutti::Batch>(4, batch());
  out.max_duration = "2ep";
  out.optimizer = tutti::DecoupledAdamW{.lr = 0.05};
  out.seed = 3;
  if (folder != nullptr) {
    out.save_folder = folder->path().string();
    out.save_interval = "3ba";
  }
  return out;
}

const LoRA recipe{
    .r = 2, .alpha = 4, .target_modules = {"q_proj", "embed_tokens"}, .lora_dropout = 0.25};

}  // namespace

TEST_CASE("in a recipe the base stays as it is and the adapters learn", "[algorithms][lora]") {
  const auto net = std::make_shared<Net>();
  const Net same;
  tutti::Trainer trainer{net, options(), recipe};
  trainer.fit();
  CHECK(net->model->embed_tokens->weight.equal(same.model->embed_tokens->weight));
  CHECK(net->lm_head->weight.equal(same.lm_head->weight));
  std::int64_t learnt = 0;
  tutti::surgery::for_each<nn::LoraLayer>(*net, [&](nn::LoraLayer& layer, const auto&) {
    learnt += layer.delta().abs().max().item<double>() > 0;
  });
  CHECK(learnt == 3);
}

TEST_CASE("a checkpoint holds the adapters, and a run goes on from it bit for bit",
          "[algorithms][lora][resume]") {
  const TemporaryFolder folder;
  const auto whole = std::make_shared<Net>();
  tutti::Trainer straight{whole, options(&folder), recipe, tutti::EMA{.half_life = "2ba"}};
  straight.fit();
  const auto snapshot = tutti::checkpoint::read_snapshot(folder / "ep0-ba3", {});
  CHECK(snapshot.model.contains("model.embed_tokens.lora_embedding_A"));
  CHECK_FALSE(snapshot.model.contains("model.embed_tokens.base_layer.weight"));
  CHECK_FALSE(snapshot.model.contains("lm_head.weight"));

  const auto resume = [&](std::uint64_t seed) {
    const auto net = std::make_shared<Net>(seed);
    auto how = options();
    how.load_path = (folder / "ep0-ba3").string();
    tutti::Trainer trainer{net, how, recipe, tutti::EMA{.half_life = "2ba"}};
    trainer.fit();
    return tiny::flat(*net);
  };
  CHECK(resume(1).equal(tiny::flat(*whole)));
  CHECK_THROWS_WITH(resume(2), ContainsSubstring("frozen weights to the program, such as"));
  const auto fewer = [&] {
    auto how = options();
    how.load_path = (folder / "ep0-ba3").string();
    LoRA other = recipe;
    other.target_modules = {"q_proj"};
    tutti::Trainer trainer{std::make_shared<Net>(), how, other, tutti::EMA{.half_life = "2ba"}};
  };
  CHECK_THROWS_WITH(fewer(), ContainsSubstring("the checkpoint has 'model.embed_tokens.lora_") &&
                                 ContainsSubstring("choose the layers that have adapters"));
}

TEST_CASE("with save_base a checkpoint holds the whole model", "[algorithms][lora][resume]") {
  const TemporaryFolder folder;
  LoRA lora = recipe;
  lora.save_base = true;
  const auto whole = std::make_shared<Net>();
  tutti::Trainer straight{whole, options(&folder), lora};
  straight.fit();
  const auto other = std::make_shared<Net>(2);  // another base, which the checkpoint replaces
  auto how = options();
  how.load_path = (folder / "ep0-ba3").string();
  tutti::Trainer trainer{other, how, lora};
  trainer.fit();
  CHECK(tiny::flat(*other).equal(tiny::flat(*whole)));
}

namespace {

// Sees the adapters' types and that nothing else gets a gradient.
struct Gradients final {
  void apply(tutti::AfterTrainBatch, tutti::State& state) const {
    for (const auto& parameter : state.model->named_parameters()) {
      const bool of_adapter = parameter.key().find("lora_") != std::string::npos;
      INFO(parameter.key());
      CHECK(parameter.value().grad().defined() == of_adapter);
      CHECK(parameter.value().scalar_type() == at::kFloat);
    }
  }
};

const LoRA without_dropout{.r = 2, .alpha = 4, .target_modules = {"q_proj", "c_fc"}};

}  // namespace

TEST_CASE("adapters learn in microbatches as in whole batches", "[algorithms][lora]") {
  const auto train = [](std::int64_t microbatch) {
    const auto net = std::make_shared<Net>();
    auto how = options();
    how.optimizer = tutti::SGD{.lr = 0.05, .momentum = 0.9};
    how.device_train_microbatch_size = microbatch;
    tutti::Trainer trainer{net, how, without_dropout, Gradients{}};
    trainer.fit();
    return tiny::flat(*net);
  };
  const at::Tensor whole = train(2);
  CHECK_FALSE(whole.equal(tiny::flat(Net())));
  CHECK(train(1).allclose(whole, 1e-5, 1e-6));
}

TEST_CASE("adapters stay in float32 under AMP, and learn nearly what they learn without",
          "[algorithms][lora]") {
  const auto train = [](tutti::Precision precision, bool use_dora) {
    const auto net = std::make_shared<Net>();
    auto how = options();
    how.optimizer = tutti::SGD{.lr = 0.05, .momentum = 0.9};
    how.precision = precision;
    LoRA lora = without_dropout;
    lora.use_dora = use_dora;
    tutti::Trainer trainer{net, how, lora};
    trainer.fit();
    return tiny::flat(*net);
  };
  for (const bool use_dora : {false, true}) {
    const at::Tensor in_float = train(tutti::Precision::fp32, use_dora);
    const at::Tensor in_half = train(tutti::Precision::amp_bf16, use_dora);
    CHECK_FALSE(in_half.equal(in_float));
    CHECK(in_half.allclose(in_float, 2e-2, 2e-2));
  }
}

TEST_CASE("adapters learn beside EMA, and the base stays as it is", "[algorithms][lora]") {
  const auto net = std::make_shared<Net>();
  const Net same;
  tutti::Trainer trainer{net, options(), without_dropout, tutti::EMA{.half_life = "2ba"}};
  trainer.fit();
  CHECK(net->lm_head->weight.equal(same.lm_head->weight));
  CHECK(net->model->embed_tokens->weight.equal(same.model->embed_tokens->weight));
  std::int64_t learnt = 0;
  tutti::surgery::for_each<nn::LoraLayer>(*net, [&](nn::LoraLayer& layer, const auto&) {
    CHECK(layer.factor_b().isfinite().all().item<bool>());
    learnt += layer.delta().abs().max().item<double>() > 0;
  });
  CHECK(learnt == 4);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
