#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/cuda.h>

#include <tutti/core/state.hpp>
#include <tutti/dist/backend.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/run.hpp>

/// What a Trainer works out from its options before anything runs.
namespace tutti::train {

/// Some parameters may get no gradient with this policy: it says so, and is on.
template <class P>
bool leaves_unused(const P& policy) {
  if constexpr (requires { policy.leaves_parameters_unused(); }) {
    return policy.leaves_parameters_unused();
  } else if constexpr (requires { policy.policy.leaves_parameters_unused(); }) {
    return policy.on && policy.policy.leaves_parameters_unused();
  } else {
    return false;
  }
}

/// The device that a name stands for.
///
/// name: "auto" (CUDA when there is one, else the CPU), "cpu", "cuda" or "gpu" (this rank's own
/// device on its node), "cuda:1".
/// Throws c10::Error when the name is none of these or the machine has no such device.
inline at::Device resolve_device(std::string_view name, int local_rank) {
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (name == "cpu" || (name == "auto" && count == 0)) {
    return at::kCPU;
  }
  const bool any = name == "auto" || name == "cuda" || name == "gpu";
  TORCH_CHECK_VALUE(any || name.starts_with("cuda:"), "device is \"", name,
                    "\", expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\"");
  const at::Device device = any ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank))
                                : at::Device(std::string(name));
  TORCH_CHECK_VALUE(device.index() < count, "device is \"", device.str(), "\", but LibTorch sees ",
                    count,
                    " CUDA devices; set device to \"cpu\", or build with TUTTI_WITH_CUDA=ON "
                    "on a machine with a GPU");
  return device;
}

/// The run's name: the given one, else the environment's RUN_NAME, else time and two words of
/// rank 0's choice.
inline std::string resolve_run_name(const std::string& given, dist::Communicator& communicator) {
  if (!given.empty()) {
    return given;
  }
  if (const char* name = std::getenv("RUN_NAME"); name != nullptr && *name != '\0') {
    return name;
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

/// Refuses a precision that the device cannot run.
inline void check_precision(Precision precision, at::Device device) {
  TORCH_CHECK_VALUE(precision != Precision::amp_fp16 || device.is_cuda(),
                    "precision is amp_fp16 on ", device.str(),
                    ", which has no fast fp16 and would "
                    "overflow for nothing; use amp_bf16 or fp32 there");
}

/// The data-parallel side of the run; nothing in one process.
template <class Engine>
std::unique_ptr<dist::DataParallel> make_parallel(const Engine& engine, const State& state,
                                                  dist::DataParallelOptions options) {
  if (state.world_size == 1) {
    return nullptr;
  }
  engine.for_each([&](const auto& policy) {
    options.find_unused_parameters = options.find_unused_parameters || leaves_unused(policy);
  });
  TORCH_CHECK(dist::backend().wrap != nullptr,
              "the processes have been joined, but the program "
              "cannot average gradients; add #include <tutti/dist/ddp.hpp> to the file that makes "
              "the Trainer");
  return dist::backend().wrap(*state.model, state.communicator, options);
}

/// One evaluation set from what the user gave and the trainer's defaults.
inline EvalSet make_set(Evaluator evaluator, const Metrics& metrics,
                        const TrainerOptions& options) {
  EvalSet set;
  set.metrics = MetricSet(metrics, evaluator.metric_names, "metrics/" + evaluator.label + "/");
  set.label = std::move(evaluator.label);
  set.data = std::move(evaluator.data);
  set.interval = Interval{.every = evaluator.interval ? evaluator.interval : options.eval_interval,
                          .at_end = IntervalEnd::fit_end,
                          .checkpoint_events = false};
  set.subset = evaluator.subset_num_batches >= 0 ? evaluator.subset_num_batches
                                                 : options.eval_subset_num_batches;
  set.microbatch = evaluator.device_eval_microbatch_size;
  return set;
}

/// Remembers the constants of the run that anybody logs.
struct Constants {
  std::vector<std::pair<std::string, HyperparameterValue>> values{};

  void log_hyperparameters(std::span<const Hyperparameter> logged) {
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
};

}  // namespace tutti::train
