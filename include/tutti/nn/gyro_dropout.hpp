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
#include <tutti/nn/gyro_dropout.inl.hpp>
#endif
