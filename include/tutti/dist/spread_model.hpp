// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/sharding.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

/// A model that is spread over ranks: of which of its parameters a rank has a part.
namespace tutti::dist {

/// A parameter of which each rank of a tensor-parallel group has a part.
struct SpreadParameter {
  at::Tensor parameter;               ///< the model's own tensor, of this rank's part
  std::vector<std::int64_t> sizes{};  ///< of the whole
  std::int64_t dim = 0;               ///< that is cut
  std::int64_t tensors = 1;  ///< of how many tensors it is made that are cut each by itself
  int copies = 1;            ///< neighbouring ranks that have the same part
};

/// The ranks over which a model is spread, and its parts.
///
/// Ranks of one copy of the model are neighbours: rank = copy * degree + part. All make the same
/// calls in the same order.
class SpreadModel {
 public:
  /// A collective of `world`. degree: ranks of a copy; divides the ranks of `world`.
  SpreadModel(std::shared_ptr<Communicator> world, int degree);

  /// The ranks that have one copy of the model together. They read the same examples.
  [[nodiscard]] const std::shared_ptr<Communicator>& tensor_group() const { return tensor_; }
  /// The ranks that have the same part: over which examples are dealt and gradients averaged.
  [[nodiscard]] const std::shared_ptr<Communicator>& data_group() const { return data_; }

  /// Replaces a parameter's memory by this rank's part of it; once for each. one: with the whole.
  void cut(SpreadParameter one);

  [[nodiscard]] const std::vector<SpreadParameter>& parameters() const { return parameters_; }

  /// What is known of a parameter of the model; null: every rank has all of it.
  [[nodiscard]] const SpreadParameter* find(const at::Tensor& parameter) const {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    return found == places_.end() ? nullptr : &parameters_[found->second];
  }

  /// The sizes of this rank's part of it.
  [[nodiscard]] std::vector<std::int64_t> part_sizes(const SpreadParameter& one) const;

  /// Neighbouring elements along the dimension that is cut.
  struct Run {
    std::int64_t begin;     ///< of the first one in this rank's part
    std::int64_t in_whole;  ///< of the same one in the whole
    std::int64_t size;
  };

  /// The runs of which this rank's part of a parameter is made, in order; none where it is empty.
  [[nodiscard]] std::vector<Run> runs(const SpreadParameter& one) const;

  /// Of the ranks that have the same part this is the first.
  [[nodiscard]] bool is_first_with(const at::Tensor& parameter) const {
    return tensor_->rank() % ranks_with(parameter) == 0;
  }

  /// This rank's part of a tensor that is shaped as the whole parameter; a copy.
  [[nodiscard]] at::Tensor part_of(const SpreadParameter& like, const at::Tensor& whole) const;

  /// The whole of which each rank has such a part; a collective of tensor_group().
  [[nodiscard]] at::Tensor whole_of(const SpreadParameter& like, const at::Tensor& part) const;

  /// How many ranks of tensor_group() have the same numbers in this parameter.
  [[nodiscard]] int ranks_with(const at::Tensor& parameter) const {
    const SpreadParameter* const part = find(parameter);
    return part != nullptr ? part->copies : tensor_->size();
  }

  /// Puts the whole parameters into the model; a collective of tensor_group(). They may be read
  /// while the result lives; the model must not run meanwhile.
  ///
  /// write_back: the parts become those of what the parameters are at the end; every rank wrote the
  /// same.
  [[nodiscard]] std::unique_ptr<Summoned> summon(bool write_back = false) const;

  /// The whole parameters are in the model.
  [[nodiscard]] bool summoned() const { return summoned_; }

 private:
  class Whole;

  [[nodiscard]] std::int64_t parts(const SpreadParameter& one) const {
    return tensor_->size() / one.copies;
  }
  // Rows of each of the tensors that a part has, but for the last ones.
  [[nodiscard]] std::int64_t chunk(const SpreadParameter& one) const {
    const std::int64_t rows = one.sizes[static_cast<std::size_t>(one.dim)] / one.tensors;
    return (rows + parts(one) - 1) / parts(one);
  }

  std::shared_ptr<Communicator> tensor_;
  std::shared_ptr<Communicator> data_;
  std::vector<SpreadParameter> parameters_;
  std::unordered_map<const void*, std::size_t> places_;  // by parameter
  mutable bool summoned_ = false;
};

/// What stands in for a layer of a model that is spread over ranks; found in its slot by
/// dynamic_cast.
class SpreadLayer {
 public:
  SpreadLayer() = default;
  virtual ~SpreadLayer() = default;
  SpreadLayer(const SpreadLayer&) = delete;
  SpreadLayer& operator=(const SpreadLayer&) = delete;

  [[nodiscard]] virtual const std::shared_ptr<SpreadModel>& spread_model() const = 0;
};

/// The ranks that read different examples; all of them where the model is not spread.
inline const std::shared_ptr<Communicator>& data_group(const State& state) {
  return state.spread != nullptr ? state.spread->data_group() : state.communicator;
}

/// This rank among these.
inline int data_rank(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->rank() : state.rank;
}

/// How many these are.
inline int data_ranks(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->size() : state.world_size;
}

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/spread_model.inl.hpp>
#endif
