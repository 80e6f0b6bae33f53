// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/count_or_auto.hpp>
#include <tutti/core/on_or_auto.hpp>
#include <tutti/core/on_or_warn.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/data/data_spec.hpp>
#include <tutti/data/evaluator.hpp>
#include <tutti/dist/data_parallel.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/saving.hpp>
#include <tutti/train/several.hpp>
#include <tutti/train/signals.hpp>

namespace tutti {

/// How a program was called, for its run's folder and for what the run says at its end.
/// cli::Program fills it in.
struct CommandLine {
  std::string command{};  ///< the program and its arguments, as a shell takes them
  std::string config{};   ///< all options with their values, as a file for --config
};

/// Everything a Trainer can be told; every field has a default that works. Names and defaults are
/// Composer's where it has them.
struct TrainerOptions {
  // ---- Data and length -----------------------------------------------------------------------
  DataSpec train{};               ///< a loader, any re-iterable range of batches, or a DataSpec
  std::vector<Evaluator> eval{};  ///< `{{"test", loader}, ...}`
  Time max_duration{};            ///< "10ep", "500ba", 3 (epochs); may come in fit() instead
  Time min_duration{};            ///< policies cannot stop the run before; 0: they can
  std::int64_t train_subset_num_batches = -1;  ///< batches that make an epoch; -1: all
  std::int64_t eval_subset_num_batches = -1;   ///< for sets that do not say; -1: all
  TimeOrFunction eval_interval =
      "1ep";                   ///< for sets that do not say; 0: only when eval() is called
  Time iteration_length{};     ///< in ep or tok; 0: no iteration ever ends
  RestoreBest restore_best{};  ///< the model ends fit() with the weights of its best evaluation

  // ---- Optimization --------------------------------------------------------------------------
  OptimizerSpec optimizer{};                 ///< default: DecoupledSGDW{.lr = 0.1}
  std::vector<NamedOptimizer> optimizers{};  ///< several that take turns in every batch; then
                                             ///< optimizer stays empty
  Schedule schedule{};                       ///< default: constant learning rates
  double scale_schedule_ratio = 1.0;      ///< multiplies max_duration and the schedule's times; > 0
  bool step_schedule_every_batch = true;  ///< false: at the end of every epoch
  bool schedule_ahead = false;  ///< each rate is used at its own batch, as PyTorch's schedulers do;
                                ///< else one batch late, see optim/schedules.hpp
  CountOrAuto device_train_microbatch_size{};  ///< examples per forward pass; 0: all at once;
                                               ///< "auto": as many as fit into the memory
  CountOrAuto grad_accum{};  ///< the same as a number of microbatches; "auto" means the same
  bool accumulate_train_batch_on_tokens = false;  ///< microbatches weigh by tokens, not examples

  bool fold_into_optimizer = true;  ///< clip and average in the optimizer's pass over memory, where
                                    ///< nobody can tell
  bool autograd_engine = false;  ///< gradients always by LibTorch's engine, also where the trainer
                                 ///< can walk the graph itself
  bool allow_idle_policies = false;  ///< fit() accepts policies none of whose events it fires

  // ---- Trying a program out --------------------------------------------------------------------
  std::int64_t dry_run = 0;  ///< trains and evaluates so many batches and leaves no file: all are
                             ///< written into a temporary folder, nothing is uploaded. 0: no
  std::int64_t overfit_batches = 0;  ///< every epoch is the first so many batches of the first
                                     ///< one, in its order, and evaluations have as many. 0: no
  std::int64_t sanity_eval = 0;      ///< evaluates so many batches of each set before the first
                                     ///< one is trained, so that a mistake there shows at once,
                                     ///< and forgets the values. 0: no
  bool detect_anomaly = false;       ///< ends with the operator and the parameters when a gradient
                                     ///< becomes nan; slow, as PyTorch's detect_anomaly()

  // ---- Where and how it computes ---------------------------------------------------------------
  std::string device = "auto";  ///< "auto" (CUDA when there is one), "cpu", "cuda", "cuda:1"
  Precision precision = Precision::fp32;
  CountOrAuto num_threads{};  ///< within operators on a CPU, for the whole program; 0: as LibTorch
                              ///< is set; "auto": the number up to there with which steps take
                              ///< the least time, of those that give the same bits
  bool cache_cpu_memory = true;  ///< on a CPU: large tensors get the memory of freed ones
  OnOrAuto cuda_graphs = false;  ///< record forward to backward, replay it for batches of the same
                                 ///< shapes; "auto": where that can be
  std::optional<std::uint64_t> seed{};  ///< 0 to 2^32-1, also of loaders that have none of their
                                        ///< own; default: random, rank 0's for all
  OnOrWarn deterministic_mode = false;  ///< refuse operators that are not deterministic; "warn":
                                        ///< warn of them
  OnOrAuto tf32 = "auto";  ///< fp32 matrix products and convolutions of a GPU in TF32; "auto": as
                           ///< LibTorch is set, for convolutions alone
  OnOrAuto cudnn_benchmark = "auto";  ///< cuDNN tries its algorithms for every new shape and takes
                                      ///< the fastest; "auto": as LibTorch is set, off

  // ---- Output ----------------------------------------------------------------------------------
  /// Constants of the program that are logged beside those of the run: a learning rate, a path.
  std::vector<std::pair<std::string, HyperparameterValue>> hyperparameters{};
  std::string run_name{};  ///< default: the environment's COMPOSER_RUN_NAME or
                           ///< RUN_NAME, else time and two words
  /// One folder for all files of the run, `{run_name}` allowed: its checkpoints, unless save_folder
  /// names another place, the program's options, and what policies write, whose names begin with
  /// `{run_folder}`. Empty: there is no such folder, and `{run_folder}` is the run's name.
  std::string run_folder{};
  CommandLine command_line{};
  bool progress_bar = true;     ///< unless the recipe has a ProgressBar or ConsoleLogger itself
  bool log_to_console = false;  ///< adds a ConsoleLogger unless the recipe has one
  Time console_log_interval = "1ba";
  bool dashboard = false;  ///< adds a Dashboard, a page in the browser, unless the recipe has one

  // ---- Checkpoints -----------------------------------------------------------------------------
  std::string save_folder{};  ///< where to save, `{run_name}` allowed; empty: `checkpoints` of
                              ///< the run_folder; no checkpoints where there is none
  std::string save_filename = "ep{epoch}-ba{batch}";
  std::string save_latest_filename = "latest";  ///< empty: no pointer to the newest
  TimeOrFunction save_interval = "1ep";
  bool save_overwrite = false;
  bool save_weights_only = false;
  std::vector<std::string> save_ignore_keys{};     ///< globs of what is left out, as below
  std::int64_t save_num_checkpoints_to_keep = -1;  ///< newest ones; -1: all
  bool save_metrics = false;                       ///< the metrics' counts and values, too
  bool save_async = false;  ///< write in the background; training waits for a copy to host memory
  OnSaveError save_on_error = OnSaveError::stop;
  CheckpointLayout checkpoint_layout = CheckpointLayout::whole;  ///< sharded: every rank writes its
                                                                 ///< own part; both are loaded
  std::string load_path{};  ///< a checkpoint, or a folder's "latest", to start from; placeholders
                            ///< as in save_folder
  bool load_weights_only = false;               ///< the model alone; the run starts at 0
  bool load_strict_model_weights = true;        ///< names and shapes must agree
  std::vector<std::string> load_ignore_keys{};  ///< globs: `state/model/fc.*`, `state/optimizers`
  bool autoresume = false;              ///< go on from the save folder's latest; needs a run_name
  std::optional<OnSignal> on_signal{};  ///< SIGTERM and SIGINT, and SIGUSR1 in a job of Slurm,
                                        ///< during fit; default: stop, which returns; exit in a
                                        ///< program of cli::Program
  bool auto_requeue = true;  ///< after SIGUSR1 in a job of Slurm: asks for the job to be run again;
                             ///< needs autoresume
  bool replace_signal_handlers = false;  ///< also where the program has handlers of its own

  // ---- Several processes -----------------------------------------------------------------------
  bool uneven_ranks = false;    ///< a run that goes on with ranks which do not divide its global
                                ///< batch: the first ones take one example more; else an error
  double dist_timeout = 300.0;  ///< seconds a collective waits for the other ranks
  dist::DataParallelOptions data_parallel{};  ///< when and how gradients are averaged
  dist::ShardingOptions
      sharding{};  ///< `{.stage = dist::ShardStage::parameters}`: each rank keeps
                   ///< only a part of what a model takes; no effect in one process
};

/// What one call of fit() changes; a field that is not set keeps what the trainer has.
struct FitOptions {
  Time duration = "0dur";   ///< trains for this much more, counted from now in its own unit;
                            ///< 0dur: up to max_duration
  bool reset_time = false;  ///< first sets the timestamp to zero
  DataSpec train{};
  std::vector<Evaluator> eval{};
  Schedule schedule{};
  double scale_schedule_ratio = 1.0;                       ///< needs a schedule beside it
  std::optional<bool> step_schedule_every_batch{};         ///< needs a schedule beside it
  std::optional<std::int64_t> train_subset_num_batches{};  ///< batches that make an epoch; -1: all
  /// In place of the trainer's, and of its grad_accum. With several ranks it stays "auto" or none.
  std::optional<CountOrAuto> device_train_microbatch_size{};
  std::optional<Precision> precision{};  ///< any but bf16_true, which is set when a trainer is made
};

}  // namespace tutti
