// SPDX-License-Identifier: Apache-2.0
#pragma once

// The runner of the reference cases for models and interop (README.md of this folder). It walks a
// folder, finds every case and hands it to what its kind is registered with; runner.cpp prints the
// table. The other files of this folder register their kinds:
//
//     void run_gpt2(const golden_interop::Case& c) {
//       const TemporaryFolder folder;
//       c.write_pretrained(folder.path());
//       auto net = tutti::models::from_pretrained<GPT2LMHeadModel>(folder.path());
//       c.close("logits", net->..., c.io().at("logits"));
//     }
//     const bool registered = golden_interop::register_kind("gpt2", run_gpt2);

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <tutti/core/detail/json.hpp>
#include <tutti/models/weight_layout.hpp>

#include "support/case_table.hpp"

namespace golden_interop {

using Json = tutti::detail::Json;
using Tensors = std::map<std::string, at::Tensor>;

/// Thrown by a handler for a case that needs what tutti does not have; the text is the reason.
using Skipped = tutti_test::SkippedCase;

/// Thrown by a handler for a case that it does not know what to do with.
using Unmapped = tutti_test::UnmappedCase;

/// A tensor by the formula of the reference: `base + scale * u`, u in [-1, 1) from the name, the
/// seed and the place, float32.
at::Tensor fill_by_formula(const std::string& name, std::uint64_t seed, double base, double scale,
                           const std::vector<std::int64_t>& shape);

/// All tensors of a safetensors file by name.
Tensors read_tensors(const std::filesystem::path& path);

/// The value of a JSON file.
Json read_json(const std::filesystem::path& path);

/// The numbers of a list.
std::vector<std::int64_t> integers(const Json& list);

/// One case: a folder.
class Case : public tutti_test::Complaints {
 public:
  /// kind: the member `kind` of case.json, else the first folder below the root.
  Case(std::string kind, std::string name, std::filesystem::path folder);

  std::string kind;
  std::string name;  ///< "models/gpt2_a": the path below the root
  std::filesystem::path folder;
  Json json;  ///< case.json; null when there is none

  [[nodiscard]] bool has(const std::string& file) const {
    return std::filesystem::exists(folder / file);
  }
  /// A JSON file of the folder.
  [[nodiscard]] Json read(const std::string& file) const { return read_json(folder / file); }
  /// `io.safetensors`: inputs and what came out.
  [[nodiscard]] Tensors io() const { return read_tensors(folder / "io.safetensors"); }
  /// The weights that case.json lists, by the formula; I64 tensors are zero.
  [[nodiscard]] Tensors weights() const;
  /// Fills a folder as save_pretrained of Python would: config.json, and the weights by formula as
  /// model.safetensors.
  void write_pretrained(const std::filesystem::path& target) const;

  /// close() only where `mask` is not 0, which has the first dimensions of the tensors.
  void close_where(const std::string& what, const at::Tensor& mask, const at::Tensor& got,
                   const at::Tensor& want, double scale = 5e-5) const;
  /// Compares the gradients of a model with `grad_norms` of case.json, by name on disk: each within
  /// relative * want + 2e-6 * the norm of all.
  void gradient_norms(const torch::nn::Module& model, const tutti::models::WeightLayout& layout,
                      double relative = 1e-4) const;
};

/// The norm of each tensor's gradient, by name on disk: the view of the parameter's gradient that
/// the layout has of the parameter; 0 where there is none.
std::map<std::string, double> gradient_norms(const torch::nn::Module& model,
                                             const tutti::models::WeightLayout& layout);

using Handler = std::function<void(const Case&)>;

/// Every case of that kind is run by `handler`. Returns true, for a variable at namespace scope.
bool register_kind(const std::string& kind, Handler handler);

}  // namespace golden_interop
