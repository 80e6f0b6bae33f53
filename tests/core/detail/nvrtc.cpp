#include <tutti/core/detail/nvrtc.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::architecture_for;
using tutti::detail::kernel_options;

}  // namespace

TEST_CASE("kernels are for the device, or PTX for the nearest one before it", "[cuda]") {
  const std::vector<int> known{75, 80, 90, 100};
  CHECK(architecture_for(90, known) == "sm_90");
  CHECK(architecture_for(86, known) == "compute_80");
  CHECK(architecture_for(121, known) == "compute_100");
  CHECK_THROWS_WITH(architecture_for(70, known),
                    ContainsSubstring("NVRTC makes no kernels for sm_70, only for devices from "
                                      "sm_75 on"));
}

TEST_CASE("kernels are compiled with every operation rounded on its own", "[cuda]") {
  CHECK(kernel_options("sm_80", {"A=1", "B=x"}) ==
        std::vector<std::string>{"--gpu-architecture=sm_80", "--std=c++17", "--fmad=false",
                                 "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
                                 "--define-macro=A=1", "--define-macro=B=x"});
}

#if TUTTI_WITH_CUDA

namespace {

using tutti::detail::compile;
using tutti::detail::compiled;

constexpr const char* times =
    "extern \"C\" __global__ void times(float* x) { x[threadIdx.x] *= FACTOR; }";

}  // namespace

TEST_CASE("kernels are compiled to PTX or to a device's own code", "[cuda][gpu]") {
  CHECK_THAT(compile(times, "times.cu", kernel_options("compute_80", {"FACTOR=2"})),
             ContainsSubstring(".visible .entry times("));
  const std::string code = compile(times, "times.cu", kernel_options("sm_80", {"FACTOR=2"}));
  CHECK(code.starts_with("\177ELF"));
  CHECK_THAT(code, ContainsSubstring("times"));
}

TEST_CASE("a kernel that does not compile is an error with the compiler's words", "[cuda][gpu]") {
  CHECK_THROWS_WITH(compile("__global__ void f() { int x = nothing; }", "wrong.cu",
                            kernel_options("compute_80", {})),
                    ContainsSubstring("NVRTC 1") && ContainsSubstring("cannot compile wrong.cu") &&
                        ContainsSubstring("--gpu-architecture=compute_80") &&
                        ContainsSubstring("identifier \"nothing\" is undefined"));
}

TEST_CASE("a compiled kernel is kept on the disk for its source, options and device",
          "[cuda][gpu]") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(path), {}); };
  const auto make = [&](const std::string& source, const char* architecture, const char* factor) {
    return compiled(source, "times", kernel_options(architecture, {factor}), path);
  };
  const std::string first = make(times, "compute_80", "FACTOR=2");
  CHECK(files() == 1);
  CHECK(make(times, "compute_80", "FACTOR=2") == first);
  CHECK(files() == 1);
  make(times, "compute_80", "FACTOR=3");
  make(times, "compute_90", "FACTOR=2");
  make(std::string(times) + "\n", "compute_80", "FACTOR=2");
  CHECK(files() == 4);
}

#else

TEST_CASE("NVRTC compiles kernels", "[cuda][gpu]") {
  tutti_test::skip("this program was built without TUTTI_WITH_CUDA, so there is no NVRTC");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
