// What the Trainer costs over a loop written by hand: the same network, data, loss and optimizer.
//
//     benchmark_overhead by_hand|trainer|by_hand_4|trainer_4|hooked_27 [steps]
//
// Claim: at most 1.01 times the hand-written loop's instructions, without policies and with four
// whose work is written inline by hand; at most 1 microsecond a step for 27 policies that are
// hooked on 14 events each and do nothing but count. One thread, fp32, CPU. With `steps` it runs
// that many steps and prints nothing (for callgrind); else 15 blocks of 200 steps after 500 of
// warm-up, as JSON. run.py takes both numbers and prints the table.

#include <array>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

using Data = std::shared_ptr<bench::Stopwatch>;
namespace functional = tutti::functional;

constexpr double smoothing = 0.1;
constexpr double clipping_threshold = 1.0;
constexpr double ema_factor = 0.99;
constexpr tutti::SGD sgd{.lr = bench::lr, .momentum = bench::momentum};

// Samples per second over the last 100 batches.
class Throughput {
 public:
  void add(std::int64_t samples, std::int64_t nanoseconds) {
    auto& slot = window_[next_++ % window_.size()];
    samples_ += samples - slot.samples;
    nanoseconds_ += nanoseconds - slot.nanoseconds;
    slot = {samples, nanoseconds};
    per_second = 1e9 * static_cast<double>(samples_) / static_cast<double>(nanoseconds_);
  }
  double per_second = 0;

 private:
  struct Slot {
    std::int64_t samples = 0;
    std::int64_t nanoseconds = 0;
  };
  std::array<Slot, 100> window_{};
  std::size_t next_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t nanoseconds_ = 0;
};

struct Speed final {
  Throughput throughput{};
  void apply(tutti::BatchEnd, const tutti::State& state) {
    throughput.add(state.timestamp.sample - state.previous_timestamp.sample,
                   state.timestamp.batch_wct.count());
  }
};

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

void by_hand(const Data& data) {
  bench::Mlp model = bench::mlp();
  const auto optimizer = sgd.build(model->parameters());
  at::Tensor last_loss;
  data->start(0);
  while (auto batch = data->next()) {
    optimizer->zero_grad();
    const at::Tensor loss =
        functional::soft_cross_entropy(model->forward(batch->inputs()), batch->targets());
    loss.backward();
    optimizer->step();
    last_loss = loss.detach();
  }
}

void by_hand_with_four(const Data& data) {
  bench::Mlp model = bench::mlp();
  const auto parameters = model->parameters();
  const auto optimizer = sgd.build(parameters);
  const functional::EMAParameters averages(*model);
  Throughput throughput;
  at::Tensor last_loss;
  auto before = bench::Stopwatch::Clock::now();
  data->start(0);
  while (auto batch = data->next()) {
    optimizer->zero_grad();
    const at::Tensor logits = model->forward(batch->inputs());
    const at::Tensor targets = functional::smooth_labels(logits, batch->targets(), smoothing);
    const at::Tensor loss = functional::soft_cross_entropy(logits, targets);
    loss.backward();
    functional::apply_gradient_clipping(parameters, tutti::ClippingType::norm, clipping_threshold);
    optimizer->step();
    last_loss = loss.detach();
    averages.update(ema_factor);
    const auto now = bench::Stopwatch::Clock::now();
    throughput.add(batch->num_samples(), (now - before).count());
    before = now;
  }
}

enum class Gradients { walked, by_engine };  // by_engine: as in the loops by hand

template <class... Policies>
void with_trainer(const Data& data, Gradients gradients, Policies... policies) {
  tutti::Trainer<Policies...> trainer(
      tutti::Classifier(bench::mlp(),
                        {.num_classes = bench::classes, .train_metrics = tutti::Metrics{}}),
      {.train = data,
       .max_duration = "1ep",
       .optimizer = sgd,
       .autograd_engine = gradients == Gradients::by_engine,
       .device = "cpu",
       .seed = 1,
       .progress_bar = false},
      std::move(policies)...);
  trainer.fit();
  if constexpr ((requires { Policies{}.calls; } && ...) && sizeof...(Policies) > 0) {
    TORCH_CHECK(((trainer.template get<Policies>().calls >= 13 * data->size()) && ...),
                "a hook was not called");
  }
}

template <int... I>
void with_counts(const Data& data, std::integer_sequence<int, I...>) {
  with_trainer(data, Gradients::walked, Counts<I>{}...);
}

void with_four(const Data& data, Gradients gradients) {
  with_trainer(data, gradients, tutti::LabelSmoothing{.smoothing = smoothing},
               tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                       .clipping_threshold = clipping_threshold},
               tutti::EMA{.smoothing = ema_factor}, Speed{});
}

bool run(const std::string& mode, const Data& data) {
  if (mode == "by_hand") {
    by_hand(data);
  } else if (mode == "trainer") {
    with_trainer(data, Gradients::walked);
  } else if (mode == "trainer_engine") {
    with_trainer(data, Gradients::by_engine);
  } else if (mode == "by_hand_4") {
    by_hand_with_four(data);
  } else if (mode == "trainer_4") {
    with_four(data, Gradients::walked);
  } else if (mode == "trainer_4_engine") {
    with_four(data, Gradients::by_engine);
  } else if (mode == "hooked_27") {
    with_counts(data, std::make_integer_sequence<int, 27>{});
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::int64_t steps = argc > 2 ? std::atoll(argv[2]) : 0;
  const auto data = steps > 0 ? std::make_shared<bench::Stopwatch>(0, steps, 1)
                              : std::make_shared<bench::Stopwatch>(500, 200, 15);
  if (!run(mode, data)) {
    std::fprintf(stderr, "usage: %s by_hand[_4]|trainer[_4][_engine]|hooked_27 [steps]\n", argv[0]);
    return 2;
  }
  if (steps == 0) {
    bench::report(mode, *data);
  }
}
