// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/state.hpp>
#include <tutti/train/failing_layer.hpp>
#include <tutti/train/microbatching.hpp>

namespace tutti::train {

/// Says beside an error of the model what is likely wrong with its inputs: images of bytes, another
/// type than the parameters', indices beyond a table; and in which layer it happened, with the
/// shapes. forward: what failed, to be run again; a lack of memory and errors of CUDA are left
/// alone.
void advise(c10::Error& error, const State& state, const std::function<void()>& forward);

/// The outputs for state.batch.
Outputs forward(const State& state);

/// The outputs for state.batch in evaluation.
Outputs eval_forward(const State& state);

/// The outputs and the loss for state.batch at once, where the model has them so.
std::optional<std::pair<Outputs, Loss>> forward_and_loss(const State& state);

}  // namespace tutti::train

#if TUTTI_BODIES

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

#endif
