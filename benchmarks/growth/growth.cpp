// How a step grows with the policies of its recipe, the parameters and the batch, beside the same
// step by hand: what the Trainer adds must not grow with any of them.
//
// Usage: benchmark_growth [ALTERNATIONS]. Every way is timed once per alternation, in turn, so that
// slow changes of the machine hit all alike. Prints one line of JSON: the microseconds a step of
// each, of CPU time.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

constexpr tutti::SGD sgd{.lr = bench::lr, .momentum = bench::momentum};

// One batch, again and again; takes the time from `warm_up` steps on.
class Repeat {
 public:
  Repeat(tutti::Batch batch, std::int64_t steps)
      : batch_(std::move(batch)), warm_up_(steps / 4 + 1), steps_(steps) {}

  void start(std::int64_t, std::int64_t first_batch = 0) { step_ = first_batch; }
  std::optional<tutti::Batch> next() {
    if (step_ == warm_up_) {
      began_ = std::clock();
    }
    if (step_ == warm_up_ + steps_) {
      microseconds = 1e6 * static_cast<double>(std::clock() - began_) / CLOCKS_PER_SEC /
                     static_cast<double>(steps_);
      return std::nullopt;
    }
    ++step_;
    return batch_;
  }
  std::int64_t size() const { return warm_up_ + steps_; }
  std::int64_t batch_size() const { return batch_.num_samples(); }

  double microseconds = 0;  // a step; once the epoch is over

 private:
  tutti::Batch batch_;
  std::int64_t warm_up_;
  std::int64_t steps_;
  std::int64_t step_ = 0;
  std::clock_t began_ = 0;
};
using Data = std::shared_ptr<Repeat>;

// Hooked on the 14 events of a step.
template <int I>
struct Counts final {
  std::int64_t calls = 0;
  template <class E>
    requires(tutti::detail::contains<
             E, tutti::types<tutti::BeforeDataloader, tutti::AfterDataloader, tutti::BatchStart,
                             tutti::BeforeTrainBatch, tutti::BeforeForward, tutti::AfterForward,
                             tutti::BeforeLoss, tutti::AfterLoss, tutti::BeforeBackward,
                             tutti::AfterBackward, tutti::AfterTrainBatch, tutti::BatchEnd,
                             tutti::BatchCheckpoint, tutti::EpochEnd>>)
  void apply(E, tutti::State&) {
    ++calls;
  }
};

// A network whose one layer has side x side parameters.
struct SquareImpl : torch::nn::Module {
  torch::nn::Linear layer;
  explicit SquareImpl(std::int64_t side)
      : layer(register_module(
            "layer", torch::nn::Linear(torch::nn::LinearOptions(side, side).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
};
TORCH_MODULE(Square);

template <class Net>
void by_hand(Net net, const Data& data) {
  const auto optimizer = sgd.build(net->parameters());
  at::Tensor last_loss;
  data->start(0);
  while (auto batch = data->next()) {
    optimizer->zero_grad();
    const at::Tensor loss =
        tutti::functional::soft_cross_entropy(net->forward(batch->inputs()), batch->targets());
    loss.backward();
    optimizer->step();
    last_loss = loss.detach();
  }
}

template <class Net, class... Policies>
void with_trainer(Net net, const Data& data, Policies... policies) {
  tutti::Trainer<Policies...> trainer(tutti::Classifier(net, {.train_metrics = tutti::Metrics{}}),
                                      {.train = data,
                                       .max_duration = "1ep",
                                       .optimizer = sgd,
                                       .device = "cpu",
                                       .seed = 1,
                                       .progress_bar = false},
                                      std::move(policies)...);
  trainer.fit();
}

struct Way {
  std::string name;
  std::function<void(const Data&)> run;
  std::function<Data()> data;
  std::vector<double> times{};
};

Data batch_of(std::int64_t examples, std::int64_t inputs, std::int64_t classes,
              std::int64_t steps) {
  torch::manual_seed(1);
  return std::make_shared<Repeat>(tutti::Batch(torch::randn({examples, inputs}),
                                               torch::randint(classes, {examples}, torch::kLong)),
                                  steps);
}

template <int... I>
Way policies(std::integer_sequence<int, I...>) {
  return {"policies_" + std::to_string(sizeof...(I)),
          [](const Data& data) { with_trainer(bench::mlp(), data, Counts<I>{}...); },
          [] { return batch_of(bench::batch_size, bench::inputs, bench::classes, 400); }};
}

std::vector<Way> all_ways() {
  std::vector<Way> ways{
      {"policies_by_hand", [](const Data& data) { by_hand(bench::mlp(), data); },
       [] { return batch_of(bench::batch_size, bench::inputs, bench::classes, 400); }},
      policies(std::make_integer_sequence<int, 0>{}),
      policies(std::make_integer_sequence<int, 8>{}),
      policies(std::make_integer_sequence<int, 16>{}),
      policies(std::make_integer_sequence<int, 32>{})};
  for (const std::int64_t side : {32, 100, 316, 1000, 3162, 10000}) {
    const std::int64_t steps = std::clamp<std::int64_t>(40'000'000 / (side * side), 4, 400);
    const auto data = [side, steps] { return batch_of(8, side, side, steps); };
    const std::string count = std::to_string(side * side);
    ways.push_back(
        {"parameters_by_hand_" + count, [side](const Data& d) { by_hand(Square(side), d); }, data});
    ways.push_back({"parameters_trainer_" + count,
                    [side](const Data& d) { with_trainer(Square(side), d); }, data});
  }
  for (const std::int64_t examples : {1, 8, 64, 512, 4096}) {
    const auto data = [examples] {
      return batch_of(examples, bench::inputs, bench::classes, 100 + 1600 / examples);
    };
    const std::string count = std::to_string(examples);
    ways.push_back(
        {"batch_by_hand_" + count, [](const Data& d) { by_hand(bench::mlp(), d); }, data});
    ways.push_back(
        {"batch_trainer_" + count, [](const Data& d) { with_trainer(bench::mlp(), d); }, data});
  }
  return ways;
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const int alternations = argc > 1 ? std::atoi(argv[1]) : 10;
  std::vector<Way> ways = all_ways();
  for (int i = 0; i < alternations; ++i) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      Way& way = ways[i % 2 == 0 ? w : ways.size() - 1 - w];
      const Data data = way.data();
      way.run(data);
      way.times.push_back(data->microseconds);
    }
  }
  std::printf("{\"torch\": \"%s\"", TORCH_VERSION);
  for (const Way& way : ways) {
    std::printf(", \"%s\": [", way.name.c_str());
    for (std::size_t i = 0; i < way.times.size(); ++i) {
      std::printf("%s%.3f", i == 0 ? "" : ", ", way.times[i]);
    }
    std::printf("]");
  }
  std::printf("}\n");
}
