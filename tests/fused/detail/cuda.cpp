#include <tutti/fused/detail/cuda.hpp>

#include <ATen/ATen.h>
#include <torch/cuda.h>

#include "support/catch.hpp"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>
#if TUTTI_WITH_CUDA
#include <tutti/core/detail/nvrtc.hpp>
#endif

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
using tutti::fused::Frame;
using tutti::fused::Pass;
using tutti::fused::RandomCrop;
using tutti::fused::RandomFlip;
using tutti::fused::detail::Launch;

// What stands in the way of a test on a GPU; empty: nothing.
std::string missing() {
  if (!tutti::fused::detail::has_kernels) {
    return "this program was built without TUTTI_WITH_CUDA";
  }
  return torch::cuda::is_available() ? "" : "there is no CUDA device";
}

// On a GPU the plan gives what it gives on the CPU, for every type and memory format.
template <class... Stages>
void check(const at::Tensor& x, Stages... stages) {
  Pass pass{std::move(stages)...};
  pass.seed(static_cast<std::uint64_t>(x.numel()));
  const auto plan = pass.plan(x, 0.6);
  const at::Tensor there = x.to(at::kCUDA);
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto bits = type == at::kFloat ? at::kInt : at::kShort;
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      INFO(type << " of " << x.sizes() << ", format " << static_cast<int>(format));
      const at::Tensor got = plan(there, format, type);
      const at::Tensor want = plan(x, format, type);
      CHECK(got.device() == there.device());
      CHECK(got.strides() == want.strides());
      CHECK(at::equal(got.cpu().view(bits), want.view(bits)));
    }
  }
}

}  // namespace

TEST_CASE("a kernel is launched with a thread for every number of the output", "[fused][cuda]") {
  const auto threads = [](const Frame& frame, bool last) {
    const Launch launch(frame, last);
    CHECK(launch.block[0] * launch.block[1] * launch.block[2] <= 1024);
    return std::vector<unsigned>{launch.block[0] * launch.grid[0], launch.block[1] * launch.grid[1],
                                 launch.block[2] * launch.grid[2]};
  };
  CHECK(threads({5, 3, 13, 17}, false) == std::vector<unsigned>{32, 40, 5});
  CHECK(threads({5, 3, 13, 17}, true) == std::vector<unsigned>{64, 16, 5});
  CHECK(threads({70000, 1, 600000, 1}, false) == std::vector<unsigned>{32, 65535 * 8, 65535});
  CHECK_THROWS_WITH(threads({1, 3, 40000, 40000}, false),
                    ContainsSubstring("images of [3, 40000, 40000] are too large for a CUDA"));
}

TEST_CASE("a kernel is compiled for the type and the memory format of its output",
          "[fused][cuda]") {
  const auto macros = [](at::ScalarType type, bool last) {
    return tutti::fused::detail::kernel_for("", type, last).macros;
  };
  using Macros = std::vector<std::string>;
  CHECK(macros(at::kBFloat16, true) == Macros{"TUTTI_OUT=BFloat16", "TUTTI_LAST=1"});
  CHECK(macros(at::kHalf, false) == Macros{"TUTTI_OUT=Half", "TUTTI_LAST=0"});
  CHECK(macros(at::kFloat, false) == Macros{"TUTTI_OUT=float", "TUTTI_LAST=0"});
}

#if TUTTI_WITH_CUDA

namespace {

namespace fused = tutti::fused;

// The source of a pass over these pixel expressions.
template <class... Nodes>
std::string_view source_of(const std::tuple<Nodes...>&) {
  return fused::detail::source<Nodes...>;
}

std::string compile(std::string_view source, at::ScalarType type, bool last,
                    const char* architecture) {
  const auto kernel = fused::detail::kernel_for(source, type, last);
  return tutti::detail::compile(std::string(source), "pass.cu",
                                tutti::detail::kernel_options(architecture, kernel.macros));
}

// PTX that rounds every operation on its own.
void check_ptx(const std::string& ptx) {
  CHECK_THAT(ptx, ContainsSubstring(".visible .entry tutti_fused_pass("));
  CHECK_THAT(ptx, ContainsSubstring("div.rn.f32"));
  CHECK_THAT(ptx, !ContainsSubstring("fma") && !ContainsSubstring(".ftz") &&
                      !ContainsSubstring(".approx") && !ContainsSubstring(".full"));
}

using Everything = std::tuple<fused::Crops, fused::Flips, fused::Holes, fused::Scale, fused::Take,
                              fused::Paste, fused::Mix, fused::Take, fused::Holes, fused::Paste>;

}  // namespace

TEST_CASE("NVRTC compiles the kernel of every subset of the batch transforms", "[fused][cuda]") {
  const auto check = [](auto subset) {
    using Stages = decltype(chosen<subset.value>(
        std::tuple<fused::Take, fused::Take, fused::Holes, fused::Mix, fused::Paste>{}));
    INFO("subset " << subset.value);
    check_ptx(compile(source_of(std::tuple_cat(std::tuple<fused::Scale>{}, Stages{})), at::kFloat,
                      false, "compute_80"));
  };
  [&]<unsigned... S>(std::integer_sequence<unsigned, S...>) {
    (check(std::integral_constant<unsigned, S>{}), ...);
  }(std::make_integer_sequence<unsigned, 32>{});
}

TEST_CASE("NVRTC compiles kernels for every output and architecture", "[fused][cuda]") {
  const std::string_view source = source_of(Everything{});
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const bool last : {false, true}) {
      INFO(type << (last ? ", channels last" : ""));
      const std::string ptx = compile(source, type, last, "compute_80");
      check_ptx(ptx);
      CHECK((ptx.find("cvt.rn.f16.f32") != ptx.npos) == (type == at::kHalf));
      for (const char* architecture : {"sm_80", "sm_90"}) {
        const std::string code = compile(source, type, last, architecture);
        CHECK(code.starts_with("\177ELF"));
        CHECK_THAT(code, ContainsSubstring("tutti_fused_pass"));
      }
    }
  }
}

#endif

TEST_CASE("a pass on a GPU gives what it gives on the CPU for every subset of the transforms",
          "[fused][cuda][law][gpu]") {
  if (const std::string why = missing(); !why.empty()) {
    return tutti_test::skip(why);
  }
  const auto compare = [](auto subset) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      for (const auto& size : sizes) {
        const auto stages = chosen<subset.value>(std::tuple{
            ColOut{.p_row = 0.2, .p_col = 0.3}, ProgressiveResizing{.size_increment = 1},
            CutOut{.num_holes = 2, .uniform_sampling = seed % 2 == 0, .per_image = seed % 3 == 2},
            MixUp{.alpha = 1}, CutMix{.uniform_sampling = seed % 2 == 1}});
        INFO("subset " << subset.value << ", seed " << seed);
        std::apply(
            [&](const auto&... stage) { check(bytes(size, seed), normalize(size[1]), stage...); },
            stages);
      }
    }
  };
  [&]<unsigned... S>(std::integer_sequence<unsigned, S...>) {
    (compare(std::integral_constant<unsigned, S>{}), ...);
  }(std::make_integer_sequence<unsigned, 32>{});
}

TEST_CASE("a pass on a GPU reads images of any strides, and of any size", "[fused][cuda][gpu]") {
  if (const std::string why = missing(); !why.empty()) {
    return tutti_test::skip(why);
  }
  const at::Tensor x = bytes({64, 3, 224, 224}, 1);
  check(x, RandomCrop{.padding = 4}, RandomFlip{}, normalize(3), CutOut{}, MixUp{.alpha = 1},
        CutMix{});
  const at::Tensor wide = bytes({9, 30, 40, 3}, 2).to(at::kCUDA).permute({0, 3, 1, 2});
  Pass pass{normalize(3), MixUp{.alpha = 1}};
  const auto plan = pass.plan(wide);
  CHECK(at::equal(plan(wide).cpu(), plan(wide.cpu())));
  CHECK(plan(wide.slice(0, 0, 9)).is_cuda());
  CHECK_THROWS_WITH(plan.run(wide, at::empty({9, 3, 30, 40})),
                    ContainsSubstring("on the images' device"));
  Pass empty{normalize(3)};
  const at::Tensor none = wide.slice(0, 0, 0);
  CHECK(empty.plan(none)(none).sizes() == none.sizes());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
