// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a language model on chats, or prompts and answers, by LoRA; writes adapters and merged
// model.
//
// Run it:    finetune_llm --model FOLDER --data train.jsonl [--eval-data test.jsonl]. The folder is
//            of Hugging Face's form: GPT-2, Llama, Mistral or Qwen. A line of the data is
//            {"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]},
//            which the folder's chat template makes a text of, or {"prompt": ..., "answer": ...},
//            texts or lists of token ids. Without them a small model learns to count. --help lists
//            the options
// It prints: a progress bar, an answer after every epoch, the perplexity, and the folders of the
//            adapters and of the model with them
// ctest: --max-duration 8ep --packing --batch-size 2
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
#include <tutti/data/chats.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/instructions.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/generation_config.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/text/chat_template.hpp>
#include <tutti/text/tokenizer.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

namespace models = tutti::models;

struct Settings {
  std::string model, data, eval_data, out = "finetuned", targets = "all-linear", ask;
  std::int64_t batch_size = 8, rank = 8, max_length = 512;
  bool packing = false;
  tutti::TrainerOptions trainer{.max_duration = "3ep", .seed = 17};
};

// Text to tokens and back; without a tokenizer a text is token ids with spaces between them.
struct Codec {
  std::optional<tutti::text::Tokenizer> tokenizer;
  std::optional<tutti::text::ChatTemplate> chats;  // where the data are chats
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
  std::vector<std::int64_t> encode_question(std::string_view text) const {
    return encode(chats ? chats->apply_chat_template({{"user", std::string(text)}},
                                                     {.add_generation_prompt = true})
                        : std::string(text));
  }
  std::string decode(std::span<const std::int64_t> ids) const {
    std::string out;
    for (const std::int64_t id : ids) {
      out += (out.empty() ? "" : " ") + std::to_string(id);
    }
    return tokenizer ? tokenizer->decode(ids) : out;
  }
} codec;

// A model and a tokenizer of its own, and chats for it: three numbers, and the three that follow.
void make_small(Settings& settings) {
  settings.model = settings.out + "/base";
  settings.data = settings.eval_data = settings.out + "/count.jsonl";
  settings.ask = "10 11 12";
  settings.max_length = 64;
  std::filesystem::create_directories(settings.out);
  std::ofstream file(settings.data);
  std::string text;
  for (int i = 3; i < 58; ++i) {
    const auto three = [](int from) {
      return std::to_string(from) + " " + std::to_string(from + 1) + " " + std::to_string(from + 2);
    };
    file << R"({"messages": [{"role": "user", "content": ")" << three(i)
         << R"("}, {"role": "assistant", "content": ")" << three(i + 3) << "\"}]}\n";
    text += "user\n" + three(i) + "\nassistant\n";
  }
  const auto tokenizer = tutti::text::Tokenizer::train_bpe(
      text, {.vocab_size = 400, .special_tokens = {"<|im_end|>", "<|im_start|>"}});
  tutti::seed_all(17);
  const models::LlamaForCausalLM net(models::LlamaOptions{.vocab_size = tokenizer.vocab_size(),
                                                          .hidden_size = 64,
                                                          .intermediate_size = 128,
                                                          .num_hidden_layers = 2,
                                                          .num_attention_heads = 4,
                                                          .initializer_range = 0.2});
  models::save_pretrained(net, settings.model, {.overwrite = true});
  tokenizer.save_pretrained(
      settings.model,
      {.eos_token = "<|im_end|>",
       .chat_template =
           "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"});
  std::ofstream(settings.model + "/generation_config.json") << R"({"eos_token_id": 0})";
}

// The examples of a file, whose loss counts answers alone.
tutti::DataLoader<tutti::data::InstructionSet> load(const Settings& settings,
                                                    const std::string& path, bool train,
                                                    std::int64_t eos) {
  using tutti::data::InstructionSet;
  const tutti::data::InstructionSetOptions options{.packing = settings.packing && train,
                                                   .max_length = settings.max_length};
  const InstructionSet examples =
      tutti::data::has_chats(path)
          ? InstructionSet{tutti::data::read_chats(
                               path, {.encode_chat =
                                          [](const std::vector<tutti::ChatMessage>& messages) {
                                            return codec.chats->encode_chat(*codec.tokenizer,
                                                                            messages);
                                          },
                                      .max_length = settings.max_length}),
                           options}
          : InstructionSet{
                tutti::data::read_instructions(
                    path, {.encode = [](std::string_view text) { return codec.encode(text); },
                           .eos_token_id = eos,
                           .max_length = settings.max_length}),
                options};
  return tutti::DataLoader{examples,
                           {.batch_size = settings.batch_size,
                            .shuffle = train,
                            .collate = tutti::data::PadSequences{.pad_token_id = eos},
                            .lengths = examples.lengths()}};
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
  tutti::TrainerOptions options = settings.trainer;
  options.train = load(settings, settings.data, true, eos);
  if (!settings.eval_data.empty()) {
    options.eval = {{"test", load(settings, settings.eval_data, false, eos)}};
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
      .encode = [](std::string_view text) { return codec.encode_question(text); },
      .decode = [](std::span<const std::int64_t> ids) { return codec.decode(ids); },
      .generation = {.max_new_tokens = 32, .eos_token_id = {eos}}};
  tutti::Trainer trainer{net.ptr(), options, lora,
                         tutti::Switch<tutti::Generate>{answers, !settings.ask.empty()}, Answers{}};
  trainer.fit();
  if (!settings.eval_data.empty()) {
    std::printf("perplexity: %.3f\n", trainer.state().metric("test", "LanguagePerplexity"));
  }
  models::save_pretrained(tutti::functional::lora_adapters(net.ptr(), lora),
                          settings.out + "/adapter", {.overwrite = true});
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
                              "Fine-tunes a language model on chats, or prompts and answers."};
  program.add("--model", settings.model, "folder of the model; none: a small one that counts")
      .add("--data", settings.data, "JSON lines of chats, or prompts and answers")
      .add("--eval-data", settings.eval_data, "JSON lines that are evaluated, not learnt")
      .add("--out", settings.out, "folder that adapter and merged model are written into")
      .add("--ask", settings.ask, "a prompt that is answered after every epoch")
      .add("--target-modules", settings.targets, "layers that get adapters, an expression")
      .add("--rank", settings.rank, "of the adapters")
      .add("--batch-size", settings.batch_size, "examples in a batch")
      .add("--max-length", settings.max_length, "tokens of an example at most")
      .add("--packing", settings.packing, "several texts in an example, none of which sees another")
      .add(settings.trainer);
  program.parse(argc, argv);
  if (settings.model.empty()) {
    make_small(settings);
  }
  const auto config = models::PretrainedConfig::read(settings.model);
  if (std::filesystem::exists(settings.model + "/tokenizer.json")) {
    codec.tokenizer = tutti::text::Tokenizer::load(settings.model);
  }
  if (tutti::data::has_chats(settings.data) ||
      (!settings.eval_data.empty() && tutti::data::has_chats(settings.eval_data))) {
    TORCH_CHECK(codec.tokenizer, "the data are chats, and '", settings.model,
                "' has no tokenizer.json to make tokens of them");
    codec.chats = tutti::text::ChatTemplate::load(settings.model);
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
