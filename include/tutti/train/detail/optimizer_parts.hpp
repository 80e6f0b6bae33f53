// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/sharded_parts.hpp>

/// What an optimizer has saved of parameters of which a rank has a part.
namespace tutti::train::detail {

// Where checkpoint::save_optimizer() writes the state of parameter i: in an optimizer of tutti, in
// one of LibTorch.
inline std::vector<std::string> paths_of_state(std::size_t i) {
  return {"own/param" + std::to_string(i), "state/" + std::to_string(i)};
}

// The state of parameter i there; null: it has none.
inline Archive* state_in(Archive& archive, std::size_t i) {
  for (const std::string& path : paths_of_state(i)) {
    if (archive.contains(path)) {
      return &archive.child(path);
    }
  }
  return nullptr;
}

// Replaces every tensor in `archive` that is as large as `like` by what `f(tensor, path)` makes of
// it.
template <class F>
void replace_tensors(Archive& archive, at::IntArrayRef like, F&& f) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& entry : archive.entries()) {
    const at::Tensor* const tensor = entry.is_child() ? nullptr : entry.leaf().tensor();
    if (tensor != nullptr && tensor->sizes() == like) {
      found.emplace_back(entry.name, *tensor);
    }
  }
  for (const auto& [name, tensor] : found) {
    archive.erase(name);
    archive.put(name, at::Tensor(f(tensor, archive.path() + '/' + name)));
  }
}

inline void put_anew(Archive& archive, const char* name, const std::vector<std::string>& values) {
  archive.erase(name);
  archive.put(name, values);
}

/// Makes of what an optimizer of a model that is spread over ranks has saved what one of the whole
/// model saves; a collective.
void make_whole(Archive& optimizer, const State& state);

/// The same with this rank's parts of the states, which `parts` then lists; no collective.
void note_parts(Archive& optimizer, const State& state, checkpoint::PartPlaces& parts);

/// Makes of what an optimizer of the whole model has saved this rank's part of it; what is a part
/// already stays.
void make_part(Archive& optimizer, const State& state);

}  // namespace tutti::train::detail

#if TUTTI_BODIES

namespace tutti::train::detail {

// Calls `f(spread parameter, its state, its entry of `shapes`)` for each that is spread.
template <class F>
void each_spread(Archive& optimizer, const State& state, F&& f) {
  std::unordered_map<std::string, const dist::SpreadParameter*> known;
  for (const auto& item : state.model->named_parameters()) {
    known.try_emplace(item.key(), state.spread->find(item.value()));
  }
  const auto names = optimizer.get<std::vector<std::string>>("parameters");
  auto shapes = optimizer.get<std::vector<std::string>>("shapes");
  for (std::size_t i = 0; i < names.size() && i < shapes.size(); ++i) {
    const auto found = known.find(names[i]);
    if (found != known.end() && found->second != nullptr) {
      f(*found->second, state_in(optimizer, i), shapes[i]);
    }
  }
  put_anew(optimizer, "shapes", shapes);
}

TUTTI_INLINE void make_whole(Archive& optimizer, const State& state) {
  each_spread(optimizer, state,
              [&](const dist::SpreadParameter& one, Archive* own, std::string& shape) {
                if (own != nullptr) {
                  replace_tensors(*own, state.spread->part_sizes(one),
                                  [&](const at::Tensor& part, const std::string&) {
                                    return state.spread->whole_of(one, part);
                                  });
                }
                shape = c10::str(at::IntArrayRef(one.sizes));
              });
}

TUTTI_INLINE void note_parts(Archive& optimizer, const State& state,
                             checkpoint::PartPlaces& parts) {
  const PartWriter writer(state);
  each_spread(optimizer, state,
              [&](const dist::SpreadParameter& one, Archive* own, std::string& shape) {
                if (own != nullptr && state.sharding == nullptr) {  // else they are listed already
                  replace_tensors(*own, state.spread->part_sizes(one),
                                  [&](const at::Tensor& part, const std::string& path) {
                                    return writer.note(one.parameter, 0, part, path, parts);
                                  });
                }
                shape = c10::str(at::IntArrayRef(one.sizes));
              });
}

TUTTI_INLINE void make_part(Archive& optimizer, const State& state) {
  each_spread(
      optimizer, state, [&](const dist::SpreadParameter& one, Archive* own, std::string& shape) {
        if (shape != c10::str(at::IntArrayRef(one.sizes))) {
          return;  // of another model, which is said when it is loaded
        }
        if (own != nullptr) {
          replace_tensors(*own, one.sizes, [&](const at::Tensor& whole, const std::string&) {
            return state.spread->part_of(one, whole);
          });
        }
        shape = c10::str(at::IntArrayRef(state.spread->part_sizes(one)));
      });
}

}  // namespace tutti::train::detail

#endif
