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

// How many of `size` are kept, and whether the reference's doubles make that of it.
std::int64_t kept_of(double part, std::int64_t size) {
  return static_cast<std::int64_t>(part * static_cast<double>(size) + 1e-9);
}
bool rounds_as_reference(double part, std::int64_t size) {
  return kept_of(part, size) == static_cast<std::int64_t>(part * static_cast<double>(size));
}

void colout_batch(const Case& c, Verdict& verdict) {
  const tutti::ColOut policy = make_colout(c.params);
  const functional::ColOutOptions options{
      .p_row = policy.p_row, .p_col = policy.p_col, .resize_target = policy.resize_target};
  const at::Tensor x = c.in("x");
  if (!rounds_as_reference(1 - policy.p_row, x.size(-2)) ||
      !rounds_as_reference(1 - policy.p_col, x.size(-1))) {
    tutti::Rng any(1);
    const at::Tensor got = functional::colout_batch(x, any, options);
    verdict.check(got.size(-2) == kept_of(1 - policy.p_row, x.size(-2)) &&
                      got.size(-1) == kept_of(1 - policy.p_col, x.size(-1)),
                  "another number of rows or columns than is stated");
    verdict.leave_out_all(stated::kept_parts);
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
    const double factor = reference_factor(policy, elapsed[i].item<double>(), x.size(3));
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
  at::Tensor losses;
  const auto model = [&](const at::Tensor& x) {
    const at::Tensor pooled = x.dim() == 4 ? at::adaptive_avg_pool2d(x, {2, 2}) : x;
    return pooled.flatten(1).mm(c.in("w")).add(c.in("b"));
  };
  const auto loss = [&](const at::Tensor& out, const at::Tensor& y) {
    return losses = functional::soft_cross_entropy(out, y, {}, -100, tutti::Reduction::none);
  };
  const std::int64_t n = c.in("x").size(0);
  const bool alike = rounds_as_reference(keep, n) && kept_of(keep, n) >= 1;
  tutti::Rng rng = alike ? replay(c) : tutti::Rng(1);
  const auto got =
      functional::select_using_loss(c.in("x"), c.in("y"), model, loss, rng, keep, scale);
  if (!alike) {
    verdict.check(got.indices.numel() == std::max<std::int64_t>(kept_of(keep, n), 1),
                  "another number of examples than is stated");
    verdict.leave_out_all(stated::kept_examples);
    return;
  }
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
  int number = 0;
  while (c.function != "aug_" + std::string(to_string(tutti::data::Augmentation(number)))) {
    ++number;
  }
  const bool alike = !both_sides || level >= 1;
  tutti::Rng rng = alike ? replay(c) : tutti::Rng(1);
  const at::Tensor got =
      tutti::data::augment(image(c), tutti::data::Augmentation(number), level, rng);
  if (alike) {
    compare_image(verdict, got);
  } else {
    verdict.check(got.sizes() == image(c).sizes(), "another size");
    verdict.leave_out_all(stated::weak_factors);
  }
}

// What becomes of an image; of severity 0 nothing is to become of it.
template <class Change>
void change_image(const Case& c, Verdict& verdict, double severity, const Change& change) {
  tutti::Rng rng = replay(c);
  if (severity == 0) {
    rng = tutti::Rng(1);
    verdict.check(change(image(c), rng).equal(image(c)), "severity 0 changes the image");
    verdict.leave_out_all(stated::severity_zero);
    return;
  }
  compare_image(verdict, change(image(c), rng));
}

void augmix_image(const Case& c, Verdict& verdict) {
  const tutti::AugMix policy = make_augmix(c.params);
  change_image(c, verdict, policy.severity, [&](const at::Tensor& x, tutti::Rng& rng) {
    return functional::augmix_image(x, rng,
                                    {.severity = policy.severity,
                                     .depth = policy.depth,
                                     .width = policy.width,
                                     .alpha = policy.alpha,
                                     .augmentation_set = policy.augmentation_set});
  });
}

void randaugment_image(const Case& c, Verdict& verdict) {
  const tutti::RandAugment policy = make_randaugment(c.params);
  change_image(c, verdict, policy.severity, [&](const at::Tensor& x, tutti::Rng& rng) {
    return functional::randaugment_image(x, rng,
                                         {.severity = policy.severity,
                                          .depth = policy.depth,
                                          .augmentation_set = policy.augmentation_set});
  });
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
