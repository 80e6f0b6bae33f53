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
  } else if (!says("embedding") && (says("dtype") || says("scalar type"))) {
    error.add_context(c10::str("The inputs are ", x.scalar_type(), x.sizes(),
                               "; give them the type of the parameters, in the loader or in a "
                               "batch_transform of the DataSpec."));
  } else if (says("Expected tensor for argument #1 'indices'")) {
    error.add_context(c10::str("The inputs are ", x.scalar_type(), x.sizes(),
                               "; what an embedding looks up are int64 numbers: give them that "
                               "type in the loader or in a batch_transform of the DataSpec."));
  } else if (says("index out of range in self") && x.numel() > 0) {
    std::string ranges = c10::str("those of the inputs are ", x.min().item<double>(), " to ",
                                  x.max().item<double>());
    if (batch.contains("position_ids") && batch.at("position_ids").numel() > 0) {
      const at::Tensor& positions = batch.at("position_ids");
      ranges += c10::str(", position_ids are ", positions.min().item<std::int64_t>(), " to ",
                         positions.max().item<std::int64_t>());
    }
    error.add_context("An index is beyond the rows of an embedding; " + ranges +
                      ": compare with the model's number of tokens (vocab_size), or of positions.");
  }
}

TUTTI_INLINE void add_place(c10::Error& error, const State& state) {
  const Timestamp& now = state.timestamp;
  if (now.batch > 0) {
    error.add_context(c10::str("It came in epoch ", now.epoch, " behind ", now.batch_in_epoch,
                               " of its batches, ", now.batch, " of the run."));
  }
}

TUTTI_INLINE void add_place(c10::Error& error, const State& state, const std::string& label) {
  error.add_context(c10::str("It came in the evaluation of \"", label, "\" behind ",
                             state.eval_timestamp.batch, " of its batches."));
}

TUTTI_INLINE void advise_loss(c10::Error& error, const State& state) {
  const auto named = [](const NamedTensors& all) {
    std::string out;
    for (const auto& [name, tensor] : all) {
      out += (out.empty() ? "" : ", ") + name + " ";
      out += tensor.defined() ? c10::str(tensor.scalar_type(), tensor.sizes()) : "undefined";
    }
    return out;
  };
  error.add_context("The loss is computed of the model's outputs, " + named(state.outputs) +
                    ", and the batch, " + named(state.batch) + ".");
  const std::string text = error.what_without_backtrace();
  if (!state.batch.has_targets() || !state.batch.targets().defined()) {
    return;
  }
  const at::Tensor& y = state.batch.targets();
  if (text.find("out of bounds") != text.npos && y.numel() > 0) {
    error.add_context(c10::str("The targets are ", y.min().item<double>(), " to ",
                               y.max().item<double>(),
                               "; a class is a number from 0 to the number of outputs - 1, or "
                               "-100, which is left out: compare with the model's number of "
                               "classes."));
  } else if (text.find("expected scalar type Long") != text.npos) {
    error.add_context(
        "Classes are int64 numbers: give the targets that type in the loader, or "
        "take another loss.");
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

TUTTI_INLINE Loss loss(const State& state) {
  try {
    Loss loss = state.task.loss(state.outputs, state.batch);
    for (const auto& [name, part] : loss) {
      TUTTI_CHECK(part.defined(), "the model's loss has \"", name,
                  "\", an undefined tensor; give each part a value in loss(outputs, batch)");
    }
    return loss;
  } catch (c10::Error& error) {
    advise_loss(error, state);
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
