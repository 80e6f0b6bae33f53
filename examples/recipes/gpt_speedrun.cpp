// SPDX-License-Identifier: Apache-2.0
// Trains a language model until its loss on unseen text is low enough, and says how long that took.
//
// Run it:    gpt_speedrun --text FILE, whose bytes are the tokens; or --tokens TRAIN.bin
//            --eval-tokens VAL.bin --vocab-size 50257, files of nanoGPT; without any of them it
//            learns from tutti's own guides. --optimizer adamw for comparison; --help lists the
//            rest
// It prints: a progress bar, the loss on unseen text, and when it fell below --target
// Its page:  docs/zoo.md, with what was measured
// ctest: --max-duration 20ba --eval-interval 5ba --hidden-size 32 --layers 1 --length 32 --target 5
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <tutti/callbacks/threshold_stopper.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/tokens.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/groups.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

#include "../texts.hpp"

namespace models = tutti::models;
using Speedrun = tutti::Trainer<tutti::ThresholdStopper, tutti::JSONLinesLogger>;

struct Settings {
  std::string text, tokens, eval_tokens, optimizer = "muon";
  std::int64_t vocab_size = 256, hidden_size = 128, heads = 2, layers = 4, length = 128;
  std::int64_t batch_size = 16;
  double lr = 0;  // 0: the optimizer's
  double target = 1.7;
};

// The bytes of a file, or of tutti's guides.
std::string read(const std::string& path) {
  if (!path.empty()) {
    return example::read_text(path);
  }
  std::string out;
  for (const std::string& guide : example::guides()) {
    out += guide;
  }
  return out;
}

// The first nine tenths of the bytes, or the last, as examples.
tutti::TensorLoader bytes(const Settings& settings, const std::string& text, bool train) {
  const std::int64_t all = std::ssize(text) / settings.length;
  const std::int64_t first_of_eval = all - all / 10;
  TORCH_CHECK(all / 10 >= 1 && first_of_eval >= settings.batch_size, "the text has ", text.size(),
              " bytes, expected at least ", 10 * settings.length, " and ",
              settings.length * (settings.batch_size + settings.batch_size / 9 + 1),
              " for --length ", settings.length, " and --batch-size ", settings.batch_size);
  at::Tensor tokens = torch::empty({all, settings.length}, torch::kByte);
  std::memcpy(tokens.mutable_data_ptr(), text.data(), static_cast<std::size_t>(tokens.numel()));
  tokens = tokens.to(torch::kLong);
  tokens = train ? tokens.slice(0, 0, first_of_eval) : tokens.slice(0, first_of_eval);
  return tutti::TensorLoader{
      tutti::Batch{{"input_ids", tokens}, {"labels", tokens}},
      {.batch_size = settings.batch_size, .shuffle = train, .drop_last = train}};
}

auto blocks(const Settings& settings, bool train) {
  return tutti::DataLoader{
      tutti::data::TokenBlocks{train ? settings.tokens : settings.eval_tokens,
                               {.length = settings.length, .vocab_size = settings.vocab_size}},
      {.batch_size = settings.batch_size, .shuffle = train, .drop_last = train}};
}

// Muon for the matrices of the blocks; AdamW for the table of the tokens, the head and the norms.
std::shared_ptr<torch::optim::Optimizer> muon(torch::nn::Module& net, double lr) {
  return tutti::optim::build(
      tutti::Muon{.lr = lr > 0 ? lr : 0.02, .weight_decay = 0, .adamw_lr = 0.003},
      tutti::optim::groups(net, {{"*embed_tokens.weight", {.lr = 0.01, .use_muon = false}},
                                 {"lm_head.weight", {.lr = 0.003, .use_muon = false}}}));
}

std::shared_ptr<torch::optim::Optimizer> adamw(torch::nn::Module& net, double lr) {
  return tutti::optim::build(
      tutti::AdamW{.lr = lr > 0 ? lr : 0.003, .betas = {0.9, 0.95}, .weight_decay = 0.1},
      tutti::optim::no_decay(net, {"*embed_tokens.weight"}));
}

// Full rate, and along a line to 0 in the last two sevenths.
double trapezoid(const tutti::Progress& progress) {
  return std::min(1.0, (1 - progress.elapsed_fraction().value_or(0)) * 3.5);
}

// Queries and keys of each head are normalised, and every block begins as the identity.
models::LlamaForCausalLM make_model(const Settings& settings) {
  models::LlamaForCausalLM net(
      models::LlamaOptions{.model_type = models::LlamaType::qwen3,
                           .vocab_size = settings.vocab_size,
                           .hidden_size = settings.hidden_size,
                           .intermediate_size = (8 * settings.hidden_size / 3 + 7) / 8 * 8,
                           .num_hidden_layers = settings.layers,
                           .num_attention_heads = settings.heads,
                           .max_position_embeddings = settings.length});
  const at::NoGradGuard no_grad;
  for (const auto& parameter : net->named_parameters()) {
    const std::string& name = parameter.key();
    if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") ||
        name == "lm_head.weight") {
      parameter->zero_();
    }
  }
  return net;
}

int main(int argc, char** argv) try {
  Settings settings;
  tutti::TrainerOptions options{.max_duration = "600ba",
                                .eval_interval = "50ba",
                                .schedule_ahead = true,
                                .precision = torch::cuda::is_available()
                                                 ? tutti::Precision::amp_bf16
                                                 : tutti::Precision::fp32,
                                .seed = 17,
                                .run_name = "gpt_speedrun",
                                .run_folder = "gpt_speedrun-run",
                                .save_interval = "500ba",
                                .save_overwrite = true};
  tutti::cli::Program program{"gpt_speedrun", "Trains a language model to a target loss."};
  program.add("--text", settings.text, "a text file; none: tutti's guides")
      .add("--tokens", settings.tokens, "a file of tokens of two bytes, in place of a text")
      .add("--eval-tokens", settings.eval_tokens, "the unseen tokens beside it")
      .add("--vocab-size", settings.vocab_size, "with --tokens: how many different ones there are")
      .add("--optimizer", settings.optimizer, "muon or adamw")
      .add("--lr", settings.lr, "of matrices with muon, of all with adamw; 0: 0.02 and 0.003")
      .add("--target", settings.target, "the loss at which the run ends")
      .add("--layers", settings.layers, "blocks of the model")
      .add("--hidden-size", settings.hidden_size, "its width")
      .add("--heads", settings.heads, "heads of attention")
      .add("--length", settings.length, "tokens of an example")
      .add("--batch-size", settings.batch_size, "examples of a batch")
      .add(options)
      .parse(argc, argv);
  TORCH_CHECK(settings.optimizer == "muon" || settings.optimizer == "adamw", "--optimizer is ",
              settings.optimizer, ", expected muon or adamw");
  TORCH_CHECK(settings.tokens.empty() == settings.eval_tokens.empty() &&
                  (settings.tokens.empty() || settings.text.empty()),
              "give --text, or --tokens and --eval-tokens, or none of them");
  TORCH_CHECK(settings.length >= 2 && settings.batch_size >= 1, "--length is ", settings.length,
              " and --batch-size ", settings.batch_size, ", expected 2 or more and 1 or more");
  TORCH_CHECK(!settings.tokens.empty() || settings.vocab_size == 256, "--vocab-size is ",
              settings.vocab_size, ", and bytes are of 256 kinds; it goes with --tokens");

  tutti::seed_all(options.seed.value_or(17));
  if (settings.tokens.empty()) {
    const std::string text = read(settings.text);
    options.train = bytes(settings, text, true);
    options.eval = {{"test", bytes(settings, text, false)}};
  } else {
    options.train = blocks(settings, true);
    options.eval = {{"test", blocks(settings, false)}};
  }
  options.optimizer = [&settings](torch::nn::Module& net) {
    return settings.optimizer == "muon" ? muon(net, settings.lr) : adamw(net, settings.lr);
  };
  options.schedule = [](const tutti::Progress& progress) { return trapezoid(progress); };
  Speedrun trainer{make_model(settings).ptr(), options,
                   tutti::ThresholdStopper{.monitor = "LanguageCrossEntropy",
                                           .dataloader_label = "test",
                                           .threshold = settings.target},
                   tutti::JSONLinesLogger{.overwrite = true}};
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  trainer.fit();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const double cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  const tutti::State& state = trainer.state();
  if (state.rank == 0) {
    const double loss = state.metric("test", "LanguageCrossEntropy");
    std::printf("%s: test loss %.4f, target %.4f %s after %ld batches, %.1f s (%.1f s of CPU)\n",
                settings.optimizer.c_str(), loss, settings.target,
                loss < settings.target ? "reached" : "not reached",
                static_cast<long>(state.timestamp.batch), wall.count(), cpu);
  }
} catch (...) {
  return tutti::report_failure();
}
