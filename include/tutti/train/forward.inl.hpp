// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/forward.hpp>

namespace tutti::train {

TUTTI_INLINE void advise(c10::Error& error, const State& state,
                         const std::function<void()>& forward) {
  const Batch& batch = state.batch;
  const std::string text = error.what_without_backtrace();
  const auto says = [&](std::string_view words) { return text.find(words) != text.npos; };
  if (is_out_of_memory(error) || says("CUDA")) {
    return;
  }
  const bool has_inputs = !batch.empty() && batch.inputs().defined();
  std::string where;
  if (state.sharding == nullptr) {  // else a second pass would wait for other ranks
    where = failing_layer(*state.model, text, forward);
  }
  if (!where.empty()) {
    if (has_inputs) {
      where += c10::str(" The batch's inputs are ", batch.inputs().scalar_type(),
                        batch.inputs().sizes(), ".");
    }
    error.add_context(std::move(where));
  }
  if (!has_inputs) {
    return;
  }
  const at::Tensor& x = batch.inputs();
  if (x.dim() == 4 && x.scalar_type() == at::kByte) {
    error.add_context(c10::str(
        "The inputs are bytes, uint8", x.sizes(),
        ", and most networks take floats: put tutti::fused::Normalize (tutti/fused/normalize.hpp) "
        "into the recipe, or let the loader make floats (ImageLoader: to_float = true)."));
  } else if (says("dtype") || says("scalar type")) {
    error.add_context(c10::str("The inputs are ", x.scalar_type(), x.sizes(),
                               "; give them the type of the parameters, in the loader or in a "
                               "batch_transform of the DataSpec."));
  } else if (says("index out of range in self") && x.numel() > 0) {
    error.add_context(
        c10::str("An index is beyond the rows of an embedding; those of the inputs are ",
                 x.min().item<double>(), " to ", x.max().item<double>(),
                 ": compare with the model's number of tokens (vocab_size), or of positions."));
  }
}

TUTTI_INLINE Outputs forward(const State& state) {
  try {
    return state.task.forward(state.batch);
  } catch (c10::Error& error) {
    advise(error, state, [&] { static_cast<void>(state.task.forward(state.batch)); });
    throw;
  }
}

TUTTI_INLINE std::optional<std::pair<Outputs, Loss>> forward_and_loss(const State& state) {
  try {
    return state.task.forward_and_loss(state.batch);
  } catch (c10::Error& error) {
    advise(error, state, [&] { static_cast<void>(state.task.forward(state.batch)); });
    throw;
  }
}

TUTTI_INLINE Outputs eval_forward(const State& state) {
  try {
    return state.task.eval_forward(state.batch);
  } catch (c10::Error& error) {
    advise(error, state, [&] { static_cast<void>(state.task.eval_forward(state.batch)); });
    throw;
  }
}

}  // namespace tutti::train
