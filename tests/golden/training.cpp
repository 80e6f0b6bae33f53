#include "golden/training.hpp"

#include <algorithm>
#include <cmath>

#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/models/classifier.hpp>

#include "golden/algorithms.hpp"
#include "golden/arguments.hpp"
#include "golden/run_algorithms.hpp"
#include "support/catch.hpp"
#include "support/device.hpp"

namespace golden {
namespace {

template <std::size_t... I>
std::unique_ptr<Trainer> make_trainer_of(tutti::AnyModel model, tutti::TrainerOptions options,
                                         const Algorithms& algorithms, std::index_sequence<I...>) {
  Stepper stepper;
  for (const auto& algorithm : algorithms) {
    if (auto* sam = dynamic_cast<detail::Held<tutti::SAM>*>(algorithm.get())) {
      stepper.sam = &sam->algorithm();
    }
  }
  const auto at = [&](std::size_t i) { return i < algorithms.size() ? algorithms[i] : nullptr; };
  return std::make_unique<Trainer>(std::move(model), std::move(options), tutti::reference_order{},
                                   Slot<I>{at(I)}..., stepper, Watch{}, tutti::Trace{});
}

tutti::OptimizerSpec make_optimizer(const Json& entry) {
  const std::string& name = entry[0].string();
  if (name == "DecoupledSGDW") {
    return decoupled_sgdw(entry[1]);
  }
  if (name == "DecoupledAdamW") {
    return decoupled_adamw(entry[1]);
  }
  if (name == "SGD") {
    return sgd_of<tutti::SGD>(entry[1], name);
  }
  if (name == "Adam") {
    return adam_of<tutti::Adam>(entry[1], name);
  }
  if (name == "AdamW") {
    return adam_of<tutti::AdamW>(entry[1], name);
  }
  throw Skipped("needs the optimizer " + name);
}

std::vector<tutti::Batch> slices(const at::Tensor& x, const at::Tensor& y, std::int64_t size) {
  std::vector<tutti::Batch> out;
  for (std::int64_t from = 0; from < x.size(0); from += size) {
    const std::int64_t to = std::min(from + size, x.size(0));
    out.emplace_back(x.slice(0, from, to), y.slice(0, from, to));
  }
  return out;
}

tutti::TrainerOptions options_of(const Case& c) {
  const std::int64_t size = c.params["batch_size"].integer();
  tutti::TrainerOptions options{
      .train = slices(c.in("x"), c.in("y"), size),
      .eval = {{"eval", slices(c.in("x_eval"), c.in("y_eval"), size)}},
      .max_duration = tutti::Time::parse(c.params["max_duration"].string()),
      .optimizer = make_optimizer(c.params["optimizer"]),
      .device_train_microbatch_size = c.params["microbatch_size"].integer(),
      .device = tutti_test::device_name(),
      .seed = 1,
      .progress_bar = false};
  if (const Json& scheduler = c.params["scheduler"]; !scheduler.is_null()) {
    options.schedule = make_schedule(scheduler[0].string(), scheduler[1]);
  }
  return options;
}

void check_averages(const Case& c, Verdict& verdict, const Algorithms& algorithms) {
  for (const auto& algorithm : algorithms) {
    if (auto* held = dynamic_cast<detail::Held<Epochwise<tutti::EMA>>*>(algorithm.get())) {
      const tutti::EMA& ema = held->algorithm().policy;
      for (const auto& [name, tensor] : ema.averages()) {
        if (c.has_out("ema." + name)) {
          verdict.tensor("ema." + name, tensor);
        }
      }
      verdict.check(std::abs(ema.factor() - c.expect["ema_smoothing"].number()) < 1e-12,
                    "the smoothing is " + std::to_string(ema.factor()));
    }
  }
}

void whole_run(const Case& c, Verdict& verdict) {
  expect_keys(c, {"model", "classes", "batch_size", "batches", "microbatch_size", "max_duration",
                  "optimizer", "scheduler", "algorithms"});
  need_algorithms(c.params["algorithms"]);
  const auto tape = tape_of(c);
  const Algorithms algorithms = make_algorithms(c.params["algorithms"], tape);
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  auto trainer =
      make_trainer(classifier(net, c.params["classes"].integer()), options_of(c), algorithms);
  trainer->fit();

  const Watch& watch = trainer->get<Watch>();
  verdict.tensor("loss", at::tensor(watch.losses, at::kDouble));
  verdict.tensor("lr", at::tensor(watch.learning_rates, at::kDouble));
  verdict.tensor("eval_ce_acc", at::tensor(watch.eval_values, at::kDouble).view({-1, 2}));
  for (const auto& [name, tensor] : state_of(*net)) {
    verdict.tensor("final." + name, tensor);
  }
  check_averages(c, verdict, algorithms);
  verdict.check(is_used_up(*tape), "fewer random numbers were drawn than by the reference");
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(tutti::AnyModel model, tutti::TrainerOptions options,
                                      const Algorithms& algorithms) {
  return make_trainer_of(std::move(model), std::move(options), algorithms,
                         std::make_index_sequence<slot_count>{});
}

void fit(Trainer& trainer) {
  trainer.fit();
}
void eval(Trainer& trainer) {
  trainer.eval();
}
void predict(Trainer& trainer, std::vector<tutti::Batch> data) {
  trainer.predict(std::move(data));
}

tutti::AnyModel classifier(const tutti::nn::Sequential& net, std::int64_t classes) {
  return tutti::Classifier(net.ptr(), {.num_classes = classes, .train_metrics = tutti::Metrics{}});
}

Handlers training_handlers() {
  Handlers all;
  for (const char* what :
       {"none", "labelsmoothing_blurpool", "mixup", "sam", "ema", "gradient_clipping", "cutmix",
        "stack", "selective_backprop", "data_stack"}) {
    all[std::string("e2e_") + what] = whole_run;
  }
  return all;
}

}  // namespace golden

namespace {

using namespace golden;

// The trainer of a recipe of types, with the same data, optimizer and draws as the slots'.
template <class... Policies>
std::pair<std::vector<double>, Tensors> run_recipe(const Case& c, bool fold, Policies... policies) {
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  auto options = options_of(c);
  options.fold_into_optimizer = fold;
  tutti::Trainer<tutti::reference_order, Policies..., Watch> trainer(
      classifier(net, c.params["classes"].integer()), options, tutti::reference_order{},
      std::move(policies)..., Watch{});
  trainer.fit();
  return {trainer.template get<Watch>().losses, state_of(*net)};
}

}  // namespace

TEST_CASE("a recipe of types trains bit for bit as the same algorithms in slots", "[golden]") {
  const Case c = golden::cases("e2e_mixup").at(0);
  const Json no_arguments(Json::Object{});
  const Json clipping(Json::Object{{"clipping_type", "norm"}, {"clipping_threshold", 0.5}});
  const Json half_life(Json::Object{{"half_life", "5ba"}});

  const auto recipe = [&](bool fold) {
    auto mixup = make_mixup(c.params["algorithms"][0][1]);
    mixup.rng.replay(tape_of(c));
    return run_recipe(c, fold, make_blurpool(no_arguments), mixup,
                      make_label_smoothing(no_arguments), make_ema(half_life),
                      make_gradient_clipping(clipping));
  };
  const bool on_cpu = options_of(c).device == "cpu";
  const auto [losses, weights] = recipe(/*fold=*/on_cpu);

  const Algorithms algorithms{make_algorithm("BlurPool", no_arguments, nullptr),
                              make_algorithm("MixUp", c.params["algorithms"][0][1], tape_of(c)),
                              make_algorithm("LabelSmoothing", no_arguments, nullptr),
                              make_algorithm("EMA", half_life, nullptr),
                              make_algorithm("GradientClipping", clipping, nullptr)};
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  auto trainer =
      make_trainer(classifier(net, c.params["classes"].integer()), options_of(c), algorithms);
  trainer->fit();
  CHECK(trainer->get<Watch>().losses == losses);
  for (const auto& [name, tensor] : state_of(*net)) {
    INFO(name);
    CHECK(tensor.equal(weights.at(name)));
  }
  if (!on_cpu) {  // folded, it rounds otherwise there
    for (const auto& [name, tensor] : recipe(/*fold=*/true).second) {
      INFO(name);
      CHECK(at::allclose(tensor, weights.at(name), 1e-4, 1e-5));
    }
  }
}
