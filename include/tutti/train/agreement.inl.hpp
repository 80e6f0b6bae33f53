// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/agreement.hpp>

namespace tutti::train {

namespace detail {

template <class T>
std::string option_text(const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::same_as<T, CountOrAuto>) {
    return value.automatic ? "auto" : std::to_string(value.count);
  } else if constexpr (std::is_floating_point_v<T>) {
    return tutti::detail::shortest_text(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::same_as<T, std::vector<std::string>>) {
    std::string out;
    for (const std::string& one : value) {
      out += (out.empty() ? "" : ", ") + one;
    }
    return out;
  } else if constexpr (requires { value.has_value(); }) {
    return value ? option_text(*value) : "none";
  } else if constexpr (requires { to_string(value); }) {
    return std::string(to_string(value));
  } else {
    return std::string(value);
  }
}

// "optimizer/lr = 0.1"
TUTTI_INLINE void add_lines(std::vector<std::string>& out, const std::string& prefix,
                            const tutti::detail::Constants& constants) {
  for (const auto& [name, value] : constants) {
    out.push_back(prefix + name + " = " +
                  value.visit([](const auto& held) { return option_text(held); }));
  }
}

// The first line that another rank has where rank 0 has another; empty: there is none.
TUTTI_INLINE std::string first_difference(const std::vector<std::string>& lines,
                                          dist::Communicator& world) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + '\n';
  }
  tutti::detail::Xxh64 hash;
  hash.update(text.data(), text.size());
  const std::vector<std::string> hashes = world.all_gather_bytes(hash.text());
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const std::string& one) { return one != hashes.front(); });
  if (other == hashes.end()) {
    return {};
  }
  const std::vector<std::string> texts = world.all_gather_bytes(text);
  const auto rank = static_cast<std::size_t>(other - hashes.begin());
  std::istringstream first(texts.front());
  std::istringstream second(texts[rank]);
  std::string of_first;
  std::string of_second;
  bool more = true;
  while (more && of_first == of_second) {
    of_first.clear();
    of_second.clear();
    more = static_cast<bool>(std::getline(first, of_first));
    more = static_cast<bool>(std::getline(second, of_second)) || more;
  }
  const auto shown = [](const std::string& line) {
    return line.empty() ? "nothing" : "[" + line + "]";
  };
  return "rank " + std::to_string(rank) + " has " + shown(of_second) + " where rank 0 has " +
         shown(of_first);
}

}  // namespace detail

TUTTI_INLINE std::vector<std::string> common_options(const TrainerOptions& options) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view name, const auto& value) {
    out.push_back(std::string(name) + " = " + detail::option_text(value));
  };
  const TrainerOptions& o = options;
  add("max_duration", o.max_duration);
  add("min_duration", o.min_duration);
  add("train_subset_num_batches", o.train_subset_num_batches);
  add("eval_subset_num_batches", o.eval_subset_num_batches);
  add("eval_interval", o.eval_interval);
  add("the number of eval sets", o.eval.size());
  add("iteration_length", o.iteration_length);
  add("restore_best", o.restore_best.monitor);
  add("restore_best.dataloader_label", o.restore_best.dataloader_label);
  std::vector<std::string> optimizers;
  for (const NamedOptimizer& one : o.optimizers) {
    optimizers.push_back(one.name);
  }
  add("optimizers", optimizers);
  detail::add_lines(out, "optimizer/", o.optimizer.constants());
  detail::add_lines(out, "schedule/", o.schedule.constants());
  for (const NamedOptimizer& one : o.optimizers) {
    detail::add_lines(out, "optimizer/" + one.name + "/", one.optimizer.constants());
    detail::add_lines(out, "schedule/" + one.name + "/", one.schedule.constants());
  }
  add("scale_schedule_ratio", o.scale_schedule_ratio);
  add("step_schedule_every_batch", o.step_schedule_every_batch);
  add("schedule_ahead", o.schedule_ahead);
  add("device_train_microbatch_size", o.device_train_microbatch_size);
  add("grad_accum", o.grad_accum);
  add("accumulate_train_batch_on_tokens", o.accumulate_train_batch_on_tokens);
  add("dry_run", o.dry_run);
  add("overfit_batches", o.overfit_batches);
  add("sanity_eval", o.sanity_eval);
  add("detect_anomaly", o.detect_anomaly);
  add("num_threads is auto", o.num_threads.automatic);  // else each rank has its own
  add("precision", o.precision);
  add("a save_folder is set", !o.save_folder.empty() || !o.run_folder.empty());
  add("save_interval", o.save_interval);
  add("save_weights_only", o.save_weights_only);
  add("save_ignore_keys", o.save_ignore_keys);
  add("save_metrics", o.save_metrics);
  add("save_async", o.save_async);
  add("save_on_error", o.save_on_error);
  add("checkpoint_layout", o.checkpoint_layout);
  add("a load_path is set", !o.load_path.empty());
  add("load_weights_only", o.load_weights_only);
  add("load_strict_model_weights", o.load_strict_model_weights);
  add("load_ignore_keys", o.load_ignore_keys);
  add("autoresume", o.autoresume);
  add("uneven_ranks", o.uneven_ranks);
  const dist::DataParallelOptions& parallel = o.data_parallel;
  add("data_parallel.find_unused_parameters", parallel.find_unused_parameters);
  add("data_parallel.static_graph", parallel.static_graph);
  add("data_parallel.sync_strategy", parallel.strategy());  // follows from those two if it is unset
  add("data_parallel.broadcast_buffers", parallel.broadcast_buffers);
  add("data_parallel.bucket_cap_mb", parallel.bucket_cap_mb);
  add("data_parallel.compression", parallel.compression);
  const dist::PowerSGDOptions& power_sgd = parallel.power_sgd;
  add("data_parallel.power_sgd.rank", power_sgd.rank);
  add("data_parallel.power_sgd.start_iteration", power_sgd.start_iteration);
  add("data_parallel.power_sgd.min_compression_rate", power_sgd.min_compression_rate);
  add("data_parallel.power_sgd.error_feedback", power_sgd.error_feedback);
  add("data_parallel.power_sgd.warm_start", power_sgd.warm_start);
  add("data_parallel.power_sgd.seed", power_sgd.seed);
  return out;
}

TUTTI_INLINE std::vector<std::string> common_options(const FitOptions& options) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view name, const auto& value) {
    out.push_back("fit: " + std::string(name) + " = " + detail::option_text(value));
  };
  const FitOptions& o = options;
  add("duration", o.duration);
  add("reset_time", o.reset_time);
  add("train is set", static_cast<bool>(o.train));
  add("the number of eval sets", o.eval.size());
  add("a schedule is set", static_cast<bool>(o.schedule));
  detail::add_lines(out, "fit: schedule/", o.schedule.constants());
  add("scale_schedule_ratio", o.scale_schedule_ratio);
  add("step_schedule_every_batch", o.step_schedule_every_batch);
  add("train_subset_num_batches", o.train_subset_num_batches);
  add("device_train_microbatch_size", o.device_train_microbatch_size);
  add("precision", o.precision);
  return out;
}

TUTTI_INLINE void check_common_options(const std::vector<std::string>& options,
                                       dist::Communicator& world) {
  const std::string difference = detail::first_difference(options, world);
  TUTTI_CHECK_VALUE(difference.empty(), "the ranks have different options: ", difference,
                    "; give every rank the same");
}

TUTTI_INLINE void warn_of_other_algorithms(const tutti::detail::Constants& algorithms,
                                           dist::Communicator& world) {
  if (world.size() == 1) {
    return;
  }
  std::vector<std::string> lines;
  detail::add_lines(lines, "", algorithms);
  const std::string difference = detail::first_difference(lines, world);
  if (!difference.empty() && world.rank() == 0) {
    TORCH_WARN("the ranks have different algorithms: ", difference,
               "; they train one model, and may wait for each other in vain: give every rank the "
               "same");
  }
}

}  // namespace tutti::train
