// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>

namespace tutti {

namespace detail {

/// A tensor's numbers in a row: "3" or "[0.25, 0.5, ...]", the first sixteen of them.
std::string numbers_text(const at::Tensor& tensor);

using TextRows = std::vector<std::vector<std::string>>;

// Rows as bytes, each text with its length before it, and back.
std::string to_bytes(const TextRows& rows);
void append_rows(TextRows& rows, std::string_view bytes, std::size_t columns);

}  // namespace detail

/// Logs a table of what the model was given in an evaluation, and what it said.
///
/// At EvalEnd `<label>_step_<batch>` with the columns input, output and target (when batches have
/// targets): one row for each of the first max_examples examples on each process, those of process
/// 0 first. Texts are made by the given functions, which get one example's tensor:
///
///     EvalOutputLogging{.input_text = [](const at::Tensor& ids) { return decode(ids); }}
///
/// Copies those examples to the host during evaluation.
/// Source: MosaicML Composer up to 0.23, `composer.callbacks.EvalOutputLogging`.
struct EvalOutputLogging final {
  using Text = std::string (*)(const at::Tensor&);

  std::int64_t max_examples = 100;  ///< per evaluation and process; -1: all
  Text input_text = nullptr;        ///< null: its first sixteen numbers
  Text output_text = nullptr;       ///< likewise
  Text target_text = nullptr;       ///< likewise

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<detail::TextRows> rows{};  ///< of this evaluation
    std::int64_t before_batch = 0;  ///< rows at the batch's beginning
    int retries = 0;                ///< that were seen of this batch
  } run{};

  static constexpr std::string_view name = "EvalOutputLogging";
  using events = types<EvalStart, EvalBatchStart, EvalAfterForward, EvalEnd>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(max_examples >= -1 && max_examples != 0, "EvalOutputLogging: max_examples", max_examples,
           "at least 1, or -1 for all");
  }

  void apply(EvalStart, const State&) { run.rows->clear(); }
  void apply(EvalBatchStart, const State&);
  void apply(EvalAfterForward, const State& state);
  void apply(EvalEnd, const State& state);

 private:
  static std::string text(Text made_by, const at::Tensor& tensor) {
    return made_by != nullptr ? made_by(tensor) : detail::numbers_text(tensor);
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/eval_output_logging.inl.hpp>
#endif
