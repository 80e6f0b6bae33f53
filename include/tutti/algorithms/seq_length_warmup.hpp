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
#include <tutti/dist/communicator.hpp>
#include <tutti/nn/context_length.hpp>
#include <tutti/nn/eval_mode.hpp>

/// SeqLengthWarmup: training begins with short sequences.
namespace tutti {

namespace detail {

// Copies into column `to[i]` of row i what is in column `from[i]`; x: [N, S, ...].
void copy_column(const at::Tensor& x, const at::Tensor& from, const at::Tensor& source,
                 const at::Tensor& to);

// One forward and backward pass of the first `examples`, which leaves no gradients. Returns whether
// it fits into the memory; throws c10::OutOfMemoryError where nobody looks for a size that does.
bool has_room(State& state, const Batch& whole, std::int64_t examples);

// One such pass of a microbatch of `whole`, the longest sequences. Where the size of microbatches
// is found by trial it is halved until the pass fits on every rank; a collective then.
void reserve_room(State& state, const Batch& whole);

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

  /// Shortens, and logs `seq_length_warmup/curr_seq_len`, the length of the schedule, and
  /// `seq_length_warmup/curr_bs`, how many rows the batch has.
  /// Throws c10::ValueError unless the length of the run is known in batches, and when
  /// max_seq_length is above what the model is made for, see nn::context_length().
  void apply(AfterDataloader, State& state);

 private:
  // Batches of the warm-up.
  std::int64_t warmup(const State& state) const;

  void check_length(const State& state) const;

  // In eval mode, so that nothing is drawn and no statistics move.
  void allocate(State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/seq_length_warmup.inl.hpp>
#endif
