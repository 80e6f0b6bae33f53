// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>

/// How policies that rewrite the targets of a microbatch for its loss share one batch.
///
/// Between BeforeLoss and AfterBackward the batch holds two more entries where there is something
/// to say: "own_targets", what the batch came with, kept by the first policy that replaces them;
/// and "loss_targets", what the loss was computed with, kept by the policy that puts the own ones
/// back. Of targets under another key, "mask", they are "own_targets/mask" and "loss_targets/mask".
namespace tutti::detail {

inline constexpr std::string_view own_targets = "own_targets";
inline constexpr std::string_view loss_targets = "loss_targets";

// The batch's tensor called `key`; without a key, its inputs or targets.
inline at::Tensor& inputs_of(Batch& batch, std::string_view key) {
  return key.empty() ? batch.inputs() : batch.at(key);
}

/// The same for an algorithm of images. Throws c10::ValueError when they are none, so that it does
/// not take examples for rows.
at::Tensor& images_of(Batch& batch, std::string_view key, std::string_view who);
inline at::Tensor& targets_of(Batch& batch, std::string_view key) {
  return key.empty() ? batch.targets() : batch.at(key);
}

// The key means the batch's inputs, or its targets.
inline bool means_inputs(const Batch& batch, std::string_view key) {
  return key.empty() || (batch.contains(key) && &batch.at(key) == &batch.inputs());
}
bool means_targets(const Batch& batch, std::string_view key);

// The entry that is kept of the targets under `key`, by its name for those of the batch.
std::string kept_name(const Batch& batch, std::string_view kept, std::string_view key);

// Puts `targets` in place of the batch's.
void replace_targets(Batch& batch, std::string_view key, at::Tensor targets);

// Puts the batch's own targets back.
void restore_targets(Batch& batch, std::string_view key);

// What the loss was computed with.
inline const at::Tensor& targets_of_loss(Batch& batch, std::string_view key) {
  const std::string seen = kept_name(batch, loss_targets, key);
  return batch.contains(seen) ? batch.at(seen) : targets_of(batch, key);
}

// state.loss and its parts become `keep` of themselves plus the rest of those against the targets
// that `indices` permutes.
void interpolate_loss(State& state, std::string_view key, const at::Tensor& indices, double keep);

// For validate_with(): refuses `Other`, if it mixes inputs as P does, where P interpolates the
// loss, which would lack the terms in which both mix.
template <class P, class Other>
void refuse_second_mixer(bool interpolates) {
  if constexpr (means<mixes_inputs, Other> && !means<P, Other>) {
    TUTTI_CHECK_VALUE(!interpolates, name_of<P>(), ": interpolate_loss is set beside ",
                      name_of<Other>(),
                      ", which mixes inputs too, and the loss would lack the terms in which both "
                      "do; leave interpolate_loss off.");
  }
}

// For validate_model(): what P, which mixes inputs, asks of the loss of a `Model`.
template <class P, class Model>
void check_loss_of_mixed(bool interpolates) {
  if constexpr (lists<Model, loss_takes_indices>) {
    TUTTI_CHECK_VALUE(interpolates, name_of<P>(),
                      ": the targets are to be mixed, but the model's loss takes class indices "
                      "only (its features list loss_takes_indices); set interpolate_loss, and two "
                      "losses are mixed instead.");
  }
  if constexpr (lists<Model, loss_not_linear_in_targets>) {
    if (interpolates) {
      TORCH_WARN(name_of<P>(),
                 ": interpolate_loss is set, but the model's loss is not linear in the targets "
                 "(its features list loss_not_linear_in_targets), so mixing two losses is not what "
                 "mixing the targets would be; leave interpolate_loss off.");
    }
  }
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE bool means_targets(const Batch& batch, std::string_view key) {
  return batch.has_targets() &&
         (key.empty() || (batch.contains(key) && &batch.at(key) == &batch.targets()));
}

TUTTI_INLINE std::string kept_name(const Batch& batch, std::string_view kept,
                                   std::string_view key) {
  std::string name(kept);
  if (!key.empty() && !means_targets(batch, key)) {
    name.append("/").append(key);
  }
  return name;
}

TUTTI_INLINE void restore_targets(Batch& batch, std::string_view key) {
  const at::Tensor own = batch.at(kept_name(batch, own_targets, key));
  const at::Tensor seen = std::exchange(targets_of(batch, key), own);
  batch[kept_name(batch, loss_targets, key)] = seen;
}

TUTTI_INLINE at::Tensor& images_of(Batch& batch, std::string_view key, std::string_view who) {
  at::Tensor& x = inputs_of(batch, key);
  TUTTI_CHECK_VALUE(x.dim() >= 3, who, ": the input is ", x.sizes(),
                    ", expected a batch of images [N, ..., H, W]; set input_key where another "
                    "tensor of the batch holds them");
  return x;
}

TUTTI_INLINE void replace_targets(Batch& batch, std::string_view key, at::Tensor targets) {
  if (const std::string name = kept_name(batch, own_targets, key); !batch.contains(name)) {
    const at::Tensor own = targets_of(batch, key);
    batch[name] = own;
  }
  targets_of(batch, key) = std::move(targets);
}

// The loss of the present outputs against other targets, in the precision of the run; those under
// other keys are what the loss was computed with.
TUTTI_INLINE Loss loss_against(const State& state, std::string_view key, at::Tensor targets) {
  Batch batch = state.batch;
  for (const auto& [name, seen] : state.batch) {
    if (name == loss_targets) {
      batch.targets() = seen;
    } else if (name.starts_with(loss_targets) && name[loss_targets.size()] == '/') {
      batch.at(name.substr(loss_targets.size() + 1)) = seen;
    }
  }
  targets_of(batch, key) = std::move(targets);
  const Autocast low = state.autocast();
  return state.task.loss(state.outputs, batch);
}

TUTTI_INLINE void interpolate_loss(State& state, std::string_view key, const at::Tensor& indices,
                                   double keep) {
  const at::Tensor seen = targets_of_loss(state.batch, key);
  const Loss other = loss_against(state, key, seen.index_select(0, indices));
  const auto blend = [keep](const at::Tensor& a, const at::Tensor& b) {
    return a.mul(keep).add(b.mul(1 - keep));
  };
  const at::Tensor before = std::exchange(state.loss, blend(state.loss, other.total()));
  for (auto& [name, part] : state.loss_parts) {
    if (part.is_same(before)) {
      part = state.loss;
    } else if (other.contains(name)) {
      part = blend(part, other.at(name));
    }
  }
}

}  // namespace tutti::detail

#endif
