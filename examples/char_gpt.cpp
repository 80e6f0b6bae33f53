// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT on the characters of a text and lets it write.
//
// Run it:    char_gpt [--text FILE]; without a file it learns from tutti's own guides. --help lists
//            its other options
// It prints: a progress bar, the perplexity on the last tenth of the text after every epoch, and
//            300 characters of its own at the end
// ctest: --max-duration 1ep --train-subset-num-batches 4 --eval-subset-num-batches 4
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/generate.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

constexpr std::int64_t length = 128;   // characters of a sequence in training
constexpr std::int64_t longest = 384;  // of what it writes: ALiBi goes on behind what it has seen

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "the text ", path, " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string guides() {
  std::vector<std::filesystem::path> pages;
  const std::filesystem::path docs = std::filesystem::path(TUTTI_EXAMPLES_DATA) / "../../docs";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(docs)) {
    if (entry.path().extension() == ".md") {
      pages.push_back(entry.path());
    }
  }
  std::sort(pages.begin(), pages.end());
  std::string text;
  for (const auto& page : pages) {
    text += read(page);
  }
  return text;
}

std::vector<std::int64_t> to_tokens(std::string_view text) {
  std::vector<std::int64_t> tokens;
  for (const char c : text) {
    tokens.push_back(static_cast<unsigned char>(c) % 128);
  }
  return tokens;
}

std::string to_text(std::span<const std::int64_t> tokens) {
  return {tokens.begin(), tokens.end()};
}

// Sequences [N, 128] out of one text; the labels are the inputs, of which the model shifts one.
tutti::Batch sequences(std::string_view text) {
  const auto count = static_cast<std::int64_t>(text.size()) / length;
  const at::Tensor ids =
      at::tensor(to_tokens(text.substr(0, static_cast<std::size_t>(count * length))), at::kLong)
          .reshape({count, length});
  return tutti::Batch{{"input_ids", ids}, {"labels", ids}};
}

int main(int argc, char** argv) try {
  std::string text_path;
  tutti::TrainerOptions options{
      .max_duration = "3ep", .precision = tutti::Precision::amp_bf16, .seed = 17};
  tutti::cli::Program program{"char_gpt", "Trains a small GPT on the characters of a text."};
  program.add("--text", text_path, "a text file; none: tutti's guides").add(options);
  program.parse(argc, argv);
  const std::string text = text_path.empty() ? guides() : read(text_path);
  const std::size_t cut = text.size() - text.size() / 10;
  const auto load = [&](std::string_view part, bool train) {
    return tutti::TensorLoader{sequences(part),
                               {.batch_size = 16, .shuffle = train, .drop_last = train}};
  };
  tutti::seed_all(17);
  auto net = std::make_shared<tutti::models::GPT2LMHeadModelImpl>(tutti::models::GPT2Options{
      .vocab_size = 128, .n_positions = length, .n_embd = 64, .n_layer = 2, .n_head = 4});
  options.train = load(std::string_view(text).substr(0, cut), true);
  options.eval = {{"test", load(std::string_view(text).substr(cut), false)}};
  options.optimizer = tutti::DecoupledAdamW{.lr = 3e-3, .weight_decay = 1e-5};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "0.1dur"};
  tutti::Trainer trainer{
      net,
      options,
      tutti::ALiBi{.max_sequence_length = longest, .train_sequence_length_scaling = 0.5},
      tutti::SeqLengthWarmup{.duration = 0.3, .min_seq_length = 16, .max_seq_length = length / 2},
      tutti::LowPrecisionLayerNorm{},
      tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                              .clipping_threshold = 1.0}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  std::printf("test perplexity: %.2f\n", trainer.state().metric("test", "LanguagePerplexity"));
  const at::Tensor begin = at::tensor(to_tokens("The trainer "), at::kLong).unsqueeze(0);
  const at::Tensor written = tutti::models::generate(
      trainer.state().task, begin.to(trainer.state().device),
      {.max_new_tokens = 300, .do_sample = true, .temperature = 0.7, .top_k = 0, .seed = 17});
  std::printf("%s\n", to_text(tutti::models::written_tokens(written, 0, {}).at(0)).c_str());
} catch (...) {
  return tutti::report_failure();
}
