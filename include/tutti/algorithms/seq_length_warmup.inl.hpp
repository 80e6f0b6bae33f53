// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/seq_length_warmup.hpp>

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

TUTTI_INLINE bool has_room(State& state, const Batch& whole, std::int64_t examples) {
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

TUTTI_INLINE void reserve_room(State& state, const Batch& whole) {
  std::int64_t& size = state.device_train_microbatch_size;
  const std::int64_t all = whole.num_samples();
  if (!state.auto_microbatching) {
    has_room(state, whole, size == 0 ? all : size);
    return;
  }
  dist::Communicator& world = *state.communicator;
  std::int64_t examples = size == 0 ? world.all_reduce_value(all, dist::ReduceOp::maximum) : size;
  const auto fits_everywhere = [&] {
    const auto mine = static_cast<std::int64_t>(has_room(state, whole, examples));
    return world.all_reduce_value(mine, dist::ReduceOp::minimum) > 0;
  };
  while (!fits_everywhere() && examples > 1) {
    examples /= 2;
    size = examples;
  }
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
  TUTTI_CHECK_VALUE(!preserve_end_of_sequence || batch.contains("attention_mask"),
                    "set_batch_sequence_length: preserve_end_of_sequence needs a tensor called "
                    "\"attention_mask\"; there are: ",
                    batch.names());
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
  const std::int64_t rows = state.batch.inputs().size(0);
  state.log_metrics({{"seq_length_warmup/curr_seq_len", static_cast<double>(length)},
                     {"seq_length_warmup/curr_bs", static_cast<double>(rows)}});
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
  detail::reserve_room(
      state, functional::set_batch_sequence_length(state.batch, max_seq_length, truncate));
}

}  // namespace tutti
