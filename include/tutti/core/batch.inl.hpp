// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/batch.hpp>

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
    TUTTI_CHECK(tensor.defined(), "the batch's \"", name,
                "\" is an undefined tensor; leave it out");
    if (tensor.dim() > 0) {
      TUTTI_CHECK(count < 0 || tensor.size(0) == count,
                  "the batch's tensors disagree on the "
                  "number of examples: \"",
                  name, "\" has ", tensor.size(0), ", others have ", count,
                  "; give DataSpec a num_samples function, and a split_batch function where there "
                  "are microbatches");
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
