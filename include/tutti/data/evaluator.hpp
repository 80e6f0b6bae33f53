// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/count_or_auto.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/data/data_spec.hpp>

namespace tutti {

/// How an evaluation set is evaluated; every default asks the trainer.
struct EvaluatorOptions {
  std::vector<std::string> metric_names{};  ///< parts of names, or regular expressions for them,
                                            ///< any case; empty: all of the model's
  /// How often during fit; 0ep: never; 0dur: the trainer's eval_interval.
  TimeOrFunction interval = "0dur";
  std::int64_t subset_num_batches = -1;       ///< batches at most; -1: all
  CountOrAuto device_eval_microbatch_size{};  ///< examples; 0: the whole batch; "auto": what fits
};

/// An evaluation set: a label, its data and when and how it is evaluated.
///
///     .eval = {{"test", test_loader}, {"small", part, {.interval = "5ep"}}}
///
/// A loader alone is called "eval".
/// Source: MosaicML Composer, `composer.core.Evaluator`.
struct Evaluator : EvaluatorOptions {
  std::string label = "eval";  ///< logged metrics are `metrics/<label>/<name>`
  DataSpec data;

  Evaluator() = default;

  /// Throws c10::Error (ValueError) when a number is out of range or the label is empty.
  Evaluator(std::string called, DataSpec from, EvaluatorOptions options = {})
      : EvaluatorOptions(std::move(options)), label(std::move(called)), data(std::move(from)) {
    TUTTI_CHECK_VALUE(!label.empty(), "an evaluation set has an empty label; give it a name");
    TUTTI_CHECK_VALUE(interval.time().value() >= 0, "evaluation set \"", label, "\": interval is ",
                      to_string(interval),
                      ", expected a time like 1ep, 0ep for never, or 0dur for the trainer's "
                      "eval_interval");
    TUTTI_CHECK_VALUE(subset_num_batches >= -1, "evaluation set \"", label,
                      "\": subset_num_batches is ", subset_num_batches,
                      ", expected -1 (all) or a number of batches");
    TUTTI_CHECK_VALUE(device_eval_microbatch_size.count >= 0, "evaluation set \"", label,
                      "\": device_eval_microbatch_size is ", device_eval_microbatch_size.count,
                      ", expected 0 (the whole batch), a number of examples, or \"auto\"");
  }

  template <class D>
    requires(!std::same_as<std::remove_cvref_t<D>, Evaluator> && std::convertible_to<D, DataSpec>)
  Evaluator(D&& from)  // NOLINT: converts by design
      : Evaluator("eval", DataSpec(std::forward<D>(from))) {}
};

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<tutti::Evaluator>;
#endif
