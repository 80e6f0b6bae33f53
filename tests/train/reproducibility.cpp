#include <tutti/train/reproducibility.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// Examples that are drawn anew in every epoch.
struct Drawn {
  [[nodiscard]] std::int64_t size() const { return 50; }
  Batch get(std::int64_t index, Rng& rng) const {
    at::Tensor inputs = at::empty({4});
    for (std::int64_t i = 0; i < 4; ++i) {
      inputs[i] = rng.uniform() + static_cast<double>(index % 3);
    }
    return {inputs, inputs.slice(0, 0, 2).sin()};
  }
};

Batch noise(Batch example, Rng& rng) {
  example.inputs() = example.inputs() + 0.1 * rng.uniform();
  return example;
}

// Every batch's loss, to the last bit.
struct Losses final {
  std::vector<float> seen{};
  void apply(BatchEnd, State& state) { seen.push_back(state.loss.item<float>()); }
};

struct Outcome {
  at::Tensor weights;
  std::vector<float> losses;
};

TrainerOptions options(std::int64_t workers, std::uint64_t seed = 3) {
  return {.train = DataLoader{Drawn{},
                              {.batch_size = 8,
                               .shuffle = true,
                               .seed = seed,
                               .num_workers = workers,
                               .transform = noise}},
          .max_duration = "3ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = seed,
          .progress_bar = false};
}

Outcome run(TrainerOptions options) {
  Trainer<Losses> trainer{tiny::net(1, 0.3), std::move(options)};
  trainer.fit();
  return {tiny::flat(*trainer.state().model), trainer.get<Losses>().seen};
}

// Deterministic mode is of the whole process: it and its environment come back afterwards.
struct Restored {
  Restored() {
    const char* set = std::getenv(name);
    was_set = set != nullptr;
    value = was_set ? set : "";
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored() {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicCuDNN(false);
    static_cast<void>(was_set ? ::setenv(name, value.c_str(), 1) : ::unsetenv(name));
  }
  static constexpr const char* name = "CUBLAS_WORKSPACE_CONFIG";
  bool was_set = false;
  std::string value;
};

// Writes its inputs to places of a tensor, a place twice: which one stays, nobody knows.
struct Put : tiny::Net {
  Outputs forward(const Batch& batch) {
    at::Tensor room = at::zeros({2});
    room.put_(at::zeros({2}, at::kLong), batch.inputs().flatten().slice(0, 0, 2));
    return out->forward(in->forward(batch.inputs()).tanh()) + room;
  }
};

}  // namespace

TEST_CASE("a run has the same weights and losses with 0, 1 and 4 loader threads",
          "[train][reproducibility][law]") {
  const Outcome one = run(options(1));
  REQUIRE(one.losses.size() == 21);
  for (const std::int64_t workers : {0, 1, 4}) {
    const Outcome again = run(options(workers));
    CHECK(again.weights.equal(one.weights));
    CHECK(again.losses == one.losses);
  }
  CHECK_FALSE(run(options(1, 4)).weights.equal(one.weights));
}

TEST_CASE("a run resumed inside an epoch with 4 loader threads ends as one with 1 thread would",
          "[train][reproducibility][resume]") {
  const Outcome whole = run(options(1));
  const TemporaryFolder folder;
  const std::string path = (folder / "half").string();
  {
    TrainerOptions half = options(2);
    half.max_duration = "10ba";
    Trainer<Losses> trainer{tiny::net(1, 0.3), half};
    trainer.fit();
    trainer.save_checkpoint(path);
  }
  TrainerOptions rest = options(4);
  rest.load_path = path;
  const Outcome resumed = run(rest);
  CHECK(resumed.weights.equal(whole.weights));
  CHECK(resumed.losses == std::vector<float>(whole.losses.begin() + 10, whole.losses.end()));
}

namespace {

// The order in which a run sees its examples, and the run's seed.
struct Order {
  std::vector<std::int64_t> examples;
  std::uint64_t seed = 0;
};

// Every example of every batch.
struct Seen final {
  std::vector<std::int64_t> examples{};
  void apply(AfterDataloader, State& state) {
    const at::Tensor inputs = state.batch.inputs();
    for (std::int64_t i = 0; i < inputs.size(0); ++i) {
      examples.push_back(inputs[i][0].item<std::int64_t>());
    }
  }
};

// 3 epochs of 5 batches.
TrainerOptions in_order_of(std::optional<std::uint64_t> trainer,
                           std::optional<std::uint64_t> loader) {
  const at::Tensor numbers = at::arange(20, at::kFloat).unsqueeze(1);
  return {.train = TensorLoader{numbers.expand({20, 4}),
                                numbers.expand({20, 2}),
                                {.batch_size = 4, .shuffle = true, .seed = loader}},
          .max_duration = "3ep",
          .optimizer = SGD{.lr = 1e-6},
          .device = "cpu",
          .seed = trainer,
          .progress_bar = false};
}

Order order_of(const TrainerOptions& how) {
  Trainer<Seen> trainer{tiny::net(), how};
  trainer.fit();
  return {trainer.get<Seen>().examples, trainer.state().rank_zero_seed};
}

}  // namespace

TEST_CASE("the trainer's seed orders the data of a loader that has no seed of its own",
          "[train][reproducibility][law]") {
  const Order one = order_of(in_order_of(1, std::nullopt));
  REQUIRE(one.examples.size() == 60);
  CHECK(order_of(in_order_of(1, std::nullopt)).examples == one.examples);
  CHECK(order_of(in_order_of(2, std::nullopt)).examples != one.examples);
  CHECK(order_of(in_order_of(7, 1)).examples == one.examples);
  CHECK(order_of(in_order_of(8, 1)).examples == one.examples);
}

TEST_CASE("a loader that two trainers share follows the one that reads it",
          "[train][reproducibility]") {
  TrainerOptions first = in_order_of(1, std::nullopt);
  TrainerOptions second = first;
  second.seed = 2;
  Trainer<Seen> a{tiny::net(), first};
  Trainer<Seen> b{tiny::net(), second};
  a.fit();
  b.fit();
  CHECK(a.get<Seen>().examples == order_of(in_order_of(1, std::nullopt)).examples);
  CHECK(b.get<Seen>().examples == order_of(in_order_of(2, std::nullopt)).examples);
}

TEST_CASE("prediction reads in the order of the run's seed", "[train][reproducibility]") {
  const auto outputs = [](std::uint64_t seed) {
    TrainerOptions how = in_order_of(seed, std::nullopt);
    Trainer<> trainer{tiny::net(), how};
    std::vector<at::Tensor> all;
    for (const Outputs& some : trainer.predict(how.train)) {
      all.push_back(some.tensor());
    }
    return at::cat(all);
  };
  CHECK(outputs(1).equal(outputs(1)));
  CHECK_FALSE(outputs(1).equal(outputs(2)));
}

TEST_CASE("a resumed run goes on in its order, also where its seed was drawn",
          "[train][reproducibility][resume]") {
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(3), {}}) {
    const TemporaryFolder folder;
    TrainerOptions saving = in_order_of(seed, std::nullopt);
    saving.save_folder = folder.path().string();
    saving.save_interval = "1ba";
    const Order whole = order_of(saving);
    for (const auto& [checkpoint, done] : {std::pair("ep1-ba7", 28), std::pair("ep1-ba10", 40)}) {
      TrainerOptions rest = in_order_of(std::nullopt, std::nullopt);
      rest.load_path = (folder / checkpoint).string();
      const Order resumed = order_of(rest);
      CHECK(resumed.seed == whole.seed);
      CHECK(resumed.examples ==
            std::vector<std::int64_t>(whole.examples.begin() + done, whole.examples.end()));
    }
  }
}

TEST_CASE("seed_all makes the next draws the same", "[train][reproducibility]") {
  seed_all(5);
  const at::Tensor first = at::rand({8});
  CHECK_FALSE(at::rand({8}).equal(first));
  seed_all(5);
  CHECK(at::rand({8}).equal(first));
}

TEST_CASE("deterministic mode refuses an operator that cannot be deterministic",
          "[train][reproducibility]") {
  const Restored restored;
  const auto fit = [](OnOrWarn deterministic) {
    TrainerOptions with = options(0);
    with.deterministic_mode = deterministic;
    Trainer<Losses> trainer{std::make_shared<Put>(), with};
    trainer.fit();
  };
  CHECK_NOTHROW(fit(false));
  CHECK_THROWS_WITH(fit(true),
                    ContainsSubstring("put_ does not have a deterministic implementation"));
  Warnings warnings;
  CHECK_NOTHROW(fit("warn"));
  REQUIRE_FALSE(warnings.texts.empty());
  CHECK_THAT(warnings.texts[0], ContainsSubstring("cannot be deterministic are warned of"));
  CHECK_THAT(warnings.texts.back(),
             ContainsSubstring("put_ does not have a deterministic implementation"));
}

TEST_CASE("TF32 and cuDNN's trials are set where they are asked for", "[train][reproducibility]") {
  const Restored restored;
  auto& context = at::globalContext();
  const bool products = context.allowTF32CuBLAS();
  const bool convolutions = context.allowTF32CuDNN();
  const bool trials = context.benchmarkCuDNN();
  TrainerOptions with = options(0);
  run(with);
  CHECK(context.allowTF32CuBLAS() == products);
  CHECK(context.allowTF32CuDNN() == convolutions);
  CHECK(context.benchmarkCuDNN() == trials);
  for (const bool on : {true, false}) {
    with.tf32 = on;
    with.cudnn_benchmark = on;
    run(with);
    CHECK(context.allowTF32CuBLAS() == on);
    CHECK(context.allowTF32CuDNN() == on);
    CHECK(context.benchmarkCuDNN() == on);
  }
  context.setAllowTF32CuBLAS(products);
  context.setAllowTF32CuDNN(convolutions);
  context.setBenchmarkCuDNN(trials);
  with.cudnn_benchmark = true;
  with.deterministic_mode = "warn";
  CHECK_THROWS_WITH(run(with), ContainsSubstring("cudnn_benchmark is true beside"));
}

TEST_CASE(
    "deterministic mode trains as before where all is deterministic, and warns that it is "
    "slower",
    "[train][reproducibility]") {
  const Restored restored;
  const Outcome before = run(options(0));
  TrainerOptions with = options(4);
  with.deterministic_mode = true;
  Warnings warnings;
  const Outcome after = run(with);
  CHECK(after.weights.equal(before.weights));
  CHECK(after.losses == before.losses);
  REQUIRE_FALSE(warnings.texts.empty());
  CHECK_THAT(warnings.texts[0], ContainsSubstring("deterministic mode is on: training is slower"));
  CHECK(at::globalContext().deterministicAlgorithms());
  CHECK_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  CHECK(at::globalContext().deterministicCuDNN());
  CHECK_FALSE(at::globalContext().benchmarkCuDNN());
}

TEST_CASE("deterministic mode gives cuBLAS a workspace that is deterministic",
          "[train][reproducibility]") {
  const Restored restored;
  const auto after = [](const char* before) {
    static_cast<void>(before == nullptr ? ::unsetenv(Restored::name)
                                        : ::setenv(Restored::name, before, 1));
    Warnings warnings;
    configure_deterministic_mode();
    return std::pair(std::string(std::getenv(Restored::name)), warnings.texts.front());
  };
  CHECK(after(nullptr).first == ":4096:8");
  CHECK(after(":16:8").first == ":16:8");
  const auto [value, warning] = after(":0:0");
  CHECK(value == ":4096:8");
  CHECK(warning ==
        "CUBLAS_WORKSPACE_CONFIG was :0:0, expected :4096:8 or :16:8, the deterministic ones; it "
        "is :4096:8 now");
}

TEST_CASE("a seed of more than 32 bits is refused", "[train][reproducibility]") {
  CHECK_THROWS_WITH(run(options(0, std::uint64_t{1} << 32U)),
                    ContainsSubstring("seed is 4294967296, expected 0 to 4294967295"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
