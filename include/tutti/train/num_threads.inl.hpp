// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/num_threads.hpp>

namespace tutti::train {

namespace detail {

/// This thread's operators have so many threads while this lives.
class ThreadsInUse {
 public:
  ThreadsInUse(int count, int start) : count_(count), start_(start) {
    if (count_ != start_) {
      at::set_num_threads(count_);
    }
  }
  ~ThreadsInUse() {
    if (count_ != start_) {
      at::set_num_threads(start_);
    }
  }
  ThreadsInUse(const ThreadsInUse&) = delete;
  ThreadsInUse& operator=(const ThreadsInUse&) = delete;

 private:
  int count_;
  int start_;
};

/// Nobody hears of the steps that are taken back.
class Silence {
 public:
  explicit Silence(State& state) : state_(state), logger_(std::exchange(state.logger, {})) {}
  ~Silence() { state_.logger = std::move(logger_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  State& state_;
  Logger logger_;
};

TUTTI_INLINE void add_bits(tutti::detail::Xxh64& hash, const at::Tensor& tensor) {
  if (tensor.defined()) {
    const at::Tensor whole = tensor.detach().contiguous();
    hash.update(whole.const_data_ptr(), whole.nbytes());
  }
  hash.update("|", 1);
}

TUTTI_INLINE void add_bits(tutti::detail::Xxh64& hash, const Archive& archive) {
  archive.each_leaf([&](const auto& path, const ArchiveLeaf& leaf) {
    hash.update(path.data(), path.size());
    leaf.visit([&]<class T>(const T& value) {
      if constexpr (std::is_same_v<T, at::Tensor>) {
        add_bits(hash, value);
      } else if constexpr (std::is_same_v<T, std::string>) {
        hash.update(value.data(), value.size());
      } else {
        hash.update(&value, sizeof value);
      }
    });
  });
}

TUTTI_INLINE void add_bits(tutti::detail::Xxh64& hash, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    hash.update(name.data(), name.size());
    add_bits(hash, tensor);
  }
}

TUTTI_INLINE void add_bits(tutti::detail::Xxh64& hash, const MetricSet& metrics) {
  for (const std::vector<at::Tensor>& counts : metrics.counts()) {
    for (const at::Tensor& each : counts) {
      add_bits(hash, each);
    }
  }
}

}  // namespace detail

TUTTI_INLINE std::vector<int> thread_counts(int threads) {
  std::vector<int> counts{threads};
  for (int count = 1; count < threads; count *= 2) {
    counts.push_back(count);
  }
  return counts;
}

TUTTI_INLINE std::uint64_t hash_of_step(const PolicyStates& policies, const State& state,
                                        const Run& run) {
  tutti::detail::Xxh64 hash;
  detail::add_bits(hash, state.total_loss);
  detail::add_bits(hash, state.outputs);
  detail::add_bits(hash, state.loss);
  for (const at::Tensor& parameter : state.model->parameters()) {
    detail::add_bits(hash, parameter);
    detail::add_bits(hash, parameter.grad());
  }
  for (const at::Tensor& buffer : state.model->buffers()) {
    detail::add_bits(hash, buffer);
  }
  Archive rest;
  save_run(state, run, nullptr, rest, /*metrics=*/false);
  for (const PolicyState& policy : policies) {
    if (policy.save != nullptr) {
      Archive own;
      policy.save(policy.policy, own);
      detail::add_bits(hash, own);
    }
    const std::uint64_t position = policy.rng != nullptr ? policy.rng->position() : 0;
    hash.update(&position, sizeof position);
  }
  checkpoint::save_rng(rest.child("generators"));
  detail::add_bits(hash, rest);
  return hash.value();
}

TUTTI_INLINE int NumThreads::Shape::passes(int count) const {
  const auto found = std::find_if(passed.begin(), passed.end(),
                                  [&](const auto& one) { return one.first == count; });
  return found == passed.end() ? 0 : found->second;
}

TUTTI_INLINE void NumThreads::Shape::pass(int count) {
  const auto found = std::find_if(passed.begin(), passed.end(),
                                  [&](const auto& one) { return one.first == count; });
  if (found == passed.end()) {
    passed.emplace_back(count, 1);
  } else {
    ++found->second;
  }
}

TUTTI_INLINE double NumThreads::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TUTTI_INLINE NumThreads::NumThreads(PolicyStates policies, Clock clock)
    : policies_(std::move(policies)),
      clock_(std::move(clock)),
      start_(at::get_num_threads()),
      choice_(thread_counts(start_)) {
  for (PolicyState& policy : policies_) {
    if (policy.saver != nullptr) {  // a step writes no file, and one may be being written
      policy.save = nullptr;
      policy.load = nullptr;
    }
  }
}

// Somebody has set another number, which begins everything anew.
TUTTI_INLINE void NumThreads::follow_start() {
  if (const int now = at::get_num_threads(); now != start_) {
    start_ = now;
    choice_ = ThreadChoice(thread_counts(start_));
    shapes_.clear();
  }
}

// What the work of a batch follows from, but for numbers. Null: there are too many kinds.
TUTTI_INLINE NumThreads::Shape* NumThreads::find(const State& state, Work work,
                                                 const MetricSet* metrics) {
  std::vector<std::int64_t> key{static_cast<std::int64_t>(work), state.model->is_training(),
                                state.device_train_microbatch_size};
  for (const auto& [name, tensor] : state.batch) {
    key.push_back(tensor.defined() ? static_cast<std::int64_t>(tensor.scalar_type()) : -1);
    if (tensor.defined()) {
      key.push_back(tensor.dim());
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    }
  }
  for (const at::Tensor& parameter : state.model->parameters()) {
    key.push_back(parameter.requires_grad() ? parameter.numel() : -parameter.numel());
  }
  if (metrics != nullptr) {  // evaluation sets have others
    tutti::detail::Xxh64 hash;
    for (const std::string& name : metrics->names()) {
      hash.update(name.c_str(), name.size() + 1);
    }
    key.push_back(static_cast<std::int64_t>(hash.value()));
  }
  const auto found = std::find_if(shapes_.begin(), shapes_.end(),
                                  [&](const auto& shape) { return shape->key == key; });
  if (found != shapes_.end()) {
    std::rotate(shapes_.begin(), found, std::next(found));
    return shapes_.front().get();
  }
  if (std::count_if(shapes_.begin(), shapes_.end(), [&](const auto& shape) {
        return shape->key.front() == static_cast<std::int64_t>(work);
      }) == most_shapes) {
    return nullptr;
  }
  shapes_.insert(shapes_.begin(), std::make_unique<Shape>());
  shapes_.front()->key = std::move(key);
  return shapes_.front().get();
}

// Counts that the next step would have and whose bits are not known, or not known for long.
TUTTI_INLINE std::vector<int> NumThreads::unknown(Shape& shape) const {
  std::vector<int> counts;
  for (const int count : choice_.in_question()) {
    if (count != start_ && shape.passes(count) < checks) {
      counts.push_back(count);
    }
  }
  if (counts.empty() && !choice_.trying() && chosen() != start_ && shape.used >= shape.audit) {
    shape.audit *= audit_factor;
    counts.push_back(chosen());
  }
  return counts;
}

TUTTI_INLINE void NumThreads::train(State& state, Run& run, c10::function_ref<void()> step) {
  follow_start();
  Shape* const shape = choice_.has_choice() ? find(state, Work::step) : nullptr;
  const std::vector<int> counts = shape != nullptr ? unknown(*shape) : std::vector<int>();
  auto times = static_cast<std::int64_t>(counts.size());
  if (state.world_size > 1) {  // a step is a collective
    times = state.communicator->all_reduce_value(times, dist::ReduceOp::maximum);
  }
  int count = start_;
  if (times > 0) {
    compare(state, run, step, shape, counts, times);
  } else if (shape != nullptr) {
    const int next = choice_.next();
    const bool known = next == start_ || shape->passes(next) >= checks;
    count = known ? next : start_;
    shape->used += count != start_ ? 1 : 0;
    double size = 0;
    for (const auto& [name, tensor] : state.batch) {
      size += tensor.defined() ? static_cast<double>(tensor.numel()) : 0;
    }
    const double before = clock_();
    {
      const detail::ThreadsInUse threads(count, start_);
      step();
    }
    const double seconds = clock_() - before;
    const int chosen_before = chosen();
    if (known && choice_.took(seconds / std::max(size, 1.0), seconds)) {
      say_chosen(state, chosen_before);
    }
  } else {
    step();
  }
  state.log_metrics({{"trainer/num_threads", static_cast<double>(count)}});
}

// Trains with each count and takes it back, then with the starting one. times: how often all ranks
// do the first.
TUTTI_INLINE void NumThreads::compare(State& state, Run& run, c10::function_ref<void()> step,
                                      Shape* shape, const std::vector<int>& counts,
                                      std::int64_t times) {
  std::vector<std::uint64_t> hashes;
  {
    const detail::Silence silence(state);
    Rewind before(policies_, state, run);
    for (std::size_t i = 0; i < static_cast<std::size_t>(times); ++i) {
      {
        const detail::ThreadsInUse threads(i < counts.size() ? counts[i] : start_, start_);
        step();
      }
      hashes.push_back(hash_of_step(policies_, state, run));
      before.rewind();
      ++compared_;
    }
  }
  step();
  const std::uint64_t right = hash_of_step(policies_, state, run);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    take(state, *shape, counts[i], hashes[i] == right);
  }
}

TUTTI_INLINE void NumThreads::take(const State& state, Shape& shape, int count, bool same) {
  if (same) {
    shape.pass(count);
    return;
  }
  const bool was_used = shape.used > 0 && shape.passes(count) >= checks;
  choice_.drop(count);
  TORCH_WARN("num_threads: ", count, " threads give other bits than ", start_, " in batch ",
             state.timestamp.batch, " of the run (rank ", state.rank,
             "), so that number is not used",
             was_used ? " any more; batches before, in which it was, may differ in the last bit, "
                        "since what the model computes does not follow from the shapes of its "
                        "batches alone. Set num_threads to a number for such a model"
                      : "");
}

TUTTI_INLINE void NumThreads::say_chosen(const State& state, int before) const {
  TORCH_WARN("num_threads: ", chosen(), " instead of ", before, " from batch ",
             state.timestamp.batch + 1, " of the run on (rank ", state.rank, "): a step takes ",
             choice_.mean(chosen()) / choice_.mean(before), " of the time, with the same bits");
}

// Whether work of an evaluation is done with both counts now.
TUTTI_INLINE bool NumThreads::compares(Shape& shape, int count) {
  const bool known = shape.passes(count) >= checks;
  if (known && ++shape.used < shape.audit) {
    return false;
  }
  shape.audit *= known ? audit_factor : 1;
  ++compared_;
  return true;
}

TUTTI_INLINE Outputs NumThreads::evaluate(State& state, c10::function_ref<Outputs()> forward) {
  follow_start();
  const int count = chosen();
  Shape* const shape = count != start_ ? find(state, Work::step) : nullptr;
  if (shape == nullptr) {
    return forward();
  }
  if (!compares(*shape, count)) {
    const detail::ThreadsInUse threads(count, start_);
    return forward();
  }
  Archive generators;
  checkpoint::save_rng(generators);
  tutti::detail::Xxh64 with;
  {
    const detail::ThreadsInUse threads(count, start_);
    detail::add_bits(with, forward());
  }
  checkpoint::load_rng(generators);
  Outputs outputs = forward();
  tutti::detail::Xxh64 right;
  detail::add_bits(right, outputs);
  take(state, *shape, count, with.value() == right.value());
  return outputs;
}

TUTTI_INLINE void NumThreads::update_metrics(State& state, MetricSet& metrics) {
  follow_start();
  const int count = chosen();
  const auto update = [&] { metrics.update(state.task, state.batch, state.outputs); };
  Shape* const shape = count != start_ ? find(state, Work::metrics, &metrics) : nullptr;
  if (shape == nullptr || shape->is_left_alone) {
    return update();
  }
  if (!compares(*shape, count)) {
    const detail::ThreadsInUse threads(count, start_);
    return update();
  }
  const auto before = metrics.counts();
  Archive generators;
  checkpoint::save_rng(generators);
  tutti::detail::Xxh64 with;
  {
    const detail::ThreadsInUse threads(count, start_);
    update();
    detail::add_bits(with, metrics);
  }
  metrics.set_counts(before);
  checkpoint::load_rng(generators);
  update();
  tutti::detail::Xxh64 right;
  detail::add_bits(right, metrics);
  shape->pass(count);
  shape->is_left_alone = with.value() != right.value();  // and training goes on as it is
}

}  // namespace tutti::train
