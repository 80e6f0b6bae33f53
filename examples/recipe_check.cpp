// SPDX-License-Identifier: Apache-2.0
// Recipes that the compiler checks: change one, build, and read what it says.
//
// Run it:    recipe_check
// It prints: the plan of the last recipe, event by event, with the rules that hold and why
// The same from CMake, for policies of your own: tutti_check_recipe(name header recipe...)
#include <cstdio>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/core/recipe.hpp>

// An algorithm of your own takes part in the rules by its tags.
struct GradientNoise final {
  static constexpr tutti::Rules rules{
      .tags = {tutti::id<tutti::clips_gradients>},
      .runs_after = {{tutti::id<tutti::GradientClipping>, "the noise is not to be clipped"}},
  };
  void apply(tutti::AfterTrainBatch, tutti::State&) const {}
};

using tutti::Recipe;
using tutti::With;

static_assert(Recipe<tutti::MixUp, tutti::BlurPool, tutti::LabelSmoothing, tutti::EMA>::valid);
static_assert(Recipe<With<tutti::MixUp{.alpha = 0.4}>, With<tutti::SAM{.rho = 0.1}>>::valid);

// Try: a second averager beside EMA, With<tutti::MixUp{.alpha = -1}>, MixUp twice, a hook with a
// wrong parameter in GradientNoise.
using Plan = Recipe<GradientNoise, tutti::LabelSmoothing, tutti::CutMix, tutti::MixUp,
                    tutti::GradientClipping, tutti::EMA>;
static_assert(Plan::valid);

int main() {
  std::fputs(Plan::describe().data(), stdout);
}
