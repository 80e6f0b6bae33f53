// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT on the characters of a text and lets it write.
//
// Run it:    char_gpt [--text FILE]; without a file it learns from tutti's own guides. --help lists
//            its other options
// It prints: a progress bar, the perplexity on the last tenth of the text after every epoch, and
//            300 characters of its own at the end
// ctest: --max-duration 1ep --train-subset-num-batches 4 --eval-subset-num-batches 4
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/low_precision_layernorm.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

constexpr std::int64_t length = 128;  // characters of a sequence

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

// Sequences [N, 128] out of one text; the labels are the inputs, of which the model shifts one.
tutti::Batch sequences(std::string_view text) {
  const auto count = static_cast<std::int64_t>(text.size()) / length;
  at::Tensor ids = at::empty({count, length}, at::kLong);
  std::transform(text.begin(), text.begin() + count * length, ids.data_ptr<std::int64_t>(),
                 [](char c) { return static_cast<unsigned char>(c) % 128; });
  return tutti::Batch{{"input_ids", ids}, {"labels", ids}};
}

// Draws `count` characters that go on from `begin`.
std::string write(const tutti::AnyModel& model, const std::string& begin, std::int64_t count) {
  const c10::AutoGradMode no_grad(false);
  model.module()->eval();
  at::Tensor ids = sequences(begin + std::string(length, ' ')).inputs();
  ids = ids.slice(0, 0, 1).slice(1, 0, static_cast<std::int64_t>(begin.size()));  // (1, T)
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor recent = ids.slice(1, std::max<std::int64_t>(0, ids.size(1) - length));
    const at::Tensor logits =
        model.forward(tutti::Batch{{"input_ids", recent}, {"labels", recent}}).tensor();
    const at::Tensor next = (logits.select(1, -1) / 0.7).softmax(-1).multinomial(1);  // (1, 1)
    ids = at::cat({ids, next}, 1);
  }
  std::string out;
  for (std::int64_t i = 0; i < ids.size(1); ++i) {
    out += static_cast<char>(ids[0][i].item<std::int64_t>());
  }
  return out;
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
      tutti::ALiBi{.max_sequence_length = length, .train_sequence_length_scaling = 0.5},
      tutti::SeqLengthWarmup{.duration = 0.3, .min_seq_length = 16, .max_seq_length = length / 2},
      tutti::LowPrecisionLayerNorm{},
      tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                              .clipping_threshold = 1.0}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  std::printf("test perplexity: %.2f\n", trainer.state().metric("test", "LanguagePerplexity"));
  std::printf("%s\n", write(trainer.state().task, "The trainer ", 300).c_str());
} catch (...) {
  return tutti::report_failure();
}
