#include <tutti/models/auto_model.hpp>

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/models/vision_layout.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::models;
using Tensors = std::map<std::string, at::Tensor>;

namespace {

const tutti::Batch tokens(Tensors{{"input_ids", at::arange(3).unsqueeze(0)}});

std::string config_of(const TemporaryFolder& folder, const std::string& text) {
  write_bytes(folder / "config.json", text);
  return folder.path().string();
}

}  // namespace

TEST_CASE("a folder says which causal language model it is", "[models][pretrained]") {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  GPT2LMHeadModel gpt2(
      GPT2Options{.vocab_size = 11, .n_positions = 8, .n_embd = 8, .n_layer = 1, .n_head = 2});
  gpt2->eval();
  save_pretrained(gpt2, (folder / "gpt2").string());
  LlamaForCausalLM llama(LlamaOptions{.vocab_size = 11,
                                      .hidden_size = 8,
                                      .intermediate_size = 12,
                                      .num_hidden_layers = 1,
                                      .num_attention_heads = 2});
  llama->eval();
  save_pretrained(llama, (folder / "llama").string());
  const auto check = [&](const char* name, const at::Tensor& want) {
    const tutti::AnyModel model = auto_model_for_causal_lm((folder / name).string());
    model.module()->eval();
    const at::NoGradGuard no_grad;
    CHECK(model.forward(tokens).tensor().equal(want));
  };
  const at::NoGradGuard no_grad;
  check("gpt2", gpt2->forward(tokens).tensor());
  check("llama", llama->forward(tokens).tensor());
}

TEST_CASE("a pretrained BERT becomes a classifier of as many labels as are asked for",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  const BertForMaskedLM bert(BertOptions{.vocab_size = 11,
                                         .hidden_size = 8,
                                         .num_hidden_layers = 1,
                                         .num_attention_heads = 2,
                                         .intermediate_size = 12,
                                         .max_position_embeddings = 8});
  const std::string path = (folder / "bert").string();
  save_pretrained(bert, path);
  const at::NoGradGuard no_grad;
  CHECK(auto_model_for_masked_lm(path).forward(tokens).tensor().sizes() ==
        at::IntArrayRef{1, 3, 11});
  CHECK_THROWS_WITH(auto_model_for_sequence_classification(path),
                    ContainsSubstring("classifier.weight"));
  PretrainedReport report;
  const auto model = auto_model_for_sequence_classification(
      path, {.allow_new_heads = true,
             .edit_config = [](PretrainedConfig& config) { config.set("num_labels", 5); },
             .report = &report});
  CHECK(model.forward(tokens).tensor().sizes() == at::IntArrayRef{1, 5});
  CHECK(report.initialised.size() == 4);  // the pooler and the classifier
  CHECK(!report.left_out.empty());        // what fills in masked tokens
}

TEST_CASE("a classifier of images comes from the folder of any of the three libraries",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  const at::Tensor x = at::randn({2, 3, 32, 32});
  ResNet resnet(ResNetOptions{
      .layers = {1, 1, 1, 1}, .widths = {4, 4, 8, 8}, .num_classes = 5, .stem_width = 64});
  resnet->eval();
  const at::NoGradGuard no_grad;
  for (const VisionLayout layout : {VisionLayout::timm, VisionLayout::huggingface}) {
    INFO(to_string(layout));
    resnet->set_layout(layout);
    const std::string path = (folder / std::string(to_string(layout))).string();
    save_pretrained(resnet, path);
    const auto model = auto_model_for_image_classification(path);
    model.module()->eval();
    CHECK(model.forward(tutti::Batch(x)).tensor().allclose(resnet->forward(x), 1e-5, 1e-6));
  }
}

TEST_CASE("a type that no class here is of is refused by its name", "[models][pretrained]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(auto_model_for_causal_lm(config_of(folder, R"({"model_type": "mamba"})")),
                    ContainsSubstring("config.json': model_type is \"mamba\", of which there is no "
                                      "causal language model; expected \"gpt2\", \"llama\""));
  CHECK_THROWS_WITH(auto_model_for_masked_lm(config_of(folder, R"({"model_type": "gpt2"})")),
                    ContainsSubstring("model_type is \"gpt2\"") && ContainsSubstring("\"bert\""));
  CHECK_THROWS_WITH(auto_model_for_sequence_classification(config_of(folder, "{}")),
                    ContainsSubstring("model_type is absent"));
  CHECK_THROWS_AS(auto_model_for_image_classification(config_of(folder, R"({"model_type": "x"})")),
                  c10::Error);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
