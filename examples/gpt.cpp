// SPDX-License-Identifier: Apache-2.0
// Learns from nothing but a text: a byte-level BPE, then a small GPT-2 or Llama that writes.
//
// Run it:    gpt [--text FILE] [--model llama]; without a file it learns from tutti's own guides.
//            With --run-folder gpt --run-name gpt --autoresume it goes on where it was stopped.
//            --help lists its other options
// It prints: a progress bar, the perplexity on the last tenth of the text and how the model goes on
//            with "The trainer" after every epoch, and a folder that Transformers loads
// ctest: --max-duration 1ep --vocab-size 300 --train-subset-num-batches 4 --out gpt-test
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/callbacks/generate.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/instructions.hpp>
#include <tutti/data/packing.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/text/tokenizer.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

#include "texts.hpp"

namespace models = tutti::models;

constexpr std::int64_t length = 128;     // tokens of an example
constexpr std::int64_t end_of_text = 0;  // stands behind each document
std::optional<tutti::text::Tokenizer> tokenizer;

struct Settings {
  std::string text, model = "gpt2", out = "gpt-pretrained";
  std::int64_t vocab_size = 2000;
  tutti::TrainerOptions trainer{
      .max_duration = "3ep", .precision = tutti::Precision::amp_bf16, .seed = 17};
};

std::vector<std::int64_t> encode(std::string_view text) {
  return tokenizer->encode(text).ids;
}

std::string decode(std::span<const std::int64_t> tokens) {
  return tokenizer->decode(tokens);
}

// Prints what Generate logs: the prompt and what the model goes on with.
struct Texts final {
  void log_table(const tutti::LoggedTable& table, std::int64_t step) {
    for (const std::vector<std::string>& row : table.rows) {
      std::printf("batch %ld: %s%s\n", static_cast<long>(step), row[0].c_str(), row[1].c_str());
    }
  }
};

// Tokens of texts.
struct Documents {
  std::vector<at::Tensor> ids;
  [[nodiscard]] std::int64_t size() const { return std::ssize(ids); }
  [[nodiscard]] tutti::Batch get(std::int64_t i) const {
    return {{"input_ids", ids.at(static_cast<std::size_t>(i))}};
  }
};

// The first nine tenths of each text, or the last.
Documents documents(const std::vector<tutti::text::Encoding>& texts, bool train) {
  Documents out;
  for (const tutti::text::Encoding& text : texts) {
    std::vector<std::int64_t> ids = text.ids;
    ids.push_back(end_of_text);
    const at::Tensor all = at::tensor(ids, at::kLong);
    const std::int64_t cut = all.size(0) - all.size(0) / 10;
    out.ids.push_back(train ? all.slice(0, 0, cut) : all.slice(0, cut));
  }
  return out;
}

template <class Net>
void train(const Settings& settings, Net net, const std::vector<std::string>& texts) {
  net->source_config.set("bos_token_id", end_of_text);
  net->source_config.set("eos_token_id", end_of_text);
  const auto encoded = tokenizer->encode_batch(texts, {.threads = 0});
  const auto load = [&](bool train) {
    return tutti::DataLoader{
        tutti::data::PackedDataset{
            documents(encoded, train),
            {.length = length, .strategy = tutti::data::PackingStrategy::wrapped}},
        {.batch_size = 16, .shuffle = train, .collate = tutti::data::PadSequences{}}};
  };
  tutti::TrainerOptions options = settings.trainer;
  options.train = load(true);
  options.eval = {{"test", load(false)}};
  options.optimizer = tutti::DecoupledAdamW{.lr = 3e-3, .weight_decay = 1e-5};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "0.1dur"};
  const tutti::Generate writes{.prompts = {"The trainer"},
                               .encode = encode,
                               .decode = decode,
                               .generation = {.max_new_tokens = 100,
                                              .do_sample = true,
                                              .temperature = 0.7,
                                              .eos_token_id = {end_of_text}}};
  tutti::Trainer trainer{net.ptr(), options, writes, Texts{},
                         tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                                 .clipping_threshold = 1.0}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  if (trainer.state().rank == 0) {
    std::printf("test perplexity: %.2f\n", trainer.state().metric("test", "LanguagePerplexity"));
    models::save_pretrained(net, settings.out, {.overwrite = true});
    tokenizer->save_pretrained(settings.out,
                               {.bos_token = "<|endoftext|>", .eos_token = "<|endoftext|>"});
    std::printf("model and tokenizer: %s\n", settings.out.c_str());
  }
}

int main(int argc, char** argv) try {
  Settings settings;
  tutti::cli::Program program{"gpt", "Trains a BPE and a small language model on a text."};
  program.add("--text", settings.text, "a text file; none: tutti's guides")
      .add("--model", settings.model, "gpt2 or llama")
      .add("--vocab-size", settings.vocab_size, "tokens that are learnt, 257 or more")
      .add("--out", settings.out, "folder that model and tokenizer are written into")
      .add(settings.trainer);
  program.parse(argc, argv);
  TORCH_CHECK(settings.model == "gpt2" || settings.model == "llama", "--model is ", settings.model,
              ", expected gpt2 or llama");
  const std::vector<std::string> texts =
      settings.text.empty() ? example::guides() : std::vector{example::read_text(settings.text)};
  tokenizer = tutti::text::Tokenizer::train_bpe(texts, {.vocab_size = settings.vocab_size});
  const std::int64_t vocab_size = tokenizer->vocab_size();
  tutti::seed_all(17);
  if (settings.model == "gpt2") {
    train(settings,
          models::GPT2LMHeadModel(models::GPT2Options{.vocab_size = vocab_size,
                                                      .n_positions = 2 * length,
                                                      .n_embd = 64,
                                                      .n_layer = 2,
                                                      .n_head = 4}),
          texts);
  } else {
    train(settings,
          models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = vocab_size,
                                                        .hidden_size = 64,
                                                        .intermediate_size = 192,
                                                        .num_hidden_layers = 2,
                                                        .num_attention_heads = 4,
                                                        .num_key_value_heads = 2,
                                                        .max_position_embeddings = 2 * length}),
          texts);
  }
} catch (...) {
  return tutti::report_failure();
}
