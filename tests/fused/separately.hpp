// SPDX-License-Identifier: Apache-2.0
#pragma once

// The stages of a fused pass one after the other, as tensor expressions.

#include <ATen/ATen.h>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/fused/stages.hpp>

namespace separately {

inline at::Tensor per_channel(const std::vector<double>& values) {
  return at::tensor(values, at::kFloat).view({-1, 1, 1});
}

inline at::Tensor run(tutti::fused::Normalize& stage, const at::Tensor& x, double) {
  at::Tensor out = x.to(at::kFloat).div(stage.divisor);
  out = stage.mean.empty() ? out : out.sub(per_channel(stage.mean));
  return stage.std.empty() ? out : out.div(per_channel(stage.std));
}

inline at::Tensor run(tutti::fused::RandomFlip& stage, const at::Tensor& x, double) {
  at::Tensor out = x.clone();
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    if (stage.rng.uniform() < stage.p) {
      out[i] = x[i].flip({2});
    }
  }
  return out;
}

inline at::Tensor run(tutti::fused::RandomCrop& stage, const at::Tensor& x, double) {
  const std::int64_t p = stage.padding;
  const std::int64_t height = stage.height == 0 ? x.size(2) : stage.height;
  const std::int64_t width = stage.width == 0 ? x.size(3) : stage.width;
  const at::Tensor framed = at::constant_pad_nd(x, {p, p, p, p});
  std::vector<at::Tensor> out;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const std::int64_t row = stage.rng.integer(0, framed.size(2) - height + 1);
    const std::int64_t column = stage.rng.integer(0, framed.size(3) - width + 1);
    out.push_back(framed[i].narrow(1, row, height).narrow(2, column, width));
  }
  return at::stack(out);
}

inline at::Tensor run(tutti::ProgressiveResizing& stage, const at::Tensor& x, double elapsed) {
  const std::int64_t width = stage.width_at(elapsed, x.size(3));
  return tutti::functional::resize_batch_to(x, {}, x.size(2) * width / x.size(3), width, stage.rng,
                                            {.mode = stage.mode})
      .input;
}

// The algorithms by their own hooks.
template <class Stage>
at::Tensor run(Stage& stage, const at::Tensor& x, double) {
  tutti::State state;
  state.batch = tutti::Batch(x, at::zeros({x.size(0)}, at::kLong));
  if constexpr (requires { stage.apply(tutti::AfterDataloader{}, state); }) {
    stage.apply(tutti::AfterDataloader{}, state);
  } else {
    stage.apply(tutti::BeforeForward{}, state);
  }
  return state.batch.inputs();
}

// All of them. Takes copies, which draw what the originals will draw.
template <class... Stages>
at::Tensor run_all(at::Tensor x, double elapsed, Stages... stages) {
  ((x = run(stages, x, elapsed)), ...);
  return x;
}

}  // namespace separately
