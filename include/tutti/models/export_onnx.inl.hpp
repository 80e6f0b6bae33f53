// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/export_onnx.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <set>
#include <string_view>

#include <ATen/ops/arange.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/whole_file.hpp>
#include <tutti/models/detail/onnx_file.hpp>
#include <tutti/models/detail/onnx_trace.hpp>
#include <tutti/models/detail/onnx_writer.hpp>
#include <tutti/nn/eval_mode.hpp>

namespace tutti::models::detail {

// Runs a model for batches of several sizes.
class OnnxExport {
 public:
  OnnxExport(const OnnxModel& model, const Batch& example, const OnnxOptions& options);

  [[nodiscard]] OnnxGraph graph();

 private:
  void add_symbols();
  void add_symbol(const std::string& name, const std::string& input, std::int64_t axis,
                  std::int64_t size);
  [[nodiscard]] NamedTensorList resized(const Numbers& sizes, bool other_values) const;
  [[nodiscard]] Trace run(const Numbers& sizes, bool other_values) const;
  [[nodiscard]] std::optional<Trace> attempt(const Numbers& sizes) const;
  void vary(std::vector<Trace>& traces, const std::vector<std::size_t>& which);
  void record(std::vector<Trace>& traces, Trace trace, const Numbers& sizes);

  const OnnxModel& model_;
  const OnnxOptions& options_;
  std::vector<std::string> keys_;  // of the batch, in order
  NamedTensorList example_, weights_;
  std::vector<OnnxSymbol> symbols_;
  // By symbol: which dimensions are it.
  std::vector<std::vector<std::pair<std::string, std::int64_t>>> places_;
  Numbers base_;  // the sizes of the first trace
};

TUTTI_INLINE OnnxExport::OnnxExport(const OnnxModel& model, const Batch& example,
                                    const OnnxOptions& options)
    : model_(model), options_(options) {
  std::set<const void*> seen;
  const auto add = [&](const auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.value().defined() && seen.insert(tensor.value().unsafeGetTensorImpl()).second) {
        weights_.emplace_back(tensor.key(), tensor.value());
      }
    }
  };
  add(model.module()->named_parameters());
  add(model.module()->named_buffers());
  const at::Device device = weights_.empty() ? at::Device(at::kCPU) : weights_[0].second.device();
  const Batch batch = model.inputs(example);
  TUTTI_CHECK_VALUE(batch.size() > 0, "export_onnx: the example has no inputs, expected a batch");
  TUTTI_CHECK_VALUE(options.input_names.empty() || options.input_names.size() == batch.size(),
                    "export_onnx: there are ", options.input_names.size(), " input_names and ",
                    batch.size(), " inputs (", batch.names(), "), expected one for each");
  for (const auto& [name, tensor] : batch) {
    TUTTI_CHECK_VALUE(tensor.defined() && tensor.numel() > 0, "export_onnx: the input '", name,
                      "' of the example is empty, expected numbers");
    keys_.push_back(name);
    const std::size_t i = example_.size();
    example_.emplace_back(options.input_names.empty() ? name : options.input_names[i],
                          tensor.detach().to(device));
  }
  add_symbols();
}

TUTTI_INLINE void OnnxExport::add_symbol(const std::string& name, const std::string& input,
                                         std::int64_t axis, std::int64_t size) {
  TUTTI_CHECK_VALUE(!name.empty(), "export_onnx: dimension ", axis, " of '", input,
                    "' has an empty name in dynamic_axes");
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    if (symbols_[i].name == name) {
      TUTTI_CHECK_VALUE(base_[i] == size, "export_onnx: the dimensions called '", name, "' are ",
                        base_[i], " in '", symbols_[i].input, "' and ", size, " in '", input,
                        "', expected one size; give them two names in dynamic_axes");
      places_[i].emplace_back(input, axis);
      return;
    }
  }
  symbols_.push_back({.name = name, .input = input, .axis = axis, .sizes = {}});
  places_.push_back({{input, axis}});
  base_.push_back(size);
}

TUTTI_INLINE void OnnxExport::add_symbols() {
  for (const auto& [input, axes] : options_.dynamic_axes) {
    const auto found = std::find_if(example_.begin(), example_.end(),
                                    [&, &name = input](const auto& e) { return e.first == name; });
    TUTTI_CHECK_VALUE(found != example_.end(), "export_onnx: dynamic_axes names the input '", input,
                      "', which the example does not have");
    for (const auto& [axis, name] : axes) {
      TUTTI_CHECK_VALUE(axis >= 0 && axis < found->second.dim(), "export_onnx: dynamic_axes names ",
                        "dimension ", axis, " of '", input, "', which is ", found->second.sizes());
    }
  }
  std::int64_t batch = 1;  // an input of one row is for all of them
  for (const auto& [input, tensor] : example_) {
    batch = tensor.dim() > 0 ? std::max(batch, tensor.size(0)) : batch;
  }
  for (const auto& [input, tensor] : example_) {
    const auto named = options_.dynamic_axes.find(input);
    std::map<std::int64_t, std::string> axes;
    if (options_.dynamic_batch && tensor.dim() > 0 && tensor.size(0) == batch) {
      axes[0] = "batch";
    }
    if (named != options_.dynamic_axes.end()) {
      for (const auto& [axis, name] : named->second) {
        axes[axis] = name;
      }
    }
    for (const auto& [axis, name] : axes) {
      add_symbol(name, input, axis, tensor.size(axis));
    }
  }
  for (std::int64_t& size : base_) {
    size = std::max<std::int64_t>(size, 2);  // layers have shorter ways for 1
  }
}

// The example in other sizes, its rows in another order.
TUTTI_INLINE NamedTensorList OnnxExport::resized(const Numbers& sizes, bool other_values) const {
  NamedTensorList out = example_;
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    for (const auto& [input, axis] : places_[i]) {
      for (auto& [name, tensor] : out) {
        if (name == input) {
          const std::int64_t shift = axis == 0 && other_values ? 1 : 0;
          const at::Tensor rows = at::arange(sizes[i], tensor.options().dtype(at::kLong));
          tensor = tensor.index_select(axis, rows.add(shift).remainder(tensor.size(axis)));
        }
      }
    }
  }
  for (auto& [name, tensor] : out) {
    if (other_values) {
      tensor = tensor.is_floating_point()             ? tensor.mul(0.75)
               : symbols_.empty() && tensor.dim() > 0 ? tensor.flip(0)
                                                      : tensor;
    }
  }
  return out;
}

TUTTI_INLINE Trace OnnxExport::run(const Numbers& sizes, bool other_values) const {
  return trace(weights_, resized(sizes, other_values), [&](const NamedTensorList& inputs) {
    Batch batch;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      batch[keys_[i]] = inputs[i].second;
    }
    const Outputs outputs = model_.forward(batch);
    NamedTensorList out(outputs.begin(), outputs.end());
    TUTTI_CHECK_VALUE(options_.output_names.empty() || options_.output_names.size() == out.size(),
                      "export_onnx: there are ", options_.output_names.size(), " output_names and ",
                      out.size(), " outputs (", outputs.names(), "), expected one for each");
    for (std::size_t i = 0; i < out.size(); ++i) {
      TUTTI_CHECK(out[i].second.defined(), "export_onnx: the output '", out[i].first,
                  "' is an undefined tensor");
      out[i].first = options_.output_names.empty() ? out[i].first : options_.output_names[i];
    }
    return out;
  });
}

// Empty where the model takes no such sizes.
TUTTI_INLINE std::optional<Trace> OnnxExport::attempt(const Numbers& sizes) const {
  try {
    return run(sizes, /*other_values=*/true);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

TUTTI_INLINE void OnnxExport::record(std::vector<Trace>& traces, Trace trace,
                                     const Numbers& sizes) {
  traces.push_back(std::move(trace));
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    symbols_[i].sizes.push_back(sizes[i]);
  }
}

// One more trace, with other sizes of these symbols than before; the others are the base's.
TUTTI_INLINE void OnnxExport::vary(std::vector<Trace>& traces,
                                   const std::vector<std::size_t>& which) {
  std::string names, tried;
  for (const std::size_t i : which) {
    names += (names.empty() ? "'" : "' and '") + symbols_[i].name;
  }
  for (const std::int64_t step : {1, -1, 2, -2, 3, -3, 4, -4, 8, -8, 16, -16, 32, -32, 64}) {
    Numbers sizes = base_;
    bool is_new = true;
    for (const std::size_t i : which) {
      sizes[i] += step;
      const auto& before = symbols_[i].sizes;
      is_new = is_new && sizes[i] >= 2 &&
               std::find(before.begin(), before.end(), sizes[i]) == before.end();
    }
    if (!is_new) {
      continue;
    }
    if (auto trace = attempt(sizes)) {
      record(traces, std::move(*trace), sizes);
      return;
    }
    tried += (tried.empty() ? "" : ", ") + std::to_string(sizes[which[0]]);
  }
  TUTTI_CHECK_VALUE(false, "export_onnx: ", names,
                    "' is to be of any size, and the model runs with ", base_[which[0]],
                    " but with none of ", tried,
                    symbols_[which[0]].name == "batch" ? "; set dynamic_batch = false"
                                                       : "; leave it out of dynamic_axes");
}

TUTTI_INLINE OnnxGraph OnnxExport::graph() {
  static_cast<void>(run(base_, /*other_values=*/false));  // what layers keep is there from here on
  std::vector<Trace> traces;
  record(traces, run(base_, /*other_values=*/false), base_);
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    vary(traces, {i});
    all.push_back(i);
  }
  if (all.empty()) {
    record(traces, run(base_, /*other_values=*/true), base_);
  } else {
    vary(traces, all);  // what was concluded from the others has to hold here
  }
  OnnxGraph out;
  OnnxWriter(traces, symbols_, out).write();
  std::set<std::string> names;
  const auto check = [&](const std::string& name, const char* what) {
    TUTTI_CHECK_VALUE(!name.empty() && names.insert(name).second, "export_onnx: the name '", name,
                      "' of ", what, " is empty, or that of another input, output or weight; set ",
                      "input_names and output_names");
  };
  for (const auto& weight : out.weights) {
    check(weight.first, "a weight");
  }
  for (const auto& input : out.inputs) {
    check(input.name, "an input");
  }
  for (const auto& output : out.outputs) {
    check(output.name, "an output");
  }
  return out;
}

TUTTI_INLINE void check_new(const std::string& path, bool overwrite) {
  struct stat facts{};
  const bool there = ::lstat(path.c_str(), &facts) == 0;
  TUTTI_CHECK(!there || !S_ISDIR(facts.st_mode), "export_onnx: '", path,
              "' is a folder, expected a file");
  TUTTI_CHECK(!there || overwrite, "export_onnx: '", path,
              "' is there already; set overwrite, or choose another path");
}

TUTTI_INLINE void write_pieces(const std::string& path,
                               const std::vector<std::string_view>& pieces) {
  const std::string problem = ::tutti::detail::write_whole_file(path, pieces, /*sync=*/true);
  TUTTI_CHECK(problem.empty(), "export_onnx: cannot write '", path, "': ", problem);
}

}  // namespace tutti::models::detail

namespace tutti {

TUTTI_INLINE Batch OnnxModel::inputs(const Batch& example) const {
  Batch out;
  for (const auto& [name, tensor] : example) {
    if (one_input_ ? &tensor == &example.inputs() : name != "targets" && name != "labels") {
      out[name] = tensor;
    }
  }
  return out;
}

TUTTI_INLINE void export_onnx(const OnnxModel& model, const Batch& example, const std::string& path,
                              const OnnxOptions& options) {
  TUTTI_CHECK_VALUE(model.module() != nullptr, "export_onnx: there is no model");
  TUTTI_CHECK_VALUE(!path.empty() && path.back() != '/', "export_onnx: the path is '", path,
                    "', expected that of a file");
  const std::string data = path + ".data";
  models::detail::check_new(path, options.overwrite);
  models::detail::OnnxGraph graph;
  {
    const nn::EvalMode eval(*model.module());
    const c10::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    graph = models::detail::OnnxExport(model, example, options).graph();
  }
  constexpr std::uint64_t rest = 64 << 20;  // room for nodes and names
  const bool beside = options.external_data ||
                      models::detail::weight_bytes(graph) + rest > models::detail::proto_limit;
  std::vector<std::string_view> external;
  const std::string name = data.substr(data.rfind('/') + 1);
  const models::detail::ProtoMessage file =
      models::detail::onnx_model(graph, beside ? name : "", external);
  TUTTI_CHECK(file.size() <= models::detail::proto_limit, "export_onnx: the graph without its ",
              "weights has ", file.size(), " bytes, and a file of ONNX at most 2 GiB");
  if (!external.empty()) {
    models::detail::check_new(data, options.overwrite);
    if (::unlink(path.c_str()) != 0) {  // an old model never stands beside new weights
      TUTTI_CHECK(errno == ENOENT || errno == ENOTDIR, "export_onnx: cannot replace '", path,
                  "': ", std::strerror(errno));
    }
    models::detail::write_pieces(data, external);
  }
  models::detail::write_pieces(path, file.pieces());
}

}  // namespace tutti
