#include <tutti/fused/pass.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fused/separately.hpp"
#include "fused/subsets.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using fused_subsets::bytes;
using fused_subsets::chosen;
using fused_subsets::normalize;
using fused_subsets::sizes;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::MixUp;
using tutti::ProgressiveResizing;
using tutti::Rng;
using tutti::fused::Normalize;
using tutti::fused::Pass;
using tutti::fused::RandomCrop;
using tutti::fused::RandomErasing;
using tutti::fused::RandomFlip;

static_assert(tutti::fused::Fusible<MixUp>);
static_assert(tutti::fused::Fusible<Normalize>);
static_assert(!tutti::fused::Fusible<int>);

// A stage of a user.
struct LeftHalf {
  static constexpr std::string_view name = "LeftHalf";
  [[nodiscard]] tutti::fused::Holes pixels(const tutti::fused::Frame& frame) const {
    return {.boxes = {{{0, frame.width / 2, frame.height, frame.width}}}};
  }
};
static_assert(tutti::fused::Fusible<LeftHalf>);
struct Nameless {
  [[nodiscard]] tutti::fused::Flips pixels(const tutti::fused::Frame&) const { return {}; }
};
static_assert(!tutti::fused::Fusible<Nameless>);
struct Unknown {
  struct Pixels {
    [[maybe_unused]] static constexpr std::string_view formula = "0";
  };
  [[maybe_unused]] static constexpr std::string_view name = "Unknown";
  [[nodiscard]] Pixels pixels(const tutti::fused::Frame&) const { return {}; }
};
static_assert(!tutti::fused::Fusible<Unknown>);

// Bit by bit, also the signs of zeros.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(a.contiguous().view(at::kInt), b.contiguous().view(at::kInt));
}

// The pass gives what its stages give one after the other, in both memory formats.
template <class... Stages>
bool agrees(const at::Tensor& x, double elapsed, Stages... stages) {
  std::uint64_t seed = 0;
  ((tutti::rng_of(stages) != nullptr
        ? void(*tutti::rng_of(stages) = Rng(++seed, static_cast<std::uint64_t>(x.numel())))
        : void()),
   ...);
  const at::Tensor want = separately::run_all(x, elapsed, stages...);
  Pass pass{stages...};
  const auto plan = pass.plan(x, elapsed);
  const at::Tensor last = plan(x, at::MemoryFormat::ChannelsLast);
  return same_bits(plan(x), want) && last.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         same_bits(last, want) &&
         same_bits(plan(x.contiguous(at::MemoryFormat::ChannelsLast)), want);
}

}  // namespace

TEST_CASE("a pass over every subset of the batch transforms gives what they give one by one",
          "[fused][law]") {
  const auto check = [&](auto subset) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      for (const auto& size : sizes) {
        const at::Tensor x = bytes(size, seed);
        const auto stages = chosen<subset.value>(std::tuple{
            ColOut{.p_row = 0.2, .p_col = 0.3}, ProgressiveResizing{.size_increment = 1},
            CutOut{.num_holes = 2, .uniform_sampling = seed % 2 == 0, .per_image = seed % 3 == 2},
            MixUp{.alpha = 1}, CutMix{.uniform_sampling = seed % 2 == 1}});
        INFO("subset " << subset.value << ", seed " << seed << ", size " << x.sizes());
        CHECK(std::apply(
            [&](const auto&... stage) { return agrees(x, 0.6, normalize(size[1]), stage...); },
            stages));
      }
    }
  };
  [&]<unsigned... S>(std::integer_sequence<unsigned, S...>) {
    (check(std::integral_constant<unsigned, S>{}), ...);
  }(std::make_integer_sequence<unsigned, 32>{});
}

TEST_CASE("stages may stand in any order", "[fused][law]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const auto& size : sizes) {
      const at::Tensor x = bytes(size, seed);
      const bool each = seed % 2 == 1;
      const Normalize scale = normalize(size[1]);
      const CutOut holes{.num_holes = 3, .length = 0.6, .per_image = each};
      const MixUp mixup{.alpha = 1};
      const CutMix cutmix{.alpha = 0.5};
      const ColOut colout{.p_row = 0.4};
      const ProgressiveResizing crop{.mode = tutti::ResizeMode::crop, .size_increment = 1};
      INFO("seed " << seed << ", size " << x.sizes());
      CHECK(agrees(x, 0.5, scale, mixup, holes));
      CHECK(agrees(x, 0.5, scale, cutmix, mixup, holes));
      CHECK(agrees(x, 0.5, scale, holes, cutmix, mixup));
      CHECK(agrees(x, 0.5, holes, scale, mixup));  // holes of bytes 0, which are no zeros then
      CHECK(agrees(x, 0.5, holes, scale, mixup, cutmix, holes, colout));
      CHECK(agrees(x, 0.5, cutmix, colout, scale));
      if (size[2] > 3) {  // else nothing is left
        CHECK(agrees(x, 0.5, scale, holes, crop, mixup, colout, cutmix));
        CHECK(agrees(x, 0.7, scale, cutmix, colout, holes, crop, mixup));
      }
    }
  }
}

TEST_CASE("columns are right where wide images lose a few and are cropped then", "[fused][law]") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const at::Tensor x = bytes({2, 3, 30, 120}, seed);
    const ProgressiveResizing crop{.mode = tutti::ResizeMode::crop, .size_increment = 1};
    const ColOut colout{.p_row = 0.1, .p_col = 0.05};
    CHECK(agrees(x, 0.5, normalize(3), colout, crop));
    CHECK(agrees(x, 0.5, normalize(3), crop, colout, MixUp{.alpha = 1}));
    CHECK(agrees(x, 0, normalize(3), colout, ColOut{.p_row = 0, .p_col = 0.02}, CutMix{}));
  }
}

TEST_CASE("crops and flips of single images go along", "[fused][law]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const auto& size : sizes) {
      const at::Tensor x = bytes(size, seed);
      const Normalize scale = normalize(size[1]);
      const RandomFlip flip{.p = 0.5};
      const RandomCrop framed{.padding = 4};
      const RandomCrop smaller{.height = (size[2] + 1) / 2, .width = (size[3] + 2) / 3};
      INFO("seed " << seed << ", size " << x.sizes());
      CHECK(agrees(x, 0, flip, scale));
      CHECK(agrees(x, 0, framed, scale));
      CHECK(agrees(x, 0, smaller, scale));
      CHECK(agrees(x, 0, framed, flip, scale, CutOut{}, MixUp{.alpha = 1}));
      CHECK(agrees(x, 0, flip, framed, scale, CutOut{}, MixUp{.alpha = 1}));
      CHECK(agrees(x, 0, flip, smaller, scale, CutMix{}));
      CHECK(agrees(x, 0, RandomCrop{.padding = 9}, flip, ColOut{.p_col = 0.5}, scale,
                   CutOut{.per_image = true}, MixUp{.alpha = 1}, CutMix{}));
    }
  }
}

TEST_CASE("boxes of single images are erased, black before Normalize and 0 behind it",
          "[fused][law]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const auto& size : sizes) {
      const at::Tensor x = bytes(size, seed);
      const RandomErasing erasing{.p = 0.7};
      INFO("seed " << seed << ", size " << x.sizes());
      CHECK(agrees(x, 0, erasing, normalize(size[1]), MixUp{.alpha = 1}));
      CHECK(
          agrees(x, 0, RandomCrop{.padding = 2}, normalize(size[1]), erasing, ColOut{}, CutMix{}));
    }
  }
}

TEST_CASE("images of one pixel are images", "[fused]") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CHECK(agrees(bytes({3, 2, 1, 1}, seed), 0, RandomCrop{.padding = 1}, RandomFlip{}, normalize(2),
                 CutOut{}, MixUp{.alpha = 1}, CutMix{}));
  }
}

TEST_CASE("what Normalize leaves out is not done", "[fused][law]") {
  const at::Tensor x = bytes({2, 3, 9, 9}, 1);
  CHECK(agrees(x, 0, Normalize{}));
  CHECK(agrees(x, 0, Normalize{.divisor = 1}));
  CHECK(agrees(x, 0, Normalize{.mean = {124, 116, 104}, .std = {58, 57, 57}, .divisor = 1}));
  CHECK(agrees(x, 0, Normalize{.std = {0.1, 1e-30, 3e30}}, MixUp{.alpha = 1}));
  CHECK(agrees(x, 0, Normalize{.std = {1e-39, 1e-42, 1e38}}));
}

TEST_CASE("MixUp with nothing to mix blends nothing", "[fused]") {
  CHECK(agrees(bytes({3, 3, 8, 8}, 2), 0, normalize(3), MixUp{.alpha = 0}, CutOut{}));
}

TEST_CASE("a pass draws from the streams of its stages and leaves them where they would be",
          "[fused]") {
  const at::Tensor x = bytes({4, 3, 12, 12}, 3);
  MixUp mixup{.alpha = 1};
  CutMix cutmix;
  Pass pass{normalize(3), mixup, cutmix};
  for (int batch = 0; batch < 3; ++batch) {
    const at::Tensor want = separately::run(
        cutmix, separately::run(mixup, separately::run_all(x, 0, normalize(3)), 0), 0);
    CHECK(same_bits(pass.plan(x)(x), want));
  }
  CHECK(pass.get<MixUp>().rng.position() == mixup.rng.position());
  CHECK(pass.get<MixUp>().run.mixing == mixup.run.mixing);
  CHECK(at::equal(*pass.get<CutMix>().run.indices, *cutmix.run.indices));
  CHECK(pass.get<CutMix>().run.box == cutmix.run.box);
}

TEST_CASE("seed begins every stream as a run does", "[fused]") {
  Pass pass{Normalize{}, MixUp{}, CutOut{}};
  pass.seed(17);
  const Rng want = Rng::for_policy(17, "MixUp");
  CHECK(pass.get<MixUp>().rng.seed() == want.seed());
  CHECK(pass.get<MixUp>().rng.stream() == want.stream());
  CHECK(pass.get<CutOut>().rng.stream() == Rng::for_policy(17, "CutOut").stream());
}

TEST_CASE("a plan may be run again, and into a tensor that is there", "[fused]") {
  const at::Tensor x = bytes({3, 3, 10, 11}, 4);
  Pass pass{normalize(3), CutOut{}, MixUp{.alpha = 1}};
  const auto plan = pass.plan(x);
  const at::Tensor first = plan(x);
  const at::Tensor room = at::full_like(first, 7);
  plan.run(x, room);
  CHECK(same_bits(first, room));
}

TEST_CASE("images of any strides are read", "[fused]") {
  const at::Tensor wide = bytes({4, 9, 10, 3}, 5);
  const at::Tensor x = wide.permute({0, 3, 1, 2}).slice(0, 0, 4, 2).slice(2, 1, 8).slice(3, 2);
  Pass pass{normalize(3), MixUp{.alpha = 1}};
  const auto plan = pass.plan(x);
  CHECK(same_bits(plan(x), plan(x.contiguous())));
}

TEST_CASE("a batch without images gives one without images", "[fused]") {
  Pass pass{Normalize{}, CutOut{}, MixUp{}};
  const at::Tensor x = at::empty({0, 3, 8, 8}, at::kByte);
  CHECK(pass.plan(x)(x).sizes() == x.sizes());
}

TEST_CASE("several threads give what one gives", "[fused]") {
  const at::Tensor x = bytes({37, 3, 24, 24}, 6);
  Pass pass{normalize(3), ColOut{}, CutOut{}, MixUp{.alpha = 1}, CutMix{}};
  const auto plan = pass.plan(x);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = plan(x);
  at::set_num_threads(3);
  const at::Tensor three = plan(x);
  at::set_num_threads(threads);
  CHECK(same_bits(one, three));
}

TEST_CASE("a stage of a user is fused as ours are", "[fused]") {
  const at::Tensor x = bytes({2, 3, 6, 9}, 8);
  Pass pass{normalize(3), LeftHalf{}, CutMix{}};
  pass.seed(1);
  Pass without{normalize(3), CutMix{}};
  without.seed(1);
  at::Tensor want = without.plan(x)(x);
  want.slice(3, 4, 9).zero_();
  CHECK(same_bits(pass.plan(x)(x), want));
}

TEST_CASE("describe names every stage and its pixel", "[fused]") {
  CHECK(Pass<Normalize, CutOut, MixUp>::describe() ==
        "x(n, c, i, j) = images[n, c, i, j]\n"
        "Normalize: x(n, c, i, j) = (float(x(n, c, i, j)) / divisor - mean[c]) / std[c]\n"
        "CutOut: x(n, c, i, j) = in_hole(n, i, j) ? 0 : x(n, c, i, j)\n"
        "MixUp: x(n, c, i, j) = (1 - mixing) * x(n, c, i, j) + mixing * x(indices[n], c, i, j)\n");
}

TEST_CASE("what does not fit is refused in words", "[fused]") {
  const at::Tensor x = bytes({2, 3, 8, 8}, 7);
  Pass pass{normalize(3), MixUp{}};
  CHECK_THROWS_WITH(pass.plan(x[0]), ContainsSubstring("expected [N, C, H, W]"));
  CHECK_THROWS_WITH(pass.plan(x.slice(1, 0, 2)),
                    ContainsSubstring("mean has 3 values and std 3, expected none or one for each "
                                      "of 2 channels"));
  const auto plan = pass.plan(x);
  CHECK_THROWS_WITH(plan(x.slice(0, 0, 1)), ContainsSubstring("planned were uint8 [2, 3, 8, 8]"));
  CHECK_THROWS_WITH(plan(x.to(at::kFloat)), ContainsSubstring("planned were uint8"));
  CHECK_THROWS_WITH(plan.run(x, at::empty({2, 3, 8, 9})),
                    ContainsSubstring("expected contiguous fp32, bf16 or fp16 [2, 3, 8, 8]"));
  CHECK_THROWS_WITH((Pass{Normalize{.std = {0}}}), ContainsSubstring("a value of std is 0"));
  CHECK_THROWS_WITH((Pass{Normalize{}, MixUp{.alpha = -1}}), ContainsSubstring("alpha is -1"));
  CHECK_THROWS_WITH((Pass{RandomCrop{.height = 9}, Normalize{}}.plan(x)),
                    ContainsSubstring("pieces of 9 x 8 do not fit into images of 8 x 8"));
  CHECK_THROWS_WITH((Pass{Normalize{}, ColOut{.batch = false}}.plan(x)),
                    ContainsSubstring("leave ColOut to the loader"));
  const ProgressiveResizing smooth{.interpolation = tutti::Interpolation::bilinear};
  CHECK_THROWS_WITH((Pass{Normalize{}, smooth}.plan(x)),
                    ContainsSubstring("interpolation is bilinear, expected nearest"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
