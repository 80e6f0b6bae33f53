#include <tutti/explain.hpp>

#include <set>
#include <string>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/callbacks/early_stopper.hpp>
#include <tutti/callbacks/speed_monitor.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a trainer explains its plan, its values and what was done to the model", "[explain]") {
  tutti::Trainer trainer{tiny::net(),
                         {.train = tiny::batches(2),
                          .max_duration = "1ep",
                          .seed = 17,
                          .run_name = "explained",
                          .progress_bar = false},
                         tutti::MixUp{.alpha = 0.5, .input_key = "image"},
                         tutti::EMA{.half_life = "20ba"}};
  trainer.state().logger.log_hyperparameters({{"blurpool/num_blurconv_layers", 3}});
  const std::string text = tutti::explain(trainer);
  CHECK_THAT(text, ContainsSubstring("recipe: MixUp, EMA\n"));
  CHECK_THAT(text, ContainsSubstring("  before_forward: MixUp\n"));
  CHECK_THAT(text, ContainsSubstring("values:\n  MixUp: alpha = 0.5, interpolate_loss = false, "
                                     "input_key = \"image\", target_key = \"\""));
  CHECK_THAT(text, ContainsSubstring("  EMA: half_life = 20ba, smoothing = not set, "));
  CHECK_THAT(text, ContainsSubstring("cuda graphs:\n  from forward to backward\n"));
  CHECK_THAT(text, ContainsSubstring("  run_name: \"explained\"\n"));
  CHECK_THAT(text, ContainsSubstring("  optimizer/momentum: 0"));
  CHECK_THAT(text, !ContainsSubstring("  MixUp/alpha:"));  // among the values
  CHECK_THAT(text, ContainsSubstring("  blurpool/num_blurconv_layers: 3\n"));
}

TEST_CASE("a trainer is summarised as its progress bar begins", "[explain]") {
  const tutti::Trainer trainer{
      tiny::net(),
      {.train = tiny::batches(2), .max_duration = "3ep", .seed = 17, .run_name = "explained"},
      tutti::MixUp{.alpha = 0.5, .input_key = "image"},
      tutti::EMA{.half_life = "20ba"}};
  CHECK(tutti::summary(trainer) ==
        "run        explained, 3ep (6 batches)\n"
        "model      Net, 58 parameters (0.0002 MB)\n"
        "recipe     MixUp, EMA\n"
        "optimizer  DecoupledSGDW: lr=0.1\n"
        "schedule   constant\n"
        "data       train 2 batches\n"
        "device     " +
            trainer.state().device.str() +
            ", fp32, seed 17\n"
            "folder     none: no checkpoints are saved\n");
}

TEST_CASE("options that were not given are explained as what is used for them", "[explain]") {
  const auto explained = [](tutti::EMA ema) {
    const tutti::Trainer trainer{
        tiny::net(),
        {.train = tiny::batches(2), .max_duration = "1ep", .progress_bar = false},
        ema};
    return tutti::explain(trainer);
  };
  CHECK_THAT(explained({}), ContainsSubstring("  EMA: half_life = 1000ba, smoothing = not set, ") &&
                                ContainsSubstring("update_interval = 1ba"));
  CHECK_THAT(explained({.half_life = "3ep"}),
             ContainsSubstring("half_life = 3ep, ") && ContainsSubstring("update_interval = 1ep"));
  CHECK_THAT(explained({.smoothing = 0.5}),
             ContainsSubstring("smoothing = 0.5, ") && ContainsSubstring("update_interval = 1ba"));
}

TEST_CASE("a trainer explains why its steps cannot be graphs", "[explain]") {
  const tutti::Trainer<tutti::SAM> trainer{
      tiny::net(), {.train = tiny::batches(2), .max_duration = "1ep", .progress_bar = false}};
  CHECK_THAT(tutti::explain(trainer),
             ContainsSubstring("cuda graphs:\n  none, since SAM trains in two passes"));
}

TEST_CASE("two of a kind are explained under the names that they have", "[explain]") {
  const tutti::Trainer trainer{
      tiny::net(),
      {.train = tiny::batches(2), .max_duration = "1ep", .progress_bar = false},
      tutti::EarlyStopper{
          .monitor = "A", .dataloader_label = "test", .comparison = tutti::Comparison::greater},
      tutti::named<"second">(tutti::EarlyStopper{.monitor = "B", .dataloader_label = "test"})};
  const std::string text = tutti::explain(trainer);
  CHECK_THAT(text, ContainsSubstring("  EarlyStopper: monitor = \"A\", dataloader_label = "
                                     "\"test\", comparison = greater,"));
  CHECK_THAT(text, ContainsSubstring("  EarlyStopper.second: monitor = \"B\", dataloader_label = "
                                     "\"test\", comparison = by_name,"));
}

TEST_CASE("what policies hold while they run is neither explained nor logged", "[explain]") {
  tutti::Trainer trainer{tiny::net(),
                         {.train = tiny::batches(4), .max_duration = "2ep", .progress_bar = false},
                         tutti::MixUp{.alpha = 0.5},
                         tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                                 .clipping_threshold = 0.1},
                         tutti::SkipSpikes{},
                         tutti::EMA{.half_life = "2ba"},
                         tutti::SpeedMonitor{.window_size = 2}};
  const auto values = [&] {
    const std::string text = tutti::explain(trainer);
    const std::size_t begin = text.find("values:\n");
    return text.substr(begin, text.find("\nrun:\n", begin) - begin);
  };
  std::set<std::string> logged;
  for (const auto& constant : trainer.hyperparameters()) {
    logged.insert(constant.first);
  }
  const auto of = [&](const std::string& policy) {
    std::string names;
    for (const std::string& name : logged) {
      names += name.starts_with(policy + "/") ? name.substr(policy.size() + 1) + " " : "";
    }
    return names;
  };
  CHECK(of("MixUp") == "alpha input_key interpolate_loss target_key ");
  CHECK(of("GradientClipping") ==
        "adaptive_floor clipping_threshold clipping_type exclude in_ascent ");
  CHECK(of("SkipSpikes") == "deviations min_rise min_values monitor reload_after window ");
  CHECK(of("EMA") ==
        "average_integers ema_start exclude_buffers half_life min_decay smoothing "
        "update_interval use_warmup warmup_gamma warmup_power ");
  CHECK(of("SpeedMonitor") == "gpu_flops_available time_unit window_size ");

  const std::string before = values();
  CHECK_THAT(before, ContainsSubstring("  EMA: half_life = 2ba, "));
  trainer.fit();
  REQUIRE(trainer.get<tutti::EMA>().run.started);
  REQUIRE(trainer.get<tutti::SpeedMonitor>().run.window);
  CHECK(values() == before);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
