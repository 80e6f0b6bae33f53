#include <tutti/trainer.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/asgd.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/groups.hpp>
#include <tutti/optim/lookahead.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/nadam.hpp>
#include <tutti/optim/rprop.hpp>
#include <tutti/optim/schedule_free.hpp>
#include <tutti/optim/schedules.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Whole runs with the optimizers that keep more than buffers of their parameters' shape.

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<at::Tensor> weights_of(torch::nn::Module& model) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : model.parameters()) {
    out.push_back(parameter.detach().clone());
  }
  return out;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) {
      return false;
    }
  }
  return a.size() == b.size();
}

// The weights when an evaluation begins and when training goes on, and the rates of all batches.
struct Watch final {
  std::vector<at::Tensor> evaluated{};
  std::vector<at::Tensor> trained{};
  std::vector<std::vector<double>> rates{};

  void apply(BatchStart, const State& state) {
    std::vector<double>& now = rates.emplace_back();
    for (const auto& group : state.optimizers.front()->param_groups()) {
      now.push_back(group.options().get_lr());
    }
  }
  void apply(EvalStart, State& state) { evaluated = weights_of(*state.model); }
  void apply(EvalEnd, State&) {}
  void apply(FitEnd, State& state) { trained = weights_of(*state.model); }
};

using Run = Trainer<GradientClipping, Watch>;

TrainerOptions options(OptimizerSpec optimizer, Time length) {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = std::move(optimizer),
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

std::vector<at::Tensor> run(const OptimizerSpec& optimizer, Time length,
                            const std::string& save_folder, const std::string& load_path) {
  TrainerOptions how = options(optimizer, length);
  how.device_train_microbatch_size = 1;
  how.schedule = Linear{.alpha_f = 0, .t_max = "8ba"};
  if (!save_folder.empty()) {
    how.save_folder = save_folder;
    how.save_interval = "3ba";
  }
  if (!load_path.empty()) {
    how.load_path = load_path;
  }
  Run trainer(tiny::net(), std::move(how),
              GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 0.1},
              Watch{});
  trainer.fit();
  return trainer.template get<Watch>().trained;
}

}  // namespace

TEST_CASE("runs resume bit for bit with every kind of optimizer state", "[train][optim][resume]") {
  const std::vector<std::pair<std::string, OptimizerSpec>> all{
      {"NAdam", NAdam{.lr = 0.1}},
      {"ASGD", ASGD{.lr = 0.1, .t0 = 1}},
      {"Rprop", Rprop{}},
      {"Adafactor", Adafactor{.lr = 0.1}},
      {"Muon", Muon{.lr = 0.1}},
      {"ScheduleFreeAdamW", ScheduleFreeAdamW{.lr = 0.1, .warmup_steps = 2}},
      {"Lookahead", Lookahead<NAdam>{.optimizer = {.lr = 0.1}, .k = 2}}};
  for (const auto& [name, optimizer] : all) {
    INFO(name);
    const TemporaryFolder folder;
    const auto whole = run(optimizer, "6ba", "", "");
    run(optimizer, "3ba", (folder / "{run_name}").string(), "");
    const auto resumed = run(optimizer, "6ba", "", (folder / "calm-motet/latest").string());
    CHECK_FALSE(same(whole, weights_of(*tiny::net())));
    CHECK(same(whole, resumed));
  }
}

TEST_CASE("a schedule-free run evaluates and saves the average, and trains on", "[train][optim]") {
  const ScheduleFreeSGD optimizer{.lr = 0.1, .momentum = 0.8};
  TrainerOptions plain = options(optimizer, "4ba");
  Run without(tiny::net(), std::move(plain),
              GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 10},
              Watch{});
  without.fit();
  const TemporaryFolder folder;
  TrainerOptions how = options(optimizer, "4ba");
  how.eval = {{"eval", tiny::batches(2), {.interval = "1ba"}}};
  how.save_folder = (folder / "{run_name}").string();
  how.save_interval = "4ba";
  Run with(tiny::net(), std::move(how),
           GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 10},
           Watch{});
  with.fit();
  const auto& trained = without.get<Watch>().trained;
  CHECK(same(with.get<Watch>().trained, trained));
  CHECK_FALSE(same(with.get<Watch>().evaluated, trained));

  const auto& fused =
      dynamic_cast<const optim::Fused<ScheduleFreeSGD>&>(*with.state().optimizers.front());
  const auto parameters = with.state().model->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& z = fused.state_of(parameters[i])->buffers[0];
    CHECK(at::allclose(with.get<Watch>().evaluated[i], trained[i].lerp(z, 1 - 1 / 0.8), 1e-6));
  }
  TrainerOptions later = options(SGD{.lr = 0.1}, "5ba");
  later.load_path = (folder / "calm-motet/latest").string();
  later.load_weights_only = true;
  Run from_file(tiny::net(2), std::move(later),
                GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1},
                Watch{});
  CHECK(same(weights_of(*from_file.state().model), with.get<Watch>().evaluated));
}

TEST_CASE("groups have schedules of their own in a run", "[train][optim][schedule]") {
  const auto make = [](torch::nn::Module& net) {
    return optim::build(AdamW{.lr = 1.0},
                        optim::groups(net, {{"*bias", {.lr = 0.5, .schedule = Step{"2ba"}}}}));
  };
  for (const bool scheduled : {false, true}) {
    TrainerOptions how = options(make, "4ba");
    how.schedule_ahead = true;
    if (scheduled) {
      how.schedule = Linear{.alpha_f = 0};
    }
    Run trainer(tiny::net(), std::move(how),
                GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1},
                Watch{});
    trainer.fit();
    const auto& rates = trainer.get<Watch>().rates;
    REQUIRE(rates.size() == 4);
    CHECK(rates[2][0] == Approx(scheduled ? 0.5 : 1.0));
    CHECK(rates[1][1] == Approx(0.5));
    CHECK(rates[2][1] == Approx(0.05));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
