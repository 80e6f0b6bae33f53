// SPDX-License-Identifier: Apache-2.0
// A recipe that the compiler checks, and a function of an algorithm: what a package has to make
// possible.
#include <cstdio>

#include <ATen/ops/tensor.h>

#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/version.hpp>

static_assert(tutti::Recipe<tutti::With<tutti::LabelSmoothing{.smoothing = 0.1}>>::valid);

int main() {
  const at::Tensor logits = at::tensor({1.0, 2.0, 3.0, 4.0}).view({1, 4});
  const at::Tensor target = at::tensor({2}, at::kLong);
  const at::Tensor smooth = tutti::functional::smooth_labels(logits, target, 0.4);
  std::printf("tutti %d.%d.%d: %.2f %.2f\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR,
              TUTTI_VERSION_PATCH, smooth[0][0].item<double>(), smooth[0][2].item<double>());
}
