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
#include <tutti/nn/key_value_cache.inl.hpp>
#endif
