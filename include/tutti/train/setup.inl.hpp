// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_set>

#include <tutti/train/run_checkpoints.hpp>
#include <tutti/train/setup.hpp>

namespace tutti::train {

TUTTI_INLINE at::Device resolve_device(std::string_view name, int local_rank) {
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (name == "cpu" || (name == "auto" && count == 0)) {
    return at::kCPU;
  }
  const bool any = name == "auto" || name == "cuda" || name == "gpu";
  TUTTI_CHECK_VALUE(any || name.starts_with("cuda:"), "device is \"", name,
                    "\", expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\"");
  const std::string wanted = any ? "cuda:" + std::to_string(local_rank) : std::string(name);
  // Before it is a Device, which keeps the number in one byte: 256 would be 0.
  TUTTI_CHECK_VALUE(std::strtol(wanted.c_str() + 5, nullptr, 10) < count, "device is \"", wanted,
                    "\", but LibTorch sees ", count,
                    " CUDA devices; set device to \"cpu\", or build with TUTTI_WITH_CUDA=ON "
                    "on a machine with a GPU");
  return at::Device(wanted);
}

TUTTI_INLINE std::string resolve_run_name(const std::string& given,
                                          dist::Communicator& communicator) {
  const std::string name_given = given.empty() ? detail::environment_run_name() : given;
  if (!name_given.empty()) {
    checkpoint::check_run_name(name_given);
    return name_given;
  }
  constexpr std::array<std::string_view, 8> adjectives{"bright", "calm",  "eager", "gentle",
                                                       "lively", "quiet", "swift", "warm"};
  constexpr std::array<std::string_view, 8> nouns{"adagio", "ballad", "cadence", "etude",
                                                  "fugue",  "motet",  "prelude", "sonata"};
  std::random_device random;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::string name = std::to_string(seconds.count());
  name.append("-").append(adjectives[random() % adjectives.size()]);
  name.append("-").append(nouns[random() % nouns.size()]);
  return communicator.broadcast_bytes(name);
}

TUTTI_INLINE void check_precision(Precision precision, at::Device device) {
  TUTTI_CHECK_VALUE(precision != Precision::amp_fp16 || device.is_cuda(),
                    "precision is amp_fp16 on ", device.str(),
                    ", which has no fast fp16 and would "
                    "overflow for nothing; use amp_bf16 or fp32 there");
}

TUTTI_INLINE std::vector<at::Tensor> trainable(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<c10::TensorImpl*> seen;
  for (auto& parameter : model.parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      parameters.push_back(parameter);
    }
  }
  TUTTI_CHECK(!parameters.empty(),
              "the model has no parameter that requires a gradient; was "
              "every layer given to register_module()?");
  return parameters;
}

TUTTI_INLINE std::shared_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerSpec& spec,
                                                                      torch::nn::Module& model) {
  auto optimizer = spec.build(model, trainable(model));
  const std::vector<at::Tensor> own = model.parameters();
  const auto is_own = [&](const at::Tensor& parameter) {
    return std::any_of(own.begin(), own.end(),
                       [&](const at::Tensor& one) { return one.is_same(parameter); });
  };
  const bool trains = std::any_of(
      optimizer->param_groups().begin(), optimizer->param_groups().end(), [&](const auto& group) {
        return std::any_of(group.params().begin(), group.params().end(), is_own);
      });
  TUTTI_CHECK(trains,
              "the optimizer has none of the model's parameters, so nothing would be trained; make "
              "it of model->parameters(), or give a description, as DecoupledSGDW{.lr = 0.1}");
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& group : optimizer->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      TUTTI_CHECK(seen.insert(parameter.unsafeGetTensorImpl()).second,
                  "the optimizer has a parameter of shape ", parameter.sizes(),
                  " twice, and each of its steps would move it twice; model->parameters() gives a "
                  "tensor that is registered under two names twice, so leave out doubles, or give "
                  "a description, as DecoupledSGDW{.lr = 0.1}, which has each once");
    }
  }
  return optimizer;
}

TUTTI_INLINE std::vector<at::Tensor> frozen_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.requires_grad()) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

TUTTI_INLINE void warn_of_untrained(const State& state, Run& run) {
  std::unordered_set<c10::TensorImpl*> unfrozen;
  std::erase_if(run.frozen, [&](const at::Tensor& parameter) {
    if (parameter.requires_grad()) {
      unfrozen.insert(parameter.unsafeGetTensorImpl());
    }
    return parameter.requires_grad();
  });
  if (unfrozen.empty() || state.rank != 0) {
    return;
  }
  for (const auto& optimizer : state.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        unfrozen.erase(parameter.unsafeGetTensorImpl());
      }
    }
  }
  std::string names;
  std::size_t count = 0;
  for (const auto& parameter : state.model->named_parameters()) {
    if (unfrozen.contains(parameter.value().unsafeGetTensorImpl())) {
      names += ++count > 3 ? "" : (names.empty() ? "" : ", ") + parameter.key();
    }
  }
  if (count > 0) {
    TORCH_WARN(count,
               " parameters that were frozen when the trainer was made require a gradient "
               "now, and are in no optimizer, so they are not trained: ",
               names, count > 3 ? ", ..." : "",
               "; unfreeze them before, or let Unfreeze or BackboneFinetuning do it");
  }
}

TUTTI_INLINE void warn_of_no_tokens(const State& state, const Run& run) {
  std::string what;
  const auto add = [&](const char* kind, const std::string& name) {
    what += (what.empty() ? "" : ", ") + std::string(kind) + name;
  };
  for (const EvalSet& set : run.evals) {
    if (set.interval.every.unit() == TimeUnit::token) {
      add("evaluations of ", set.label);
    }
  }
  if (run.checkpoints) {
    for (const std::string& folder : run.checkpoints->saved_by_tokens()) {
      add("checkpoints in ", folder);
    }
  }
  if (state.rank == 0 && !what.empty()) {
    TORCH_WARN(
        "an interval counts tokens, and the batches have none, so these never come due "
        "before the end: ",
        what, "; give DataSpec a num_tokens function, or call the tensor that counts input_ids");
  }
}

TUTTI_INLINE void check_options(const TrainerOptions& options) {
  const auto need = [](const char* name, Time time, const char* expected) {
    TUTTI_CHECK_VALUE(time.value() >= 0, name, " is ", to_string(time), ", expected ", expected);
  };
  need("max_duration", options.max_duration, "a time like 10ep or 500ba");
  need("min_duration", options.min_duration, "a time like 2ep, or 0");
  const auto batches = [](const char* name, std::int64_t count) {
    TUTTI_CHECK_VALUE(count >= 0, name, " is ", count, ", expected 0 (no) or a number of batches");
  };
  batches("dry_run", options.dry_run);
  batches("overfit_batches", options.overfit_batches);
  batches("sanity_eval", options.sanity_eval);
  TUTTI_CHECK_VALUE(options.overfit_batches == 0 || options.train_subset_num_batches < 0,
                    "overfit_batches is ", options.overfit_batches,
                    " and train_subset_num_batches ", options.train_subset_num_batches,
                    ", and both say how many batches make an epoch; set one of them");
  TUTTI_CHECK_VALUE(!options.detect_anomaly || !options.cuda_graphs.on,
                    "detect_anomaly looks at every gradient as it is computed, which a recorded "
                    "graph does not; set cuda_graphs to false");
  TUTTI_CHECK_VALUE(options.num_threads.count >= 0 && options.num_threads.count <= 4096,
                    "num_threads is ", options.num_threads.count,
                    ", expected a number of threads, 0 (as LibTorch is set) or \"auto\"");
  need("eval_interval", options.eval_interval.time(), "a time like 1ep, or 0 for never");
  need("iteration_length", options.iteration_length, "a time in ep or tok, or 0 for no iterations");
  need("save_interval", options.save_interval.time(), "a time like 1ep");
  TUTTI_CHECK_VALUE(
      options.restore_best.monitor.empty() == options.restore_best.dataloader_label.empty(),
      "restore_best has the monitor \"", options.restore_best.monitor,
      "\" and the dataloader_label \"", options.restore_best.dataloader_label,
      "\"; they go together: the metric, and the label of the evaluation set that it is of");
  constexpr double longest = 1e9;  // 30 years; more milliseconds do not fit everywhere
  TUTTI_CHECK_VALUE(options.dist_timeout > 0 && options.dist_timeout <= longest, "dist_timeout is ",
                    options.dist_timeout, ", expected more than 0 seconds and at most 1e9");
  TUTTI_CHECK_VALUE(!(options.deterministic_mode && options.cudnn_benchmark.on),
                    "cudnn_benchmark is true beside deterministic_mode, but cuDNN's trials choose "
                    "other kernels from run to run; leave one of them out");
}

TUTTI_INLINE void check_closure_precision(const torch::optim::Optimizer& optimizer,
                                          Precision precision) {
  TUTTI_CHECK_VALUE(precision != Precision::amp_fp16 || !optim::calls_closure(optimizer),
                    "precision is amp_fp16, but ", optim::class_name(optimizer),
                    " compares losses and gradients of several passes in one step, which a "
                    "gradient scaler cannot take back when one overflows; use amp_bf16 or fp32");
}

TUTTI_INLINE void check_closure(const torch::optim::Optimizer& optimizer,
                                const TrainerOptions& options, std::string_view step_taker) {
  const std::string name = optim::class_name(optimizer);
  TUTTI_CHECK_VALUE(step_taker.empty(), "the optimizer ", name,
                    " runs forward and backward itself, by a closure, and so does the policy ",
                    step_taker, "; remove the policy, or take an optimizer like DecoupledSGDW");
  check_closure_precision(optimizer, options.precision);
  TUTTI_CHECK_VALUE(!options.cuda_graphs.on, "cuda_graphs is true, but ", name,
                    " makes several passes in one step, which are not recorded; set cuda_graphs to "
                    "false, or to \"auto\" for graphs where they can be");
}

TUTTI_INLINE std::unique_ptr<BestWeights> keep_best(const TrainerOptions& options,
                                                    PolicyStates policies, const State& state) {
  if (!options.restore_best) {
    return nullptr;
  }
  TUTTI_CHECK_VALUE(options.sharding.stage == dist::ShardStage::none || state.world_size == 1,
                    "restore_best keeps a copy of the whole model, and this one is sharded; set "
                    "sharding.stage to ShardStage::none, or keep the best checkpoints with "
                    "CheckpointSaver");
  const std::string unknown = tutti::detail::unknown_direction(
      "restore_best", "restore_best.comparison = Comparison", options.restore_best.comparison,
      options.restore_best.monitor);
  if (state.rank == 0 && !unknown.empty()) {
    TORCH_WARN(unknown);
  }
  return std::make_unique<BestWeights>(options.restore_best, std::move(policies));
}

TUTTI_INLINE void check_several(const TrainerOptions& options, std::string_view step_taker) {
  TUTTI_CHECK_VALUE(!options.optimizer,
                    "optimizer and optimizers are both set; put the first one among the others, "
                    "with a name and its parameters");
  TUTTI_CHECK_VALUE(step_taker.empty(), "the policy ", step_taker,
                    " takes the optimizer's step into its own hands, and several optimizers take "
                    "turns; remove the policy, or keep one optimizer");
  TUTTI_CHECK_VALUE(options.sharding.stage == dist::ShardStage::none,
                    "several optimizers do not train a sharded model; set sharding.stage to "
                    "ShardStage::none");
  TUTTI_CHECK_VALUE(!options.cuda_graphs.on,
                    "cuda_graphs is true, but several optimizers make several passes in one step, "
                    "which are not recorded; set cuda_graphs to false, or to \"auto\"");
}

namespace detail {

// `name` = what it is, and its values as `name/...`.
TUTTI_INLINE void add_group(tutti::detail::Constants& out, const std::string& name,
                            std::string_view type, const tutti::detail::Constants& values) {
  if (!type.empty()) {
    out.emplace_back(name, std::string(type));
  }
  for (const auto& [member, value] : values) {
    out.emplace_back(name + "/" + member, value);
  }
}

// How many batches all ranks together take of it in an epoch; nothing where it does not say.
TUTTI_INLINE void add_batches(tutti::detail::Constants& out, const std::string& name,
                              const DataSpec& data, std::int64_t subset) {
  if (const std::int64_t batches = length_of(data, subset); batches >= 0) {
    out.emplace_back(name + "/batches", batches);
  }
}

TUTTI_INLINE void add_optimizer(tutti::detail::Constants& out, const std::string& name,
                                const OptimizerSpec& spec,
                                const torch::optim::Optimizer& optimizer) {
  add_group(out, name, optim::class_name(optimizer), spec.constants());
  if (spec.constants().empty() && !optimizer.param_groups().empty()) {
    out.emplace_back(name + "/lr", optimizer.param_groups().front().options().get_lr());
  }
}

}  // namespace detail

TUTTI_INLINE void log_hyperparameters(const State& state, const TrainerOptions& options,
                                      tutti::detail::Constants policies) {
  tutti::detail::Constants all = std::move(policies);
  all.emplace_back("tutti_version", TUTTI_VERSION);
  all.emplace_back("run_name", state.run_name);
  all.emplace_back("rank_zero_seed", static_cast<std::int64_t>(state.rank_zero_seed));
  all.emplace_back("world_size", std::int64_t{state.world_size});
  all.emplace_back("device", state.device.str());
  all.emplace_back("precision", std::string(to_string(state.precision)));
  if (state.model) {
    add_model(all, *state.model);
  }
  if (!options.optimizers.empty()) {
    for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
      const NamedOptimizer& one = options.optimizers[i];
      detail::add_optimizer(all, "optimizer/" + one.name, one.optimizer, *state.optimizers[i]);
      detail::add_group(all, "schedule/" + one.name, one.schedule.name(), one.schedule.constants());
    }
  } else if (!state.optimizers.empty()) {
    detail::add_optimizer(all, "optimizer", options.optimizer, *state.optimizers.front());
  }
  detail::add_group(all, "schedule", options.schedule.name(), options.schedule.constants());
  if (options.train) {
    detail::add_group(all, "train_loader", options.train.loader.name(),
                      options.train.loader.constants());
    detail::add_batches(all, "train_loader", options.train, options.train_subset_num_batches);
  }
  for (const Evaluator& set : options.eval) {
    if (set.data) {
      detail::add_group(all, "eval_loader/" + set.label, set.data.loader.name(),
                        set.data.loader.constants());
      detail::add_batches(
          all, "eval_loader/" + set.label, set.data,
          set.subset_num_batches >= 0 ? set.subset_num_batches : options.eval_subset_num_batches);
    }
  }
  add_folders(all, options, state);
  for (const auto& given : options.hyperparameters) {  // of one name there is one value
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const auto& one) { return one.first == given.first; });
    if (known == all.end()) {
      all.push_back(given);
    } else if (given.first != "device" && given.first != "precision") {  // an option may be "auto"
      known->second = given.second;
    }
  }
  std::vector<Hyperparameter> values;
  for (const auto& [name, value] : all) {
    values.push_back({name, value});
  }
  state.logger.log_hyperparameters(values);
}

TUTTI_INLINE Time scaled_length(const Run& run, Time max_duration, double ratio) {
  TUTTI_CHECK_VALUE(ratio > 0 && std::isfinite(ratio), "scale_schedule_ratio is ", ratio,
                    ", expected more than 0, and no infinity");
  TUTTI_CHECK_VALUE(max_duration.unit() != TimeUnit::duration, "max_duration is ",
                    to_string(max_duration),
                    "; a fraction of itself is no length, expected a "
                    "time like 10ep or 500ba");
  const Time scaled = ratio == 1 ? max_duration : max_duration * ratio;
  TUTTI_CHECK_VALUE(scaled || !max_duration, "scale_schedule_ratio ", ratio,
                    " makes max_duration 0; take a larger ratio");
  TUTTI_CHECK_VALUE(max_duration.unit() != TimeUnit::iteration || run.iteration_length,
                    "max_duration is ", to_string(max_duration),
                    ", but iteration_length is not set, so that no iteration ever ends; set it, or "
                    "give a time like 10ep or 500ba");
  return scaled;
}

TUTTI_INLINE void set_length(State& state, const Run& run, Time max_duration, double ratio) {
  state.max_duration = scaled_length(run, max_duration, ratio);
  TUTTI_CHECK_VALUE(run.train_subset == -1 || run.train_subset >= 1, "train_subset_num_batches is ",
                    run.train_subset, ", expected -1 (all) or a number of batches");
  if (run.train) {
    state.train_dataloader_len = length_of(run.train, run.train_subset);
  }
}

TUTTI_INLINE void set_loop(Run& run, const TrainerOptions& options) {
  run.train_subset = options.train_subset_num_batches;
  run.weigh_by_tokens = options.accumulate_train_batch_on_tokens;
  run.step_schedule_every_batch = options.step_schedule_every_batch;
  run.schedule_ahead = options.schedule_ahead;
  run.fold_into_optimizer = options.fold_into_optimizer;
  run.detect_anomaly = options.detect_anomaly;
  run.autograd_engine = options.autograd_engine || options.detect_anomaly;
  run.same_epoch = options.overfit_batches > 0;
  if (run.same_epoch) {
    run.train_subset = options.overfit_batches;
  }
  run.uneven_ranks = options.uneven_ranks;
  run.heeds_signals = options.on_signal != OnSignal::ignore;
  TUTTI_CHECK_VALUE(!options.iteration_length ||
                        options.iteration_length.unit() == TimeUnit::epoch ||
                        options.iteration_length.unit() == TimeUnit::token,
                    "iteration_length is ", to_string(options.iteration_length),
                    ", expected a time in ep or tok");
  run.iteration_length = options.iteration_length;
}

TUTTI_INLINE void set_precision(State& state, Run& run, Precision precision) {
  state.precision = precision;
  run.scaler.reset();
  if (precision == Precision::amp_fp16) {
    run.scaler.emplace(state.device);
  }
  if (run.graphs) {
    run.graphs->forget();
  }
}

TUTTI_INLINE Time fit_until(const Timestamp& now, Time max_duration, Time duration) {
  if (duration.is_fraction() && !duration) {
    return max_duration;
  }
  TUTTI_CHECK_VALUE(!duration.is_fraction() && duration.count() > 0, "fit: duration is ",
                    to_string(duration),
                    ", expected more than 0 in another unit than dur, like 2ep or 500ba; leave it "
                    "out to train up to max_duration");
  return now.get(duration.unit()) + duration;
}

TUTTI_INLINE void set_microbatching(State& state, Run& run, const TrainerOptions& options) {
  const CountOrAuto& size = options.device_train_microbatch_size;
  const CountOrAuto& chunks = options.grad_accum;
  TUTTI_CHECK_VALUE(size.count >= 0, "device_train_microbatch_size is ", size.count,
                    ", expected 0 (the whole batch), a number of examples, or \"auto\"");
  TUTTI_CHECK_VALUE(chunks.count >= 0, "grad_accum is ", chunks.count,
                    ", expected a number of microbatches, or \"auto\"");
  TUTTI_CHECK_VALUE(size == CountOrAuto() || chunks == CountOrAuto(),
                    "device_train_microbatch_size and grad_accum are both set, and say the same "
                    "thing in two ways; keep the first");
  state.auto_microbatching = size.automatic || chunks.automatic;
  run.grad_accum = chunks.count;
  state.device_train_microbatch_size = size.count;
  TUTTI_CHECK_VALUE(
      !state.auto_microbatching || !options.data_parallel.sync_strategy ||
          *options.data_parallel.sync_strategy == dist::SyncStrategy::forced_sync,
      "device_train_microbatch_size is \"auto\", which sends gradients after the last "
      "backward pass, so that no rank waits for one without memory; leave "
      "data_parallel.sync_strategy at its default or at forced_sync");
}

TUTTI_INLINE void check_autoresume(const TrainerOptions& options) {
  if (!options.autoresume) {
    const dist::Environment here = dist::here();
    if (here.restart_count > 0 && here.rank == 0 && options.load_path.empty()) {
      TORCH_WARN(
          "the launcher has started this run again, which begins anew; set autoresume, with "
          "a save_folder and a run_name, to go on from the last checkpoint");
    }
    return;
  }
  TUTTI_CHECK_VALUE(!options.save_folder.empty(),
                    "autoresume is set but save_folder is empty; it looks there for the run's last "
                    "checkpoint; set it, or run_folder");
  TUTTI_CHECK_VALUE(!options.save_latest_filename.empty(),
                    "autoresume is set but save_latest_filename is empty; that pointer says which "
                    "checkpoint is the last");
  TUTTI_CHECK_VALUE(!options.run_name.empty() || !detail::environment_run_name().empty(),
                    "autoresume is set but run_name is not; a run that is to be found again needs "
                    "a name, in run_name or the environment's RUN_NAME");
  TUTTI_CHECK_VALUE(!options.save_weights_only,
                    "autoresume is set but save_weights_only is too; a run cannot go on from "
                    "weights alone");
}

TUTTI_INLINE void say_stopped(const State& state, int signal) {
  if (state.rank == 0) {
    TORCH_WARN("signal ", signal, " ended the run after batch ", state.timestamp.batch,
               state.autoresume
                   ? "; started again it goes on from its last checkpoint"
                   : "; set load_path or autoresume to go on from its last checkpoint");
  }
}

TUTTI_INLINE std::unique_ptr<dist::DataParallel> make_parallel(bool leaves_unused,
                                                               const State& state, const Run& run) {
  if (dist::data_ranks(state) == 1) {
    return nullptr;
  }
  dist::DataParallelOptions options = run.data_parallel;
  if (state.auto_microbatching) {
    options.sync_strategy = dist::SyncStrategy::forced_sync;
  }
  TUTTI_CHECK_VALUE(
      !options.static_graph || !leaves_unused,
      "data_parallel.static_graph expects gradients of the same parameters in every "
      "pass, and a policy of this recipe, as LayerFreezing or StochasticDepth, leaves "
      "some without; leave static_graph or the policy out");
  options.find_unused_parameters = options.find_unused_parameters || leaves_unused;
  TUTTI_CHECK(dist::backend().wrap != nullptr,
              "the processes have been joined, but the program "
              "cannot average gradients; add #include <tutti/dist/ddp.hpp> to the file that makes "
              "the Trainer");
  return dist::backend().wrap(*state.model, dist::data_group(state), options);
}

TUTTI_INLINE void warn_of_subset(const State& state, const std::string& what, const DataSpec& data,
                                 std::int64_t subset) {
  const std::int64_t length = data ? data.loader.size() : -1;
  if (state.rank == 0 && length >= 0 && subset > length) {
    TORCH_WARN(what, ": the subset is to have ", subset, " batches, but the loader has ", length,
               ", which are all taken");
  }
}

TUTTI_INLINE void warn_of_batch_size(const State& state, const Timestamp& begun) {
  const Timestamp& now = state.timestamp;
  const std::int64_t batches = begun.batch_in_epoch;
  const bool next = now.epoch == begun.epoch && now.batch_in_epoch == batches + 1;
  if (state.rank != 0 || !next || begun.sample_in_epoch % batches != 0) {
    return;  // batches of several sizes are a loader's own
  }
  const std::int64_t before = begun.sample_in_epoch / batches;
  const std::int64_t size = now.sample_in_epoch - begun.sample_in_epoch;
  const bool last = state.dataloader_len < 0 ? size < before  // nobody knows
                                             : now.batch_in_epoch >= state.dataloader_len;
  if (size != before && !last) {  // an epoch's last batch may be smaller
    TORCH_WARN("this epoch goes on behind ", batches, " batches of ", before,
               " samples of all ranks, and a batch has ", size, " now, so the loader has left out ",
               batches * size, " samples where ", begun.sample_in_epoch, " were trained on; give ",
               state.world_size, " ranks a batch_size that makes ", before, " again");
  }
}

TUTTI_INLINE void warn_of_rest(const State& state, std::int64_t done) {
  TORCH_WARN("epoch ", state.timestamp.epoch, " ends after ", done,
             " batches, since another rank has no more: what rank ", state.rank,
             " has left is not trained on; give all ranks as many batches");
}

TUTTI_INLINE void warn_of_iteration(const State& state, const Run& run) {
  const Timestamp& now = state.timestamp;
  if (state.dataloader_len < 0 || now.batch_in_epoch >= state.dataloader_len) {
    return;
  }
  const std::string text = c10::str(
      "iteration_length is ", to_string(run.iteration_length), ", and iteration ", now.iteration,
      " ended in the middle of epoch ", now.epoch, ", behind ", now.batch_in_epoch, " of its ",
      state.dataloader_len, " batches: the next begins the epoch anew, on the same batches");
  TUTTI_CHECK_VALUE(state.max_duration.unit() != TimeUnit::epoch || now.epoch_in_iteration > 0,
                    text, ", so no epoch ever ends and max_duration (",
                    to_string(state.max_duration),
                    ") is never reached; give it in iter, ba, sp or tok, or longer iterations");
  if (now.iteration == 0 && state.rank == 0) {
    TORCH_WARN(text);
  }
}

TUTTI_INLINE void add_set(std::vector<EvalSet>& sets, Evaluator evaluator, const Metrics& metrics,
                          const TrainerOptions& options) {
  TUTTI_CHECK_VALUE(evaluator.data, "the evaluation set \"", evaluator.label,
                    "\" has no data; give it a loader");
  TUTTI_CHECK_VALUE(evaluator.label != "train",
                    "an evaluation set has the label \"train\", and so would share the names "
                    "metrics/train/... with the training data; call it something else");
  for (const EvalSet& other : sets) {
    TUTTI_CHECK_VALUE(other.label != evaluator.label, "two evaluation sets have the label \"",
                      evaluator.label,
                      "\", so one's metrics would replace the other's; give each "
                      "a label of its own: .eval = {{\"a\", loader}, {\"b\", other}}");
  }
  EvalSet& set = sets.emplace_back();
  set.metrics = MetricSet(metrics, evaluator.metric_names, "metrics/" + evaluator.label + "/");
  set.label = std::move(evaluator.label);
  set.data = std::move(evaluator.data);
  const bool has_own = evaluator.interval || !evaluator.interval.time().is_fraction();
  set.when = has_own ? evaluator.interval : options.eval_interval;
  set.interval = Interval{
      .every = set.when.time(), .at_end = IntervalEnd::fit_end, .checkpoint_events = false};
  set.subset = evaluator.subset_num_batches >= 0 ? evaluator.subset_num_batches
                                                 : options.eval_subset_num_batches;
  for (const std::int64_t most : {options.dry_run, options.overfit_batches}) {
    if (most > 0) {
      set.subset = set.subset < 0 ? most : std::min(set.subset, most);
    }
  }
  TUTTI_CHECK_VALUE(set.subset == -1 || set.subset >= 1, "evaluation set \"", set.label,
                    "\": it is to have ", set.subset,
                    " batches, expected -1 (all) or 1 or more; an interval of 0ep is never due");
  set.microbatch = evaluator.device_eval_microbatch_size;
  TUTTI_CHECK_VALUE(
      !set.microbatch.automatic || options.sharding.stage != dist::ShardStage::parameters,
      "evaluation set \"", set.label,
      "\": device_eval_microbatch_size is \"auto\", by which a rank "
      "finds out that it has no memory left, and sharding.stage is parameters, where the others "
      "would wait for its parameters meanwhile; set a size");
}

TUTTI_INLINE void Constants::log_hyperparameters(std::span<const Hyperparameter> logged) {
  for (const auto& item : logged) {
    const auto known = std::find_if(values.begin(), values.end(),
                                    [&](const auto& value) { return value.first == item.name; });
    if (known == values.end()) {
      values.emplace_back(item.name, item.value);
    } else {
      known->second = item.value;
    }
  }
}

}  // namespace tutti::train
