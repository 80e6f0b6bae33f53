// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/prediction_writer.hpp>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <unistd.h>

#include <ATen/ops/cat.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/detail/csv_cell.hpp>
#include <tutti/core/detail/json_quoted.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti {

TUTTI_INLINE void PredictionWriter::validate() const {
  expect(top_k >= 0, "PredictionWriter: top_k", top_k, "0 or more");
  TUTTI_CHECK_VALUE(filename.empty() || is_csv() || filename.ends_with(".safetensors"),
                    "PredictionWriter: filename is \"", filename,
                    "\", expected a name that ends in .csv or .safetensors");
  TUTTI_CHECK_VALUE(!example_name || filename.empty() || is_csv(),
                    "PredictionWriter: example_name is set and filename is \"", filename,
                    "\", expected a name that ends in .csv, which has names");
  const auto classes = static_cast<std::int64_t>(class_names.size());
  TUTTI_CHECK_VALUE(class_names.empty() || top_k <= classes, "PredictionWriter: top_k is ", top_k,
                    ", but there are ", classes, " class_names");
}

TUTTI_INLINE void PredictionWriter::apply(Init, const State& state) {
  if (filename.empty()) {
    filename = state.world_size > 1 ? "{run_folder}/predictions-rank{rank}.csv"
                                    : "{run_folder}/predictions.csv";
  }
  detail::check_one_file_per_rank("PredictionWriter: filename", filename, state);
  detail::check_remote_file("PredictionWriter", remote_file_name, state);
}

TUTTI_INLINE void PredictionWriter::apply(PredictStart, const State& state) {
  run = {};
  run.path = state.output_path(run_path(filename, state));
  const auto slash = run.path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    checkpoint::make_folder(run.path.substr(0, slash));
  }
  TUTTI_CHECK(overwrite || ::access(run.path.c_str(), F_OK) != 0, "PredictionWriter: ", run.path,
              " exists; set overwrite to replace it, or choose another filename");
  if (is_csv()) {
    run.file.reset(std::fopen((run.path + ".part").c_str(), "wbe"));
    TUTTI_CHECK(run.file, "PredictionWriter: cannot make ", run.path,
                ".part: ", std::strerror(errno));
  }
}

// Floating values on the host: float, or double where they were.
TUTTI_INLINE at::Tensor PredictionWriter::scored(const at::Tensor& output) const {
  at::Tensor values = output.detach();
  if (values.is_floating_point() && values.scalar_type() != at::kDouble) {
    values = values.to(at::kFloat);
  }
  if (scores != Scores::raw || top_k > 0) {
    TUTTI_CHECK_VALUE(values.is_floating_point() && values.dim() == 2,
                      "PredictionWriter: scores and top_k are of floating outputs [N, C]; these "
                      "are ",
                      values.scalar_type(), " ", values.sizes());
  }
  values = scores == Scores::softmax   ? values.softmax(-1)
           : scores == Scores::sigmoid ? values.sigmoid()
                                       : values;
  return values.cpu();
}

TUTTI_INLINE void PredictionWriter::apply(PredictBatchEnd, const State& state) {
  const at::Tensor& chosen = state.outputs.tensor();
  TUTTI_CHECK_VALUE(!is_csv() || chosen.dim() == 1 || chosen.dim() == 2,
                    "PredictionWriter: the outputs are ", chosen.sizes(),
                    ", expected [N, C] or [N] for a .csv; name a .safetensors file");
  at::Tensor values = scored(chosen);
  if (is_csv() && values.dim() == 1) {
    values = values.unsqueeze(1);  // [N, 1]
  }
  const std::int64_t columns = values.dim() > 1 ? values.size(-1) : 1;
  const auto named = static_cast<std::int64_t>(class_names.size());
  TUTTI_CHECK_VALUE(named == 0 || named == columns, "PredictionWriter: there are ", named,
                    " class_names, but the outputs have ", columns, " columns");
  TUTTI_CHECK_VALUE(top_k <= columns, "PredictionWriter: top_k is ", top_k,
                    ", but the outputs have ", columns, " columns");
  at::Tensor classes;
  if (top_k > 0) {  // of equal scores the class of lower number comes first
    auto [sorted, order] = values.sort(/*stable=*/true, -1, /*descending=*/true);
    values = sorted.slice(1, 0, top_k);
    classes = order.slice(1, 0, top_k);
  }
  if (is_csv()) {
    if (run.columns < 0) {
      write_head(columns);
      run.columns = columns;
    }
    TUTTI_CHECK_VALUE(columns == run.columns, "PredictionWriter: the outputs have ", columns,
                      " columns, those of the first batch ", run.columns);
    write_rows(values, classes);
    return;
  }
  for (const auto& [output_name, tensor] : state.outputs) {
    if (!tensor.is_same(chosen)) {
      keep(output_name, tensor.detach().cpu());
    } else if (top_k > 0) {
      keep("classes", classes);
      keep("scores", values);
    } else {
      keep(output_name, scores == Scores::raw ? tensor.detach().cpu() : values);
    }
  }
}

TUTTI_INLINE void PredictionWriter::keep(const std::string& tensor_name, const at::Tensor& tensor) {
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  auto place = run.tensors.begin();
  while (place != run.tensors.end() && place->first != tensor_name) {
    ++place;
  }
  if (place == run.tensors.end()) {
    run.tensors.push_back({tensor_name, {rows}});
    return;
  }
  const at::Tensor& first = place->second.front();
  TUTTI_CHECK_VALUE(rows.dim() == first.dim() && rows.sizes().slice(1) == first.sizes().slice(1),
                    "PredictionWriter: the output \"", tensor_name, "\" is ", rows.sizes(),
                    ", that of the first batch ", first.sizes(),
                    ", so they are no rows of one tensor; let the loader make all examples equally "
                    "large");
  place->second.push_back(rows);
}

TUTTI_INLINE void PredictionWriter::put(const std::string& text) {
  TUTTI_CHECK(std::fwrite(text.data(), 1, text.size(), run.file.get()) == text.size(),
              "PredictionWriter: cannot write ", run.path, ".part: ", std::strerror(errno));
}

TUTTI_INLINE void PredictionWriter::write_head(std::int64_t columns) {
  std::string head = "example";
  for (std::int64_t i = 1; i <= top_k; ++i) {
    head += ",class_" + std::to_string(i) + ",score_" + std::to_string(i);
  }
  for (std::int64_t i = 0; i < columns && top_k == 0; ++i) {
    head +=
        ',' + (class_names.empty() ? std::to_string(i)
                                   : detail::csv_cell(class_names[static_cast<std::size_t>(i)]));
  }
  put(head + '\n');
}

// values, classes: [N, columns]; classes only with top_k
TUTTI_INLINE void PredictionWriter::write_rows(const at::Tensor& values,
                                               const at::Tensor& classes) {
  const bool whole = !values.is_floating_point();
  const bool wide = values.scalar_type() == at::kDouble;
  const at::Tensor numbers = values.to(whole ? at::kLong : values.scalar_type()).contiguous();
  const at::Tensor order = classes.defined() ? classes.contiguous() : classes;
  std::string text;
  std::array<char, 32> digits{};
  for (std::int64_t row = 0; row < numbers.size(0); ++row) {
    const std::int64_t number = run.examples++;
    text += example_name ? detail::csv_cell(example_name(number)) : std::to_string(number);
    for (std::int64_t column = 0; column < numbers.size(1); ++column) {
      const std::int64_t at = row * numbers.size(1) + column;
      if (order.defined()) {
        const std::int64_t label = order.const_data_ptr<std::int64_t>()[at];
        text += ',' + (class_names.empty()
                           ? std::to_string(label)
                           : detail::csv_cell(class_names[static_cast<std::size_t>(label)]));
      }
      char* const end = digits.data() + digits.size();
      const auto written =
          whole  ? std::to_chars(digits.data(), end, numbers.const_data_ptr<std::int64_t>()[at])
          : wide ? std::to_chars(digits.data(), end, numbers.const_data_ptr<double>()[at])
                 : std::to_chars(digits.data(), end, numbers.const_data_ptr<float>()[at]);
      text += ',';
      text.append(digits.data(), written.ptr);
    }
    text += '\n';
  }
  put(text);
}

TUTTI_INLINE void PredictionWriter::apply(PredictEnd, const State& state) {
  if (is_csv()) {
    const bool closed = std::fclose(run.file.release()) == 0;
    TUTTI_CHECK(closed && std::rename((run.path + ".part").c_str(), run.path.c_str()) == 0,
                "PredictionWriter: cannot write ", run.path, ": ", std::strerror(errno));
  } else {
    std::vector<checkpoint::NamedTensor> all;
    for (const auto& [tensor_name, parts] : run.tensors) {
      all.emplace_back(tensor_name, at::cat(parts));
    }
    checkpoint::Metadata metadata;
    if (!class_names.empty()) {
      std::string list;
      for (const std::string& one : class_names) {
        list += (list.empty() ? "" : ", ") + detail::json_quoted(one);
      }
      metadata["class_names"] = "[" + list + "]";
    }
    // As the CSV, it has its name when it is whole.
    const std::string part = run.path + ".part";
    ::unlink(part.c_str());
    checkpoint::write_safetensors(part, all, metadata);
    TUTTI_CHECK(std::rename(part.c_str(), run.path.c_str()) == 0, "PredictionWriter: cannot write ",
                run.path, ": ", std::strerror(errno));
  }
  detail::upload_file(remote_file_name, run.path, state);
  run = {};
}

TUTTI_INLINE void PredictionWriter::close(const State&) {
  if (run.file) {
    run.file.reset();
    ::unlink((run.path + ".part").c_str());
  }
  run = {};
}

}  // namespace tutti
