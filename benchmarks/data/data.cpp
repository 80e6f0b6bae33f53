// Claim: batches out of tensors in memory cost a thirtieth of what torch::data takes, and those of
// raw images hardly more than copying their bytes; a pipeline of views costs no more than
// DataLoader over the same examples; examples that take work are ready when the loop asks. CPU.
//
// Usage: benchmark_data [ALTERNATIONS [WAY...]]. Every way, or those that are named, is timed once
// per alternation, in turn, so that slow changes of the machine hit all alike. Prints one line of
// JSON: the milliseconds of each, of CPU time but for the last two, which wait.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <torch/torch.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/views/prefetch.hpp>
#include <tutti/views/shuffle.hpp>

namespace {

constexpr std::int64_t small_examples = 10'000;
constexpr std::int64_t small_batch = 256;
constexpr std::int64_t raw_images = 512;
constexpr std::int64_t raw_batch = 64;
constexpr std::int64_t raw_size = 3 * 224 * 224;  // bytes

double cpu_milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}
double wall_milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

struct Examples {
  at::Tensor x = at::randn({small_examples, 32});
  at::Tensor y = at::randint(10, {small_examples}, at::kLong);
};

// As LibTorch's documentation has it.
struct Dataset : torch::data::datasets::Dataset<Dataset> {
  explicit Dataset(Examples e) : examples(std::move(e)) {}
  torch::data::Example<> get(std::size_t i) override {
    const auto row = static_cast<std::int64_t>(i);
    return {examples.x[row], examples.y[row]};
  }
  torch::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(examples.x.size(0));
  }
  Examples examples;
};

// One epoch; the sum keeps the work from being left out.
template <class Loader>
std::int64_t epoch(Loader& loader, std::int64_t number) {
  std::int64_t seen = 0;
  loader.start(number);
  while (std::optional<tutti::Batch> batch = loader.next()) {
    seen += batch->num_samples();
  }
  return seen;
}

std::function<void(std::int64_t)> torch_data(const Examples& examples) {
  auto set = Dataset(examples).map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(set), torch::data::DataLoaderOptions().batch_size(small_batch));
  return [loader = std::shared_ptr(std::move(loader))](std::int64_t) {
    std::int64_t seen = 0;
    for (const auto& batch : *loader) {
      seen += batch.data.size(0);
    }
    TORCH_CHECK(seen == small_examples);
  };
}

std::function<void(std::int64_t)> tensor_loader(const Examples& examples, bool shuffle) {
  auto loader = std::make_shared<tutti::TensorLoader>(
      examples.x, examples.y,
      tutti::TensorLoaderOptions{.batch_size = small_batch, .shuffle = shuffle});
  return [loader](std::int64_t number) { TORCH_CHECK(epoch(*loader, number) == small_examples); };
}

// The same examples one by one, by DataLoader and by a pipeline of views.
struct Rows {
  Examples examples;
  [[nodiscard]] std::int64_t size() const { return small_examples; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    return {examples.x[i], examples.y[i]};
  }
};

std::function<void(std::int64_t)> data_loader(const Examples& examples, std::int64_t workers) {
  auto loader = std::make_shared<tutti::DataLoader<Rows>>(
      Rows{examples},
      tutti::DataLoaderOptions{.batch_size = small_batch, .shuffle = true, .num_workers = workers});
  return [loader](std::int64_t number) { TORCH_CHECK(epoch(*loader, number) == small_examples); };
}

std::function<void(std::int64_t)> views(const Examples& examples, std::int64_t ahead) {
  const auto get = [rows = Rows{examples}](std::int64_t i) { return rows.get(i); };
  auto loader = std::make_shared<tutti::views::Batches>(
      ranges::views::iota(std::int64_t{0}, small_examples) | ranges::views::transform(get) |
      tutti::views::shuffle(0) | tutti::views::batch(small_batch) | tutti::views::prefetch(ahead));
  return [loader](std::int64_t number) { TORCH_CHECK(epoch(*loader, number) == small_examples); };
}

// What a batch of shuffled images cannot do without: every image's bytes once, here into memory
// that is there already.
std::function<void(std::int64_t)> copies(const at::Tensor& images) {
  const at::Tensor batch = at::zeros({raw_batch, 3, 224, 224}, at::kByte);
  return [images, batch](std::int64_t) {
    const at::Tensor order = at::randperm(raw_images, at::kLong);
    const auto* rows = order.const_data_ptr<std::int64_t>();
    const auto* from = images.const_data_ptr<std::uint8_t>();
    for (std::int64_t first = 0; first < raw_images; first += raw_batch) {
      auto* to = batch.mutable_data_ptr<std::uint8_t>();
      for (std::int64_t i = 0; i < raw_batch; ++i) {
        std::memcpy(to + i * raw_size, from + rows[first + i] * raw_size, raw_size);
      }
    }
  };
}

std::function<void(std::int64_t)> raw_loader(const at::Tensor& images) {
  auto loader = std::make_shared<tutti::TensorLoader>(
      images, at::zeros({raw_images}, at::kLong),
      tutti::TensorLoaderOptions{.batch_size = raw_batch, .shuffle = true});
  return [loader](std::int64_t number) { TORCH_CHECK(epoch(*loader, number) == raw_images); };
}

// Examples that take a while to get, as files do: 0.2 ms of waiting each.
struct Slow {
  [[nodiscard]] std::int64_t size() const { return 640; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t i) const {
    const timespec pause{.tv_sec = 0, .tv_nsec = 200'000};
    ::nanosleep(&pause, nullptr);
    return {at::full({32}, static_cast<double>(i)), at::scalar_tensor(i % 10, at::kLong)};
  }
};

// What a loop waits for a batch of 32 that it uses for 12 ms, on average over an epoch without its
// first batches.
double gap(std::int64_t workers, std::int64_t number) {
  tutti::DataLoader loader{Slow{}, {.batch_size = 32, .num_workers = workers}};
  loader.start(number);
  double waited = 0;
  std::int64_t batches = 0;
  while (true) {
    const double before = wall_milliseconds();
    const auto batch = loader.next();
    if (!batch) {
      return waited / static_cast<double>(batches - 4);
    }
    waited += ++batches > 4 ? wall_milliseconds() - before : 0;
    const timespec step{.tv_sec = 0, .tv_nsec = 12'000'000};
    ::nanosleep(&step, nullptr);
  }
}

struct Way {
  std::string name;
  std::function<double(std::int64_t)> run;
  std::vector<double> times{};
};

// Of one epoch, out of several in a row.
Way timed(std::string name, const std::function<void(std::int64_t)>& run) {
  return {std::move(name), [run](std::int64_t number) {
            constexpr int epochs = 5;
            const double before = cpu_milliseconds();
            for (int i = 0; i < epochs; ++i) {
              run(epochs * number + i);
            }
            return (cpu_milliseconds() - before) / epochs;
          }};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const int alternations = argc > 1 ? std::atoi(argv[1]) : 20;
  const Examples examples;
  const auto wanted = [&](const std::string& way) {
    return argc <= 2 || std::find(argv + 2, argv + argc, way) != argv + argc;
  };
  const std::array<std::int64_t, 4> sizes{raw_images, 3, 224, 224};
  const at::Tensor images = wanted("memcpy") || wanted("raw") ? at::randint(256, sizes, at::kByte)
                                                              : at::zeros(sizes, at::kByte);
  std::vector<Way> ways{
      timed("torch_data", torch_data(examples)),
      timed("shuffled", tensor_loader(examples, true)),
      timed("in_order", tensor_loader(examples, false)),
      timed("data_loader", data_loader(examples, 0)),
      timed("views", views(examples, 0)),
      timed("data_loader_ahead", data_loader(examples, 1)),
      timed("views_ahead", views(examples, 2)),
      timed("memcpy", copies(images)),
      timed("raw", raw_loader(images)),
      {"gap_alone", [](std::int64_t number) { return gap(0, number); }},
      {"gap_workers", [](std::int64_t number) { return gap(2, number); }},
  };
  std::erase_if(ways, [&](const Way& way) { return !wanted(way.name); });
  for (Way& way : ways) {
    way.run(0);  // memory and caches are warm
  }
  for (int i = 1; i <= alternations; ++i) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      Way& way = ways[i % 2 == 0 ? w : ways.size() - 1 - w];
      way.times.push_back(way.run(i));
    }
  }
  std::printf("{\"torch\": \"%s\"", TORCH_VERSION);
  for (const Way& way : ways) {
    std::printf(", \"%s\": [", way.name.c_str());
    for (std::size_t i = 0; i < way.times.size(); ++i) {
      std::printf("%s%.4f", i == 0 ? "" : ", ", way.times[i]);
    }
    std::printf("]");
  }
  std::printf("}\n");
}
