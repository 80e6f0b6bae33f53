// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

/// What a GPU can compute at most, by its name.
namespace tutti::detail {

/// Dense floating-point operations per second by precision; 0: it cannot, or nobody says.
struct PeakFlops {
  double fp64 = 0;
  double fp32 = 0;
  double tf32 = 0;
  double fp16 = 0;
  double bf16 = 0;
  double fp8 = 0;
};

/// The device of that name; zeros when the table lacks it.
///
/// name: as the driver gives it, "NVIDIA H100 80GB HBM3"; letter case is ignored.
/// Source: NVIDIA's data sheets; MosaicML Composer, `GPU_AVAILABLE_FLOPS`.
inline PeakFlops peak_flops_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("h200") || (has("h100") && has("hbm3"))) {
    return {67e12, 67e12, 494.5e12, 989.5e12, 989.5e12, 1979e12};
  }
  if (has("h100") && (has("pcie") || has("hbm2e"))) {
    return {51e12, 51e12, 378e12, 756.5e12, 756.5e12, 1513e12};
  }
  if (has("a100")) {
    return {19.5e12, 19.5e12, 156e12, 312e12, 312e12, 0};
  }
  if (has("a10")) {
    return {0, 31.2e12, 62.5e12, 125e12, 125e12, 0};
  }
  if (has("v100s")) {
    return {8.2e12, 16.4e12, 0, 130e12, 0, 0};
  }
  if (has("v100-sxm")) {
    return {7.8e12, 15.7e12, 0, 125e12, 0, 0};
  }
  if (has("v100-pcie")) {
    return {7e12, 14e12, 0, 112e12, 0, 0};
  }
  if (has("t4")) {
    return {0, 8.1e12, 0, 65e12, 0, 0};
  }
  return {};
}

}  // namespace tutti::detail
