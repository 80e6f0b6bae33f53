// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/models/detail/compiled_code.hpp>
#include <tutti/models/detail/compiled_package.hpp>

/// An exported model's place in autograd.
namespace tutti::models::detail {

/// The programs of a package and what they are made of, shared by a network and its graphs.
struct ExportedPrograms {
  ExportedPackage package;
  ProgramRunner forward, backward, eval, step;  // the last two: empty where the package has none
};

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <ATen/ops/zeros.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::models::detail {

/// Adds to a parameter's gradient, of which tied weights have several.
TUTTI_INLINE void take_gradient(at::Tensor& sum, at::Tensor&& gradient) {
  if (gradient.storage().use_count() > 1) {  // else a step in place would change another's
    gradient = gradient.clone();
  }
  sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
}

/// Runs the backward program of one forward.
class ExportedBackward final : public torch::autograd::Node {
 public:
  std::shared_ptr<ExportedPrograms> programs;
  std::size_t parameters = 0;
  at::Device device = at::kCPU;
  std::vector<torch::autograd::SavedVariable> kept;  // the inputs that are no tangents, in order
  std::vector<std::pair<at::Tensor, std::uint32_t>> versions;  // weights whose memory is kept
  std::vector<std::pair<std::vector<std::int64_t>, at::TensorOptions>> outputs;

  std::string name() const override { return "CompiledBackward"; }
  void release_variables() override {
    kept.clear();
    versions.clear();
    released_ = true;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TUTTI_CHECK(!released_,
                "CompiledNet: its graph was walked backward before, and an exported model has one "
                "backward for each forward; call forward() again, without retain_graph");
    TUTTI_CHECK(!at::GradMode::is_enabled(),
                "CompiledNet: a gradient of gradients is asked for (create_graph), and the "
                "backward program of an exported model has none");
    for (const auto& [tensor, version] : versions) {
      TUTTI_CHECK(tensor._version() == version, "CompiledNet: a weight ", tensor.sizes(),
                  " was changed in place between forward and backward; change weights after the "
                  "backward");
    }
    std::vector<at::Tensor> in;
    in.reserve(programs->package.backward.in.size());
    std::size_t next = 0;
    for (const Word& word : programs->package.backward.in) {
      if (word.kind != Word::Kind::tangent) {
        in.push_back(kept[next++].unpack());
      } else if (gradients[word.index].defined()) {
        in.push_back(gradients[word.index].contiguous());
      } else {
        in.push_back(at::zeros(outputs[word.index].first, outputs[word.index].second));
      }
    }
    release_variables();  // so that the program frees what it has used
    auto out = programs->backward(std::move(in), device);
    torch::autograd::variable_list result(parameters);
    for (std::size_t i = 0; i < out.size(); ++i) {
      take_gradient(result[programs->package.backward.out[i].index], std::move(out[i]));
    }
    return result;
  }

 private:
  bool released_ = false;
};

/// Gives the gradients that were computed together with a loss.
class ExportedStep final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list gradients;  // of each parameter; undefined where there is none

  std::string name() const override { return "CompiledStep"; }
  void release_variables() override {
    gradients.clear();
    released_ = true;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& given) override {
    TUTTI_CHECK(!released_,
                "CompiledNet: its graph was walked backward before, and an exported model has one "
                "backward for each forward; call forward_and_loss() again, without retain_graph");
    TUTTI_CHECK(!at::GradMode::is_enabled(),
                "CompiledNet: a gradient of gradients is asked for (create_graph), and the "
                "backward program of an exported model has none");
    torch::autograd::variable_list out = std::move(gradients);
    release_variables();
    const at::Tensor& factor = given[0];
    const bool is_one = factor.is_cpu() && factor.scalar_type() == at::kFloat &&
                        *factor.const_data_ptr<float>() == 1;
    if (!is_one) {
      for (at::Tensor& gradient : out) {
        if (gradient.defined()) {
          gradient.mul_(factor);
        }
      }
    }
    return out;
  }

 private:
  bool released_ = false;
};

}  // namespace tutti::models::detail

#endif
