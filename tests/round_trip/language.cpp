// Language models of Transformers and adapters of PEFT, fine-tuned here, and back: both compute the
// same logits from what tutti saves, and 20 steps have the losses that they have in PyTorch.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tutti/algorithms/lora.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
namespace functional = tutti::functional;
using models::from_pretrained;
using Tensors = std::map<std::string, at::Tensor>;

Tensors tensors(const std::filesystem::path& path) {
  const auto read = tutti::checkpoint::read_safetensors(path);
  return {read.begin(), read.end()};
}

tutti::Batch batch_of(const Tensors& io) {
  tutti::Batch batch;
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids", "labels"}) {
    if (io.contains(name)) {
      batch[name] = io.at(name);
    }
  }
  return batch;
}

// Those of tokens; padding has none that count.
template <class M>
at::Tensor logits(M& net, const Tensors& io) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor y = net->forward(batch_of(io)).tensor();
  return y.dim() == 3 ? y * io.at("attention_mask").unsqueeze(-1) : y;
}

void check_close(const at::Tensor& got, const at::Tensor& want) {
  const double worst = (got - want).abs().max().item<double>();
  CHECK(worst <= 5e-5 * want.abs().max().item<double>());
}

tutti::TrainerOptions options(const Tensors& io) {
  return {.train = std::vector<tutti::Batch>{batch_of(io)},
          .max_duration = tutti::Time(io.at("losses").size(0), tutti::TimeUnit::batch),
          .optimizer = tutti::AdamW{.lr = io.at("lr").item<double>()},
          .device = "cpu",
          .progress_bar = false};
}

void check_losses(const tutti::InMemoryLogger& logger, const at::Tensor& losses) {
  const auto& values = logger.data.find("loss/train/total")->second.values;
  REQUIRE(static_cast<std::int64_t>(values.size()) == losses.size(0));
  for (std::int64_t i = 0; i < losses.size(0); ++i) {
    const double want = losses[i].item<double>();
    INFO("step " << i);
    CHECK(std::abs(values[static_cast<std::size_t>(i)] - want) <= 1e-4 * want);
  }
}

template <class M>
void fine_tune(const std::filesystem::path& folder) {
  INFO(folder.filename().string());
  M net = from_pretrained<M>(folder.string());
  const Tensors io = tensors(folder / "io.safetensors");
  check_close(logits(net, io), io.at("logits"));
  tutti::Trainer trainer{net.ptr(), options(io), tutti::InMemoryLogger{}};
  trainer.fit();
  check_losses(trainer.template get<tutti::InMemoryLogger>(), io.at("losses"));
  const at::Tensor y = logits(net, io);
  CHECK_FALSE(at::allclose(y, io.at("logits"), 1e-2, 1e-2));
  models::save_pretrained(net, (folder / "saved").string());
  tutti::checkpoint::write_safetensors(folder / "tutti.safetensors", {{"logits", y}});
  M again = from_pretrained<M>((folder / "saved").string());
  CHECK(logits(again, io).equal(y));
}

// Gives new adapters the numbers of a file.
struct Start final {
  std::string folder;
  void apply(tutti::FitStart, tutti::State& state) const {
    functional::load_lora(*state.model, folder);
  }
};

// What Python has to compute from adapters written here, and from the model they are merged into.
struct Written {
  at::Tensor beside;
  at::Tensor merged;
};

// Writes the adapters of `net`, and merges them.
template <class M>
Written write(M& net, const tutti::LoRA& lora, const Tensors& io, const std::string& folder) {
  tutti::models::save_pretrained(functional::lora_adapters(net.ptr(), lora), folder);
  Written out{.beside = logits(net, io), .merged = {}};
  functional::merge_lora(*net);
  out.merged = logits(net, io);
  functional::unload_lora(*net);
  CHECK(logits(net, io).equal(out.merged));
  return out;
}

template <class M>
void adapt(const std::filesystem::path& folder, const std::optional<tutti::LoRA>& own = {}) {
  INFO(folder.filename().string());
  const Tensors io = tensors(folder / "io.safetensors");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const std::string base = path("base");

  M theirs = from_pretrained<M>(base);
  functional::load_lora(*theirs, path("trained"));
  check_close(logits(theirs, io), io.at("logits_trained"));
  functional::merge_lora(*theirs);
  functional::unload_lora(*theirs);
  check_close(logits(theirs, io), io.at("logits_merged"));

  const tutti::LoRA lora = functional::read_lora(path("start"));
  M net = from_pretrained<M>(base);
  functional::load_lora(*net, path("start"));
  check_close(logits(net, io), io.at("logits_start"));
  functional::unload_lora(*net);
  tutti::Trainer trainer{net.ptr(), options(io), lora, Start{path("start")},
                         tutti::InMemoryLogger{}};
  trainer.fit();
  check_losses(trainer.template get<tutti::InMemoryLogger>(), io.at("losses"));
  const Written saved = write(net, lora, io, path("saved"));
  models::save_pretrained(net, path("merged"));
  std::vector<tutti::checkpoint::NamedTensor> out{{"saved", saved.beside},
                                                  {"saved_merged", saved.merged}};

  if (own.has_value()) {
    M other = from_pretrained<M>(base);
    tutti::Trainer(other.ptr(), options(io), *own).fit();
    const Written made = write(other, *own, io, path("made_here"));
    CHECK_FALSE(at::allclose(made.beside, io.at("logits_start"), 1e-2, 1e-2));
    out.emplace_back("made_here", made.beside);
    out.emplace_back("made_here_merged", made.merged);
  }
  tutti::checkpoint::write_safetensors(folder / "tutti.safetensors", out);
}

// Whether the script did `what` in `folder`.
bool python_does(const std::string& python, const std::string& what,
                 const TemporaryFolder& folder) {
  const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/language.py";
  return std::system((python + " '" + script + "' " + what + " '" + folder.path().string() + "'")
                         .c_str()) == 0;
}

}  // namespace

TEST_CASE("language models are fine-tuned here and go on in Transformers",
          "[round_trip][language][python]") {
  const std::string modules = "torch, transformers, safetensors";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  REQUIRE(python_does(python, "make", folder));
  fine_tune<models::GPT2LMHeadModel>(folder / "gpt2");
  fine_tune<models::GPT2LMHeadModel>(folder / "gpt2_untied");
  fine_tune<models::BertForMaskedLM>(folder / "bert_masked");
  fine_tune<models::BertForSequenceClassification>(folder / "bert_classes");
  for (const char* name : {"llama", "llama_tied", "mistral", "qwen2", "qwen3"}) {
    fine_tune<models::LlamaForCausalLM>(folder / name);
  }
  CHECK(python_does(python, "check", folder));
}

TEST_CASE("adapters of LoRA and DoRA go to PEFT and come from there",
          "[round_trip][lora][python]") {
  const std::string modules = "torch, transformers, safetensors, peft";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  REQUIRE(python_does(python, "make_adapters", folder));
  const tutti::LoRA dora{.r = 4,
                         .alpha = 8,
                         .target_modules = {"q_proj", "gate_proj"},
                         .use_dora = true,
                         .task_type = "CAUSAL_LM"};
  adapt<models::LlamaForCausalLM>(folder / "llama", dora);
  for (const char* name : {"llama_all", "llama_tables", "mistral", "qwen2", "qwen3_dora"}) {
    adapt<models::LlamaForCausalLM>(folder / name);
  }
  adapt<models::GPT2LMHeadModel>(
      folder / "gpt2",
      tutti::LoRA{.r = 2, .alpha = 3, .target_modules = "all-linear", .task_type = "CAUSAL_LM"});
  adapt<models::GPT2LMHeadModel>(folder / "gpt2_dora");
  adapt<models::BertForSequenceClassification>(
      folder / "bert_classes", tutti::LoRA{.r = 3,
                                           .alpha = 6,
                                           .target_modules = {"query", "key", "dense"},
                                           .use_rslora = true,
                                           .task_type = "SEQ_CLS"});
  adapt<models::BertForMaskedLM>(folder / "bert_masked");
  CHECK(python_does(python, "check_adapters", folder));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
