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

/// Says beside an error of a loss what it was computed of, and what is likely wrong with targets.
void advise_loss(c10::Error& error, const State& state);

/// Says beside an error how far training was; nothing where it had not begun.
void add_place(c10::Error& error, const State& state);

/// The same of an evaluation. label: of the set.
void add_place(c10::Error& error, const State& state, const std::string& label);

/// The outputs for state.batch.
Outputs forward(const State& state);

/// The outputs for state.batch in evaluation.
Outputs eval_forward(const State& state);

/// The loss of state.outputs.
Loss loss(const State& state);

/// The outputs and the loss for state.batch at once, where the model has them so.
std::optional<std::pair<Outputs, Loss>> forward_and_loss(const State& state);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/forward.inl.hpp>
#endif
