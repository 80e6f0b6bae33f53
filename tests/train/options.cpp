#include <tutti/train/options.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/setup.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("what is not given has the reference's default", "[train][options]") {
  const TrainerOptions given;
  CHECK_FALSE(given.train);
  CHECK(given.eval.empty());
  CHECK_FALSE(given.max_duration);
  CHECK(given.train_subset_num_batches == -1);
  CHECK(given.eval_subset_num_batches == -1);
  CHECK(given.eval_interval == Time("1ep"));
  CHECK_FALSE(given.iteration_length);
  CHECK_FALSE(given.optimizer);
  CHECK_FALSE(given.schedule);
  CHECK(given.scale_schedule_ratio == 1.0);
  CHECK(given.step_schedule_every_batch);
  CHECK_FALSE(given.schedule_ahead);
  CHECK((given.device_train_microbatch_size == CountOrAuto(0)));
  CHECK((given.grad_accum == CountOrAuto(0)));
  CHECK_FALSE(given.accumulate_train_batch_on_tokens);
  CHECK_FALSE(given.seed.has_value());
  CHECK_FALSE(given.deterministic_mode);
  CHECK(given.progress_bar);
  CHECK_FALSE(given.log_to_console);
  CHECK(given.console_log_interval == Time("1ba"));
  CHECK(given.dist_timeout == 300.0);
  CHECK_FALSE(given.data_parallel.sync_strategy.has_value());
}

TEST_CASE("what is not given saves and loads as the reference does", "[train][options]") {
  const TrainerOptions given;
  CHECK(given.save_folder.empty());
  CHECK(given.save_filename == "ep{epoch}-ba{batch}");  // one folder, not a file for each rank
  CHECK(given.save_latest_filename == "latest");
  CHECK(given.save_interval == Time("1ep"));
  CHECK_FALSE(given.save_overwrite);
  CHECK_FALSE(given.save_weights_only);
  CHECK(given.save_ignore_keys.empty());
  CHECK(given.save_num_checkpoints_to_keep == -1);
  CHECK_FALSE(given.save_metrics);
  CHECK_FALSE(given.save_async);
  CHECK(given.save_on_error == OnSaveError::stop);
  CHECK(given.load_path.empty());
  CHECK_FALSE(given.load_weights_only);
  CHECK(given.load_strict_model_weights);
  CHECK(given.load_ignore_keys.empty());
  CHECK_FALSE(given.autoresume);
}

TEST_CASE("what is this library's own changes nothing that was not asked for", "[train][options]") {
  const TrainerOptions given;
  CHECK(given.device == "auto");
  CHECK(given.precision == Precision::fp32);  // the reference: amp_fp16 on a GPU
  CHECK((given.cuda_graphs == OnOrAuto(false)));
  CHECK((given.num_threads == CountOrAuto(0)));
  CHECK((given.tf32 == OnOrAuto("auto")));
  CHECK((given.cudnn_benchmark == OnOrAuto("auto")));
  CHECK(given.fold_into_optimizer);
  CHECK_FALSE(given.autograd_engine);
  CHECK_FALSE(given.allow_idle_policies);
  CHECK(given.cache_cpu_memory);
  CHECK(given.hyperparameters.empty());
  CHECK(given.run_name.empty());
  CHECK_FALSE(given.on_signal);  // fit() returns
  CHECK_FALSE(given.replace_signal_handlers);
}

TEST_CASE("options are written as their comments show", "[train][options]") {
  const auto loader = tiny::batches(3);
  const TrainerOptions given{
      .train = {loader, {.num_samples = [](const Batch&) { return 5; }}},
      .eval = {{"test", loader}, {"small", loader, {.interval = "5ep"}}, loader},
      .max_duration = 3,
      .eval_interval = "500ba",
      .optimizer = SGD{.lr = 0.1},
      .schedule = CosineAnnealing{},
      .device_train_microbatch_size = "auto",
      .grad_accum = 4,
      .precision = Precision::amp_bf16,
      .cuda_graphs = "auto",
      .seed = 17,
      .hyperparameters = {{"lr", 0.1}, {"data", "cifar10"}, {"layers", 18}, {"bias", true}}};
  CHECK(given.train.loader.size() == 3);
  CHECK(given.train.num_samples(loader[0]) == 5);
  REQUIRE(given.eval.size() == 3);
  CHECK(given.eval[0].label == "test");
  CHECK(given.eval[1].interval == Time("5ep"));
  CHECK(given.eval[2].label == "eval");
  CHECK(given.max_duration == Time("3ep"));
  CHECK(given.eval_interval == Time(500, TimeUnit::batch));
  CHECK(given.optimizer);
  CHECK(given.schedule);
  CHECK(given.device_train_microbatch_size.automatic);
  CHECK(given.grad_accum.count == 4);
  CHECK(given.cuda_graphs.automatic);
  CHECK(given.seed == 17);
  CHECK(given.hyperparameters.size() == 4);
}

TEST_CASE("one call of fit changes what it is given alone", "[train][options]") {
  STATIC_REQUIRE(std::is_aggregate_v<TrainerOptions>);
  STATIC_REQUIRE(std::is_aggregate_v<FitOptions>);
  const FitOptions nothing;
  CHECK(nothing.duration == Time("0dur"));
  CHECK_FALSE(nothing.reset_time);
  CHECK_FALSE(nothing.train);
  CHECK(nothing.eval.empty());
  CHECK_FALSE(nothing.schedule);
  CHECK(nothing.scale_schedule_ratio == 1.0);
  const FitOptions more{.duration = "2ba", .reset_time = true, .train = tiny::batches(1)};
  CHECK(more.duration == Time("2ba"));
  CHECK(more.train);
}

TEST_CASE("what is said of the loop reaches the run", "[train][options]") {
  train::Run run;
  train::set_loop(run, {.train_subset_num_batches = 3,
                        .iteration_length = "7tok",
                        .step_schedule_every_batch = false,
                        .schedule_ahead = true,
                        .accumulate_train_batch_on_tokens = true,
                        .fold_into_optimizer = false,
                        .autograd_engine = true});
  CHECK(run.train_subset == 3);
  CHECK(run.iteration_length == Time("7tok"));
  CHECK_FALSE(run.step_schedule_every_batch);
  CHECK(run.schedule_ahead);
  CHECK(run.weigh_by_tokens);
  CHECK_FALSE(run.fold_into_optimizer);
  CHECK(run.autograd_engine);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
