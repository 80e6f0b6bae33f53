#include <tutti/train/num_threads.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// LibTorch has so many threads while this lives.
struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

// What one network of a run has been through: its steps' numbers of threads, and its weights.
struct Ran {
  std::vector<int> counts;
  at::Tensor weights;
  std::vector<std::string> warnings;
  std::int64_t compared = 0;
  int chosen = 0;
};

// Elementwise operators, dropout and a buffer. LibTorch's matrix products and its BatchNorm have
// other bits on another number of threads, also for tensors as small as these.
struct Elementwise : torch::nn::Module {
  Elementwise() {
    weight = register_parameter("weight", at::ones({4}));
    bias = register_parameter("bias", at::zeros({4}));
    average = register_buffer("average", at::zeros({4}));
  }
  Outputs forward(const Batch& batch) {
    if (is_training()) {
      average.mul_(0.9).add_(batch.inputs().select(0, 0), 0.1);
    }
    const at::Tensor hidden = (batch.inputs() * weight + bias).tanh();
    return at::dropout(hidden, 0.3, is_training()).slice(1, 0, 2);
  }
  Loss loss(const Outputs& outputs, const Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  at::Tensor weight, bias, average;
};

enum class Bits { same, by_threads, by_threads_later };

// The sum of the targets and a little chance; writes down the numbers of threads that it is updated
// with.
class Targets final : public Metric {
 public:
  explicit Targets(Bits bits, std::string name = "Targets") : bits_(bits), name_(std::move(name)) {}
  void update(const at::Tensor&, const at::Tensor& targets) override {
    counts->push_back(at::get_num_threads());
    sum_.add_(at::rand({}) * 1e-6 +
              targets.sum() * (bits_ == Bits::same ? 1 : 1 + 1e-7 * at::get_num_threads()));
  }
  using Metric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>();
  }
  [[nodiscard]] std::vector<at::Tensor> states() const override { return {sum_}; }
  void set_states(std::vector<at::Tensor> states) override { sum_ = states[0]; }
  void reset() override { sum_ = at::zeros({}); }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Targets>(*this);
  }
  [[nodiscard]] std::string name() const override { return name_; }
  std::shared_ptr<std::vector<int>> counts = std::make_shared<std::vector<int>>();

 private:
  Bits bits_;
  std::string name_;
  at::Tensor sum_ = at::zeros({});
};

// Trains a network without a trainer, with dropout, buffers and momentum; a step takes 1 s by a
// clock of its own, for each thread beyond the first another 2 s. rows: of batch i.
template <class Rows>
Ran run(int threads, int steps, bool chooses, Bits bits, Rows&& rows,
        std::shared_ptr<dist::Communicator> world = std::make_shared<dist::SingleProcess>()) {
  const Threads in_use(threads);
  const Warnings warnings;
  Ran ran;
  State state;
  train::Run run;
  state.communicator = std::move(world);
  state.rank = state.communicator->rank();
  state.world_size = state.communicator->size();
  const auto net = std::make_shared<Elementwise>();
  state.task = AnyModel(net);
  state.model = net;
  state.optimizers = {SGD{.lr = 0.05, .momentum = 0.9}.build(net->parameters())};
  double seconds = 0;
  train::NumThreads tuner({}, [&] { return seconds; });
  const auto step = [&] {
    train::zero_gradients(state);
    state.outputs = net->forward(state.batch);
    state.loss = net->loss(state.outputs, state.batch).total();
    if (bits == Bits::by_threads ||
        (bits == Bits::by_threads_later && state.timestamp.batch > 60)) {
      state.loss = state.loss * (1 + 1e-7 * at::get_num_threads());
    }
    state.loss.backward();
    state.total_loss["total"] = state.loss.detach();
    state.optimizers.front()->step();
    seconds += 1 + 2 * (at::get_num_threads() - 1);
    ran.counts.push_back(at::get_num_threads());
  };
  at::manual_seed(3);
  for (int i = 0; i < steps; ++i) {
    state.batch = Batch(at::randn({rows(i), 4}), at::randn({rows(i), 2}));
    if (chooses) {
      tuner.train(state, run, step);
    } else {
      step();
    }
    CHECK(at::get_num_threads() == threads);
    state.timestamp = state.timestamp.to_next_batch(6);
  }
  ran.weights = tiny::flat(*net);
  ran.warnings = warnings.texts;
  ran.compared = tuner.compared();
  ran.chosen = tuner.chosen();
  return ran;
}

constexpr auto six = [](int) { return 6; };

}  // namespace

TEST_CASE("the counts that are tried are powers of two below the one that is set",
          "[train][threads]") {
  CHECK(train::thread_counts(1) == std::vector<int>{1});
  CHECK(train::thread_counts(2) == std::vector<int>{2, 1});
  CHECK(train::thread_counts(6) == std::vector<int>{6, 1, 2, 4});
  CHECK(train::thread_counts(8) == std::vector<int>{8, 1, 2, 4});
}

TEST_CASE("the fastest number of threads is used once its bits are known to be the same",
          "[train][threads]") {
  const Ran with = run(2, 60, true, Bits::same, six);
  const Ran without = run(2, 60, false, Bits::same, six);
  CHECK(with.weights.equal(without.weights));
  CHECK(with.chosen == 1);
  CHECK(with.compared == 4);
  // Each of the first batches with 1 thread and again with 2, then a window of both, after which 2
  // threads are out. From there on 1 thread; after 16 steps with it once more both.
  std::vector<int> expected{1, 2, 1, 2, 1, 2, 2, 2, 2, 2};
  expected.resize(64, 1);
  expected[27] = 2;
  CHECK(with.counts == expected);
  REQUIRE(with.warnings.size() == 1);
  CHECK_THAT(with.warnings[0],
             ContainsSubstring("num_threads: 1 instead of 2 from batch 11 of the run on (rank 0): "
                               "a step takes 0.333333 of the time, with the same bits"));
}

TEST_CASE("a model whose bits depend on the number of threads is left alone", "[train][threads]") {
  const Ran with = run(4, 40, true, Bits::by_threads, six);
  const Ran without = run(4, 40, false, Bits::by_threads, six);
  CHECK(with.weights.equal(without.weights));
  CHECK(with.chosen == 4);
  CHECK(with.compared == 2);  // 1 and 2 threads, in the first batch
  CHECK(with.counts.size() == 42);
  REQUIRE(with.warnings.size() == 2);
  CHECK_THAT(with.warnings[0],
             ContainsSubstring("num_threads: 1 threads give other bits than 4 in batch 0 of the "
                               "run (rank 0), so that number is not used"));
  CHECK_THAT(with.warnings[1], ContainsSubstring("2 threads give other bits than 4"));
  CHECK_THAT(with.warnings[1], !ContainsSubstring("may differ"));
}

TEST_CASE("bits that become others are found by comparing again, and said", "[train][threads]") {
  const Ran with = run(2, 200, true, Bits::by_threads_later, six);
  CHECK(with.chosen == 2);
  CHECK(with.counts.back() == 2);
  REQUIRE(with.warnings.size() == 2);
  CHECK_THAT(with.warnings[1], ContainsSubstring("so that number is not used any more; batches "
                                                 "before, in which it was, may differ"));
}

TEST_CASE("batches of other shapes have the starting count until they are compared themselves",
          "[train][threads]") {
  const auto rows = [](int i) { return i % 20 == 19 ? 3 : 6; };  // a smaller one ends the epoch
  const Ran with = run(2, 100, true, Bits::same, rows);
  const Ran without = run(2, 100, false, Bits::same, rows);
  CHECK(with.weights.equal(without.weights));
  CHECK(with.chosen == 1);
  CHECK(with.compared == 3 + 1 + 3);  // of six rows, again after a while, of three rows
  CHECK(with.counts.back() == 1);
}

TEST_CASE("shapes that never come twice have the starting count", "[train][threads]") {
  const auto rows = [](int i) { return 2 + i; };
  const Ran with = run(2, 100, true, Bits::same, rows);
  CHECK(with.weights.equal(run(2, 100, false, Bits::same, rows).weights));
  CHECK(with.compared == 64);
  CHECK(with.chosen == 2);
  CHECK(with.counts.back() == 2);
}

TEST_CASE("ranks compare in the same batches, also where one has less to compare",
          "[train][threads]") {
  // Another rank, which has two counts to compare in the first four batches.
  struct OtherRank final : FakeCommunicator {
    void all_reduce(std::span<std::int64_t> values, dist::ReduceOp op) override {
      REQUIRE(op == dist::ReduceOp::maximum);
      values[0] = std::max<std::int64_t>(values[0], batches++ < 4 ? 2 : 0);
    }
    int batches = 0;
  };
  const Ran one = run(1, 20, true, Bits::same, six, std::make_shared<OtherRank>());
  CHECK(one.compared == 8);
  CHECK(one.counts == std::vector<int>(28, 1));
  CHECK(one.weights.equal(run(1, 20, false, Bits::same, six).weights));
  const Ran two = run(2, 60, true, Bits::same, six, std::make_shared<OtherRank>());
  CHECK(two.compared == 8 + 1);
  CHECK(two.chosen == 1);
  CHECK(two.weights.equal(run(2, 60, false, Bits::same, six).weights));
}

TEST_CASE("metrics of an evaluation have the chosen count where their bits are the same",
          "[train][threads]") {
  const Threads two(2);
  const Warnings warnings;
  State state;
  train::Run run;
  state.communicator = std::make_shared<dist::SingleProcess>();
  const auto net = std::make_shared<Elementwise>();
  state.task = AnyModel(net);
  state.model = net;
  state.batch = Batch(at::randn({6, 4}), at::randn({6, 2}));
  state.outputs = state.batch.targets();
  double seconds = 0;
  train::NumThreads tuner({}, [&] { return seconds; });
  for (int i = 0; i < 30; ++i) {
    tuner.train(state, run, [&] { seconds += at::get_num_threads(); });
  }
  REQUIRE(tuner.chosen() == 1);

  const auto counts_of = [&](Bits bits, const std::string& name) {
    const auto metric = std::make_shared<const Targets>(bits, name);
    train::MetricSet set({metric}, {}, "");
    std::vector<double> sums;
    for (int i = 0; i < 5; ++i) {
      tuner.update_metrics(state, set);
      sums.push_back(set.counts()[0][0].item<double>());
    }
    const auto sum = state.batch.targets().sum().item<double>();
    CHECK_THAT(sums[0], Catch::Matchers::WithinRel(sum, 1e-5));
    CHECK_THAT(sums[4], Catch::Matchers::WithinRel(5 * sum, 1e-5));
    return *metric->counts;
  };
  // With 1 thread, and with 2 to compare; then it is known.
  at::manual_seed(3);
  CHECK(counts_of(Bits::same, "One") == std::vector<int>{1, 2, 1, 2, 1, 2, 1, 1});
  const at::Tensor after = at::rand({});
  CHECK(counts_of(Bits::same, "One") == std::vector<int>(5, 1));
  CHECK(counts_of(Bits::same, "Another") == std::vector<int>{1, 2, 1, 2, 1, 2, 1, 1});
  CHECK(counts_of(Bits::by_threads, "Third") == std::vector<int>{1, 2, 2, 2, 2, 2});
  at::manual_seed(3);
  at::rand({5});  // what the five updates that count have drawn
  CHECK(at::rand({}).equal(after));
  CHECK(tuner.chosen() == 1);
  CHECK(at::get_num_threads() == 2);
}

namespace {

using Recipe = Trainer<MixUp, EMA, InMemoryLogger>;

TrainerOptions options(CountOrAuto threads) {
  at::manual_seed(11);
  const at::Tensor inputs = at::randn({46, 4});
  const at::Tensor targets = inputs.argmax(1);
  const auto loader = [&](bool shuffle) {
    return TensorLoader(inputs, targets, {.batch_size = 4, .shuffle = shuffle});
  };
  return {.train = loader(true),
          .eval = {{"test", loader(false)}},
          .max_duration = "5ep",
          .optimizer = SGD{.lr = 0.05, .momentum = 0.9},
          .device = "cpu",
          .num_threads = threads,
          .seed = 5,
          .progress_bar = false};
}

std::unique_ptr<Recipe> trained(CountOrAuto threads) {
  at::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 300), torch::nn::BatchNorm1d(300),
                            torch::nn::Dropout(0.2), torch::nn::Linear(300, 4));
  auto trainer = std::make_unique<Recipe>(Classifier{net, {.num_classes = 4}}, options(threads),
                                          MixUp{}, EMA{.half_life = "2ba"}, InMemoryLogger{});
  trainer->fit();
  return trainer;
}

}  // namespace

TEST_CASE("a run whose number of threads is chosen has the results of one whose is not",
          "[train][threads]") {
  const Threads four(4);
  const Warnings warnings;
  const auto with = trained("auto");
  const auto without = trained({});
  CHECK(tiny::flat(*with->state().model).equal(tiny::flat(*without->state().model)));
  CHECK(with->state().eval_metric_values == without->state().eval_metric_values);
  const auto& logged = with->get<InMemoryLogger>().data;
  const auto& plain = without->get<InMemoryLogger>().data;
  CHECK(logged.at("trainer/num_threads").values.size() == 60);
  CHECK(logged.size() == plain.size() + 1);
  for (const auto& [name, series] : plain) {
    INFO(name);
    CHECK(logged.at(name).values == series.values);
  }
  CHECK(at::get_num_threads() == 4);
}

TEST_CASE("a number of threads is that of the whole program", "[train][threads]") {
  const Threads before(1);
  trained(3);
  CHECK(at::get_num_threads() == 3);
}

TEST_CASE(
    "num_threads is refused where it is no number of threads, and stays where it may not "
    "be chosen",
    "[train][threads]") {
  CHECK_THROWS_WITH(trained(-1), ContainsSubstring("num_threads is -1, expected a number of "
                                                   "threads, 0 (as LibTorch is set) or \"auto\""));
  CHECK_THROWS_WITH(CountOrAuto("two"), ContainsSubstring("expected \"auto\""));
  const Threads one(1);
  const Warnings warnings;
  trained("auto");
  CHECK(std::any_of(warnings.texts.begin(), warnings.texts.end(), [](const std::string& text) {
    return text.find("num_threads is auto, but there are no fewer: it stays 1") != text.npos;
  }));
  State state;
  state.device = at::Device("cuda:0");
  CHECK(train::choose_threads("auto", state, {}) == nullptr);
  CHECK_THAT(warnings.texts.back(), ContainsSubstring("the model is on cuda:0"));
}

TEST_CASE("a program without the header says which one it needs", "[train][threads]") {
  const auto was = std::exchange(train::threads_support(), nullptr);
  const std::string said = message([] { trained("auto"); });
  CHECK(trained(1)->state().timestamp.batch > 0);
  train::threads_support() = was;
  CHECK_THAT(said, ContainsSubstring("add #include <tutti/train/num_threads.hpp> to the file"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
