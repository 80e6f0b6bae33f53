// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the reference vectors: index.json and one safetensors file per function (golden/README.md
// tells the format). The folder is that of the environment variable TUTTI_GOLDEN, else
// tests/golden.
//
//   for (const golden::Case& c : golden::cases("mixup_batch")) {
//     const auto y = functional::mix(c.in("x"), c.draw_tensor(1), c.draw(0).number());
//     CHECK_GOLDEN(c, "x", y);
//   }

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>

#include "support/device.hpp"

namespace golden {

/// JSON as read: kinds by is_*(), values by number(), integer(), string(), boolean(), members by
/// j["key"] or j.find("key"), elements by j[0], loops over j.array() and j.object().
using Json = tutti::detail::Json;
using Tensors = std::map<std::string, at::Tensor>;

/// `|got - want| <= atol + rtol*|want| + scale*max|want|`; equal bits, shapes and types when exact.
struct Tolerance {
  bool exact = false;
  double rtol = 0.0;
  double atol = 0.0;
  double scale = 0.0;
};

inline std::filesystem::path folder() {
  if (const char* given = std::getenv("TUTTI_GOLDEN"); given != nullptr && *given != '\0') {
    return given;
  }
#ifdef TUTTI_SOURCE_DIR
  return std::filesystem::path(TUTTI_SOURCE_DIR) / "tests" / "golden";
#else
  return std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
#endif
}

/// One case of the reference: what went in, what was drawn, what came out.
class Case {
 public:
  std::string name;
  std::string function;
  Json params;
  Json expect;
  Json info;
  Json::Array draws;  // objects with call, args and value or tensor
  Tolerance tolerance;

  /// The input of that key, as a copy that may be changed; on tutti_test::device_name() but for
  /// images as bytes, which are those of a loader.
  at::Tensor in(const std::string& key) const { return placed(pick(ins_, "in", key)); }
  at::Tensor out(const std::string& key) const { return pick(outs_, "out", key); }
  bool has_in(const std::string& key) const { return ins_.count(key) != 0; }
  bool has_out(const std::string& key) const { return outs_.count(key) != 0; }

  /// The value of draw i: a number or a string.
  const Json& draw(std::size_t i) const { return draws.at(i)["value"]; }
  double draw_number(std::size_t i) const { return draw(i).number(); }
  at::Tensor draw_tensor(std::size_t i) const { return pick(draws_, "draw", std::to_string(i)); }
  bool draw_is_tensor(std::size_t i) const { return draws_.count(std::to_string(i)) != 0; }

  std::vector<std::string> in_keys() const { return keys(ins_); }
  std::vector<std::string> out_keys() const { return keys(outs_); }

  /// The inputs whose key begins with `prefix`, without it: ins("state.") is the state dict.
  Tensors ins(const std::string& prefix) const {
    Tensors out = below(ins_, prefix);
    for (auto& [key, tensor] : out) {
      tensor = placed(tensor);
    }
    return out;
  }
  Tensors outs(const std::string& prefix) const { return below(outs_, prefix); }

  Case(const Json& entry, const Tensors& file)
      : name(entry["name"].string()), function(entry["function"].string()) {
    const auto take = [&](const char* key) { return entry.contains(key) ? entry[key] : Json(); };
    params = take("params");
    expect = take("expect");
    info = take("info");
    if (entry.contains("draws")) {
      draws = entry["draws"].array();
    }
    const Json& rule = entry["tolerance"];
    tolerance = {rule["exact"].boolean(), rule["rtol"].number(), rule["atol"].number(),
                 rule["scale"].number()};
    if (!entry.contains("tensors")) {
      return;
    }
    for (const Json& tensor : entry["tensors"].array()) {
      const std::string& role = tensor["role"].string();
      Tensors& group = role == "in" ? ins_ : role == "out" ? outs_ : draws_;
      group[tensor["key"].string()] = file.at(tensor["name"].string());
    }
  }

 private:
  at::Tensor pick(const Tensors& group, const char* role, const std::string& key) const {
    const auto found = group.find(key);
    if (found == group.end()) {
      std::string present;
      for (const auto& [other, tensor] : group) {
        present += " " + other;
      }
      throw std::invalid_argument("golden case " + name + " has no '" + role + "' tensor '" + key +
                                  "'; there are:" + present);
    }
    return found->second.clone();
  }

  static at::Tensor placed(const at::Tensor& x) {
    return x.scalar_type() == at::kByte ? x : x.to(at::Device(tutti_test::device_name()));
  }

  static std::vector<std::string> keys(const Tensors& group) {
    std::vector<std::string> out;
    for (const auto& [key, tensor] : group) {
      out.push_back(key);
    }
    return out;
  }

  static Tensors below(const Tensors& group, const std::string& prefix) {
    Tensors out;
    for (const auto& [key, tensor] : group) {
      if (key.rfind(prefix, 0) == 0) {
        out[key.substr(prefix.size())] = tensor.clone();
      }
    }
    return out;
  }

  Tensors ins_;
  Tensors outs_;
  Tensors draws_;
};

/// The whole index.json, parsed once.
inline const Json& index() {
  static const Json parsed = [] {
    const auto path = folder() / "index.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      throw std::runtime_error("golden: cannot open '" + path.string() +
                               "'; set TUTTI_GOLDEN to the folder that holds it");
    }
    return tutti::detail::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return parsed;
}

/// Names of all functions in the index.
inline std::vector<std::string> functions() {
  std::vector<std::string> out;
  for (const auto& [name, facts] : index()["functions"].object()) {
    out.push_back(name);
  }
  return out;
}

/// All cases of one function. Throws when there is none, so that a test over them cannot pass
/// empty.
inline std::vector<Case> cases(const std::string& function) {
  std::vector<Case> out;
  std::map<std::string, Tensors> files;
  for (const Json& entry : index()["cases"].array()) {
    if (entry["function"].string() != function) {
      continue;
    }
    std::string file;
    if (const Json* given = entry.find("file"); given != nullptr && given->is_string()) {
      file = given->string();
    }
    if (!file.empty() && files.count(file) == 0) {
      auto read = tutti::checkpoint::read_safetensors(folder() / file);
      files[file] = Tensors(read.begin(), read.end());
    }
    out.emplace_back(entry, files[file]);
  }
  if (out.empty()) {
    throw std::runtime_error("golden: no case of '" + function + "' in " + folder().string());
  }
  return out;
}

inline std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << tensor.sizes();
  return out.str();
}

/// A floating tensor's bits as integers, so that 0 and -0 differ.
inline at::Tensor bits(const at::Tensor& x) {
  return x.contiguous().view(x.element_size() == 8   ? at::kLong
                             : x.element_size() == 4 ? at::kInt
                                                     : at::kShort);
}

/// Empty when `got` agrees with `want`, else what differs, how often and where first.
///
/// Shapes always agree, types when exact or when both are integers or bools; NaN equals NaN,
/// infinities agree, integers are exact.
inline std::string matches(const at::Tensor& got_any, const at::Tensor& want,
                           const Tolerance& tolerance) {
  if (!got_any.defined()) {
    return "got an undefined tensor, expected " + describe(want);
  }
  const at::Tensor got = got_any.detach().cpu();
  const bool integral = !want.is_floating_point() && !want.is_complex();
  const bool types_agree = got.scalar_type() == want.scalar_type() ||
                           (!tolerance.exact && got.is_floating_point() && !integral);
  if (!types_agree || got.sizes() != want.sizes()) {
    return "got " + describe(got) + ", expected " + describe(want);
  }
  at::Tensor good;
  if (integral) {
    good = got.eq(want);
  } else if (tolerance.exact) {
    good = bits(got).eq(bits(want)).logical_or(got.isnan().logical_and(want.isnan()));
  } else {
    const at::Tensor a = got.to(at::kDouble);
    const at::Tensor b = want.to(at::kDouble);
    const at::Tensor finite = at::where(b.isfinite(), b.abs(), at::zeros_like(b));
    const double largest = b.numel() > 0 ? finite.max().item<double>() : 0.0;
    const at::Tensor allowed =
        finite * tolerance.rtol + (tolerance.atol + tolerance.scale * largest);
    good =
        (a - b).abs().le(allowed).logical_or(a.eq(b)).logical_or(a.isnan().logical_and(b.isnan()));
  }
  if (good.all().item<bool>()) {
    return "";
  }
  const at::Tensor wrong = good.logical_not().flatten().nonzero();
  const auto first = wrong[0].item<std::int64_t>();
  std::ostringstream out;
  out.precision(17);
  out << wrong.size(0) << " of " << want.numel() << " elements differ, the first at " << first
      << ": got " << got.flatten()[first].item<double>() << ", expected "
      << want.flatten()[first].item<double>() << " (exact " << tolerance.exact << ", rtol "
      << tolerance.rtol << ", atol " << tolerance.atol << ", scale " << tolerance.scale << ")";
  return out.str();
}

}  // namespace golden

/// Checks one output of a golden case by the case's own tolerance.
#define CHECK_GOLDEN(golden_case, key, got)                                             \
  do {                                                                                  \
    const auto& golden_case_ = (golden_case);                                           \
    INFO(golden_case_.name << " " << (key));                                            \
    CHECK(golden::matches((got), golden_case_.out(key), golden_case_.tolerance) == ""); \
  } while (false)
