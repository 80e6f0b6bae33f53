// Claims: a training step of a small Llama and a small GPT-2 takes at most 1/1.2 of Transformers'
// eager time and no more than with torch.compile; 128 tokens are generated in a third of the time
// of transformers.generate, each in a time that does not grow with the position; a folder is loaded
// in 1.3 times the time of one memcpy of it. One thread, fp32, CPU time.
//
// Usage: benchmark_language train FOLDER STEPS | generate FOLDER TOKENS | load FOLDER
// Folders are of Hugging Face's form; run.py makes them and runs Transformers beside. Prints one
// line of JSON.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <torch/torch.h>

#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/generate.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/pretrained_config.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

namespace models = tutti::models;

constexpr std::int64_t sequences = 8;
constexpr std::int64_t length = 128;
constexpr std::int64_t warm_up = 5;
constexpr std::int64_t prompt = 16;

double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The same numbers as in transformers_side.py.
at::Tensor ids(std::int64_t vocabulary, std::int64_t rows, std::int64_t columns,
               std::uint64_t seed) {
  at::Tensor out = at::empty({rows, columns}, at::kLong);
  auto* values = out.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    values[i] = static_cast<std::int64_t>((seed >> 33) % static_cast<std::uint64_t>(vocabulary));
  }
  return out;
}

// Batches, and the time at which each was asked for.
class TimedBatches {
 public:
  TimedBatches(std::int64_t vocabulary, std::int64_t steps)
      : vocabulary_(vocabulary), steps_(steps) {}

  void start(std::int64_t, std::int64_t first_batch = 0) { step_ = first_batch; }
  std::optional<tutti::Batch> next() {
    at::Tensor tokens;
    if (step_ < steps_) {
      tokens = ids(vocabulary_, sequences, length, static_cast<std::uint64_t>(1 + step_));
    }
    ++step_;
    stamps.push_back(milliseconds());
    return tokens.defined() ? std::optional(tutti::Batch{{"input_ids", tokens}, {"labels", tokens}})
                            : std::nullopt;
  }
  std::int64_t size() const { return steps_; }
  std::int64_t batch_size() const { return sequences; }

  std::vector<double> stamps;

 private:
  std::int64_t vocabulary_;
  std::int64_t steps_;
  std::int64_t step_ = 0;
};

// Keeps the loss of the last batch.
struct LastLoss final {
  using events = tutti::types<tutti::AfterLoss>;
  void apply(tutti::AfterLoss, tutti::State& state) { loss = state.loss; }
  at::Tensor loss;
};

template <class Net>
void train(const std::string& folder, std::int64_t steps) {
  auto net = models::from_pretrained<Net>(folder);
  auto batches = std::make_shared<TimedBatches>(net->options().vocab_size, warm_up + steps);
  auto last = std::make_shared<at::Tensor>();
  tutti::Trainer trainer{net.ptr(),
                         {.train = batches,
                          .max_duration = 1,
                          .optimizer = tutti::Adam{.lr = 1e-4},
                          .device = "cpu",
                          .progress_bar = false},
                         LastLoss{}};
  trainer.fit();
  std::vector<double> times;
  for (std::size_t i = warm_up + 1; i < batches->stamps.size(); ++i) {
    times.push_back(batches->stamps[i] - batches->stamps[i - 1]);
  }
  std::printf("{\"ms\": %.3f, \"loss\": %.6f, \"torch\": \"%s\"}\n", bench::median(times),
              trainer.template get<LastLoss>().loss.template item<double>(), TORCH_VERSION);
}

void generate(const std::string& folder, std::int64_t tokens) {
  auto net = models::from_pretrained<models::LlamaForCausalLM>(folder);
  const at::Tensor begin = ids(net->options().vocab_size, 1, prompt, 1);
  models::GenerationConfig config;
  config.max_new_tokens = tokens;
  config.eos_token_id = {};  // as long as asked for
  std::vector<double> times;
  std::array<std::vector<double>, 4> quarters;
  at::Tensor found;
  for (int round = 0; round < 6; ++round) {  // the first warms up
    std::vector<double> stamps;
    const double start = milliseconds();
    found = models::generate(*net, begin, config, {}, [&](std::span<const std::int64_t>) {
      stamps.push_back(milliseconds());
    });
    if (round == 0) {
      continue;
    }
    times.push_back(milliseconds() - start);
    for (std::size_t q = 0; q < quarters.size(); ++q) {  // the first token has the prompt's pass
      const std::size_t from = std::max<std::size_t>(1, q * stamps.size() / 4);
      const std::size_t to = (q + 1) * stamps.size() / 4;
      quarters[q].push_back(1e3 * (stamps[to - 1] - stamps[from - 1]) /
                            static_cast<double>(to - from));
    }
  }
  std::printf("{\"ms\": %.3f, \"by_position\": [%.2f, %.2f, %.2f, %.2f], \"tokens\": [",
              bench::median(times), bench::median(quarters[0]), bench::median(quarters[1]),
              bench::median(quarters[2]), bench::median(quarters[3]));
  for (std::int64_t i = prompt; i < found.size(1); ++i) {
    std::printf("%s%ld", i == prompt ? "" : ", ",
                static_cast<long>(found[0][i].item<std::int64_t>()));
  }
  std::printf("], \"torch\": \"%s\"}\n", TORCH_VERSION);
}

// One memcpy of the file into new memory, from the page cache.
double copy_once(const std::filesystem::path& path) {
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(path));
  const int file = ::open(path.c_str(), O_RDONLY);
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  const double start = milliseconds();
  void* memory = std::malloc(size);
  std::memcpy(memory, mapped, size);
  const double passed = milliseconds() - start;
  const bool read = static_cast<char*>(memory)[size - 1] == static_cast<char*>(mapped)[size - 1];
  std::free(memory);
  ::munmap(mapped, size);
  ::close(file);
  return read ? passed : -1;
}

void load(const std::string& folder) {
  const std::filesystem::path file = std::filesystem::path(folder) / "model.safetensors";
  std::vector<double> loads;
  std::vector<double> copies;
  copy_once(file);
  for (int round = 0; round < 5; ++round) {
    copies.push_back(copy_once(file));
    const double start = milliseconds();
    const auto net = models::from_pretrained<models::LlamaForCausalLM>(folder);
    loads.push_back(milliseconds() - start);
  }
  std::printf("{\"ms\": %.3f, \"copy_ms\": %.3f, \"bytes\": %ju, \"torch\": \"%s\"}\n",
              bench::median(loads), bench::median(copies),
              static_cast<std::uintmax_t>(std::filesystem::file_size(file)), TORCH_VERSION);
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const std::string what = argc > 2 ? argv[1] : "";
  const std::int64_t number = argc > 3 ? std::atoll(argv[3]) : 0;
  if (what == "train" && number > 0) {
    if (models::PretrainedConfig::read(argv[2]).model_type() == "gpt2") {
      train<models::GPT2LMHeadModel>(argv[2], number);
    } else {
      train<models::LlamaForCausalLM>(argv[2], number);
    }
  } else if (what == "generate" && number > 0) {
    generate(argv[2], number);
  } else if (what == "load") {
    load(argv[2]);
  } else {
    std::fprintf(stderr, "usage: %s train FOLDER STEPS | generate FOLDER TOKENS | load FOLDER\n",
                 argv[0]);
    return 2;
  }
}
