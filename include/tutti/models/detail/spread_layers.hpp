// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/dist/tensor_parallel.hpp>
#include <tutti/models/detail/language.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/embedding.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/rms_norm.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/transposed_linear.hpp>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <c10/core/GradMode.h>

/// What stands in for the layers of a model that is spread over ranks: they keep their place, their
/// names and their parameters, of which each rank has a part, and compute by these.
namespace tutti::models::detail {

// What the stand-ins of a model share.
struct Spread {
  std::shared_ptr<dist::SpreadModel> model;
  dist::SequenceParallel sequence = dist::SequenceParallel::no;
  // Between the layers a rank has its own positions alone; as the pass began.
  bool cut = false;
  // What several column layers read, on its way through all of them.
  at::Tensor entered_from{};
  at::Tensor entered{};

  [[nodiscard]] const std::shared_ptr<dist::Communicator>& group() const {
    return model->tensor_group();
  }
  [[nodiscard]] dist::TensorParallel over() const {
    return {.group = group(),
            .sequence = cut ? dist::SequenceParallel::yes : dist::SequenceParallel::no};
  }

  // Begins a pass of so many positions. Without gradients, lengths that the ranks do not divide are
  // not cut: a generated text grows token by token.
  void begin(std::int64_t length) {
    forget();
    cut = sequence == dist::SequenceParallel::yes &&
          (c10::GradMode::is_enabled() || length % group()->size() == 0);
  }

  void forget() {
    entered_from = at::Tensor();
    entered = at::Tensor();
  }

  at::Tensor enter(const at::Tensor& x) {
    if (!entered_from.is_same(x)) {
      entered = dist::enter_parallel(x, over());
      entered_from = x;
    }
    return entered;
  }

  at::Tensor leave(const at::Tensor& x) {
    forget();
    return dist::leave_parallel(x, over());
  }

  // A parameter that every rank has whole, between the layers.
  [[nodiscard]] at::Tensor between(const at::Tensor& parameter) const {
    return cut ? dist::sum_gradient(parameter, group()) : parameter;
  }
};
using SpreadPtr = std::shared_ptr<Spread>;

class SpreadSubstitute : public nn::Substitute, public dist::SpreadLayer, public nn::StaysInSlot {
 public:
  SpreadSubstitute(const char* name, SpreadPtr spread)
      : nn::Substitute(name), spread_(std::move(spread)) {}
  ~SpreadSubstitute() override;
  [[nodiscard]] const std::shared_ptr<dist::SpreadModel>& spread_model() const override {
    return spread_->model;
  }
  [[nodiscard]] std::string why_it_stays() const override {
    return "is spread over ranks by tensor_parallel(), and each has a part of it; leave out that "
           "surgery, or do it before";
  }

 protected:
  SpreadPtr spread_;
};

inline at::Tensor matrix_of(const torch::nn::LinearImpl& layer) {
  return layer.weight;
}
inline at::Tensor matrix_of(const nn::PlainTransposedLinearImpl& layer) {
  return layer.weight.t();
}

// Of a layer's outputs a rank has its own. Stand-ins are the layer's, which lives as long.
template <class Layer>
class ColumnLinearImpl final : public SpreadSubstitute {
 public:
  // copies: the ranks that have the same part; null: this rank alone.
  ColumnLinearImpl(SpreadPtr spread, const Layer& layer, std::shared_ptr<dist::Communicator> copies)
      : SpreadSubstitute("ColumnLinear", std::move(spread)),
        layer_(layer),
        copies_(std::move(copies)) {}

  // x: [N, own or all positions, in]. Returns [N, all positions, own outputs].
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor all = spread_->enter(x);
    if (!copies_) {
      return at::linear(all, matrix_of(layer_), layer_.bias);
    }
    return at::linear(all, dist::sum_gradient(matrix_of(layer_), copies_),
                      dist::sum_gradient(layer_.bias, copies_));
  }

 private:
  const Layer& layer_;
  std::shared_ptr<dist::Communicator> copies_;
};

// Of a layer's inputs a rank has its own.
template <class Layer>
class RowLinearImpl final : public SpreadSubstitute {
 public:
  RowLinearImpl(SpreadPtr spread, const Layer& layer)
      : SpreadSubstitute("RowLinear", std::move(spread)), layer_(layer) {}

  // x: [N, all positions, own inputs]. Returns [N, own or all positions, out].
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor out = spread_->leave(at::linear(x, matrix_of(layer_)));
    return layer_.bias.defined() ? out + spread_->between(layer_.bias).to(out.scalar_type()) : out;
  }

 private:
  const Layer& layer_;
};

// A table of which a rank has some rows; with it a pass begins.
class SpreadEmbeddingImpl final : public SpreadSubstitute {
 public:
  // cuts: behind it a rank has its own positions; else who comes later cuts.
  SpreadEmbeddingImpl(SpreadPtr spread, const torch::nn::EmbeddingImpl& layer, bool cuts)
      : SpreadSubstitute("SpreadEmbedding", std::move(spread)), layer_(layer), cuts_(cuts) {}
  ~SpreadEmbeddingImpl() override;
  at::Tensor forward(const at::Tensor& ids);

 private:
  const torch::nn::EmbeddingImpl& layer_;
  bool cuts_;
};

// What a normalisation does beside it.
struct SpreadNormHow {
  bool of_heads = false;  // it sees a part of the heads, not of the positions
  bool joins = false;     // behind it every rank has all positions
  bool enters = false;    // behind it a column layer begins
};

// A normalisation of own positions, or of own heads.
template <class Layer>
class SpreadNormImpl final : public SpreadSubstitute {
 public:
  SpreadNormImpl(SpreadPtr spread, const Layer& layer, SpreadNormHow how)
      : SpreadSubstitute("SpreadNorm", std::move(spread)), layer_(layer), how_(how) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = normalised(x);
    if (how_.enters) {
      return dist::enter_parallel(y, spread_->over());
    }
    return how_.joins && spread_->cut ? dist::join_sequence(y, spread_->over()) : y;
  }

 private:
  [[nodiscard]] at::Tensor own(const at::Tensor& parameter) const {
    return how_.of_heads ? dist::sum_gradient(parameter, spread_->group())
                         : spread_->between(parameter);
  }

  at::Tensor normalised(const at::Tensor& x) {
    if constexpr (std::is_same_v<Layer, torch::nn::LayerNormImpl>) {
      return at::layer_norm(x, layer_.options.normalized_shape(), own(layer_.weight),
                            own(layer_.bias), layer_.options.eps());
    } else {
      return functional::rms_norm(x, own(layer_.weight), layer_.options.eps);
    }
  }

  const Layer& layer_;
  SpreadNormHow how_;
};

// Dropout whose draws are each rank's own, since so are what it drops: heads, widths or positions.
// Seeds come out of the default generator of the CPU, which is the same on all ranks and so stays
// so; it is all there is to save.
class SpreadDropoutImpl final : public SpreadSubstitute {
 public:
  enum class Place {
    inside,   // between a column and a row layer
    between,  // between a row and a column layer
    first,    // there, and with it sequence parallel begins
  };
  SpreadDropoutImpl(SpreadPtr spread, const torch::nn::DropoutImpl& layer, Place place)
      : SpreadSubstitute("SpreadDropout", std::move(spread)), layer_(layer), place_(place) {}
  ~SpreadDropoutImpl() override;
  at::Tensor forward(const at::Tensor& given);

 private:
  const torch::nn::DropoutImpl& layer_;
  Place place_;
};

// `p` of x's numbers are 0, by draws of this rank's own; the others grow as much.
at::Tensor drop_own(const at::Tensor& x, double p, int rank);

// The head of a language model over the ranks.
class SpreadHead final : public SpreadTokens {
 public:
  SpreadHead(SpreadPtr spread, std::int64_t vocabulary)
      : spread_(std::move(spread)), vocabulary_(vocabulary) {}
  ~SpreadHead() override;
  [[nodiscard]] std::int64_t vocabulary() const override { return vocabulary_; }
  [[nodiscard]] at::Tensor logits(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias) const override {
    return dist::column_linear(x, weight, bias, {.group = spread_->group()});
  }
  [[nodiscard]] at::Tensor whole(const at::Tensor& logits) const override {
    return dist::join_vocabulary(logits, vocabulary_, {.group = spread_->group()});
  }
  [[nodiscard]] at::Tensor losses(const at::Tensor& logits,
                                  const at::Tensor& targets) const override {
    return dist::vocabulary_losses(logits, targets, vocabulary_, {.group = spread_->group()});
  }

 private:
  SpreadPtr spread_;
  std::int64_t vocabulary_;
};

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

TUTTI_INLINE SpreadSubstitute::~SpreadSubstitute() = default;
TUTTI_INLINE SpreadEmbeddingImpl::~SpreadEmbeddingImpl() = default;
TUTTI_INLINE SpreadDropoutImpl::~SpreadDropoutImpl() = default;
TUTTI_INLINE SpreadHead::~SpreadHead() = default;

TUTTI_INLINE at::Tensor SpreadEmbeddingImpl::forward(const at::Tensor& ids) {
  spread_->begin(ids.size(1));
  dist::TensorParallel over = spread_->over();
  if (!cuts_) {
    over.sequence = dist::SequenceParallel::no;
  }
  return dist::vocabulary_embedding(ids, layer_.weight, layer_.options.num_embeddings(), over,
                                    layer_.options.padding_idx().value_or(-1));
}

TUTTI_INLINE at::Tensor drop_own(const at::Tensor& x, double p, int rank) {
  const auto drawn = at::empty({}, at::kLong).random_().item<std::int64_t>();
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;  // far from each other, by Weyl's sequence
  at::Generator own = at::globalContext().defaultGenerator(x.device()).clone();
  own.set_current_seed(static_cast<std::uint64_t>(drawn) +
                       static_cast<std::uint64_t>(rank) * golden);
  const at::Tensor kept = at::empty_like(x.detach()).bernoulli_(1 - p, own);
  return p == 1 ? x * kept : x * kept.div_(1 - p);
}

TUTTI_INLINE at::Tensor SpreadDropoutImpl::forward(const at::Tensor& given) {
  at::Tensor x = given;
  if (place_ == Place::first) {
    spread_->begin(x.size(1));
    x = spread_->cut ? dist::split_sequence(x, spread_->over()) : x;
  }
  const double p = layer_.options.p();
  if (!layer_.is_training() || p == 0) {
    return x;
  }
  return place_ == Place::inside || spread_->cut ? drop_own(x, p, spread_->group()->rank())
                                                 : at::dropout(x, p, /*train=*/true);
}

}  // namespace tutti::models::detail

#endif
