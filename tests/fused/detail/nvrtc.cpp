#include <tutti/fused/detail/nvrtc.hpp>

#include <torch/torch.h>

#include "support/catch.hpp"

#include <filesystem>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/fused/detail/source.hpp>

#include "fused/subsets.hpp"
#include "support/temporary_folder.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using fused_subsets::chosen;
using tutti::fused::detail::architecture_for;
using tutti::fused::detail::kernel_options;

namespace fused = tutti::fused;
namespace kernels = tutti::fused::detail;

}  // namespace

TEST_CASE("kernels are for the device, or PTX for the nearest one before it", "[fused][cuda]") {
  const std::vector<int> known{75, 80, 90, 100};
  CHECK(architecture_for(90, known) == "sm_90");
  CHECK(architecture_for(86, known) == "compute_80");
  CHECK(architecture_for(121, known) == "compute_100");
  CHECK_THROWS_WITH(architecture_for(70, known),
                    ContainsSubstring("NVRTC makes no kernels for sm_70, only for devices from "
                                      "sm_75 on"));
}

TEST_CASE("kernels are compiled with every operation rounded on its own", "[fused][cuda]") {
  CHECK(kernel_options({at::kBFloat16, true}, "sm_80") ==
        std::vector<std::string>{
            "--gpu-architecture=sm_80", "--std=c++17", "--fmad=false", "--ftz=false",
            "--prec-div=true", "--define-macro=TUTTI_OUT=BFloat16", "--define-macro=TUTTI_LAST=1"});
  CHECK(kernel_options({at::kHalf, false}, "sm_80")[5] == "--define-macro=TUTTI_OUT=Half");
  CHECK(kernel_options({}, "sm_80")[5] == "--define-macro=TUTTI_OUT=float");
}

#if TUTTI_WITH_CUDA

namespace {

using kernels::compile;

// The source of a pass over these pixel expressions.
template <class... Nodes>
std::string source_of(const std::tuple<Nodes...>&) {
  return std::string(kernels::source<Nodes...>);
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
    const std::string source = source_of(std::tuple_cat(std::tuple<fused::Scale>{}, Stages{}));
    INFO("subset " << subset.value);
    check_ptx(compile(source, "subset.cu", kernel_options({}, "compute_80")));
  };
  [&]<unsigned... S>(std::integer_sequence<unsigned, S...>) {
    (check(std::integral_constant<unsigned, S>{}), ...);
  }
  (std::make_integer_sequence<unsigned, 32>{});
}

TEST_CASE("NVRTC compiles kernels for every output and architecture", "[fused][cuda]") {
  const std::string source = source_of(Everything{});
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const bool last : {false, true}) {
      INFO(type << (last ? ", channels last" : ""));
      const std::string ptx = compile(source, "all.cu", kernel_options({type, last}, "compute_80"));
      check_ptx(ptx);
      CHECK((ptx.find("cvt.rn.f16.f32") != ptx.npos) == (type == at::kHalf));
      for (const char* architecture : {"sm_80", "sm_90"}) {
        const std::string code =
            compile(source, "all.cu", kernel_options({type, last}, architecture));
        CHECK(code.starts_with("\177ELF"));
        CHECK_THAT(code, ContainsSubstring("tutti_fused_pass"));
      }
    }
  }
}

TEST_CASE("a kernel that does not compile is an error with the compiler's words", "[fused][cuda]") {
  CHECK_THROWS_WITH(compile("__global__ void f() { int x = nothing; }", "wrong.cu",
                            kernel_options({}, "compute_80")),
                    ContainsSubstring("fused::Plan: NVRTC 1") &&
                        ContainsSubstring("cannot compile wrong.cu") &&
                        ContainsSubstring("--gpu-architecture=compute_80") &&
                        ContainsSubstring("identifier \"nothing\" is undefined"));
}

TEST_CASE("a compiled kernel is kept on the disk for its source, options and device",
          "[fused][cuda]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(path), {}); };
  constexpr std::string_view source = kernels::source<fused::Scale>;
  const std::string first = kernels::compiled(source, {}, "compute_80", path);
  CHECK(files() == 1);
  CHECK(kernels::compiled(source, {}, "compute_80", path) == first);
  CHECK(files() == 1);
  kernels::compiled(source, {at::kHalf, false}, "compute_80", path);
  kernels::compiled(source, {}, "compute_90", path);
  kernels::compiled(kernels::source<fused::Scale, fused::Mix>, {}, "compute_80", path);
  CHECK(files() == 4);
}

#else

TEST_CASE("NVRTC compiles kernels", "[fused][cuda]") {
  SUCCEED("skipped: this program was built without TUTTI_WITH_CUDA, so there is no NVRTC");
}

#endif
