#include <tutti/callbacks/hugging_face_checkpointer.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/lora.hpp>
#include <tutti/callbacks/remote_uploader.hpp>
#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

static_assert(Callback<HuggingFaceCheckpointer>);

namespace {

// A network that stands in files with one weight transposed.
struct Written : tiny::Net {
  models::WeightLayout weight_layout() const {
    models::WeightLayout layout{.model = "Written"};
    layout.add("in.weight", in->weight.t());
    layout.add("in.bias", in->bias);
    layout.add_module("out.", *out);
    return layout;
  }
  models::PretrainedConfig config() const {
    return models::PretrainedConfig(
        tutti::detail::Json::Object{{"model_type", "written"}, {"kept", 1e-5}});
  }
};

std::shared_ptr<Written> written() {
  at::manual_seed(1);
  return std::make_shared<Written>();
}

TrainerOptions options(Time length = "6ba") {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

HuggingFaceCheckpointer checkpointer(const std::shared_ptr<Written>& net,
                                     const TemporaryFolder& folder) {
  return {.model = net, .folder = (folder / "{run_name}/hf").string(), .save_interval = "2ba"};
}

at::Tensor saved_weight(const fs::path& folder) {
  return checkpoint::WeightFiles::open(folder).find("in.weight")->view().clone();
}

}  // namespace

TEST_CASE("folders that Python reads are written at an interval and pointed to",
          "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  Trainer trainer(net, options(), checkpointer(net, folder));
  trainer.fit();
  const fs::path hf = folder / "calm-motet/hf";
  CHECK(sorted_names(hf) == Names{"ba2", "ba4", "ba6", "latest"});
  CHECK(fs::read_symlink(hf / "latest") == "ba6");
  CHECK(sorted_names(hf / "ba4") == Names{"config.json", "model.safetensors"});
  CHECK(saved_weight(hf / "ba6").equal(net->in->weight.t()));
  CHECK(!saved_weight(hf / "ba4").equal(net->in->weight.t()));
  const auto config = models::PretrainedConfig::read((hf / "ba6").string());
  CHECK(config.number("kept", 0) == 1e-5);
  CHECK(config.dtype() == at::kFloat);
  CHECK(trainer.get<HuggingFaceCheckpointer>().saved().size() == 3);
}

TEST_CASE("only the newest folders that this run wrote are kept", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const fs::path hf = folder / "calm-motet/hf";
  const auto net = written();
  models::save_pretrained(net, (hf / "mine").string());
  HuggingFaceCheckpointer keeping = checkpointer(net, folder);
  keeping.num_checkpoints_to_keep = 1;
  keeping.dtype = at::kBFloat16;
  keeping.max_shard_size = 100;
  Trainer(net, options(), keeping).fit();
  CHECK(sorted_names(hf) == Names{"ba6", "latest", "mine"});
  CHECK(fs::exists(hf / "ba6/model.safetensors.index.json"));
  CHECK(saved_weight(hf / "ba6").equal(net->in->weight.t().to(at::kBFloat16)));
}

TEST_CASE("a folder of another's of the same name is not replaced", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  models::save_pretrained(net, (folder / "calm-motet/hf/ba2").string());
  HuggingFaceCheckpointer own = checkpointer(net, folder);
  CHECK_THROWS_WITH(Trainer(net, options(), own).fit(), ContainsSubstring("ba2"));
  own.overwrite = true;
  CHECK_NOTHROW(Trainer(net, options(), own).fit());
}

TEST_CASE("a folder is written in the background with what the weights were then",
          "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto save = [&](bool async, const char* name) {
    const auto net = written();
    TrainerOptions how = options();
    how.save_async = async;
    HuggingFaceCheckpointer own = checkpointer(net, folder);
    own.folder = (folder / name).string();
    Trainer(net, how, own).fit();
    return saved_weight(folder / name / "ba4");
  };
  CHECK(save(true, "a").equal(save(false, "b")));
}

TEST_CASE("averaged weights are what is written", "[callbacks][hugging_face][ema]") {
  const TemporaryFolder folder;
  const auto net = written();
  Trainer trainer(net, options(), EMA{.smoothing = 0.9}, checkpointer(net, folder));
  trainer.fit();
  const auto averages = trainer.get<EMA>().averages();
  REQUIRE(!averages.empty());
  CHECK(averages.front().first == "in.weight");
  CHECK(saved_weight(folder / "calm-motet/hf/ba6").equal(averages.front().second.t()));

  const at::Tensor trained = net->in->weight.clone();
  models::save_pretrained(net, (folder / "trained").string());
  CHECK(saved_weight(folder / "trained").equal(trained.t()));
  functional::EMAParameters both(*net, trainer.get<EMA>().averages());
  both.swap();
  models::save_pretrained(net, (folder / "averaged").string());
  CHECK(saved_weight(folder / "averaged").equal(averages.front().second.t()));
  both.swap();
  CHECK(net->in->weight.equal(trained));
}

TEST_CASE("a resumed run goes on with the list of what it keeps", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto run = [&](Time length, bool resume) {
    const auto net = written();
    TrainerOptions how = options(length);
    how.save_folder = (folder / "own").string();
    how.save_interval = "2ba";
    how.autoresume = resume;
    HuggingFaceCheckpointer own = checkpointer(net, folder);
    own.num_checkpoints_to_keep = 2;
    Trainer(net, how, own).fit();
  };
  run("4ba", false);
  run("6ba", true);
  CHECK(sorted_names(folder / "calm-motet/hf") == Names{"ba4", "ba6", "latest"});
}

namespace {

models::LlamaForCausalLM llama() {
  at::manual_seed(4);
  return models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = 16,
                                                       .hidden_size = 8,
                                                       .intermediate_size = 12,
                                                       .num_hidden_layers = 1,
                                                       .num_attention_heads = 2,
                                                       .max_position_embeddings = 8});
}
models::GPT2LMHeadModel gpt2(bool tied, double dropout = 0) {
  at::manual_seed(4);
  return models::GPT2LMHeadModel(models::GPT2Options{.vocab_size = 16,
                                                     .n_positions = 8,
                                                     .n_embd = 8,
                                                     .n_layer = 1,
                                                     .n_head = 2,
                                                     .embd_pdrop = dropout,
                                                     .attn_pdrop = dropout,
                                                     .resid_pdrop = dropout,
                                                     .tie_word_embeddings = tied});
}

Batch texts() {
  const at::Tensor ids = at::arange(32).remainder(16).view({4, 8});
  return {{"input_ids", ids}, {"labels", ids}};
}

TrainerOptions text_options() {
  return {.train = std::vector<Batch>{texts()},
          .max_duration = "3ba",
          .optimizer = SGD{.lr = 0.5},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

template <class M>
at::Tensor logits(M& net) {
  const c10::AutoGradMode no_grad(false);
  net->eval();
  return net->forward(texts()).tensor();
}

// Adapters that matter: those that training begins with change nothing.
struct Shake final {
  static void apply(FitStart, State& state) {
    const c10::AutoGradMode no_grad(false);
    surgery::for_each<nn::LoraLayer>(*state.model, [](nn::LoraLayer& layer, const auto&) {
      layer.factor_a().normal_(0, 0.3);
      layer.factor_b().normal_(0, 0.3);
    });
  }
};

// Trains with a policy and a checkpointer; the last folder gives the logits that the model has, in
// double, where what differs is how its weights were added and not how a processor multiplies.
template <class M, class Policy>
void comes_back(M net, const Policy& policy, double tolerance) {
  const TemporaryFolder folder;
  const at::Tensor first = logits(net);
  net->train();
  Trainer trainer(net.ptr(), text_options(), policy, Shake{},
                  HuggingFaceCheckpointer{.model = net, .folder = (folder / "hf").string()});
  trainer.fit();
  M back = models::from_pretrained<M>((folder / "hf/latest").string());
  CHECK(!logits(net).allclose(first, 1e-4, 1e-5));
  net->to(at::kDouble);
  back->to(at::kDouble);
  const at::Tensor want = logits(net);
  const at::Tensor far = (logits(back) - want).abs().max();
  CHECK(far.item<double>() <= tolerance * want.abs().max().item<double>());
}

}  // namespace

TEST_CASE("a folder holds the sums of weights and adapters, and the run keeps them apart",
          "[callbacks][hugging_face][lora]") {
  comes_back(llama(), LoRA{.r = 2, .alpha = 8, .target_modules = {"q_proj", "down_proj"}}, 1e-6);
  comes_back(llama(), LoRA{.r = 2, .alpha = 8, .target_modules = "all-linear", .use_dora = true},
             1e-6);
  comes_back(gpt2(false),
             LoRA{.r = 2, .alpha = 8, .target_modules = {"c_attn", "wte"}, .bias = LoraBias::all},
             1e-6);
  comes_back(gpt2(true), LoRA{.r = 2, .alpha = 8, .target_modules = {"c_fc", "c_proj"}}, 1e-6);

  const TemporaryFolder folder;
  auto net = llama();
  const at::Tensor before = net->model->layer(0).self_attn->q_proj->weight.clone();
  const LoRA lora{.r = 2, .alpha = 8, .target_modules = {"q_proj"}};
  const auto run = [&](bool async) {
    TrainerOptions how = text_options();
    how.save_async = async;
    Trainer(net.ptr(), how, lora,
            HuggingFaceCheckpointer{.model = net,
                                    .folder = (folder / "hf").string(),
                                    .save_interval = "1ba",
                                    .overwrite = true})
        .fit();
  };
  run(true);
  CHECK(net->model->layer(0).self_attn->q_proj->weight.equal(before));
  CHECK(sorted_names(folder / "hf") == Names{"ba1", "ba2", "ba3", "latest"});
  CHECK(sorted_names(folder / "hf/ba3") == Names{"config.json", "model.safetensors"});
  const auto files = checkpoint::WeightFiles::open(folder / "hf/ba3");
  for (const auto& tensor : files.tensors()) {
    CHECK(tensor.name.find("lora") == std::string::npos);
    CHECK(tensor.name.find("base_layer") == std::string::npos);
  }
  // What the folder has is what merging makes, bit for bit.
  functional::merge_lora(*net);
  functional::unload_lora(*net);
  models::save_pretrained(net, (folder / "merged").string());
  const auto merged = checkpoint::WeightFiles::open(folder / "merged");
  REQUIRE(files.tensors().size() == merged.tensors().size());
  for (const auto& tensor : merged.tensors()) {
    CHECK(files.find(tensor.name)->view().equal(tensor.view()));
  }
}

TEST_CASE("adapters alone are written at an interval as PEFT's two files",
          "[callbacks][hugging_face][lora]") {
  const TemporaryFolder folder;
  const LoRA lora{.r = 2, .target_modules = {"q_proj", "v_proj"}};
  auto net = llama();
  const auto part = functional::lora_adapters(net.ptr(), lora);
  const HuggingFaceCheckpointer adapters{
      .model = part, .folder = (folder / "peft").string(), .save_interval = "1ba"};
  CHECK_THROWS_WITH(models::save_pretrained(part, (folder / "early").string()),
                    ContainsSubstring("no adapters to write"));
  const LocalObjectStore store{(folder / "remote").string()};
  Trainer(net.ptr(), text_options(), lora, adapters, RemoteUploader{.object_store = store}).fit();
  CHECK(sorted_names(folder / "peft") == Names{"ba1", "ba2", "ba3", "latest"});
  Names there = store.list_objects("");
  std::erase_if(
      there, [](const std::string& name) { return name.find("/peft/ba3/") == std::string::npos; });
  CHECK(there.size() == 2);
  CHECK(sorted_names(folder / "peft/ba3") ==
        Names{"adapter_config.json", "adapter_model.safetensors"});
  functional::save_lora(*net, lora, (folder / "by_hand").string());
  const auto same = [&](const fs::path& written) {
    const checkpoint::SafetensorsFile a(written / "adapter_model.safetensors");
    const checkpoint::SafetensorsFile b(folder / "by_hand/adapter_model.safetensors");
    REQUIRE(a.tensors().size() == b.tensors().size());
    bool equal = true;
    for (const auto& tensor : b.tensors()) {
      equal = equal && a.read(tensor.name).equal(b.read(tensor.name));
    }
    return equal;
  };
  CHECK(same(folder / "peft/ba3"));
  CHECK(!same(folder / "peft/ba1"));

  // Options of another adapter would make a config that is not true of the file.
  LoRA wrong = lora;
  wrong.alpha = 3;
  CHECK_THROWS_WITH(functional::save_lora(*net, wrong, (folder / "wrong").string()),
                    ContainsSubstring("give those that it was made with"));
  CHECK(!fs::exists(folder / "wrong"));
  CHECK_THROWS_WITH(part.weight_layout(), ContainsSubstring("only a part of one"));

  // In half the bytes, over what is there; a folder of other weights is not replaced.
  const std::string saved = (folder / "saved").string();
  models::save_pretrained(part, saved);
  CHECK(same(saved));
  models::save_pretrained(part, saved, {.dtype = at::kBFloat16, .overwrite = true});
  CHECK(checkpoint::SafetensorsFile(folder / "saved/adapter_model.safetensors")
            .tensors()
            .front()
            .dtype == at::kBFloat16);
  const auto whole = llama();
  models::save_pretrained(whole, (folder / "whole").string());
  CHECK_THROWS_WITH(models::save_pretrained(part, (folder / "whole").string(), {.overwrite = true}),
                    ContainsSubstring("has no adapter_config.json"));
}

TEST_CASE("a table that is also the head's matrix is not written with an adapter in it",
          "[callbacks][hugging_face][lora]") {
  const TemporaryFolder folder;
  auto net = gpt2(true);
  functional::apply_lora(*net, LoRA{.r = 2, .target_modules = {"wte"}});
  CHECK_THROWS_WITH(
      models::save_pretrained(net, (folder / "a").string(), {.merge_adapters = true}),
      ContainsSubstring("'transformer.wte.weight' has an adapter of LoRA and is 'lm_head.weight'"));
  CHECK(!fs::exists(folder / "a"));
}

TEST_CASE("a model that no folder can express is refused as the run begins",
          "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto refused = [&](auto policy, const char* why) {
    auto net = gpt2(true);
    const at::Tensor before = net->transformer->wte->weight.clone();
    const HuggingFaceCheckpointer own{.model = net, .folder = (folder / "hf").string()};
    CHECK_THROWS_WITH(Trainer(net.ptr(), text_options(), policy, own).fit(),
                      ContainsSubstring(why));
    CHECK(net->transformer->wte->weight.equal(before));
    CHECK_THROWS_WITH(models::save_pretrained(net, (folder / "saved").string()),
                      ContainsSubstring(why));
  };
  refused(ALiBi{.max_sequence_length = 8, .train_sequence_length_scaling = 1},
          "'transformer.h.0.attn' has the biases of ALiBi");
  auto net = llama();
  functional::apply_factorization(*net, {.min_features = 4, .latent_features = 2.0});
  CHECK_THROWS_WITH(models::save_pretrained(net, (folder / "saved").string()),
                    ContainsSubstring("was replaced by an algorithm"));
  CHECK(sorted_names(folder.path()) == Names{"hf"});
  CHECK(sorted_names(folder / "hf") == Names{});
  comes_back(gpt2(true, 0.1), GyroDropout{.p = 0.1, .sigma = 2, .tau = 1}, 1e-6);
}

TEST_CASE("the end of a run is saved whatever the interval is", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  HuggingFaceCheckpointer own = checkpointer(net, folder);
  own.save_interval = "4ba";
  Trainer(net, options(), own).fit();
  CHECK(sorted_names(folder / "calm-motet/hf") == Names{"ba4", "ba6", "latest"});
  const TemporaryFolder end;
  own = checkpointer(net, end);
  own.save_interval = "1dur";
  own.filename = "{run_name}-ba{batch}";
  Trainer(net, options("2ep"), own).fit();
  CHECK(sorted_names(end / "calm-motet/hf") == Names{"calm-motet-ba16", "latest"});
}

TEST_CASE("options that make no sense are refused", "[callbacks][hugging_face]") {
  const TemporaryFolder folder;
  const auto net = written();
  CHECK_THROWS_WITH(HuggingFaceCheckpointer{}.validate(),
                    ContainsSubstring("model is empty, expected the network"));
  HuggingFaceCheckpointer wrong = checkpointer(net, folder);
  wrong.filename = "a/b";
  CHECK_THROWS_WITH(wrong.validate(), ContainsSubstring("a name without slashes"));
  wrong = checkpointer(net, folder);
  wrong.num_checkpoints_to_keep = -2;
  CHECK_THROWS_AS(wrong.validate(), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
