// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/key_value_cache.hpp>

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
