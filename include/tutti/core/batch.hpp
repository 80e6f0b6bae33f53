// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
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
/// outputs and losses have a handful of entries.
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

  std::vector<value_type> entries_;
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
    entries_.reserve(2);
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
TUTTI_TEMPLATE class std::vector<tutti::NamedTensors::value_type>;
TUTTI_TEMPLATE class std::vector<tutti::Batch>;
#endif

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE at::Tensor& NamedTensors::operator[](std::string_view name) {
  if (const at::Tensor* found = find(name)) {
    return const_cast<at::Tensor&>(*found);
  }
  return entries_.emplace_back(std::string(name), at::Tensor{}).second;
}

TUTTI_INLINE std::string NamedTensors::names() const {
  std::string text;
  for (const auto& [name, tensor] : entries_) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "(none)" : text;
}

TUTTI_INLINE const at::Tensor* NamedTensors::find(std::string_view name) const {
  for (const auto& [key, tensor] : entries_) {
    if (key == name) {
      return &tensor;
    }
  }
  return nullptr;
}

TUTTI_INLINE const at::Tensor& Batch::inputs() const {
  for (std::string_view name : {"inputs", "input_ids"}) {
    if (const at::Tensor* found = find(name)) {
      return *found;
    }
  }
  TUTTI_CHECK(!entries_.empty(), "the batch is empty, so it has no inputs");
  return entries_.front().second;
}

TUTTI_INLINE const at::Tensor& Batch::targets() const {
  for (std::string_view name : {"targets", "labels"}) {
    if (const at::Tensor* found = find(name)) {
      return *found;
    }
  }
  TUTTI_CHECK(false,
              "the batch has no tensor called \"targets\" or \"labels\"; there are: ", names());
}

TUTTI_INLINE std::int64_t Batch::num_samples() const {
  std::int64_t count = -1;
  for (const auto& [name, tensor] : entries_) {
    if (tensor.dim() > 0) {
      TUTTI_CHECK(count < 0 || tensor.size(0) == count,
                  "the batch's tensors disagree on the "
                  "number of examples: \"",
                  name, "\" has ", tensor.size(0), ", others have ", count,
                  "; give DataSpec a num_samples function");
      count = tensor.size(0);
    }
  }
  TUTTI_CHECK(count >= 0,
              "the batch has no tensor with a dimension to count examples by; there "
              "are: ",
              names());
  return count;
}

TUTTI_INLINE std::int64_t Batch::num_tokens() const {
  const at::Tensor* ids = find("input_ids");
  if (ids == nullptr) {
    return 0;
  }
  const at::Tensor* mask = find("attention_mask");
  return mask != nullptr && mask->sizes() == ids->sizes() ? mask->ne(0).sum().item<std::int64_t>()
                                                          : ids->numel();
}

TUTTI_INLINE Batch Batch::to(at::Device device, bool non_blocking) const {
  Batch out = *this;
  for (auto& [name, tensor] : out.entries_) {
    if (tensor.defined() && tensor.device() != device) {
      tensor = tensor.to(device, non_blocking);
    }
  }
  return out;
}

TUTTI_INLINE std::vector<Batch> Batch::split(std::int64_t size) const {
  TUTTI_CHECK(size > 0, "split: size is ", size, ", expected at least 1");
  const std::int64_t total = num_samples();
  if (size >= total) {
    return {*this};
  }
  std::vector<Batch> out;
  for (std::int64_t from = 0; from < total; from += size) {
    Batch& part = out.emplace_back(*this);
    for (auto& [name, tensor] : part.entries_) {
      if (tensor.dim() > 0) {
        tensor = tensor.slice(0, from, std::min(from + size, total));
      }
    }
  }
  return out;
}

TUTTI_INLINE const at::Tensor& Outputs::tensor() const {
  if (entries_.size() == 1) {
    return entries_.front().second;
  }
  for (std::string_view name : {"logits", "outputs"}) {
    if (const at::Tensor* found = find(name)) {
      return *found;
    }
  }
  TUTTI_CHECK(false,
              "the model's outputs are not one tensor and none is called \"logits\"; "
              "there are: ",
              names());
}

TUTTI_INLINE at::Tensor Loss::total() const {
  if (const at::Tensor* found = find("total")) {
    return found->dim() == 0 ? *found : found->mean();
  }
  TUTTI_CHECK(!entries_.empty(), "the model's loss returned nothing");
  at::Tensor sum;
  for (const auto& [name, part] : entries_) {
    at::Tensor mean = part.dim() == 0 ? part : part.mean();
    sum = sum.defined() ? sum.add(mean) : mean;
  }
  return sum;
}

}  // namespace tutti

#endif
