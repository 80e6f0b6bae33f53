// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/spread_model.hpp>

namespace tutti::dist {

namespace detail {

// By methods alone: who sees a spread model need not compile operators.
TUTTI_INLINE at::Tensor put_together(const std::vector<at::Tensor>& parts, std::int64_t dim) {
  std::vector<std::int64_t> sizes = parts.front().sizes().vec();
  std::int64_t& along = sizes[static_cast<std::size_t>(dim)];
  along = 0;
  for (const at::Tensor& part : parts) {
    along += part.size(dim);
  }
  const at::Tensor out = parts.front().new_empty(sizes);
  std::int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    out.narrow(dim, begin, part.size(dim)).copy_(part);
    begin += part.size(dim);
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE SpreadModel::SpreadModel(std::shared_ptr<Communicator> world, int degree) {
  TUTTI_CHECK_VALUE(degree >= 1 && world->size() % degree == 0, "tensor_parallel: degree is ",
                    degree, " in a run of ", world->size(),
                    " ranks, expected a number that divides theirs");
  std::vector<int> same_copy;
  std::vector<int> same_part;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (rank / degree == world->rank() / degree) {
      same_copy.push_back(rank);
    }
    if (rank % degree == world->rank() % degree) {
      same_part.push_back(rank);
    }
  }
  tensor_ = degree == world->size() ? world : world->subgroup(same_copy);
  data_ = degree == 1 ? world : world->subgroup(same_part);
}

TUTTI_INLINE void SpreadModel::cut(SpreadParameter one) {
  if (find(one.parameter) != nullptr) {
    return;  // a tied one
  }
  const c10::AutoGradMode no_grad(false);
  one.sizes = one.parameter.sizes().vec();
  one.parameter.mutable_grad().reset();
  one.parameter.set_data(part_of(one, one.parameter));
  places_.emplace(one.parameter.unsafeGetTensorImpl(), parameters_.size());
  parameters_.push_back(std::move(one));
}

TUTTI_INLINE std::vector<std::int64_t> SpreadModel::part_sizes(const SpreadParameter& one) const {
  std::vector<std::int64_t> out = one.sizes;
  std::int64_t& along = out[static_cast<std::size_t>(one.dim)];
  const std::int64_t rows = along / one.tensors;
  const std::int64_t begin = std::min(rows, tensor_->rank() / one.copies * chunk(one));
  along = (std::min(rows, begin + chunk(one)) - begin) * one.tensors;
  return out;
}

TUTTI_INLINE std::vector<SpreadModel::Run> SpreadModel::runs(const SpreadParameter& one) const {
  const std::int64_t rows = one.sizes[static_cast<std::size_t>(one.dim)] / one.tensors;
  const std::int64_t first = std::min(rows, tensor_->rank() / one.copies * chunk(one));
  const std::int64_t size = std::min(rows, first + chunk(one)) - first;
  std::vector<Run> out;
  for (std::int64_t i = 0; size > 0 && i < one.tensors; ++i) {
    out.push_back({.begin = i * size, .in_whole = i * rows + first, .size = size});
  }
  return out;
}

TUTTI_INLINE at::Tensor SpreadModel::part_of(const SpreadParameter& like,
                                             const at::Tensor& whole) const {
  TUTTI_CHECK(whole.sizes() == at::IntArrayRef(like.sizes), "tensor_parallel: a tensor ",
              whole.sizes(), " is to be cut as a parameter of ", at::IntArrayRef(like.sizes));
  const std::int64_t rows = chunk(like);
  const std::int64_t place = tensor_->rank() / like.copies;
  std::vector<at::Tensor> own;
  for (const at::Tensor& one : whole.detach().chunk(like.tensors, like.dim)) {
    const std::int64_t begin = std::min(one.size(like.dim), place * rows);
    const std::int64_t end = std::min(one.size(like.dim), begin + rows);
    own.push_back(one.narrow(like.dim, begin, end - begin));
  }
  return detail::put_together(own, like.dim);
}

TUTTI_INLINE at::Tensor SpreadModel::whole_of(const SpreadParameter& like,
                                              const at::Tensor& part) const {
  const std::int64_t rows = chunk(like);
  at::Tensor own = part.detach();
  std::vector<std::int64_t> sizes = own.sizes().vec();
  std::int64_t& along = sizes[static_cast<std::size_t>(like.dim)];
  if (const std::int64_t missing = rows * like.tensors - along; missing > 0) {
    along = missing;  // of the last rank, where the others have more
    own = detail::put_together({own, own.new_zeros(sizes)}, like.dim);
  }
  const std::vector<at::Tensor> all = tensor_->all_gather(own.contiguous());
  const std::int64_t size = like.sizes[static_cast<std::size_t>(like.dim)] / like.tensors;
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < like.tensors; ++i) {
    std::vector<at::Tensor> parts;
    for (std::size_t rank = 0; rank < all.size(); rank += static_cast<std::size_t>(like.copies)) {
      parts.push_back(all[rank].narrow(like.dim, i * rows, rows));
    }
    tensors.push_back(detail::put_together(parts, like.dim).narrow(like.dim, 0, size));
  }
  return detail::put_together(tensors, like.dim);
}

class SpreadModel::Whole final : public Summoned {
 public:
  Whole(const SpreadModel& model, bool write_back) : model_(model), write_back_(write_back) {
    TUTTI_CHECK(!model.summoned_,
                "tensor_parallel: the whole parameters are in the model already; use those");
    const c10::AutoGradMode no_grad(false);
    for (const SpreadParameter& one : model.parameters()) {
      parts_.push_back(one.parameter.detach());
      wholes_.push_back(model.whole_of(one, parts_.back()));
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      at::Tensor parameter = model.parameters()[i].parameter;
      gradients_.push_back(parameter.grad());
      parameter.mutable_grad().reset();
      parameter.set_data(wholes_[i]);
    }
    model.summoned_ = true;
  }
  ~Whole() override {
    const c10::AutoGradMode no_grad(false);
    model_.summoned_ = false;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const SpreadParameter& one = model_.parameters()[i];
      at::Tensor parameter = one.parameter;
      if (write_back_) {
        parts_[i].copy_(model_.part_of(one, parameter));
      }
      parameter.set_data(parts_[i]);
      parameter.mutable_grad() = gradients_[i];
    }
  }

 private:
  const SpreadModel& model_;
  bool write_back_;
  std::vector<at::Tensor> parts_, wholes_, gradients_;
};

TUTTI_INLINE std::unique_ptr<Summoned> SpreadModel::summon(bool write_back) const {
  return std::make_unique<Whole>(*this, write_back);
}

}  // namespace tutti::dist
