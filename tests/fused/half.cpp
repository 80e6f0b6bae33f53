#include <tutti/fused/pass.hpp>

#include "support/catch.hpp"

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/fused/stages.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::fused::Normalize;
using tutti::fused::Pass;
using tutti::fused::RandomFlip;

// In both memory formats, what the pass in fp32 gives, rounded in the end.
template <class P>
void check(P pass, const at::Tensor& x) {
  pass.seed(5);
  const auto plan = pass.plan(x);
  const at::Tensor floats = plan(x);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor want = floats.to(type);
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      INFO(type << " of " << x.sizes() << ", format " << static_cast<int>(format));
      const at::Tensor got = plan(x, format, type);
      CHECK(got.scalar_type() == type);
      CHECK(got.is_contiguous(format));
      CHECK(got.contiguous().view(at::kShort).equal(want.view(at::kShort)));
    }
  }
}

}  // namespace

TEST_CASE("a pass into half precision is the one into floats, rounded", "[fused][law]") {
  at::manual_seed(2);
  const Normalize normalize{.mean = {0.48, 0.45, 0.4}, .std = {0.22, 0.23, 0.21}};
  for (const std::vector<std::int64_t>& size :
       {std::vector<std::int64_t>{5, 3, 13, 17}, {1, 3, 1, 1}, {2, 3, 70, 90}}) {
    const at::Tensor x = at::randint(0, 256, size, at::kByte);
    check(Pass{normalize}, x);
    check(Pass{normalize, tutti::MixUp{.alpha = 1}}, x);
    check(Pass{RandomFlip{}, normalize, tutti::CutOut{.per_image = true}, tutti::MixUp{.alpha = 1},
               tutti::CutMix{}},
          x);
  }
  check(Pass{normalize, tutti::ColOut{}}, at::randint(0, 256, {3, 3, 40, 50}, at::kByte));
}

TEST_CASE("a pass gives floating images only", "[fused]") {
  const at::Tensor x = at::zeros({2, 3, 4, 5}, at::kByte);
  Pass pass{Normalize{}};
  CHECK_THROWS_WITH(pass.plan(x)(x, at::MemoryFormat::Contiguous, at::kDouble),
                    ContainsSubstring("expected contiguous fp32, bf16 or fp16 [2, 3, 4, 5]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
