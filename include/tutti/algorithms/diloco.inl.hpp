// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/diloco.hpp>

namespace tutti::functional {

TUTTI_INLINE OuterStep::OuterStep(const torch::nn::Module& model) {
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.value().requires_grad()) {
      parameters_.push_back(
          {.name = parameter.key(), .start = parameter.value().detach().cpu().clone()});
    }
  }
}

TUTTI_INLINE void OuterStep::operator()(torch::nn::Module& model, dist::Communicator& group,
                                        double lr, double momentum) {
  const auto named = model.named_parameters();
  std::vector<at::Tensor> trained;
  for (const Outer& outer : parameters_) {
    const at::Tensor* found = named.find(outer.name);
    TUTTI_CHECK(found != nullptr && found->sizes() == outer.start.sizes(),
                "DiLoCo: the parameter '", outer.name,
                "' is gone or has another shape than when the outer state was made; "
                "change the model before fit()");
    trained.push_back(found->detach());
  }
  dist::average_over_ranks(trained, group);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    Outer& outer = parameters_[i];
    at::Tensor step = outer.start - trained[i].cpu();  // the outer gradient
    if (momentum != 0) {
      outer.velocity =
          outer.velocity.defined() ? outer.velocity.mul_(momentum).add_(step) : step.clone();
      step.add_(outer.velocity, momentum);
    }
    outer.start.sub_(step, lr);
    trained[i].copy_(outer.start);
  }
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void DiLoCo::save(Archive& archive) const {
  for (const auto& one : run.outer->parameters()) {
    archive.child("start").put(one.name, one.start);
    if (one.velocity.defined()) {
      archive.child("velocity").put(one.name, one.velocity);
    }
  }
}

TUTTI_INLINE void DiLoCo::load(const Archive& archive) {
  run.since = 0;
  *run.outer = functional::OuterStep();
  if (!archive.contains("start")) {
    return;
  }
  const Archive& starts = archive.child("start");
  for (const std::string& key : starts.names()) {
    functional::OuterStep::Outer one{.name = key, .start = starts.tensor(key).cpu().clone()};
    if (archive.contains("velocity") && archive.child("velocity").contains(key)) {
      one.velocity = archive.child("velocity").tensor(key).cpu().clone();
    }
    run.outer->parameters().push_back(std::move(one));
  }
}

}  // namespace tutti
