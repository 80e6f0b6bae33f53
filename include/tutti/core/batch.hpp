// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti {

/// A few tensors by name, in the order in which they were put in. Lookup is linear: batches,
/// outputs and losses have a handful of entries. A reference to a tensor stays valid until clear(),
/// whatever is added: `batch["labels"] = batch.at("input_ids")` does what it says.
class NamedTensors {
 public:
  using value_type = std::pair<std::string, at::Tensor>;

  NamedTensors() = default;
  NamedTensors(std::initializer_list<value_type> entries) : entries_(entries) {}

  /// The tensor called `name`; throws c10::Error with the names that exist.
  [[nodiscard]] const at::Tensor& at(std::string_view name) const {
    const at::Tensor* found = find(name);
    TUTTI_CHECK(found != nullptr, "no tensor is called \"", name, "\"; there are: ", names());
    return *found;
  }
  [[nodiscard]] at::Tensor& at(std::string_view name) {
    return const_cast<at::Tensor&>(std::as_const(*this).at(name));
  }

  /// The tensor called `name`, added (undefined) when there is none.
  at::Tensor& operator[](std::string_view name);
  /// Where nothing can be added: at(name).
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const { return at(name); }

  /// Some tensor is called `name`.
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

  [[nodiscard]] auto begin() { return entries_.begin(); }
  [[nodiscard]] auto end() { return entries_.end(); }
  [[nodiscard]] auto begin() const { return entries_.begin(); }
  [[nodiscard]] auto end() const { return entries_.end(); }

  /// All names, for messages: `inputs, targets`.
  [[nodiscard]] std::string names() const;

 protected:
  [[nodiscard]] const at::Tensor* find(std::string_view name) const;

  std::list<value_type> entries_;
};

/// One batch: named tensors whose dimension 0 counts examples (tensors without dimensions are
/// shared by all of them).
///
/// A pair converts (inputs, targets), as do a map and a single tensor (inputs).
class Batch : public NamedTensors {
 public:
  using NamedTensors::NamedTensors;

  Batch(at::Tensor inputs) {  // NOLINT: a single tensor is a batch
    entries_.emplace_back("inputs", std::move(inputs));
  }
  Batch(at::Tensor inputs, at::Tensor targets) {
    entries_.emplace_back("inputs", std::move(inputs));
    entries_.emplace_back("targets", std::move(targets));
  }
  Batch(std::pair<at::Tensor, at::Tensor> pair)  // NOLINT: converts by design
      : Batch(std::move(pair.first), std::move(pair.second)) {}
  Batch(const std::map<std::string, at::Tensor>& tensors) {  // NOLINT: converts by design
    entries_.assign(tensors.begin(), tensors.end());
  }

  /// What the model sees: the tensor "inputs"; else "input_ids"; else the first one.
  /// Throws c10::Error when the batch is empty.
  [[nodiscard]] const at::Tensor& inputs() const;
  [[nodiscard]] at::Tensor& inputs() {
    return const_cast<at::Tensor&>(std::as_const(*this).inputs());
  }

  /// What the model should say: the tensor "targets"; else "labels".
  /// Throws c10::Error with the names that exist.
  [[nodiscard]] const at::Tensor& targets() const;
  [[nodiscard]] at::Tensor& targets() {
    return const_cast<at::Tensor&>(std::as_const(*this).targets());
  }

  /// The batch has targets.
  [[nodiscard]] bool has_targets() const { return contains("targets") || contains("labels"); }

  /// Examples in the batch: size of dimension 0, on which all tensors with dimensions must agree.
  /// Throws c10::Error with the sizes when they do not.
  [[nodiscard]] std::int64_t num_samples() const;

  /// Tokens in the batch: elements of "input_ids", without padding where an "attention_mask" of
  /// their shape is 0; 0 when there are no "input_ids".
  [[nodiscard]] std::int64_t num_tokens() const;

  /// The batch with every tensor on `device`; tensors that are there already are shared.
  [[nodiscard]] Batch to(at::Device device, bool non_blocking = false) const;

  /// Slices of at most `size` examples each, in order; they share the batch's memory. Tensors
  /// without dimensions go into each. size: > 0, larger than the batch gives one slice.
  /// Source: Composer, `composer.core.data_spec._default_split_batch`.
  [[nodiscard]] std::vector<Batch> split(std::int64_t size) const;
};

/// What a model returns: one tensor for most, named ones for others.
class Outputs : public NamedTensors {
 public:
  using NamedTensors::NamedTensors;

  Outputs(at::Tensor tensor) {  // NOLINT: a single tensor is an output
    entries_.emplace_back("outputs", std::move(tensor));
  }

  /// The only tensor, or the one called "logits", or "outputs".
  /// Throws c10::Error with the names that exist.
  [[nodiscard]] const at::Tensor& tensor() const;
  [[nodiscard]] at::Tensor& tensor() {
    return const_cast<at::Tensor&>(std::as_const(*this).tensor());
  }
};

/// What a model's loss returns: one tensor, or named parts of which "total", if present, is the
/// one to minimise.
class Loss : public NamedTensors {
 public:
  using NamedTensors::NamedTensors;

  Loss(at::Tensor total) {  // NOLINT: a single tensor is a loss
    entries_.emplace_back("total", std::move(total));
  }

  /// What backward() starts from: "total", else the sum of the parts' means. A scalar.
  [[nodiscard]] at::Tensor total() const;
};

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<tutti::Batch>;
#endif

#if TUTTI_BODIES
#include <tutti/core/batch.inl.hpp>
#endif
