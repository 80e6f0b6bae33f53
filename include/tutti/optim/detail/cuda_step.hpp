// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/cuda_kernel.hpp>
#include <tutti/optim/detail/parameter_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

/// One pass over the memory of many parameters on a CUDA device.
///
/// The operations and their roundings are those of the loops for the CPU in whole blocks of 8
/// (step_loops_x86.hpp); LibTorch's kernels for CUDA contract other products.
namespace tutti::optim::detail {

/// How many views one launch takes, and how many elements of a view one block of threads.
inline constexpr std::size_t views_in_launch = 64;
inline constexpr std::int64_t elements_in_block = 4096;

/// The kernel. TUTTI_NUMBERS is the type of the rule's numbers.
inline constexpr std::string_view step_text = R"cuda(
struct ParameterView {
  float *parameter, *gradient, *buffers[3], *average;
  long long size;
};
struct StepExtras {
  float scale, limit;
  bool keep;
  float follow;
  const float* device_scale;
};
struct Adam {
  float sign, shrink, coupled, keep, lerp, beta2, rest2, root, eps, step;
};
struct Sgd {
  float sign, shrink, coupled, momentum, undamped, step;
  bool nesterov, first;
};
struct ParameterViews {
  ParameterView views[64];
  unsigned first[64];  // block of each
  int count;
  StepExtras extras;
};

struct Element {
  float parameter, gradient, buffers[3], average;
};

__device__ void advance(const Adam& a, const ParameterView& s, Element& x) {
  float g = x.gradient * a.sign;
  float p = a.shrink != 0 ? fmaf(x.parameter, a.shrink, x.parameter) : x.parameter;
  g = a.coupled != 0 ? fmaf(p, a.coupled, g) : g;
  p *= a.keep;
  float& m = x.buffers[0];
  m = fmaf(a.lerp, g - m, a.lerp > 0 ? m : g);
  float& v = x.buffers[1];
  v = fmaf(a.rest2 * g, g, v * a.beta2);
  float square = v;
  if (s.buffers[2]) {
    float& largest = x.buffers[2];
    largest = largest != largest || largest > v ? largest : v;  // NaN where one is
    square = largest;
  }
  x.parameter = p + a.step * m / (sqrtf(square) / a.root + a.eps);
}

__device__ void advance(const Sgd& a, const ParameterView& s, Element& x) {
  float g = x.gradient * a.sign;
  const float p = a.shrink != 0 ? fmaf(x.parameter, a.shrink, x.parameter) : x.parameter;
  g = a.coupled != 0 ? fmaf(p, a.coupled, g) : g;
  if (s.buffers[0]) {
    float& buffer = x.buffers[0];
    buffer = a.first ? g : fmaf(a.undamped, g, buffer * a.momentum);
    g = a.nesterov ? fmaf(buffer, a.momentum, g) : buffer;
  }
  x.parameter = fmaf(g, a.step, p);
}

// Four elements, of which the first `count` exist; `whole` ones are read and written at once.
struct Place {
  long long at;
  int count;
  bool whole;
};
struct alignas(16) Four {
  float x[4];
};
__device__ Four load(const float* from, const Place& place) {
  Four out = {};
  if (from && place.whole) {
    out = *(const Four*)(from + place.at);
  } else if (from) {
    for (int i = 0; i < 4; ++i) {
      out.x[i] = i < place.count ? from[place.at + i] : 0;
    }
  }
  return out;
}
__device__ void store(float* to, const Place& place, const Four& values) {
  if (to && place.whole) {
    *(Four*)(to + place.at) = values;
  } else if (to) {
    for (int i = 0; i < 4; ++i) {
      if (i < place.count) {
        to[place.at + i] = values.x[i];
      }
    }
  }
}

__device__ bool aligned(const ParameterView& s) {
  const float* const all[] = {s.parameter,  s.gradient,   s.buffers[0],
                              s.buffers[1], s.buffers[2], s.average};
  unsigned long long bits = 0;
  for (int i = 0; i < 6; ++i) {
    bits |= (unsigned long long)all[i];
  }
  return bits % sizeof(Four) == 0;
}

__device__ void step_view(const ParameterView& s, const StepExtras& f, const TUTTI_NUMBERS& numbers,
                      const Place& place) {
  Four parameter = load(s.parameter, place);
  Four gradient = load(s.gradient, place);
  Four first = load(s.buffers[0], place);
  Four second = load(s.buffers[1], place);
  Four third = load(s.buffers[2], place);
  Four average = load(s.average, place);
  for (int i = 0; i < 4; ++i) {
    float g = gradient.x[i] * f.scale;
    g = g < -f.limit ? -f.limit : g > f.limit ? f.limit : g;  // NaN stays
    Element x = {parameter.x[i], g, {first.x[i], second.x[i], third.x[i]}, average.x[i]};
    advance(numbers, s, x);
    parameter.x[i] = x.parameter;
    gradient.x[i] = g;
    first.x[i] = x.buffers[0];
    second.x[i] = x.buffers[1];
    third.x[i] = x.buffers[2];
    average.x[i] = fmaf(x.average - x.parameter, f.follow, x.average);
  }
  store(s.parameter, place, parameter);
  store(f.keep ? s.gradient : nullptr, place, gradient);
  store(s.buffers[0], place, first);
  store(s.buffers[1], place, second);
  store(s.buffers[2], place, third);
  store(s.average, place, average);
}

extern "C" __global__ void tutti_optimizer_step(ParameterViews all, TUTTI_NUMBERS numbers) {
  int view = 0;  // of this block
  for (int end = all.count; end - view > 1;) {
    const int middle = (view + end) / 2;
    (all.first[middle] <= blockIdx.x ? view : end) = middle;
  }
  const ParameterView s = all.views[view];
  StepExtras f = all.extras;
  f.scale = f.device_scale ? *f.device_scale : f.scale;
  const bool whole = aligned(s);
  const long long begin = (long long)(blockIdx.x - all.first[view]) * 4096;
  for (int round = 0; round < 4; ++round) {
    const long long at = begin + 4 * (round * 256 + (int)threadIdx.x);
    if (at < s.size) {
      const int count = s.size - at < 4 ? (int)(s.size - at) : 4;
      step_view(s, f, numbers, {at, count, whole && count == 4});
    }
  }
}
)cuda";

/// The first argument of the kernel, as its text declares it.
struct CudaViews {
  std::array<ParameterView, views_in_launch> views;
  std::array<std::uint32_t, views_in_launch> first;
  std::int32_t count = 0;
  StepExtras extras;
};

constexpr const char* kernel_type(const AdamNumbers&) {
  return "Adam";
}
constexpr const char* kernel_type(const SgdNumbers&) {
  return "Sgd";
}

/// There is a kernel for a rule with these numbers.
template <class Numbers>
concept HasKernel = requires(const Numbers& numbers) { kernel_type(numbers); };

/// Updates all views, which are on this device, on its current stream; does not wait for it.
///
/// numbers: "Adam" or "Sgd", and where they are. Throws c10::Error as core/detail/cuda_kernel.hpp
/// says.
void step_on(c10::Device device, const std::vector<ParameterView>& views, const char* type,
             void* numbers, const StepExtras& extras);

template <class Numbers>
void step_on(c10::Device device, const std::vector<ParameterView>& views, Numbers numbers,
             const StepExtras& extras) {
  static_assert(sizeof(CudaViews) + sizeof(Numbers) <= 4096, "a kernel's arguments have 4 KiB");
  step_on(device, views, kernel_type(numbers), &numbers, extras);
}

}  // namespace tutti::optim::detail

#if TUTTI_BODIES

namespace tutti::optim::detail {

TUTTI_INLINE void step_on(c10::Device device, const std::vector<ParameterView>& views,
                          const char* type, void* numbers, const StepExtras& extras) {
  const ::tutti::detail::CudaKernel kernel{.text = step_text,
                                           .name = "tutti_optimizer_step",
                                           .macros = {std::string("TUTTI_NUMBERS=") + type}};
  CudaViews batch{.views = {}, .first = {}, .extras = extras};
  std::uint32_t blocks = 0;
  const auto flush = [&] {
    if (blocks > 0) {
      void* arguments[] = {&batch, numbers};
      ::tutti::detail::launch_kernel(kernel, {.grid = {blocks, 1, 1}, .block = {256, 1, 1}}, device,
                                     arguments);
    }
    batch.count = 0;
    blocks = 0;
  };
  for (const ParameterView& view : views) {
    if (view.size > 0) {
      const auto at = static_cast<std::size_t>(batch.count++);
      batch.views[at] = view;
      batch.first[at] = blocks;
      blocks += static_cast<std::uint32_t>((view.size + elements_in_block - 1) / elements_in_block);
    }
    if (batch.count == static_cast<std::int32_t>(views_in_launch)) {
      flush();
    }
  }
  flush();
}

}  // namespace tutti::optim::detail

#endif
