// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a language model on prompts and answers by LoRA, and writes adapters and merged model.
//
// Run it:    finetune_llm --model FOLDER --data train.jsonl [--eval-data test.jsonl]. The folder is
//            of Hugging Face's form: GPT-2, Llama, Mistral or Qwen. A line of the data is
//            {"prompt": ..., "answer": ...}, texts (the folder then has a tokenizer.json) or lists
//            of token ids. Without them a small model learns to count. --help lists the options
// It prints: a progress bar, an answer after every epoch, the perplexity, and the two folders
// ctest: --max-duration 8ep
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/algorithms/lora.hpp>
#include <tutti/callbacks/generate.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/instructions.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/generation_config.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/text/tokenizer.hpp>
#include <tutti/trainer.hpp>

namespace models = tutti::models;

struct Settings {
  std::string model, data, eval_data, out = "finetuned", targets = "all-linear", ask;
  std::int64_t batch_size = 8, rank = 8, max_length = 512;
  tutti::TrainerOptions trainer{.max_duration = "3ep", .seed = 17};
};

// Text to tokens and back; without a tokenizer a text is token ids with spaces between them.
struct Codec {
  std::optional<tutti::text::Tokenizer> tokenizer;
  std::vector<std::int64_t> encode(std::string_view text) const {
    if (tokenizer) {
      return tokenizer->encode(text, {.add_special_tokens = false}).ids;
    }
    std::vector<std::int64_t> ids;
    for (std::size_t at = 0; at < text.size(); at = std::min(text.find(' ', at), text.size()) + 1) {
      ids.push_back(std::stoll(std::string(text.substr(at))));
    }
    return ids;
  }
  std::string decode(std::span<const std::int64_t> ids) const {
    std::string out;
    for (const std::int64_t id : ids) {
      out += (out.empty() ? "" : " ") + std::to_string(id);
    }
    return tokenizer ? tokenizer->decode(ids) : out;
  }
} codec;

// A model of its own and data for it: three numbers, and the three that follow.
void make_small(Settings& settings) {
  settings.model = settings.out + "/base";
  settings.data = settings.eval_data = settings.out + "/count.jsonl";
  settings.ask = "10 11 12";
  std::filesystem::create_directories(settings.out);
  std::ofstream file(settings.data);
  for (int i = 3; i < 58; ++i) {
    file << "{\"prompt\": [" << i << ", " << i + 1 << ", " << i + 2 << "], \"answer\": [" << i + 3
         << ", " << i + 4 << ", " << i + 5 << "]}\n";
  }
  tutti::seed_all(17);
  models::save_pretrained(models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = 64,
                                                                        .hidden_size = 64,
                                                                        .intermediate_size = 128,
                                                                        .num_hidden_layers = 2,
                                                                        .num_attention_heads = 4}),
                          settings.model, {.overwrite = true});
}

// Prints what Generate logs: each prompt and its answer.
struct Answers final {
  void log_table(const tutti::LoggedTable& table, std::int64_t step) {
    for (const std::vector<std::string>& row : table.rows) {
      std::printf("batch %ld: %s ->%s\n", static_cast<long>(step), row[0].c_str(), row[1].c_str());
    }
  }
};

template <class Net>
void finetune(const Settings& settings, std::int64_t eos) {
  auto net = models::from_pretrained<Net>(settings.model);
  const auto load = [&](const std::string& path, bool train) {
    const tutti::data::InstructionsOptions options{
        .encode = [](std::string_view text) { return codec.encode(text); },
        .eos_token_id = eos,
        .max_length = settings.max_length};
    return tutti::DataLoader{
        tutti::data::InstructionSet{tutti::data::read_instructions(path, options)},
        {.batch_size = settings.batch_size,
         .shuffle = train,
         .collate = tutti::data::PadSequences{.pad_token_id = eos}}};
  };
  tutti::TrainerOptions options = settings.trainer;
  options.train = load(settings.data, true);
  if (!settings.eval_data.empty()) {
    options.eval = {{"test", load(settings.eval_data, false)}};
  }
  options.optimizer = tutti::DecoupledAdamW{.lr = 5e-3, .weight_decay = 0};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "0.1dur"};
  const tutti::LoRA lora{.r = settings.rank,
                         .alpha = 2.0 * static_cast<double>(settings.rank),
                         .target_modules = settings.targets,
                         .task_type = "CAUSAL_LM",
                         .base_model_name_or_path = settings.model};
  const tutti::Generate answers{
      .prompts = {settings.ask},
      .encode = [](std::string_view text) { return codec.encode(text); },
      .decode = [](std::span<const std::int64_t> ids) { return codec.decode(ids); },
      .generation = {.max_new_tokens = 32, .eos_token_id = {eos}}};
  tutti::Trainer trainer{net.ptr(), options, lora,
                         tutti::Switch<tutti::Generate>{answers, !settings.ask.empty()}, Answers{}};
  trainer.fit();
  if (!settings.eval_data.empty()) {
    std::printf("perplexity: %.3f\n", trainer.state().metric("test", "LanguagePerplexity"));
  }
  tutti::functional::save_lora(*net, lora, settings.out + "/adapter");
  tutti::functional::merge_lora(*net);
  tutti::functional::unload_lora(*net);
  models::save_pretrained(net, settings.out + "/merged",
                          {.overwrite = true, .copy_files_from = settings.model});
  std::printf("adapter: %s/adapter\nmerged:  %s/merged\n", settings.out.c_str(),
              settings.out.c_str());
}

int main(int argc, char** argv) try {
  Settings settings;
  tutti::cli::Program program{"finetune_llm",
                              "Fine-tunes a language model on prompts and answers."};
  program.add("--model", settings.model, "folder of the model; none: a small one that counts")
      .add("--data", settings.data, "JSON lines of prompts and answers")
      .add("--eval-data", settings.eval_data, "JSON lines that are evaluated, not learnt")
      .add("--out", settings.out, "folder that adapter and merged model are written into")
      .add("--ask", settings.ask, "a prompt that is answered after every epoch")
      .add("--target-modules", settings.targets, "layers that get adapters, an expression")
      .add("--rank", settings.rank, "of the adapters")
      .add("--batch-size", settings.batch_size, "prompts in a batch")
      .add("--max-length", settings.max_length, "tokens of prompt and answer at most")
      .add(settings.trainer);
  program.parse(argc, argv);
  if (settings.model.empty()) {
    make_small(settings);
  }
  const auto config = models::PretrainedConfig::read(settings.model);
  if (std::filesystem::exists(settings.model + "/tokenizer.json")) {
    codec.tokenizer = tutti::text::Tokenizer::load(settings.model);
  }
  const auto ends = models::GenerationConfig::read(settings.model).eos_token_id;
  const std::int64_t eos = ends.empty() ? 2 : ends.front();
  if (config.model_type() == "gpt2") {
    finetune<models::GPT2LMHeadModel>(settings, eos);
  } else {
    finetune<models::LlamaForCausalLM>(settings, eos);
  }
} catch (...) {
  return tutti::report_failure();
}
