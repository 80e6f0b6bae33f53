// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/gyro_dropout.hpp>

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
