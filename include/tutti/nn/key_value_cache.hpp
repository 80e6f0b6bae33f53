// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

/// The keys and values of the tokens that a language model has read.
namespace tutti::nn {

/// Keys and values of some positions, [N, K, T, D] each.
struct KeyValues {
  at::Tensor keys{};
  at::Tensor values{};
  std::int64_t first = 0;  ///< the position of the first of them
};

/// Room for the keys and values of every layer of a model, [N, K, T_max, D] each, of which the
/// first length() positions are in use.
///
/// K counts the heads of keys before they are repeated; keys are those after the rotation. A
/// layer's memory is allocated when its first keys come, with their dtype and device, and is then
/// written in place.
///
///     KeyValueCache cache(layers, batch, max_length);
///     // In layer i of a forward pass, for k and v [N, K, T, D] of the new positions:
///     const KeyValues seen = cache.append(i, k, v);  // all positions so far
///     // After the last layer:
///     cache.advance(T);
///
/// The cache takes no part in gradients.
class KeyValueCache {
 public:
  KeyValueCache() = default;

  /// layers, batch: >= 1. max_length: the positions that there is room for, >= 1.
  /// Throws c10::Error (ValueError) for other numbers.
  KeyValueCache(std::int64_t layers, std::int64_t batch, std::int64_t max_length)
      : batch_(batch), max_length_(max_length) {
    TUTTI_CHECK_VALUE(layers >= 1 && batch >= 1 && max_length >= 1, "KeyValueCache: there are ",
                      layers, " layers, the batch is ", batch, " and max_length ", max_length,
                      ", expected 1 or more of each");
    layers_.resize(static_cast<std::size_t>(layers));
  }

  [[nodiscard]] std::int64_t layers() const { return static_cast<std::int64_t>(layers_.size()); }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] std::int64_t max_length() const { return max_length_; }

  /// How many positions are in use in all layers.
  [[nodiscard]] std::int64_t length() const { return length_; }

  /// Writes the keys and values of new positions behind the first length() ones of `layer`.
  ///
  /// k, v: [N, K, T, D], without gradients. window: how many positions a query sees, its own
  /// included; 0: all. Returns views of all keys and values that the new positions may see: with a
  /// window the last window - 1 + T ones. length() stays until advance().
  /// Throws c10::Error when the layer, a shape or a gradient does not fit, or there is no room.
  KeyValues append(std::int64_t layer, const at::Tensor& k, const at::Tensor& v,
                   std::int64_t window = 0);

  /// Counts `count` positions more as in use, once each layer has them.
  /// Throws c10::Error when there is no room for them.
  void advance(std::int64_t count);

  /// The keys and values of `layer`, all length() positions: views. Throws c10::Error for a layer
  /// that there is not or that has none yet.
  [[nodiscard]] KeyValues at(std::int64_t layer) const;

  /// Row i becomes what row rows[i] was: for beams, and to drop rows that have ended.
  ///
  /// rows: int64 [M], on the device of the keys. batch() is M from then on.
  void reorder(const at::Tensor& rows);

  /// Forgets the positions from `length` on; the memory stays. length: from 0 to length().
  void truncate(std::int64_t length);

 private:
  struct Layer {
    at::Tensor keys, values;  // [N, K, T_max, D]; undefined until the first ones come
  };

  void check(std::int64_t layer, const at::Tensor& k, const at::Tensor& v) const;

  void allocate(at::Tensor& all, const at::Tensor& like) const;

  // The chosen rows, in memory of the same length; what is not in use is not copied.
  [[nodiscard]] at::Tensor chosen(const at::Tensor& all, const at::Tensor& rows) const;

  std::vector<Layer> layers_;
  std::int64_t batch_ = 0;
  std::int64_t max_length_ = 0;
  std::int64_t length_ = 0;
};

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE KeyValues KeyValueCache::append(std::int64_t layer, const at::Tensor& k,
                                             const at::Tensor& v, std::int64_t window) {
  check(layer, k, v);
  Layer& of = layers_[static_cast<std::size_t>(layer)];
  allocate(of.keys, k);
  allocate(of.values, v);
  const std::int64_t count = k.size(2);
  of.keys.narrow(2, length_, count).copy_(k);
  of.values.narrow(2, length_, count).copy_(v);
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(length_ + 1 - window, 0) : 0;
  const std::int64_t seen = length_ + count - first;
  return {of.keys.narrow(2, first, seen), of.values.narrow(2, first, seen), first};
}

TUTTI_INLINE void KeyValueCache::advance(std::int64_t count) {
  TUTTI_CHECK(count >= 0 && length_ + count <= max_length_, "KeyValueCache: ", length_, " and ",
              count, " positions more do not fit into max_length ", max_length_);
  length_ += count;
}

TUTTI_INLINE KeyValues KeyValueCache::at(std::int64_t layer) const {
  TUTTI_CHECK(layer >= 0 && layer < layers(), "KeyValueCache: there is no layer ", layer,
              "; there are ", layers());
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  TUTTI_CHECK(of.keys.defined(), "KeyValueCache: layer ", layer, " has no keys yet");
  return {of.keys.narrow(2, 0, length_), of.values.narrow(2, 0, length_), 0};
}

TUTTI_INLINE void KeyValueCache::reorder(const at::Tensor& rows) {
  TUTTI_CHECK(rows.dim() == 1 && rows.numel() >= 1, "KeyValueCache: the rows are ", rows.sizes(),
              ", expected [M] with at least one");
  for (Layer& of : layers_) {
    if (of.keys.defined()) {
      of.keys = chosen(of.keys, rows);
      of.values = chosen(of.values, rows);
    }
  }
  batch_ = rows.size(0);
}

TUTTI_INLINE void KeyValueCache::truncate(std::int64_t length) {
  TUTTI_CHECK(length >= 0 && length <= length_, "KeyValueCache: there are ", length_,
              " positions, so they cannot be cut to ", length);
  length_ = length;
}

TUTTI_INLINE void KeyValueCache::check(std::int64_t layer, const at::Tensor& k,
                                       const at::Tensor& v) const {
  TUTTI_CHECK(layer >= 0 && layer < layers(), "KeyValueCache: there is no layer ", layer,
              "; there are ", layers());
  TUTTI_CHECK(k.dim() == 4 && v.dim() == 4 && k.size(0) == batch_ && v.size(0) == batch_ &&
                  k.size(1) == v.size(1) && k.size(2) == v.size(2),
              "KeyValueCache: the keys are ", k.sizes(), " and the values ", v.sizes(),
              ", expected [", batch_, ", K, T, D]; make a cache for this batch");
  TUTTI_CHECK(!at::GradMode::is_enabled() || !(k.requires_grad() || v.requires_grad()),
              "KeyValueCache: the keys have gradients, which a cache does not keep; call the "
              "model under torch::NoGradGuard");
  TUTTI_CHECK(length_ + k.size(2) <= max_length_, "KeyValueCache: ", length_, " and ", k.size(2),
              " positions more do not fit into max_length ", max_length_,
              "; make the cache for the prompt and all new tokens");
}

TUTTI_INLINE void KeyValueCache::allocate(at::Tensor& all, const at::Tensor& like) const {
  if (!all.defined()) {
    all = at::empty({batch_, like.size(1), max_length_, like.size(3)}, like.options());
    return;
  }
  TUTTI_CHECK(all.size(1) == like.size(1) && all.size(3) == like.size(3) &&
                  all.scalar_type() == like.scalar_type() && all.device() == like.device(),
              "KeyValueCache: got ", like.scalar_type(), " ", like.sizes(), " on ", like.device(),
              ", but the cache holds ", all.scalar_type(), " ", all.sizes(), " on ", all.device());
}

TUTTI_INLINE at::Tensor KeyValueCache::chosen(const at::Tensor& all, const at::Tensor& rows) const {
  at::Tensor out = at::empty({rows.size(0), all.size(1), max_length_, all.size(3)}, all.options());
  out.narrow(2, 0, length_).copy_(all.narrow(2, 0, length_).index_select(0, rows));
  return out;
}

}  // namespace tutti::nn

#endif
