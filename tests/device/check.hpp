// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include <tutti/train/options.hpp>
#include <tutti/train/precision.hpp>

#include "device/stand_in.hpp"
#include "support/catch.hpp"
#include "together/pairs.hpp"

// What every algorithm of a pack does on a device that is not the host.
namespace device_tests {

/// The same run on the device.
inline tutti::TrainerOptions on_device(tutti::TrainerOptions options) {
  options.device = "cuda";
  return options;
}

/// Every algorithm of the pack alone: the weights that it trains are those of the host. A GPU's
/// library decomposes weights into factors of other signs, and less exactly.
template <class P, class Make>
void check_same_as_host(Make&& make, const tutti::TrainerOptions& options) {
  for (std::size_t i = 0; i < P::fresh; ++i) {
    INFO(P::names[i]);
    at::Tensor host = P::weights(make(i), options, i);
    at::Tensor device = P::weights(make(i), on_device(options), i);
    REQUIRE(device.is_cuda());
    CHECK(host.isfinite().all().template item<bool>());
    double most = 1e-4;
    if (std::string_view(P::names[i]) == "Factorize" && !stand_in::is_there()) {
      host = host.abs();
      device = device.abs();
      most = 5e-4;
    }
    CHECK((device.cpu() - host).abs().max().template item<double>() <= most);
  }
}

/// Every algorithm of the pack alone: trains in microbatches under autocast, with a gradient scaler
/// in half precision.
template <class P, class Make>
void check_amp(Make&& make, tutti::TrainerOptions options) {
  for (const auto precision : {tutti::Precision::amp_bf16, tutti::Precision::amp_fp16}) {
    options.precision = precision;
    for (std::size_t i = 0; i < P::fresh; ++i) {
      INFO(P::names[i] << " in " << to_string(precision));
      const at::Tensor weights = P::weights(make(i), on_device(options), i);
      CHECK(weights.isfinite().all().template item<bool>());
    }
  }
}

}  // namespace device_tests
