#include <tutti/train/several.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/callbacks/lr_monitor.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

// Two numbers that pull at each other: a wants to be b + 1, b to be half of a. Each loss depends on
// both, and only its own number is to move.
struct Pair : torch::nn::Module {
  Pair() {
    a = register_parameter("a", at::zeros({1}));
    b = register_parameter("b", at::zeros({1}));
  }
  Outputs forward(const Batch& batch, std::string_view due) {
    turns.emplace_back(due);
    return a * batch.inputs() + b * 0;
  }
  Loss loss(const Outputs&, const Batch&, std::string_view due) {
    return due == "first" ? (a - b - 1).pow(2).sum() : (b - a / 2).pow(2).sum();
  }
  at::Tensor a, b;
  Names turns;
};

// What is seen in each turn.
struct Watch final {
  static constexpr std::string_view name = "Watch";
  Names due{};
  std::vector<bool> needs{};
  void apply(AfterTrainBatch, const State& state) {
    due.push_back(state.due_optimizer);
    CHECK(state.optimizers.size() == 1);
    const auto parameters = state.model->parameters();
    needs.push_back(parameters[0].requires_grad());
    needs.push_back(parameters[1].requires_grad());
    CHECK(parameters[needs.at(needs.size() - 2) ? 1 : 0].grad().defined() == false);
  }
};
using Run = Trainer<Watch, GradientClipping, EMA, LRMonitor, InMemoryLogger>;

TrainerOptions options(Time length = "4ba") {
  return {.train = std::vector<Batch>(8, Batch(at::ones({4, 1}), at::zeros({4, 1}))),
          .max_duration = length,
          .optimizers = {{"first", SGD{.lr = 0.25, .momentum = 0.5}, {"a"}},
                         {"second", SGD{.lr = 0.5}, {"b"}}},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

std::unique_ptr<Run> make(TrainerOptions with, std::shared_ptr<Pair> model = nullptr) {
  return std::make_unique<Run>(
      model ? model : std::make_shared<Pair>(), std::move(with), Watch{},
      GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 100},
      EMA{.half_life = "2ba"}, LRMonitor{}, InMemoryLogger{});
}

double value(Run& run, int i) {
  return run.state().model->parameters()[static_cast<std::size_t>(i)].item<double>();
}

}  // namespace

TEST_CASE("optimizers take turns, each along gradients of its own parameters alone",
          "[train][several]") {
  const auto model = std::make_shared<Pair>();
  auto run = make(options(), model);
  run->fit();
  CHECK(model->turns ==
        Names{"first", "second", "first", "second", "first", "second", "first", "second"});
  CHECK(run->get<Watch>().due == model->turns);
  CHECK(run->get<Watch>().needs ==
        std::vector<bool>{true, false, false, true, true, false, false, true,  //
                          true, false, false, true, true, false, false, true});
  // by hand: the second sees what the first has done in the same batch
  double a = 0, b = 0, momentum = 0;
  std::vector<double> firsts;
  for (int i = 0; i < 4; ++i) {
    firsts.push_back((a - b - 1) * (a - b - 1));
    momentum = 0.5 * momentum + 2 * (a - b - 1);
    a -= 0.25 * momentum;
    b -= 0.5 * 2 * (b - a / 2);
  }
  CHECK(value(*run, 0) == Approx(a));
  CHECK(value(*run, 1) == Approx(b));
  const auto& logged = run->get<InMemoryLogger>().data;
  CHECK(logged.at("loss/train/first").values.size() == 4);
  CHECK(logged.at("loss/train/first").values[2] == Approx(firsts[2]));
  CHECK(logged.at("loss/train/total").values[2] ==
        Approx(logged.at("loss/train/first").values[2] + logged.at("loss/train/second").values[2]));
  CHECK(logged.contains("lr-first/group0"));
  CHECK(logged.contains("lr-second/group0"));
  CHECK(run->state().optimizers.size() == 2);
  CHECK(run->state().due_optimizer.empty());
  CHECK(model->a.requires_grad());
  CHECK(model->b.requires_grad());
}

TEST_CASE("an optimizer is due when it says so, and has the schedule that is its own",
          "[train][several]") {
  TrainerOptions some = options();
  some.optimizers[1].when = [](const State& state) { return state.timestamp.batch % 2 == 1; };
  some.optimizers[1].schedule = [](const Progress& at) { return at.timestamp.batch < 2 ? 1 : 0.5; };
  some.schedule_ahead = true;
  some.schedule = [](const Progress&) { return 0.1; };
  const auto model = std::make_shared<Pair>();
  auto run = make(some, model);
  run->fit();
  CHECK(model->turns == Names{"first", "first", "second", "first", "first", "second"});
  const auto& logged = run->get<InMemoryLogger>().data;
  CHECK(logged.at("lr-first/group0").values.back() == Approx(0.025));
  CHECK(logged.at("lr-second/group0").values.front() == Approx(0.5));
  CHECK(logged.at("lr-second/group0").values.back() == Approx(0.25));

  some.optimizers[0].when = some.optimizers[1].when;
  CHECK_THROWS_WITH(make(some)->fit(), ContainsSubstring("no optimizer is due in batch 0"));
}

TEST_CASE("microbatches of several optimizers add up to the batch, and a run resumes bit for bit",
          "[train][several][resume]") {
  auto whole = make(options("6ba"));
  whole->fit();
  TrainerOptions parts = options("6ba");
  parts.device_train_microbatch_size = 2;
  auto in_parts = make(parts);
  in_parts->fit();
  CHECK(value(*in_parts, 0) == Approx(value(*whole, 0)));
  CHECK(value(*in_parts, 1) == Approx(value(*whole, 1)));

  const TemporaryFolder folder;
  TrainerOptions first = options("3ba");
  first.save_folder = folder.path().string();
  make(first)->fit();
  TrainerOptions second = options("6ba");
  second.load_path = (folder / "latest").string();
  auto resumed = make(second);
  resumed->fit();
  CHECK(value(*resumed, 0) == value(*whole, 0));
  CHECK(value(*resumed, 1) == value(*whole, 1));
  CHECK(resumed->get<EMA>().averages()[0].second.equal(whole->get<EMA>().averages()[0].second));

  second.optimizers[0].name = "other";
  CHECK_THROWS_WITH(make(second),
                    ContainsSubstring("the checkpoint's optimizers are first, second, "
                                      "this run's other, second"));
}

TEST_CASE("batches from outside are trained as those of a loader, events and all",
          "[train][several][step]") {
  auto fitted = make(options("4ba"));
  fitted->fit();
  auto stepped = make(options("4ba"));
  const Batch batch(at::ones({4, 1}), at::zeros({4, 1}));
  at::Tensor loss;
  for (int i = 0; i < 4; ++i) {
    loss = stepped->step(batch);
  }
  CHECK(loss.item<double>() == stepped->state().total_loss.at("total").item<double>());
  CHECK(stepped->state().timestamp.batch == 4);
  CHECK(value(*stepped, 0) == value(*fitted, 0));
  CHECK(stepped->get<Watch>().due == fitted->get<Watch>().due);
  CHECK(stepped->get<EMA>().averages()[1].second.equal(fitted->get<EMA>().averages()[1].second));
  CHECK(stepped->get<InMemoryLogger>().data.at("loss/train/first").values ==
        fitted->get<InMemoryLogger>().data.at("loss/train/first").values);
  CHECK_THROWS_WITH(stepped->find_lr(), ContainsSubstring("steps are being made"));
  CHECK(stepped->eval_step(batch).empty());  // the model has no metrics
  stepped->fit("2ba");                       // ends the steps, and goes on
  fitted->fit("2ba");
  CHECK(value(*stepped, 0) == value(*fitted, 0));
}

TEST_CASE("several optimizers that make no sense together are refused", "[train][several]") {
  const auto refused = [](auto change) {
    TrainerOptions wrong = options();
    change(wrong);
    try {
      make(wrong);
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  CHECK_THAT(refused([](auto& o) { o.optimizer = SGD{.lr = 1}; }),
             ContainsSubstring("optimizer and optimizers are both set"));
  CHECK_THAT(refused([](auto& o) { o.optimizers[1].name = "first"; }),
             ContainsSubstring("two are called \"first\""));
  CHECK_THAT(refused([](auto& o) { o.optimizers[1].name = ""; }),
             ContainsSubstring("one has no name"));
  CHECK_THAT(refused([](auto& o) { o.optimizers[1].parameters = {"c"}; }),
             ContainsSubstring("\"second\" is to train \"c\", which names no parameter of the "
                               "model; it has \"a\" and others"));
  CHECK_THAT(refused([](auto& o) { o.optimizers[1].parameters = {"*"}; }),
             ContainsSubstring("the parameter \"a\" is trained by \"first\" and \"second\""));
  CHECK_THAT(refused([](auto& o) { o.optimizers.pop_back(); }),
             ContainsSubstring("no optimizer trains the parameter \"b\""));
  CHECK_THAT(refused([](auto& o) { o.optimizers[1].optimizer = nullptr; }),
             ContainsSubstring("\"second\" has no optimizer"));
  CHECK_THAT(refused([](auto& o) {
               o.optimizers[1].optimizer = [](torch::nn::Module& model) {
                 return std::make_unique<torch::optim::LBFGS>(
                     std::vector<at::Tensor>{model.parameters()[1]});
               };
             }),
             ContainsSubstring("\"second\" calls a closure in its step"));
  CHECK_THROWS_WITH((Trainer<SAM>{std::make_shared<Pair>(), options()}),
                    ContainsSubstring("the policy SAM takes the optimizer's step"));
}

namespace {

// A DCGAN for images of 8 x 8.
struct Generator : torch::nn::Module {
  Generator() {
    start = register_module("start", torch::nn::Linear(16, 32 * 4));
    first = register_module("first", torch::nn::BatchNorm2d(32));
    grow = register_module("grow",
                           torch::nn::ConvTranspose2d(
                               torch::nn::ConvTranspose2dOptions(32, 16, 4).stride(2).padding(1)));
    second = register_module("second", torch::nn::BatchNorm2d(16));
    last = register_module("last",
                           torch::nn::ConvTranspose2d(
                               torch::nn::ConvTranspose2dOptions(16, 1, 4).stride(2).padding(1)));
  }
  at::Tensor forward(const at::Tensor& noise) {
    at::Tensor x = first(start(noise).view({-1, 32, 2, 2})).relu();
    return last(second(grow(x)).relu()).tanh();
  }
  torch::nn::Linear start{nullptr};
  torch::nn::BatchNorm2d first{nullptr}, second{nullptr};
  torch::nn::ConvTranspose2d grow{nullptr}, last{nullptr};
};
struct Discriminator : torch::nn::Module {
  Discriminator() {
    first = register_module(
        "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 4).stride(2).padding(1)));
    second = register_module(
        "second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 4).stride(2).padding(1)));
    last = register_module("last", torch::nn::Linear(32 * 4, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(at::leaky_relu(second(at::leaky_relu(first(x), 0.2)), 0.2).flatten(1));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};
struct Gan : torch::nn::Module {
  Gan() {
    generator = register_module("generator", std::make_shared<Generator>());
    discriminator = register_module("discriminator", std::make_shared<Discriminator>());
  }
  Outputs forward(const Batch& batch, std::string_view due) {
    const at::Tensor fake = generator->forward(at::randn({batch.num_samples(), 16}));
    return due == "discriminator" ? fake.detach() : fake;
  }
  Loss loss(const Outputs& outputs, const Batch& batch, std::string_view due) {
    const auto wants = [&](const at::Tensor& images, double is_real) {
      const at::Tensor scores = discriminator->forward(images);
      return at::binary_cross_entropy_with_logits(scores, at::full_like(scores, is_real));
    };
    return due == "discriminator" ? wants(batch.inputs(), 0.9) + wants(outputs.tensor(), 0)
                                  : wants(outputs.tensor(), 1);
  }
  std::shared_ptr<Generator> generator;
  std::shared_ptr<Discriminator> discriminator;
};

}  // namespace

TEST_CASE("a DCGAN learns what digits look like", "[train][several][gan]") {
  at::manual_seed(1);
  const std::string folder = TUTTI_SOURCE_DIR "/examples/data/";
  const at::Tensor images =
      data::load_idx(folder + "digits-images.idx3-ubyte").to(at::kFloat).div(8).sub(1).unsqueeze(1);
  const at::Tensor labels = data::load_idx(folder + "digits-labels.idx1-ubyte").to(at::kLong);
  const at::Tensor zeros = images.index({labels.eq(0)});  // one kind is enough for a test
  const auto model = std::make_shared<Gan>();
  const auto how_far = [&] {  // of the mean image and of how much pixels vary
    const at::NoGradGuard no_grad;
    at::manual_seed(2);
    const at::Tensor fake = model->generator->forward(at::randn({256, 16}));
    return std::pair((fake.mean(0) - zeros.mean(0)).abs().mean().item<double>(),
                     fake.std(0).mean().item<double>());
  };
  const auto [before, varied_before] = how_far();
  Trainer<> trainer{
      model,
      {.train = TensorLoader(zeros, zeros, {.batch_size = 32, .shuffle = true, .drop_last = true}),
       .max_duration = "500ba",
       .optimizers = {{"discriminator",
                       AdamW{.lr = 1e-3, .betas = {0.5, 0.999}, .weight_decay = 0},
                       {"discriminator.*"}},
                      {"generator",
                       AdamW{.lr = 1e-3, .betas = {0.5, 0.999}, .weight_decay = 0},
                       {"generator.*"}}},
       .device = "cpu",
       .seed = 3,
       .progress_bar = false}};
  trainer.fit();
  const auto [after, varied] = how_far();
  CAPTURE(before, after, varied_before, varied, zeros.std(0).mean().item<double>());
  CHECK(before > 0.5);
  CHECK(after < 0.2);
  CHECK(varied > 0.1);  // not one image for all noise
}

}  // namespace UNITY_BUILD_UNIQUE_ID
