// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/context_length.hpp>
#include <tutti/nn/eval_mode.hpp>

/// SeqLengthWarmup: training begins with short sequences.
namespace tutti {

namespace detail {

// Copies into column `to[i]` of row i what is in column `from[i]`; x: [N, S, ...].
void copy_column(const at::Tensor& x, const at::Tensor& from, const at::Tensor& source,
                 const at::Tensor& to);

}  // namespace detail

namespace functional {

/// How long sequences are in batch `batch` of a warm-up over `warmup` batches: it rises from
/// min_seq_length to max_seq_length in steps of step_size, which is at least 1.
///
/// As long as the steps fit into the warm-up, each takes `warmup / steps` batches, rounded down.
std::int64_t warmup_seq_length(std::int64_t batch, std::int64_t warmup, std::int64_t min_seq_length,
                               std::int64_t max_seq_length, std::int64_t step_size);

/// The batch with sequences of at most curr_seq_len.
///
/// batch: tensors of [N, S, ...], S as of its inputs ("input_ids"). truncate: the first
/// curr_seq_len columns of each, and with preserve_end_of_sequence the last one that
/// "attention_mask" shows is put at their end; tensors of another length (labels of whole
/// sequences) are left alone. Otherwise all tensors, which have to be [N, S], are cut into rows of
/// curr_seq_len, so that the batch grows; up to curr_seq_len - 1 tokens at its end are dropped.
/// Returns the same tensors when S is not above curr_seq_len.
/// Throws c10::Error (ValueError) for a batch that cannot be treated so.
/// Source: Li et al., "Curriculum Learning: A Regularization Method for Efficient and Stable
/// Billion-Scale GPT Model Pre-Training", 2021; MosaicML Composer,
/// `composer.algorithms.seq_length_warmup.set_batch_sequence_length`.
Batch set_batch_sequence_length(Batch batch, std::int64_t curr_seq_len, bool truncate = true,
                                bool preserve_end_of_sequence = false);

}  // namespace functional

/// Shortens the sequences of the first part of a run: from min_seq_length up to max_seq_length.
///
/// Source: Li, Zhang, He, "Curriculum Learning: A Regularization Method for Efficient and Stable
/// Billion-Scale GPT Model Pre-Training", 2021.
struct SeqLengthWarmup final {
  double duration = 0.3;               ///< the part of the run that the warm-up takes; in [0, 1]
  std::int64_t min_seq_length = 8;     ///< at the first batch; >= 1
  std::int64_t max_seq_length = 1024;  ///< at the end of the warm-up and after it
  std::int64_t step_size = 8;          ///< what is added at a time; >= 1
  bool truncate = true;                ///< cut sequences off; else cut them into more, shorter ones
  bool preserve_end_of_sequence = false;  ///< truncated sequences keep their last token
  bool preallocate = true;  ///< on a GPU: run the longest sequences once, for memory in one piece

  /// What it holds while it runs; not an option.
  struct Run {
    bool allocated = false;  ///< the longest sequences have been run for `preallocate`
  } run{};

  static constexpr std::string_view name = "SeqLengthWarmup";
  using events = types<AfterDataloader>;
  static constexpr Rules rules{
      .tags = {id<changes_sequence_length>},
      .runs_after = {{id<ALiBi>, "the warm-up is up to the length that training has"}},
      .conflicts_with =
          {{id<SelectiveBackprop>,
            "examples would be chosen by sequences longer than those that are trained on"}},
      .checked_with = {{id<ALiBi>,
                        "sequences that are shorter than max_seq_length end the warm-up early"}},
  };

  template <class Model>
  static constexpr bool supports = offers<Model, takes_tokens>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(duration >= 0 && duration <= 1, "SeqLengthWarmup: duration", duration,
           "a number from 0 to 1");
    expect(min_seq_length >= 1, "SeqLengthWarmup: min_seq_length", min_seq_length, "1 or more");
    expect(max_seq_length >= min_seq_length, "SeqLengthWarmup: max_seq_length", max_seq_length,
           "at least min_seq_length");
    expect(step_size >= 1, "SeqLengthWarmup: step_size", step_size, "1 or more");
    expect(truncate || !preserve_end_of_sequence,
           "SeqLengthWarmup: preserve_end_of_sequence is set and truncate is not, so it would do "
           "nothing; set one of them only.");
  }

  /// Shortens, and logs `seq_length_warmup/curr_seq_len` and `seq_length_warmup/curr_bs`.
  /// Throws c10::ValueError unless the length of the run is known in batches, and when
  /// max_seq_length is above what the model is made for, see nn::context_length().
  void apply(AfterDataloader, State& state);

 private:
  // Batches of the warm-up.
  std::int64_t warmup(const State& state) const;

  void check_length(const State& state) const;

  // In eval mode, so that nothing is drawn and no statistics move.
  void allocate(State& state) const;

  // One forward and backward pass. Returns whether it fits into the memory; throws
  // c10::OutOfMemoryError where nobody looks for a size that does.
  static bool has_room(State& state, const Batch& whole, std::int64_t examples);
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void copy_column(const at::Tensor& x, const at::Tensor& from, const at::Tensor& source,
                              const at::Tensor& to) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  std::vector<std::int64_t> expanded = x.sizes().vec();
  shape[0] = x.size(0);
  expanded[1] = 1;
  const at::Tensor value = source.gather(1, from.view(shape).expand(expanded));
  x.scatter_(1, to.view(shape).expand(expanded), value);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE std::int64_t warmup_seq_length(std::int64_t batch, std::int64_t warmup,
                                            std::int64_t min_seq_length,
                                            std::int64_t max_seq_length, std::int64_t step_size) {
  const std::int64_t steps = (max_seq_length - min_seq_length) / step_size;
  std::int64_t done = batch >= warmup ? max_seq_length : 0;
  if (steps > 0 && warmup >= steps) {
    done = batch / (warmup / steps);
  } else if (steps > 0 && batch < warmup) {
    done = batch * steps / warmup;  // several steps a batch
  }
  const std::int64_t most = (max_seq_length - min_seq_length) / step_size + 1;
  return std::min(step_size * std::min(done, most) + min_seq_length, max_seq_length);
}

TUTTI_INLINE Batch set_batch_sequence_length(Batch batch, std::int64_t curr_seq_len, bool truncate,
                                             bool preserve_end_of_sequence) {
  TUTTI_CHECK_VALUE(curr_seq_len >= 1, "set_batch_sequence_length: curr_seq_len is ", curr_seq_len,
                    ", expected 1 or more");
  TUTTI_CHECK_VALUE(!preserve_end_of_sequence || batch.contains("attention_mask"),
                    "set_batch_sequence_length: preserve_end_of_sequence needs a tensor called "
                    "\"attention_mask\"; there are: ",
                    batch.names());
  const at::Tensor ids = batch.inputs();
  TUTTI_CHECK_VALUE(ids.dim() >= 2, "set_batch_sequence_length: the inputs are ", ids.sizes(),
                    ", expected [N, S]");
  const std::int64_t length = ids.size(1);
  if (curr_seq_len >= length) {
    return batch;
  }
  if (!truncate) {
    for (auto& [name, tensor] : batch) {
      TUTTI_CHECK_VALUE(tensor.sizes() == ids.sizes(), "set_batch_sequence_length: \"", name,
                        "\" is ", tensor.sizes(), ", expected ", ids.sizes(),
                        " as the inputs are; set truncate for tensors of other shapes");
      const std::int64_t rows = tensor.numel() / curr_seq_len;
      tensor = tensor.reshape({-1}).narrow(0, 0, rows * curr_seq_len).view({rows, curr_seq_len});
    }
    return batch;
  }
  at::Tensor last;
  if (preserve_end_of_sequence) {  // of a row of padding alone, column 0
    last = batch.at("attention_mask").sum(1).to(at::kLong).sub(1).clamp_min(0);
  }
  for (auto& [name, tensor] : batch) {
    if (tensor.dim() >= 2 && tensor.size(1) == length) {
      const at::Tensor whole = tensor;
      tensor = whole.narrow(1, 0, curr_seq_len).contiguous();
      if (last.defined()) {
        ::tutti::detail::copy_column(tensor, last, whole, last.clamp_max(curr_seq_len - 1));
      }
    }
  }
  return batch;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SeqLengthWarmup::apply(AfterDataloader, State& state) {
  if (!std::exchange(run.allocated, true)) {
    check_length(state);
    if (preallocate && state.device.is_cuda()) {
      allocate(state);
    }
  }
  const std::int64_t length = functional::warmup_seq_length(
      state.timestamp.batch, warmup(state), min_seq_length, max_seq_length, step_size);
  state.batch = functional::set_batch_sequence_length(std::move(state.batch), length, truncate,
                                                      preserve_end_of_sequence);
  const at::Tensor& ids = state.batch.inputs();
  state.log_metrics({{"seq_length_warmup/curr_seq_len", static_cast<double>(ids.size(1))},
                     {"seq_length_warmup/curr_bs", static_cast<double>(ids.size(0))}});
}

TUTTI_INLINE std::int64_t SeqLengthWarmup::warmup(const State& state) const {
  const Time length = state.max_duration;
  TUTTI_CHECK_VALUE(length.unit() == TimeUnit::batch || length.unit() == TimeUnit::epoch,
                    "SeqLengthWarmup: max_duration is ", to_string(length),
                    ", expected a time in ep or ba, from which the number of batches follows");
  std::int64_t batches = length.count();
  if (length.unit() == TimeUnit::epoch) {
    TUTTI_CHECK_VALUE(state.train_dataloader_len > 0, "SeqLengthWarmup: the number of batches ",
                      "in an epoch is not known; give max_duration in ba");
    batches *= state.train_dataloader_len;
  }
  return static_cast<std::int64_t>(static_cast<double>(batches) * duration);
}

TUTTI_INLINE void SeqLengthWarmup::check_length(const State& state) const {
  const at::Tensor& inputs = state.batch.inputs();
  TUTTI_CHECK_VALUE(inputs.dim() >= 2, "SeqLengthWarmup: the inputs are ", inputs.sizes(),
                    ", expected [N, S]: token indices of sequences");
  const auto most = nn::context_length(*state.model);
  TUTTI_CHECK_VALUE(!most || max_seq_length <= *most, "SeqLengthWarmup: max_seq_length is ",
                    max_seq_length, " and the model is made for sequences of up to ",
                    most.value_or(0), " tokens (n_positions or max_position_embeddings of its ",
                    "config; with ALiBi its max_sequence_length), expected at most that");
  if (duration > 0 && inputs.size(1) < max_seq_length) {
    TORCH_WARN("SeqLengthWarmup: max_seq_length is ", max_seq_length,
               " and the sequences have length ", inputs.size(1),
               ", so the warm-up ends early; set max_seq_length to that length, with ALiBi to "
               "its length times train_sequence_length_scaling.");
  }
}

TUTTI_INLINE void SeqLengthWarmup::allocate(State& state) const {
  const nn::EvalMode eval(*state.model);
  const Batch whole = functional::set_batch_sequence_length(state.batch, max_seq_length, truncate);
  std::int64_t examples = state.device_train_microbatch_size;
  if (examples == 0) {
    examples = whole.num_samples();
  }
  while (!has_room(state, whole, examples) && examples > 1) {
    examples /= 2;
  }
}

TUTTI_INLINE bool SeqLengthWarmup::has_room(State& state, const Batch& whole,
                                            std::int64_t examples) {
  bool fits = true;
  try {
    const Batch batch = whole.split(examples).front().to(state.device);
    const Autocast low = state.autocast();
    state.task.loss(state.task.forward(batch), batch).total().backward();
  } catch (const c10::OutOfMemoryError&) {
    if (!state.auto_microbatching) {
      throw;
    }
    fits = false;
  }
  for (const at::Tensor& parameter : state.model->parameters()) {
    parameter.mutable_grad().reset();
  }
  return fits;
}

}  // namespace tutti

#endif
