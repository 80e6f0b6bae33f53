// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/tensor_parallel.hpp>

namespace tutti::models::detail {

// Calls `f` with the model as the type that it has. Throws c10::Error when there is none.
template <class F>
void with_type(torch::nn::Module& model, F&& f) {
  if (auto* gpt2 = dynamic_cast<GPT2LMHeadModelImpl*>(&model)) {
    f(*gpt2);
  } else if (auto* llama = dynamic_cast<LlamaForCausalLMImpl*>(&model)) {
    f(*llama);
  } else if (auto* masked = dynamic_cast<BertForMaskedLMImpl*>(&model)) {
    f(*masked);
  } else if (auto* bert = dynamic_cast<BertForSequenceClassificationImpl*>(&model)) {
    f(*bert);
  } else if (auto* vit = dynamic_cast<VisionTransformerImpl*>(&model)) {
    f(*vit);
  } else {
    TUTTI_CHECK(false, "tensor_parallel: the model is ", model.name(),
                ", expected GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM, "
                "BertForSequenceClassification or VisionTransformer of tutti::models; spread other "
                "models by the functions of <tutti/dist/tensor_parallel.hpp>");
  }
}

// Why this rank cannot spread the model so; empty: it can.
TUTTI_INLINE std::string why_not_spread(torch::nn::Module& model,
                                        const TensorParallelOptions& options,
                                        const dist::Communicator& world) {
  try {
    const int degree = options.degree == 0 ? world.size() : options.degree;
    TUTTI_CHECK_VALUE(degree >= 1 && world.size() % degree == 0, "tensor_parallel: degree is ",
                      degree, " in a run of ", world.size(),
                      " ranks, expected 0 (all of them) or a number that divides theirs");
    const SpreadWish wish{.ranks = degree,
                          .along_sequence = options.sequence == dist::SequenceParallel::yes};
    with_type(model, [&](auto& one) { check_spread(one, wish); });
    check_slots(model);
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

}  // namespace tutti::models::detail

namespace tutti::models {

TUTTI_INLINE void tensor_parallel(torch::nn::Module& model, const TensorParallelOptions& options,
                                  std::shared_ptr<dist::Communicator> world) {
  const auto refusals = world->all_gather_bytes(detail::why_not_spread(model, options, *world));
  for (const std::string& refusal : refusals) {
    TUTTI_CHECK_VALUE(refusal.empty(), refusal);
  }
  dist::start_alike(model,
                    "degree " + std::to_string(options.degree) + ", sequence parallel " +
                        (options.sequence == dist::SequenceParallel::yes ? "yes" : "no") + "\n",
                    *world, "tensor_parallel");
  const int degree = options.degree == 0 ? world->size() : options.degree;
  if (degree == 1) {
    return;
  }
  auto spread = std::make_shared<detail::Spread>();
  spread->model = std::make_shared<dist::SpreadModel>(std::move(world), degree);
  spread->sequence = options.sequence;
  detail::Spreader spreader(spread);
  detail::with_type(model, [&](auto& one) { detail::spread(one, spreader); });
}

}  // namespace tutti::models
