// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/cuda.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/filename.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/constants.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/backend.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/train/best_weights.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/run.hpp>
#include <tutti/version.hpp>

/// What a Trainer works out from its options before anything runs.
namespace tutti::train {

/// Some parameters may get no gradient with this policy: it says so, and is on.
template <class P>
bool leaves_unused(const P& policy) {
  if constexpr (tutti::detail::MayLeaveUnused<tutti::detail::Unswitched<P>>) {
    return tutti::detail::is_on(policy) &&
           tutti::detail::unswitched(policy).leaves_parameters_unused();
  } else {
    return false;
  }
}

/// Gradients stay local with this policy, which averages parameters itself, and is on.
template <class P>
bool keeps_local(const P& policy) {
  return tutti::detail::means<averages_ranks, P> && tutti::detail::is_on(policy);
}

/// The device that a name stands for.
///
/// name: "auto" (CUDA when there is one, else the CPU), "cpu", "cuda" or "gpu" (this rank's own
/// device on its node), "cuda:1".
/// Throws c10::Error when the name is none of these or the machine has no such device.
at::Device resolve_device(std::string_view name, int local_rank);

/// The run's name: the given one, else the environment's RUN_NAME, else time and two words of
/// rank 0's choice. Throws c10::ValueError when it would lead out of folders that are named after
/// it.
std::string resolve_run_name(const std::string& given, dist::Communicator& communicator);

/// Refuses a precision that the device cannot run.
void check_precision(Precision precision, at::Device device);

/// The parameters that are trained. Throws c10::Error when there is none.
std::vector<at::Tensor> trainable(const torch::nn::Module& model);

/// The optimizer of the run. Throws c10::Error when there is nothing to train, or none of it is the
/// optimizer's.
std::shared_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerSpec& spec,
                                                         torch::nn::Module& model);

/// Parameters that require no gradient.
std::vector<at::Tensor> frozen_parameters(const torch::nn::Module& model);

/// Warns of run.frozen that require a gradient by now and are in no optimizer, and forgets those.
void warn_of_untrained(const State& state, Run& run);

/// Warns at rank 0 of evaluations and checkpoints that are due by tokens, when batches have none.
void warn_of_no_tokens(const State& state, const Run& run);

/// Refuses times below 0 and a dist_timeout that is none.
/// Throws c10::ValueError with the option's name, its value and what is expected.
void check_options(const TrainerOptions& options);

/// Refuses a precision that an optimizer which calls a closure in its step cannot have.
void check_closure_precision(const torch::optim::Optimizer& optimizer, Precision precision);

/// Refuses what an optimizer that calls a closure in its step, like LBFGS, cannot have beside it.
/// step_taker: the policy that takes the step into its own hands; empty: none.
void check_closure(const torch::optim::Optimizer& optimizer, const TrainerOptions& options,
                   std::string_view step_taker);

/// What keeps the weights of the best evaluation; null where no option asks for it. policies: the
/// run's. Warns where it has to guess which value is better. Throws c10::ValueError where the model
/// is sharded.
std::unique_ptr<BestWeights> keep_best(const TrainerOptions& options, PolicyStates policies,
                                       const State& state);

/// Refuses what several optimizers cannot have beside them. Throws c10::ValueError.
void check_several(const TrainerOptions& options, std::string_view step_taker);

/// Sends to the loggers what is constant in every run and what the options list: by a name of its
/// own each (`run_name`), the optimizer's, the schedule's and the loaders' as `optimizer/lr`,
/// `schedule/t_max`, `train_loader/batch_size`, `eval_loader/<label>/batch_size`; of the model how
/// large it is. What `policies` has comes first.
void log_hyperparameters(const State& state, const TrainerOptions& options,
                         tutti::detail::Constants policies = {});

/// The values of policies' members by policy and member, `MixUp/alpha`, and the policies' names.
/// Without those that are off, or whose members cannot be listed. algorithms: of these alone.
template <class Engine>
tutti::detail::Constants policy_constants(const Engine& engine, bool algorithms = false) {
  tutti::detail::Constants out;
  std::string names;
  engine.for_each([&]<class P>(const P& policy) {
    if (tutti::detail::is_on(policy) &&
        (!algorithms || tutti::detail::deduce_role<P>() == Role::algorithm)) {
      const std::string name(name_of<P>());
      names.append(names.empty() ? "" : ", ").append(name);
      tutti::detail::add_constants(out, name + "/", tutti::detail::unswitched(policy));
    }
  });
  tutti::detail::put_constant(out, "policies", std::move(names));
  return out;
}

/// The length of a run: `max_duration` times `ratio`. Throws like set_length().
Time scaled_length(const Run& run, Time max_duration, double ratio);

/// Sets how long the run is and how many batches its epochs have.
/// Throws c10::ValueError when the length or the ratio makes no sense.
void set_length(State& state, const Run& run, Time max_duration, double ratio);

/// Takes over what the options say of the loop.
/// Throws c10::ValueError when iterations are to be counted in a unit that has none.
void set_loop(Run& run, const TrainerOptions& options);

/// Computes in this precision from now on, with a new scaler where it has one.
void set_precision(State& state, Run& run, Precision precision);

/// Up to where a fit of that FitOptions::duration trains that begins now; max_duration itself for
/// 0dur. Throws c10::ValueError when it is no time that can pass.
Time fit_until(const Timestamp& now, Time max_duration, Time duration);

/// Sets how batches are cut. Throws c10::ValueError for options that contradict each other.
void set_microbatching(State& state, Run& run, const TrainerOptions& options);

/// Warns when a run that a launcher has started again would begin anew.
/// Throws c10::ValueError when autoresume lacks an option that it needs.
void check_autoresume(const TrainerOptions& options);

/// Says at rank 0 why fit() ends before its time.
void say_stopped(const State& state, int signal);

/// The data-parallel side of the run; nothing in one process.
/// leaves_unused: some parameters may get no gradient.
std::unique_ptr<dist::DataParallel> make_parallel(bool leaves_unused, const State& state,
                                                  const Run& run);
template <class Engine>
std::unique_ptr<dist::DataParallel> make_parallel(const Engine& engine, const State& state,
                                                  const Run& run) {
  bool unused = false;
  bool local = false;
  if constexpr (requires { engine.leaves_parameters_unused(); }) {
    unused = engine.leaves_parameters_unused();
    local = engine.averages_ranks();
  } else {
    engine.for_each([&](const auto& policy) {
      unused = unused || leaves_unused(policy);
      local = local || keeps_local(policy);
    });
  }
  auto parallel = make_parallel(unused, state, run);
  if (parallel && local) {
    parallel->require_sync(false);
  }
  return parallel;
}

/// Warns that a subset is longer than its loader, of which all is taken then.
void warn_of_subset(const State& state, const std::string& what, const DataSpec& data,
                    std::int64_t subset);

/// Warns, behind the first batch of an epoch that went on from `begun`, that global batches have
/// another size than those before, so that the loader has left out other examples.
void warn_of_batch_size(const State& state, const Timestamp& begun);

/// Warns that this rank has batches left where an epoch ends, since another has none. done: batches
/// of the epoch.
void warn_of_rest(const State& state, std::int64_t done);

/// Says, at the end of the first iteration in tokens that ends within an epoch, that the epoch then
/// begins anew, on the same batches.
/// Throws c10::ValueError when max_duration is in epochs and none ended in the iteration, since
/// none ever will.
void warn_of_iteration(const State& state, const Run& run);

/// Adds an evaluation set made of what the user gave and the trainer's defaults.
/// Throws c10::ValueError when its label is taken, by another one or by the training data, since
/// the metrics of both would have the same names.
void add_set(std::vector<EvalSet>& sets, Evaluator evaluator, const Metrics& metrics,
             const TrainerOptions& options);

/// Remembers the constants of the run that anybody logs.
struct Constants {
  std::vector<std::pair<std::string, HyperparameterValue>> values{};

  void log_hyperparameters(std::span<const Hyperparameter> logged);
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/setup.inl.hpp>
#endif
