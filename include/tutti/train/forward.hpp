#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <tutti/core/state.hpp>

namespace tutti::train {

/// Says beside an error of the model that it was given images of bytes.
inline void advise(c10::Error& error, const Batch& batch) {
  if (batch.empty() || !batch.inputs().defined()) {
    return;
  }
  const at::Tensor& x = batch.inputs();
  if (x.dim() == 4 && x.scalar_type() == at::kByte) {
    error.add_context(c10::str(
        "The inputs are bytes, uint8", x.sizes(),
        ", and most networks take floats: put tutti::fused::Normalize (tutti/fused/normalize.hpp) "
        "into the recipe, or let the loader make floats (ImageLoader: to_float = true)."));
  }
}

/// The outputs for state.batch.
inline Outputs forward(const State& state) {
  try {
    return state.task.forward(state.batch);
  } catch (c10::Error& error) {
    advise(error, state.batch);
    throw;
  }
}

/// The same in evaluation.
inline Outputs eval_forward(const State& state) {
  try {
    return state.task.eval_forward(state.batch);
  } catch (c10::Error& error) {
    advise(error, state.batch);
    throw;
  }
}

}  // namespace tutti::train
