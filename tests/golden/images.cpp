#include "golden/images.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/ops/adaptive_avg_pool2d.h>

#include <tutti/losses/soft_cross_entropy.hpp>

#include "golden/draws.hpp"
#include "golden/runner.hpp"

namespace golden {
namespace {

namespace functional = tutti::functional;

// The reference multiplies by a mask of 0 and 1, so that its zeros have the pixels' signs.
void cutout_batch(const Case& c, Verdict& verdict) {
  const tutti::CutOut policy = make_cutout(c.params);
  const at::Tensor x = c.in("x");
  tutti::Rng rng = replay(c);
  const at::Tensor got = functional::cutout_batch(x, rng,
                                                  {.num_holes = policy.num_holes,
                                                   .length = policy.length,
                                                   .uniform_sampling = policy.uniform_sampling});
  verdict.tensor("x", x.is_floating_point() ? got.copysign(x) : got);
}

void leave_out_all(const Case& c, Verdict& verdict, const Difference& difference) {
  verdict.differs(difference);
  for (const std::string& key : c.out_keys()) {
    verdict.leave_out(key);
  }
}

// How many of `size` are kept is what the reference's doubles make of it.
bool rounds_as_reference(double part, std::int64_t size) {
  const double kept = part * static_cast<double>(size);
  return std::floor(kept) == std::floor(kept + 1e-9);
}

void colout_batch(const Case& c, Verdict& verdict) {
  const tutti::ColOut policy = make_colout(c.params);
  const functional::ColOutOptions options{
      .p_row = policy.p_row, .p_col = policy.p_col, .resize_target = policy.resize_target};
  const at::Tensor x = c.in("x");
  if (!rounds_as_reference(1 - policy.p_row, x.size(-2)) ||
      !rounds_as_reference(1 - policy.p_col, x.size(-1))) {
    leave_out_all(c, verdict, stated::kept_parts);
    return;
  }
  tutti::Rng rng = replay(c);
  if (!c.has_in("y")) {
    verdict.tensor("x", functional::colout_batch(x, rng, options));
  } else {
    const at::Tensor y = c.in("y");
    const auto got = functional::colout_batch(x, y, rng, options);
    verdict.tensor("x", got.input);
    verdict.check(got.target.is_same(y) != c.expect["returns_target"].boolean(),
                  "the target was cut, or not, unlike the reference's");
    if (c.has_out("y")) {
      verdict.tensor("y", got.target);
    }
  }
  for (const char* key : {"kept_rows", "kept_cols"}) {  // the sorted first part of the draws
    if (c.has_out(key)) {
      verdict.leave_out(key);
    }
  }
}

void resize_batch(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "resize_batch");
  const functional::ResizeOptions options{.mode = resize_mode(a.text("mode", "resize")),
                                          .resize_targets = a.flag("resize_targets", false)};
  const double scale = a.number("scale_factor", 1);
  a.done();
  tutti::Rng rng = replay(c);
  const auto got = functional::resize_batch(c.in("x"), c.in("y"), scale, rng, options);
  verdict.tensor("x", got.input);
  verdict.tensor("y", got.target);
}

// The reference hands the resizing a factor, with which a side may come out one short; tutti's
// policy hands it sides. The reference rounds the width of full images too, which tutti leaves.
void progressive_resizing(const Case& c, Verdict& verdict) {
  Json::Object arguments = c.params.object();
  const Json size = c.params["hw"];
  std::erase_if(arguments, [](const auto& member) { return member.first == "hw"; });
  const tutti::ProgressiveResizing policy = make_progressive_resizing(Json(std::move(arguments)));
  policy.validate();
  const at::Tensor elapsed = c.in("elapsed");
  at::Tensor sizes = at::empty({elapsed.numel(), 2}, at::kLong);
  tutti::Rng rng;
  const at::Tensor x = at::zeros({1, 1, size[0].integer(), size[1].integer()});
  for (std::int64_t i = 0; i < elapsed.numel(); ++i) {
    const auto now = elapsed[i].item<double>();
    const auto steps = static_cast<double>(x.size(3)) / static_cast<double>(policy.size_increment);
    const std::int64_t width =
        policy.scale_at(now) < 1
            ? policy.width_at(now, x.size(3))
            : static_cast<std::int64_t>(std::nearbyint(steps)) * policy.size_increment;
    const double factor = static_cast<double>(width) / static_cast<double>(x.size(3));
    const at::Tensor y = functional::resize_batch(x, {}, factor, rng).input;
    sizes[i][0] = y.size(2);
    sizes[i][1] = y.size(3);
  }
  verdict.tensor("sizes", sizes);
}

// The model is flatten(x) @ w + b, of images pooled to 2 x 2, the loss cross entropy.
void select_using_loss(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "select_using_loss");
  const double keep = a.number("keep", 0.5);
  const double scale = a.number("scale_factor", 1);
  a.done();
  if (!rounds_as_reference(keep, c.in("x").size(0)) ||
      keep * static_cast<double>(c.in("x").size(0)) < 1) {
    leave_out_all(c, verdict, stated::kept_examples);
    return;
  }
  at::Tensor losses;
  const auto model = [&](const at::Tensor& x) {
    const at::Tensor pooled = x.dim() == 4 ? at::adaptive_avg_pool2d(x, {2, 2}) : x;
    return pooled.flatten(1).mm(c.in("w")).add(c.in("b"));
  };
  const auto loss = [&](const at::Tensor& out, const at::Tensor& y) {
    return losses = functional::soft_cross_entropy(out, y, {}, -100, tutti::Reduction::none);
  };
  tutti::Rng rng = replay(c);
  const auto got =
      functional::select_using_loss(c.in("x"), c.in("y"), model, loss, rng, keep, scale);
  verdict.check(losses.allclose(c.in("losses"), 1e-5, 1e-6), "the losses differ");
  verdict.tensor("x", got.input);
  verdict.tensor("y", got.target);
  verdict.tensor("select_idx", got.indices);
  verdict.tensor("ascending_order", losses.argsort(/*stable=*/true, /*dim=*/0));
}

void should_selective_backprop(const Case& c, Verdict& verdict) {
  const tutti::SelectiveBackprop policy = make_selective_backprop(c.params);
  const at::Tensor durations = c.in("durations");
  at::Tensor chosen = c.out("chosen").zero_();
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    for (std::int64_t batch = 0; batch < chosen.size(1); ++batch) {
      chosen[i][batch] = functional::should_selective_backprop(
          durations[i].item<double>(), batch, policy.start, policy.end, policy.interrupt);
    }
  }
  verdict.tensor("chosen", chosen);
}

// The cases hold images as [H, W, C], tutti as [C, H, W].
at::Tensor image(const Case& c) {
  return c.in("x").permute({2, 0, 1});
}
void compare_image(Verdict& verdict, const at::Tensor& got) {
  verdict.tensor("y", got.permute({1, 2, 0}).contiguous());
}

void augmentation(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, c.function);
  const double level = a.number("level", 0);
  a.done();
  const bool both_sides = c.function == "aug_color" || c.function == "aug_contrast" ||
                          c.function == "aug_brightness" || c.function == "aug_sharpness";
  if (both_sides && level < 1) {
    leave_out_all(c, verdict, stated::weak_factors);
    return;
  }
  int number = 0;
  while (c.function != "aug_" + std::string(to_string(tutti::data::Augmentation(number)))) {
    ++number;
  }
  tutti::Rng rng = replay(c);
  compare_image(verdict,
                tutti::data::augment(image(c), tutti::data::Augmentation(number), level, rng));
}

void augmix_image(const Case& c, Verdict& verdict) {
  const tutti::AugMix policy = make_augmix(c.params);
  if (policy.severity == 0) {
    leave_out_all(c, verdict, stated::severity_zero);
    return;
  }
  tutti::Rng rng = replay(c);
  compare_image(verdict, functional::augmix_image(image(c), rng,
                                                  {.severity = policy.severity,
                                                   .depth = policy.depth,
                                                   .width = policy.width,
                                                   .alpha = policy.alpha,
                                                   .augmentation_set = policy.augmentation_set}));
}

void randaugment_image(const Case& c, Verdict& verdict) {
  const tutti::RandAugment policy = make_randaugment(c.params);
  if (policy.severity == 0) {
    leave_out_all(c, verdict, stated::severity_zero);
    return;
  }
  tutti::Rng rng = replay(c);
  compare_image(verdict,
                functional::randaugment_image(image(c), rng,
                                              {.severity = policy.severity,
                                               .depth = policy.depth,
                                               .augmentation_set = policy.augmentation_set}));
}

}  // namespace

Handlers image_handlers() {
  Handlers all{{"cutout_batch", cutout_batch},
               {"colout_batch", colout_batch},
               {"resize_batch", resize_batch},
               {"ProgressiveResizing", progressive_resizing},
               {"select_using_loss", select_using_loss},
               {"should_selective_backprop", should_selective_backprop},
               {"augmix_image", augmix_image},
               {"randaugment_image", randaugment_image}};
  for (int i = 0; i < 17; ++i) {
    all["aug_" + std::string(to_string(tutti::data::Augmentation(i)))] = augmentation;
  }
  return all;
}

}  // namespace golden
