// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/eval_output_logging.hpp>

namespace tutti::detail {

TUTTI_INLINE std::string numbers_text(const at::Tensor& tensor) {
  constexpr std::int64_t shown = 16;
  const at::Tensor flat = tensor.detach().reshape({-1});
  const at::Tensor numbers = flat.slice(0, 0, shown).to(at::kCPU, at::kDouble).contiguous();
  std::string text;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    char digits[32];
    const double value = numbers.const_data_ptr<double>()[i];
    const auto end =
        std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general, 6);
    text += (i == 0 ? "" : ", ") + (std::isnan(value) ? "nan" : std::string(digits, end.ptr));
  }
  if (tensor.dim() == 0) {
    return text;
  }
  return "[" + text + (flat.numel() > shown ? ", ...]" : "]");
}

TUTTI_INLINE std::string to_bytes(const TextRows& rows) {
  std::string out;
  for (const auto& row : rows) {
    for (const std::string& text : row) {
      const std::uint64_t size = text.size();
      out.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
    }
  }
  return out;
}

TUTTI_INLINE void append_rows(TextRows& rows, std::string_view bytes, std::size_t columns) {
  std::vector<std::string> row;
  while (!bytes.empty()) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    row.emplace_back(bytes.substr(sizeof size, size));
    bytes.remove_prefix(sizeof size + size);
    if (row.size() == columns) {
      rows.push_back(std::move(row));
      row.clear();
    }
  }
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void EvalOutputLogging::apply(EvalBatchStart, const State&) {
  run.before_batch = static_cast<std::int64_t>(run.rows->size());
  run.retries = 0;
}

TUTTI_INLINE void EvalOutputLogging::apply(EvalAfterForward, const State& state) {
  if (state.eval_retries != run.retries) {  // what an attempt without enough memory has left
    run.rows->resize(static_cast<std::size_t>(run.before_batch));
    run.retries = state.eval_retries;
  }
  const std::int64_t size = state.batch.num_samples();
  const std::int64_t room = max_examples - static_cast<std::int64_t>(run.rows->size());
  for (std::int64_t i = 0; i < size && (max_examples < 0 || i < room); ++i) {
    auto& row = run.rows->emplace_back();
    row.push_back(text(input_text, state.batch.inputs().select(0, i)));
    row.push_back(text(output_text, state.outputs.tensor().select(0, i)));
    row.push_back(state.batch.has_targets() ? text(target_text, state.batch.targets().select(0, i))
                                            : "");
  }
}

TUTTI_INLINE void EvalOutputLogging::apply(EvalEnd, const State& state) {
  static const std::vector<std::string> columns{"input", "output", "target"};
  detail::TextRows all;
  if (state.world_size == 1) {
    all.swap(*run.rows);
  } else {
    for (const auto& bytes :
         dist::data_group(state)->all_gather_bytes(detail::to_bytes(*run.rows))) {
      detail::append_rows(all, bytes, columns.size());
    }
  }
  run.rows.reset();
  const std::string title =
      state.dataloader_label + "_step_" + std::to_string(state.timestamp.batch);
  state.logger.log_table({.name = title, .columns = columns, .rows = all}, state.timestamp.batch);
}

}  // namespace tutti
