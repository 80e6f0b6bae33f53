#include <tutti/models/from_pretrained.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/nn/deferred_init.hpp>

#include "models/tiny_pretrained.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::models;
using tutti::checkpoint::write_safetensors;
using Tensors = std::map<std::string, at::Tensor>;
using Names = std::vector<std::string>;

namespace {

// What a file of Tiny has, under today's names.
Tensors weights() {
  return {{"base.table.weight", at::arange(15, at::kFloat).reshape({5, 3})},
          {"base.mix.weight", at::arange(6, at::kFloat).reshape({3, 2})},
          {"base.LayerNorm.weight", at::full({3}, 2.0)},
          {"base.LayerNorm.bias", at::full({3}, 3.0)},
          {"base.count", at::full({}, 9, at::kLong)},
          {"classifier.weight", at::full({2, 3}, 4.0)},
          {"classifier.bias", at::full({2}, 5.0)}};
}

void write(const TemporaryFolder& folder, const Tensors& tensors,
           const std::string& config = R"({"model_type": "tiny", "width": 3, "seed": 7})") {
  std::filesystem::remove(folder / "model.safetensors");
  write_safetensors(folder / "model.safetensors", {tensors.begin(), tensors.end()});
  write_bytes(folder / "config.json", config);
}

Tiny load(const TemporaryFolder& folder, FromPretrainedOptions options = {},
          PretrainedReport* report = nullptr) {
  options.report = report;
  return from_pretrained<Tiny>(folder.path().string(), options);
}

// The message with which a file is refused.
std::string says(const TemporaryFolder& folder, const Tensors& tensors,
                 const FromPretrainedOptions& options = {}) {
  write(folder, tensors);
  try {
    load(folder, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

void check_values(Tiny& net) {
  const Tensors want = weights();
  CHECK(net->table.equal(want.at("base.table.weight")));
  CHECK(net->mix->weight.equal(want.at("base.mix.weight").t()));
  CHECK(net->norm->weight.equal(want.at("base.LayerNorm.weight")));
  CHECK(net->norm->bias.equal(want.at("base.LayerNorm.bias")));
  CHECK(net->count.item<int>() == 9);
  CHECK(net->classifier->weight.equal(want.at("classifier.weight")));
}

// The tensors under other names.
Tensors renamed(const std::function<std::string(const std::string&)>& name) {
  Tensors out;
  for (const auto& [old, tensor] : weights()) {
    out[name(old)] = tensor;
  }
  return out;
}

}  // namespace

TEST_CASE("a model is made by its config and has the values of its file", "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, weights());
  PretrainedReport report;
  Tiny net = load(folder, {}, &report);
  check_values(net);
  CHECK(net->table.requires_grad());
  CHECK(net->is_training());
  CHECK(report.taken.size() == 7);
  CHECK(report.renamed.empty());
  CHECK(net->config().integer("seed") == 7);
  CHECK_THAT(report.text(), ContainsSubstring("TinyForSequenceClassification from '") &&
                                ContainsSubstring("model.safetensors': 7 tensors"));
}

TEST_CASE("names of the base model and of old versions are found", "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, renamed([](std::string name) {
          if (name.starts_with("base.")) {
            name.erase(0, 5);
          }
          const std::size_t weight = name.find("LayerNorm.weight");
          return weight == std::string::npos ? name : "LayerNorm.gamma";
        }));
  PretrainedReport report;
  Tiny net = load(folder, {}, &report);
  check_values(net);
  CHECK(report.renamed.size() == 5);
  CHECK_THAT(report.text(), ContainsSubstring("LayerNorm.gamma -> base.LayerNorm.weight"));
}

TEST_CASE("gamma is an old name only behind LayerNorm", "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["base.ls1.gamma"] = at::ones({3});
  CHECK_THAT(says(folder, file),
             ContainsSubstring("1 unexpected") && ContainsSubstring("base.ls1.gamma"));
}

TEST_CASE("a base model reads a file of a model with heads", "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, weights());
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({3}));
  WeightLayout layout{.model = "LayerNorm",
                      .base_prefix = "base.",
                      .left_out = {"classifier.*", "table.*", "mix.*", "count"}};
  layout.add_module("LayerNorm.", *norm);
  const PretrainedReport report = load_pretrained(layout, folder.path().string());
  CHECK(norm->weight.equal(at::full({3}, 2.0)));
  CHECK(report.left_out.size() == 5);
}

TEST_CASE("constants that old versions wrote are passed over, and heads that the model lacks noted",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["base.h.0.attn.bias"] = at::ones({1, 1, 4, 4});
  file["base.h.0.attn.masked_bias"] = at::tensor(-1e4);
  file["base.embeddings.position_ids"] = at::arange(4);
  file["base.layers.0.rotary_emb.inv_freq"] = at::ones({2});
  file["extra.weight"] = at::ones({2});
  write(folder, file);
  PretrainedReport report;
  Tiny net = load(folder, {}, &report);
  check_values(net);
  CHECK(report.ignored.size() == 4);
  CHECK(report.left_out == Names{"extra.weight"});
  CHECK_THAT(report.text(), ContainsSubstring("1 left out") && ContainsSubstring("extra.weight") &&
                                !ContainsSubstring("inv_freq"));
  file["base.h.0.attn.bias"] = at::ones({12});  // a bias, not a mask
  file["base.h.0.c_attn.bias"] = at::ones({1, 1, 4, 4});
  CHECK_THAT(says(folder, file), ContainsSubstring("2 unexpected"));
}

TEST_CASE("a tied weight may be absent, equal, or alone; another value is refused",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  const at::Tensor table = file.at("base.table.weight");
  file["lm_head.weight"] = table.clone();
  write(folder, file);
  PretrainedReport report;
  Tiny net = load(folder, {}, &report);
  check_values(net);
  CHECK(report.renamed.empty());
  file.erase("base.table.weight");
  write(folder, file);
  Tiny alone = load(folder, {}, &report);
  check_values(alone);
  CHECK(report.renamed.size() == 1);
  file["base.table.weight"] = table + 1;
  CHECK_THAT(says(folder, file),
             ContainsSubstring("lm_head.weight: tied to base.table.weight in the model, other "
                               "values in the file"));
  file["base.table.weight"] = table.to(at::kDouble) + 1e-9;  // that float32 has not
  CHECK_THAT(says(folder, file), ContainsSubstring("other values in the file"));
  file["base.table.weight"] = table.to(at::kInt);
  CHECK_THAT(says(folder, file), ContainsSubstring("other values in the file"));
}

TEST_CASE("a tied weight may be twice in types that hold the same values", "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  const at::Tensor table = file.at("base.table.weight");
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    file["lm_head.weight"] = table.to(type);
    write(folder, file);
    Tiny net = load(folder);
    check_values(net);
  }
}

TEST_CASE("what is missing, unexpected or different is listed, with both sides, and nothing loaded",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file.erase("base.table.weight");
  file["base.tabel.weight"] = at::ones({5, 3});
  file["base.mix.weight"] = at::ones({2, 3});
  file["base.LayerNorm.bias"] = at::ones({3}, at::kChar);
  const std::string words = says(folder, file);
  CHECK_THAT(words, ContainsSubstring("do not fit TinyForSequenceClassification"));
  CHECK_THAT(words, ContainsSubstring("1 missing (the model has them, the file has not):\n    "
                                      "base.table.weight"));
  CHECK_THAT(words, ContainsSubstring("1 unexpected (the file has them, the model has not):\n    "
                                      "base.tabel.weight"));
  CHECK_THAT(words, ContainsSubstring("base.mix.weight: shape [2, 3] in the file, [3, 2] in the"));
  CHECK_THAT(words, ContainsSubstring("base.LayerNorm.bias: type Char in the file, Float in the"));

  Tiny net;
  const at::Tensor before = net->norm->weight.clone();
  CHECK_THROWS_AS(load_pretrained(net->weight_layout(), folder.path().string()), c10::Error);
  CHECK(net->norm->weight.equal(before));
  CHECK(net->count.item<int>() == 0);
}

TEST_CASE("after a load that fails the model is as it was, bit for bit", "[models][pretrained]") {
  const TemporaryFolder folder;
  const Tensors good = weights();
  Tiny net;
  net->count.fill_(4);
  const auto state = [&] {
    Tensors out;
    for (const auto& tensor : net->named_parameters()) {
      out[tensor.key()] = tensor.value().detach().clone();
    }
    out["count"] = net->count.clone();
    return out;
  };
  const Tensors before = state();
  std::set<std::string> sentences;
  const auto refused = [&](const char* what, const std::function<void()>& make,
                           const std::string& why) {
    INFO(what);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      std::filesystem::remove(entry.path());
    }
    make();
    std::string said = "nothing";
    try {
      load_pretrained(net->weight_layout(), folder.path().string());
    } catch (const c10::Error& error) {
      said = error.what_without_backtrace();
    }
    CHECK_THAT(said, ContainsSubstring(why));
    CHECK(sentences.insert(why).second);
    for (const auto& [name, tensor] : state()) {
      CHECK(std::memcmp(tensor.data_ptr(), before.at(name).data_ptr(), tensor.nbytes()) == 0);
    }
  };
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    return [&, name, tensor] {
      Tensors changed = good;
      changed[name] = tensor;
      write(folder, changed);
    };
  };
  const auto sharded = [&] {
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    write_safetensors(folder / first, {{"base.table.weight", good.at("base.table.weight")}});
    Tensors rest = good;
    rest.erase("base.table.weight");
    write_safetensors(folder / second, {rest.begin(), rest.end()});
    std::string map = "\"base.table.weight\": \"" + first + "\"";
    for (const auto& [name, tensor] : rest) {
      map += ", \"" + name + "\": \"" + second + "\"";
    }
    write_bytes(folder / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}\n");
  };
  refused("an empty folder", [] {}, "has nothing, expected weights");
  refused(
      "a shard that is missing",
      [&] {
        sharded();
        std::filesystem::remove(folder / "model-00002-of-00002.safetensors");
      },
      "model-00002-of-00002.safetensors");
  refused(
      "a shard with a tensor that the index does not list",
      [&] {
        sharded();
        std::filesystem::remove(folder / "model-00001-of-00002.safetensors");
        write_safetensors(folder / "model-00001-of-00002.safetensors",
                          {{"base.other", at::ones({1})}});
      },
      "has the tensor 'base.other'");
  refused(
      "a truncated file",
      [&] {
        write(folder, good);
        const auto file = folder / "model.safetensors";
        std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
      },
      "bytes");
  refused(
      "a header that is cut off",
      [&] {
        write(folder, good);
        std::filesystem::resize_file(folder / "model.safetensors", 20);
      },
      "header");
  refused("a wrong shape", with("base.LayerNorm.bias", at::zeros({4})),
          "base.LayerNorm.bias: shape [4] in the file, [3] in the model");
  refused("a wrong type", with("base.LayerNorm.bias", at::zeros({3}, at::kInt)),
          "base.LayerNorm.bias: type Int in the file, Float in the model");
  refused("a tie that differs", with("lm_head.weight", at::zeros({5, 3})),
          "lm_head.weight: tied to base.table.weight");
  refused("a tensor of another model", with("base.more.weight", at::zeros({1})),
          "base.more.weight");
  refused(
      "an adapter",
      [&] {
        write_safetensors(folder / "adapter_model.safetensors",
                          {{"base_model.model.q.lora_A.weight", at::ones({1, 2})}});
      },
      "adapter_model.safetensors");
  Tensors fewer = good;
  fewer.erase("base.mix.weight");
  refused("a tensor that is missing", [&] { write(folder, fewer); }, "base.mix.weight");
}

TEST_CASE("two names in the file for one tensor are refused", "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["base.LayerNorm.gamma"] = at::ones({3});
  CHECK_THAT(says(folder, file), ContainsSubstring("base.LayerNorm.weight: the file has it twice"));
}

TEST_CASE("a file of another architecture is refused by the tensor that says so",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["base.q_norm.weight"] = at::ones({3});
  file.erase("base.table.weight");
  CHECK_THAT(says(folder, file),
             ContainsSubstring("'base.q_norm.weight' in '") &&
                 ContainsSubstring("': normalised queries are another architecture"));
}

TEST_CASE("a head that the file lacks is new when that is allowed, and reported",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file.erase("classifier.weight");
  file.erase("classifier.bias");
  CHECK_THAT(says(folder, file), ContainsSubstring("2 missing") &&
                                     ContainsSubstring("made freshly with allow_new_heads"));
  PretrainedReport report;
  torch::manual_seed(1);
  Tiny net = load(folder, {.allow_new_heads = true}, &report);
  CHECK(report.initialised == Names{"classifier.weight", "classifier.bias"});
  CHECK(net->norm->weight.equal(at::full({3}, 2.0)));
  CHECK(net->classifier->weight.abs().max().item<float>() <= 0.5775F);  // U(+-1/sqrt(3))
  CHECK(net->classifier->weight.std().item<float>() > 0.01F);
  file.erase("base.table.weight");
  CHECK_THAT(says(folder, file, {.allow_new_heads = true}), ContainsSubstring("1 missing"));
}

TEST_CASE("a head of another size is new when that is allowed", "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, weights());
  const auto five = [](PretrainedConfig& config) { config.set("num_labels", 5); };
  PretrainedReport report;
  CHECK_THROWS_WITH(load(folder, {.edit_config = five}),
                    ContainsSubstring("classifier.weight: shape [2, 3] in the file, [5, 3]"));
  Tiny net = load(folder, {.ignore_mismatched_sizes = true, .edit_config = five}, &report);
  CHECK(net->classifier->weight.sizes() == at::IntArrayRef{5, 3});
  CHECK(report.initialised.size() == 2);
  CHECK(net->config().integer("num_labels") == 5);
}

TEST_CASE(
    "a report says which heads the file has in another size, and an error how to have new ones",
    "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["classifier.weight"] = at::ones({7, 3});
  file.erase("classifier.bias");
  const std::string words = says(folder, file);
  CHECK_THAT(words, ContainsSubstring("made freshly with allow_new_heads"));
  CHECK_THAT(words, ContainsSubstring("another size is made freshly with ignore_mismatched_sizes"));
  PretrainedReport report;
  load(folder, {.allow_new_heads = true, .ignore_mismatched_sizes = true}, &report);
  CHECK(report.initialised == Names{"classifier.weight", "classifier.bias"});
  CHECK(report.resized == Names{"classifier.weight"});
  CHECK_THAT(
      report.text(),
      ContainsSubstring("1 freshly initialised (the file lacks them):\n    classifier.bias"));
  CHECK_THAT(report.text(), ContainsSubstring("1 freshly initialised (the file has them in another "
                                              "size):\n    classifier.weight"));
}

TEST_CASE("what wrappers put before all names is taken off", "[models][pretrained]") {
  const TemporaryFolder folder;
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    write(folder, renamed([&](const std::string& name) { return prefix + name; }));
    Tiny net = load(folder);
    check_values(net);
  }
  Tensors file = renamed([](const std::string& name) { return "module." + name; });
  file["count"] = at::ones({});
  CHECK_THAT(says(folder, file), ContainsSubstring("module.base.count"));
}

TEST_CASE("a file that is no download and a folder that is a checkpoint are called so",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  for (const char* name : {"model.safetensors", "model.pth"}) {
    write_bytes(folder / name, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
    const Tiny net;
    CHECK_THROWS_WITH(load_pretrained(net->weight_layout(), (folder / name).string()),
                      ContainsSubstring(name) && ContainsSubstring("is a pointer of Git LFS") &&
                          ContainsSubstring("run git lfs pull"));
  }
  write_bytes(folder / "manifest.json", "{}");
  CHECK_THROWS_WITH(load(folder), ContainsSubstring("is a checkpoint of a trainer (it has a "
                                                    "manifest.json), which has no config.json"));
}

TEST_CASE("a key that edit_config sets and nobody reads is refused by its name",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, weights(),
        R"({"model_type": "tiny", "width": 3, "num_labels": 2, "note": "a", "label2id": {}})");
  const auto edited = [&](const char* key, const tutti::detail::Json& value) {
    return load(folder, {.edit_config = [&](PretrainedConfig& c) { c.set(key, value); }});
  };
  CHECK_THROWS_WITH(edited("num_lables", 5),
                    ContainsSubstring("config.json': edit_config sets num_lables to 5, which "
                                      "TinyForSequenceClassification does not read, so that it "
                                      "would have no effect; expected a key that such a"));
  CHECK_THROWS_WITH(edited("note", "b"), ContainsSubstring("edit_config sets note to \"b\""));
  CHECK(edited("note", "a")->config().text("note", "") == "a");
  CHECK(edited("width", 3)->config().integer("width") == 3);
  CHECK_FALSE(edited("use_cache", false)->config().flag("use_cache", true));
  CHECK(edited("bos_token_id", 1)->config().integer("bos_token_id") == 1);
  load(folder, {.edit_config = [](PretrainedConfig& c) { c.erase("note"); }});
}

TEST_CASE("what is new without anybody asking for the report is a warning",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file.erase("classifier.bias");
  write(folder, file);
  const Warnings warnings;
  load(folder, {.allow_new_heads = true});
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts.front(), ContainsSubstring("1 freshly initialised"));
}

TEST_CASE("types are converted to the model's", "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  for (auto& [name, tensor] : file) {
    tensor = tensor.is_floating_point() ? tensor.to(at::kBFloat16) : tensor.to(at::kInt);
  }
  write(folder, file);
  Tiny net = load(folder);
  CHECK(net->table.scalar_type() == at::kFloat);
  check_values(net);
  Tiny half = load(folder, {.dtype = at::kHalf});
  CHECK(half->table.scalar_type() == at::kHalf);
  CHECK(half->count.scalar_type() == at::kLong);
  CHECK(half->table.equal(weights().at("base.table.weight").to(at::kHalf)));
}

TEST_CASE("a tensor of another shape is adapted where the layout says how",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  Tensors file = weights();
  file["base.table.weight"] = at::ones({2, 3});
  write(folder, file);
  Tiny net;
  WeightLayout layout = net->weight_layout();
  layout.tensors.front().adapt = [](const at::Tensor& from_file) {
    return from_file.sum() + at::zeros({5, 3});
  };
  const PretrainedReport report = load_pretrained(layout, folder.path().string());
  CHECK(net->table.equal(at::full({5, 3}, 6.0)));
  CHECK(report.adapted == Names{"base.table.weight"});
}

TEST_CASE("a layout that forgets a parameter or has a name twice is refused",
          "[models][pretrained]") {
  Tiny net;
  WeightLayout layout = net->weight_layout();
  CHECK_NOTHROW(tutti::models::detail::check_covers(layout, *net));
  layout.tensors.erase(layout.tensors.begin() + 1);
  CHECK_THROWS_WITH(tutti::models::detail::check_covers(layout, *net),
                    ContainsSubstring("lacks the parameter 'mix.weight'"));
  const TemporaryFolder folder;
  write(folder, weights());
  layout = net->weight_layout();
  layout.tensors.push_back(layout.tensors.front());
  CHECK_THROWS_WITH(load_pretrained(layout, folder.path().string()),
                    ContainsSubstring("has two tensors 'base.table.weight'"));
}

TEST_CASE("parameters that a file fills are not drawn first", "[models][pretrained]") {
  torch::manual_seed(3);
  const at::Tensor expected = at::randn({4});
  torch::manual_seed(3);
  at::Tensor untouched = at::full({100}, 7.0);
  {
    const tutti::detail::WithoutDraws raw;
    untouched.normal_();
    untouched.uniform_(0, 1);
    CHECK(untouched.eq(7).all().item<bool>());
    CHECK(at::ones({3}).add(1).sum().item<float>() == 6);  // all else computes
    const torch::nn::Linear linear(2, 2);
    CHECK(linear->weight.requires_grad());
  }
  CHECK(at::randn({4}).equal(expected));  // and no random number was used
  untouched.normal_();
  CHECK(!untouched.eq(7).any().item<bool>());
}

TEST_CASE("weights of a folder may wait until the model has memory", "[models][pretrained]") {
  const TemporaryFolder folder;
  write(folder, weights());
  const bool inside = GENERATE(true, false);
  Tiny net{nullptr};
  if (inside) {
    net = tutti::nn::deferred_init([&] { return load(folder); });
  } else {
    net = tutti::nn::deferred_init([] { return Tiny(TinyOptions{}); });
    load_pretrained(net->weight_layout(), folder.path().string());
  }
  CHECK(tutti::nn::is_deferred(*net));
  tutti::nn::materialize(*net);
  check_values(net);

  // A head that the file lacks has the values that it has without deferred_init().
  Tensors headless = weights();
  headless.erase("classifier.weight");
  headless.erase("classifier.bias");
  write(folder, headless);
  const auto build = [&] {
    PretrainedReport report;
    return load(folder, {.allow_new_heads = true}, &report);
  };
  torch::manual_seed(4);
  const Tiny expected = build();
  torch::manual_seed(4);
  Tiny drawn = tutti::nn::deferred_init(build);
  tutti::nn::materialize(*drawn);
  CHECK(drawn->classifier->weight.equal(expected->classifier->weight));
  CHECK(drawn->table.equal(expected->table));
}

TEST_CASE("a config of another model is refused before the weights are looked at",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", R"({"model_type": "huge", "width": 3})");
  CHECK_THROWS_WITH(load(folder), ContainsSubstring("has config.json, expected weights") ||
                                      ContainsSubstring("model_type is \"huge\""));
  write(folder, weights(), R"({"model_type": "huge", "width": 3})");
  CHECK_THROWS_WITH(load(folder), ContainsSubstring("model_type is \"huge\""));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
