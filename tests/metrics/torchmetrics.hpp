// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cases that golden.py makes with torchmetrics.
//
//   check_against_torchmetrics("MeanSquaredError", [](const torchmetrics::Json& args) {
//     return tutti::MeanSquaredError{{.squared = torchmetrics::get(args, "squared", true)}};
//   });

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/metric.hpp>
#include <tutti/metrics/detail/task.hpp>

#include "support/catch.hpp"

namespace torchmetrics {

using Json = tutti::detail::Json;

inline std::string path(const std::string& ending) {
  return std::string(TUTTI_SOURCE_DIR) + "/tests/metrics/torchmetrics" + ending;
}

inline const Json& index() {
  static const Json parsed = [] {
    std::ifstream file(path(".json"), std::ios::binary);
    return tutti::detail::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return parsed;
}

inline const std::map<std::string, at::Tensor>& tensors() {
  static const auto read = [] {
    auto all = tutti::checkpoint::read_safetensors(path(".safetensors"));
    return std::map<std::string, at::Tensor>(all.begin(), all.end());
  }();
  return read;
}

struct Case {
  const Json& entry;
  at::Tensor values;  // [updates, size]

  [[nodiscard]] const Json& args() const { return entry["args"]; }
  [[nodiscard]] std::string inputs() const { return entry["inputs"].string(); }
  [[nodiscard]] at::Tensor in(const std::string& name) const {
    return tensors().at(inputs() + "/" + name);
  }
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << entry["metric"].string() << " of " << inputs();
    for (const auto& [key, value] : args().object()) {
      out << ' ' << key << '=';
      if (value.is_string()) {
        out << value.string();
      } else if (value.is_number()) {
        out << value.number();
      }
    }
    return out.str();
  }
};

/// All cases of a metric. Throws when there is none, so that no test passes empty.
inline std::vector<Case> cases(const std::string& metric) {
  std::vector<Case> out;
  std::int64_t at = 0;
  for (const Json& entry : index()["cases"].array()) {
    const auto updates = entry["updates"].integer();
    const auto size = entry["size"].integer();
    if (entry["metric"].string() == metric) {
      out.push_back(
          {entry, tensors().at("values").narrow(0, at, updates * size).view({updates, size})});
    }
    at += updates * size;
  }
  if (out.empty()) {
    throw std::runtime_error("no case of " + metric + " in " + path(".json"));
  }
  return out;
}

/// An argument of a case, or `otherwise` where the case has none, or None.
template <class T>
T get(const Json& args, const char* name, T otherwise) {
  const Json* found = args.find(name);
  if (found == nullptr || (!found->is_number() && !found->is_bool() && !found->is_string())) {
    return otherwise;
  }
  if constexpr (std::is_same_v<T, bool>) {
    return found->boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return found->string();
  } else {
    return static_cast<T>(found->number());
  }
}

inline std::optional<std::int64_t> ignored(const Json& args) {
  return args.contains("ignore_index") ? std::optional(args["ignore_index"].integer())
                                       : std::nullopt;
}

inline tutti::Average average(const Json& args, tutti::Average otherwise) {
  const std::map<std::string, tutti::Average> averages{{"micro", tutti::Average::micro},
                                                       {"macro", tutti::Average::macro},
                                                       {"weighted", tutti::Average::weighted},
                                                       {"none", tutti::Average::none}};
  return args.contains("average") ? averages.at(args["average"].string()) : otherwise;
}

/// What a metric reports.
struct Reported final : tutti::MetricReport {
  std::vector<double> values;
  std::vector<std::string> names;  // empty: the metric's own
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;

  Reported(const tutti::Metric& metric, const std::vector<at::Tensor>& states) {
    metric.report(states, *this);
  }
  void value(double value) override { this->value("", value); }
  void value(std::string_view name, double value) override {
    names.emplace_back(name);
    values.push_back(value);
  }
  void table(std::span<const std::string> heads,
             std::span<const std::vector<std::string>> cells) override {
    columns.assign(heads.begin(), heads.end());
    rows.assign(cells.begin(), cells.end());
  }
};

inline std::vector<double> values_of(const tutti::Metric& metric,
                                     const std::vector<at::Tensor>& states) {
  return Reported(metric, states).values;
}

/// The states of two ranks as those of both.
inline std::vector<at::Tensor> reduced(const tutti::Metric& one, const tutti::Metric& other) {
  auto states = one.states();
  const auto more = other.states();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (one.reduction(i) == tutti::StateReduction::sum) {
      states[i] = states[i].add(more[i]);
    } else if (more[i].size(0) > 0) {  // as dist::gather_rows
      states[i] = states[i].size(0) > 0 ? at::cat({states[i], more[i]}) : more[i];
    }
  }
  return states;
}

/// Empty, or where the two differ by more than rounding.
inline std::string differ(const std::vector<double>& got, const at::Tensor& want, double rtol,
                          double atol) {
  const auto* expected = want.const_data_ptr<double>();
  const auto nan = [](double x) { return std::isnan(x); };
  if (want.numel() == 1 && nan(*expected) && std::all_of(got.begin(), got.end(), nan)) {
    return {};  // torchmetrics had no data, and so says nothing of how many values there are
  }
  if (static_cast<std::int64_t>(got.size()) != want.numel()) {
    return " has " + std::to_string(got.size()) + " values, expected " +
           std::to_string(want.numel());
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = std::isnan(expected[i])
                          ? std::isnan(got[i])
                          : std::abs(got[i] - expected[i]) <= atol + rtol * std::abs(expected[i]);
    if (!same) {
      std::ostringstream out;
      out.precision(12);
      out << " value " << i << " is " << got[i] << ", expected " << expected[i];
      return out.str();
    }
  }
  return {};
}

inline at::Tensor as_tensor(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

/// Tolerance of comparisons: torchmetrics divides and adds in single precision (1.2e-7) and sums
/// tens of terms; tutti does so in double.
inline constexpr double rtol = 4e-6;
inline constexpr double atol = 2e-6;

/// What is wrong with a metric on a case: its values after every update; those of two ranks, of
/// states given back, and after a reset. batch(i): outputs and targets of update i; values(metric,
/// states): in the order of the case.
template <class Batch, class Values>
std::string faults(const Case& c, tutti::Metric& metric, Batch batch, Values values) {
  const auto one = metric.clone();
  const auto other = metric.clone();
  const auto nothing = values(metric, metric.states());
  const auto updates = c.values.size(0);
  for (std::int64_t i = 0; i < updates; ++i) {
    const auto [outputs, targets] = batch(i);
    metric.update(outputs, targets);
    (2 * i < updates ? one : other)->update(outputs, targets);
    const auto fault = differ(values(metric, metric.states()), c.values[i], rtol, atol);
    if (!fault.empty()) {
      return c.text() + " after update " + std::to_string(i) + fault;
    }
  }
  const auto all = as_tensor(values(metric, metric.states()));
  const auto check = [&](const char* what, const std::vector<double>& got,
                         const at::Tensor& want) -> std::string {
    const auto fault = differ(got, want, 1e-9, 1e-12);
    return fault.empty() ? fault : c.text() + what + fault;
  };
  std::string fault = check(" over two ranks", values(metric, reduced(*one, *other)), all);
  other->reset();
  fault += check(" with a rank that saw nothing",
                 values(metric, updates == 1 ? reduced(*other, *one) : metric.states()), all);
  other->set_states(metric.states());
  fault += check(" given its states", values(*other, other->states()), all);
  other->reset();
  return fault + check(" after a reset", values(*other, other->states()), as_tensor(nothing));
}

}  // namespace torchmetrics

/// Holds a metric to all cases of torchmetrics' metric of that name. make(args): the metric.
template <class Make>
void check_against_torchmetrics(const std::string& name, Make make) {
  using namespace torchmetrics;
  std::string faulty;
  for (const Case& c : cases(name)) {
    auto metric = make(c.args());
    const auto batch = [&](std::int64_t i) {
      const auto number = std::to_string(i);
      return std::pair{c.in("preds" + number), c.in("target" + number)};
    };
    const auto fault = faults(c, metric, batch, values_of);
    faulty += fault.empty() ? "" : fault + "\n";
    // Microbatches, but where torchmetrics asks each batch alone whether it is one of logits.
    const std::string inputs = c.inputs();
    if (inputs.find("mixed") == std::string::npos && inputs.find("nan") == std::string::npos) {
      auto parts = make(c.args());
      for (std::int64_t i = 0; i < c.values.size(0); ++i) {
        const auto [outputs, targets] = batch(i);
        const std::int64_t half = (outputs.size(0) + 1) / 2;
        for (const std::int64_t from : {std::int64_t{0}, half}) {
          if (from < outputs.size(0)) {
            parts.update(outputs.slice(0, from, from + half), targets.slice(0, from, from + half));
          }
        }
      }
      const auto split =
          differ(values_of(parts, parts.states()), as_tensor(values_of(metric, metric.states())),
                 1e-7, 1e-9);  // of sigmoid
      faulty += split.empty() ? "" : c.text() + " in microbatches" + split + "\n";
    }
  }
  CHECK(faulty == "");
}

/// The same for the binary, multiclass and multilabel metrics. make(task, args): the metric.
template <class Make>
void check_tasks_against_torchmetrics(const std::string& name, Make make, bool labels = true) {
  using tutti::Task;
  for (const auto& [task, prefix] :
       {std::pair{Task::binary, "Binary"}, std::pair{Task::multiclass, "Multiclass"},
        std::pair{Task::multilabel, "Multilabel"}}) {
    if (task != Task::multilabel || labels) {
      check_against_torchmetrics(prefix + name,
                                 [&, task = task](const auto& args) { return make(task, args); });
    }
  }
}
