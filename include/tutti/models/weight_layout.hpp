// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/config.hpp>

namespace tutti::models {

/// A tensor of a model as it stands in a file of weights.
struct DiskTensor {
  std::string name;  ///< on disk
  /// A view of the parameter or buffer that has the shape on disk: `weight.t()` of a transposed
  /// weight, `weight.narrow(0, ..)` of a fused one. Copying into it loads; its contiguous copy is
  /// what is written. Detached.
  at::Tensor tensor;
  /// Makes a tensor of another shape in a file fit, such as positions of another grid; returns one
  /// of `tensor`'s shape or throws. Empty: another shape is an error.
  std::function<at::Tensor(const at::Tensor& from_file)> adapt{};
  /// The same, but only where the caller sets ignore_mismatched_sizes: for what is not the file's
  /// model any more, such as a first convolution of images with other channels.
  std::function<at::Tensor(const at::Tensor& from_file)> adapt_if_ignored{};
};

/// How the tensors of a model stand in a file of weights: names, order and views; and what a file
/// may have or lack beside them. load_pretrained() and save_pretrained() go by it.
///
///     WeightLayout layout{.model = "GPT2LMHeadModel", .base_prefix = "transformer."};
///     layout.add_module("transformer.wte.", *transformer->wte);
///     layout.tied = {{"lm_head.weight", "transformer.wte.weight"}};
struct WeightLayout {
  std::string model;  ///< what errors call the model: its class in Python

  /// In the order of the Python model's state dict.
  std::vector<DiskTensor> tensors{};

  /// Names on disk of weights that are tied, and the tensor that they stand for: an alias may be
  /// absent from a file, or present with equal values. It is never written.
  std::vector<std::pair<std::string, std::string>> tied{};

  /// What stands before the names of the base model, such as "transformer."; empty: nothing. A file
  /// that has it nowhere is read as one of the base model; a base model, none of whose names begin
  /// so, reads a file that has it.
  std::string base_prefix{};

  /// Beginnings of names that are no part of the base model, such as "lm_head." and "classifier.":
  /// they never get `base_prefix`.
  std::vector<std::string> heads{};

  /// Old names: the end of a name in the file, and what it is called today. Applied to the last
  /// parts of a name, behind a dot or at its start: {"LayerNorm.gamma", "LayerNorm.weight"}.
  std::vector<std::pair<std::string, std::string>> renamed_ends{};

  /// Old names that are not at the end: whole names as the file may have them, and today's.
  std::vector<std::pair<std::string, std::string>> renamed{};

  /// Globs of names in the file that this model lacks and that are left out with a note, such as
  /// "cls.seq_relationship.*"; names as they are after the rules above.
  std::vector<std::string> left_out{};

  /// Globs of names in the file that are left out silently, beside the buffers that old files have
  /// (`*.attn.bias` of [1, 1, n, n], `*.attn.masked_bias`, `*.position_ids`,
  /// `*.rotary_emb.inv_freq`).
  std::vector<std::string> ignored{};

  /// Globs of names that mean another architecture, and the sentence by which a file that has one
  /// is refused.
  std::vector<std::pair<std::string, std::string>> refused{};

  /// Beginnings of names that the file may lack when the caller allows new heads: they keep the
  /// values that the model was made with. "classifier.", "bert.pooler.".
  std::vector<std::string> may_be_missing{};

  /// Adds a tensor, or a view of one; an undefined one (no bias) is passed over.
  void add(std::string name, const at::Tensor& tensor) {
    if (tensor.defined()) {
      tensors.push_back({std::move(name), tensor.detach()});
    }
  }

  /// Adds the parameters and buffers of a module, `prefix` before their own names.
  void add_module(std::string_view prefix, const torch::nn::Module& module) {
    for (const auto& [name, tensor] : checkpoint::module_tensors(module)) {
      add(std::string(prefix) + name, tensor);
    }
  }
};

}  // namespace tutti::models
