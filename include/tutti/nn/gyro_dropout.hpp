// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/EmptyTensor.h>

/// Dropout whose masks come back: gyro dropout as a layer.
namespace tutti::nn {

/// Hyperparameters of GyroDropout.
struct GyroDropoutOptions {
  double p = 0.5;            ///< how likely a mask drops a feature; in [0, 1)
  std::int64_t sigma = 256;  ///< how many masks there are; >= 1
  std::int64_t tau = 16;     ///< how many of them are in use at a time; >= 1
  std::int64_t period = 1;   ///< calls until others are picked; >= 1
};

/// Drops features by `tau` of `sigma` masks drawn once; every `period` calls it picks others.
///
/// x: [N, D]; [N, T, D], the same features at every T; or [N, C, ...] with four dimensions or more,
/// whole channels. Rows are dealt to the masks in order: row i of N has mask `i * tau / N`, rounded
/// down. In training `y = x * mask / (1 - p)`, otherwise x itself. The masks are drawn in the first
/// call; the number of features must stay. No parameters, no buffers: state() is what a checkpoint
/// needs.
/// Source: Lee et al., "Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training", MLSys
/// 2022.
class GyroDropoutImpl : public Substitute {
 public:
  ~GyroDropoutImpl() override;
  /// What changes from call to call.
  struct State {
    at::Tensor masks;                 ///< [sigma, features], 0 or 1, fp32 on the host
    std::vector<std::int64_t> picks;  ///< the tau masks in use
    std::int64_t calls = 0;           ///< in training
    Rng rng;
  };

  explicit GyroDropoutImpl(const GyroDropoutOptions& with = {}, const Rng& rng = Rng())
      : options(with) {
    TUTTI_CHECK_VALUE(with.p >= 0 && with.p < 1, "GyroDropout: p is ", with.p,
                      ", expected a number from 0 to below 1");
    TUTTI_CHECK_VALUE(with.sigma >= 1, "GyroDropout: sigma is ", with.sigma,
                      ", expected 1 or more");
    TUTTI_CHECK_VALUE(with.tau >= 1, "GyroDropout: tau is ", with.tau, ", expected 1 or more");
    TUTTI_CHECK_VALUE(with.period >= 1, "GyroDropout: period is ", with.period,
                      ", expected 1 or more");
    state_.rng = rng;
  }

  at::Tensor forward(const at::Tensor& x);

  /// The mask of each of `rows` examples in the last call: [rows, features], 0 or 1.
  [[nodiscard]] at::Tensor mask(std::int64_t rows) const;

  [[nodiscard]] const State& state() const { return state_; }

  /// Goes on from `state`.
  /// Throws c10::Error (ValueError) when it is that of a layer with another sigma or tau.
  void set_state(State state);

  /// Writes the state; restores what it wrote.
  void save_state(Archive& archive) const;
  static State load_state(const Archive& archive);

  GyroDropoutOptions options;

 private:
  void prepare(std::int64_t features);

  State state_;
  at::Tensor scaled_;  // [N, features]: mask / (1 - p), like the last input
};
TORCH_MODULE(GyroDropout);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE at::Tensor GyroDropoutImpl::forward(const at::Tensor& x) {
  if (!is_training()) {
    return x;
  }
  TUTTI_CHECK(x.dim() >= 2, "GyroDropout: the input is ", x.sizes(),
              ", expected two dimensions or more, the first of which counts examples");
  const std::int64_t dim = x.dim() == 3 ? 2 : 1;
  prepare(x.size(dim));
  if (!scaled_.defined() || scaled_.size(0) != x.size(0) || scaled_.device() != x.device() ||
      scaled_.scalar_type() != x.scalar_type()) {
    scaled_ = mask(x.size(0)).div_(1 - options.p).to(x.options());
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  shape[static_cast<std::size_t>(dim)] = x.size(dim);
  return x.mul(scaled_.view(shape));
}

TUTTI_INLINE at::Tensor GyroDropoutImpl::mask(std::int64_t rows) const {
  at::Tensor index(at::detail::empty_cpu({rows}, at::kLong, false, std::nullopt));
  auto* out = index.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows; ++i) {
    out[i] = state_.picks[static_cast<std::size_t>(i * options.tau / rows)];
  }
  return state_.masks.index_select(0, index);
}

TUTTI_INLINE void GyroDropoutImpl::set_state(State state) {
  const std::int64_t masks = state.masks.defined() ? state.masks.size(0) : options.sigma;
  TUTTI_CHECK_VALUE(masks == options.sigma, "GyroDropout: the state has ", masks,
                    " masks and sigma is ", options.sigma, "; go on with the sigma it was saved ",
                    "with");
  const std::int64_t picks = state.picks.empty() ? options.tau : std::ssize(state.picks);
  TUTTI_CHECK_VALUE(picks == options.tau, "GyroDropout: the state has ", picks,
                    " masks in use and tau is ", options.tau, "; go on with the tau it was saved ",
                    "with");
  state_ = std::move(state);
  scaled_.reset();
}

TUTTI_INLINE void GyroDropoutImpl::save_state(Archive& archive) const {
  archive.put("calls", state_.calls);
  archive.put("seed", state_.rng.seed());
  archive.put("stream", state_.rng.stream());
  archive.put("position", state_.rng.position());
  archive.put("picks", state_.picks);
  if (state_.masks.defined()) {
    archive.put("masks", state_.masks.to(at::kBool));
  }
}

TUTTI_INLINE GyroDropoutImpl::State GyroDropoutImpl::load_state(const Archive& archive) {
  State state;
  state.calls = archive.get<std::int64_t>("calls");
  state.rng.restore(archive.get<std::uint64_t>("seed"), archive.get<std::uint64_t>("stream"),
                    archive.get<std::uint64_t>("position"));
  state.picks = archive.get<std::vector<std::int64_t>>("picks");
  if (archive.contains("masks")) {
    state.masks = archive.tensor("masks").to(at::kFloat);
  }
  return state;
}

TUTTI_INLINE void GyroDropoutImpl::prepare(std::int64_t features) {
  if (!state_.masks.defined()) {
    state_.masks = at::Tensor(
        at::detail::empty_cpu({options.sigma, features}, at::kFloat, false, std::nullopt));
    auto* out = state_.masks.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < options.sigma * features; ++i) {
      out[i] = state_.rng.uniform() > options.p ? 1.0F : 0.0F;
    }
  }
  TUTTI_CHECK(state_.masks.size(1) == features, "GyroDropout: the input has ", features,
              " features, expected ", state_.masks.size(1), " as in the first call");
  if (state_.calls++ % options.period == 0) {
    state_.picks.clear();
    for (std::int64_t i = 0; i < options.tau; ++i) {
      state_.picks.push_back(state_.rng.integer(0, options.sigma));
    }
    scaled_.reset();
  }
}

}  // namespace tutti::nn

namespace tutti::nn {

TUTTI_INLINE GyroDropoutImpl::~GyroDropoutImpl() = default;

}  // namespace tutti::nn

#endif
