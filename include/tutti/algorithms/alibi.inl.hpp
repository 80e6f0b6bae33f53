// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/alibi.hpp>

namespace tutti::detail {

TUTTI_INLINE at::Tensor AlibiBias::operator()(std::int64_t length, const at::Tensor& like) {
  TUTTI_CHECK(length <= max_length_, "ALiBi: the sequences have length ", length,
              " and max_sequence_length is ", max_length_,
              "; set it to the longest sequences that the model will ever read");
  const at::ScalarType type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!bias_.defined() || bias_.size(-1) != length || bias_.device() != like.device() ||
      bias_.scalar_type() != type) {
    bias_ = functional::alibi_bias(heads_, length, causal_, like.device()).to(type);
  }
  return bias_;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void ALiBi::apply(AfterDataloader, State& state) const {
  state.batch =
      functional::shorten_sequences(std::move(state.batch), train_sequence_length_scaling);
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE std::vector<double> alibi_slopes(std::int64_t n_heads) {
  TUTTI_CHECK_VALUE(n_heads >= 1, "alibi_slopes: n_heads is ", n_heads, ", expected 1 or more");
  std::int64_t below = 1;
  while (below * 2 <= n_heads) {
    below *= 2;
  }
  std::vector<double> slopes;
  for (std::int64_t i = 0; i < n_heads; ++i) {
    const double numerator = static_cast<double>(i < below ? 2 * (i + 1) : 2 * (i - below) + 1);
    slopes.push_back(std::exp2(-4.0 * numerator / static_cast<double>(below)));
  }
  return slopes;
}

TUTTI_INLINE at::Tensor alibi_bias(std::int64_t n_heads, std::int64_t length, bool causal,
                                   at::Device device) {
  const at::Tensor slopes =
      at::tensor(alibi_slopes(n_heads), at::TensorOptions(at::kDouble).device(at::kCPU))
          .to(at::kFloat)
          .to(device)
          .view({n_heads, 1, 1});
  const at::Tensor at = at::arange(length, slopes.options());
  if (causal) {
    return slopes.mul(at);
  }
  return at.unsqueeze(0).sub(at.unsqueeze(1)).abs().neg().mul(slopes).unsqueeze(0);
}

}  // namespace tutti::functional

namespace tutti::detail {

// Zeros of another length in the place of a table that learns no more.
TUTTI_INLINE void retire(torch::nn::EmbeddingImpl& table, std::int64_t positions,
                         const surgery::Optimizers& optimizers) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor& weight = table.weight;
  weight.set_data(weight.detach().new_zeros({positions, weight.size(1)}));
  weight.set_requires_grad(false);
  weight.mutable_grad().reset();
  table.options.num_embeddings(positions);
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& other) { return other.is_same(weight); });
    }
    optimizer->state().erase(weight.unsafeGetTensorImpl());
  }
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE AlibiReport apply_alibi(torch::nn::Module& model, std::int64_t max_sequence_length,
                                     const surgery::Optimizers& optimizers,
                                     surgery::IfNone if_none) {
  TUTTI_CHECK_VALUE(max_sequence_length >= 1, "ALiBi: max_sequence_length is ", max_sequence_length,
                    ", expected 1 or more");
  AlibiReport report;
  std::map<std::pair<std::int64_t, bool>, std::shared_ptr<nn::PositionBias>> biases;
  const auto change = [&](torch::nn::Module& module) {
    if (auto* attention = dynamic_cast<nn::PositionBiased*>(&module)) {
      auto& bias = biases[{attention->heads(), attention->causal()}];
      if (!bias) {
        bias = std::make_shared<::tutti::detail::AlibiBias>(attention->heads(), attention->causal(),
                                                            max_sequence_length);
      }
      attention->set_position_bias(bias);
      ++report.attentions;
    }
    if (auto* embedded = dynamic_cast<nn::PositionEmbedded*>(&module)) {
      ::tutti::detail::retire(embedded->position_embedding(), max_sequence_length, optimizers);
      ++report.tables;
    }
  };
  change(model);
  for (const surgery::Visit& where : surgery::walk(model)) {
    change(*where.module);
  }
  if (report.attentions == 0) {
    surgery::report_none(if_none, "attention that derives from tutti::nn::PositionBiased", "ALiBi");
  }
  return report;
}

TUTTI_INLINE Batch shorten_sequences(Batch batch, double scaling) {
  TUTTI_CHECK_VALUE(scaling > 0 && scaling <= 1, "ALiBi: train_sequence_length_scaling is ",
                    scaling, ", expected a number above 0, at most 1");
  const at::Tensor ids = batch.inputs();
  TUTTI_CHECK_VALUE(ids.dim() >= 2, "ALiBi: the inputs are ", ids.sizes(), ", expected [B, S]");
  const double rows = static_cast<double>(ids.size(0)) / scaling;
  const double length = static_cast<double>(ids.size(1)) * scaling;
  const auto whole = [](double x) { return std::abs(x - std::round(x)) < 1e-9 * x; };
  TUTTI_CHECK_VALUE(whole(rows) && whole(length), "ALiBi: the inputs are ", ids.sizes(), " and ",
                    "train_sequence_length_scaling is ", scaling, ", which makes ", rows,
                    " sequences of ", length, ", expected whole numbers");
  for (auto& [name, tensor] : batch) {
    TUTTI_CHECK_VALUE(
        tensor.dim() >= 2 && tensor.size(0) == ids.size(0) && tensor.size(1) == ids.size(1),
        "ALiBi: \"", name, "\" is ", tensor.sizes(), ", expected [", ids.size(0), ", ", ids.size(1),
        ", ...] as the inputs are; set "
        "train_sequence_length_scaling to 1 for labels of whole sequences");
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[0] = std::llround(rows);
    shape[1] = std::llround(length);
    tensor = tensor.reshape(shape);
  }
  return batch;
}

}  // namespace tutti::functional
