// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

#if TUTTI_WITH_CUDA
#include <nvrtc.h>
#endif

#include <tutti/core/detail/kernel_cache.hpp>
#include <tutti/core/detail/throw.hpp>

/// CUDA kernels compiled while the program runs.
namespace tutti::detail {

/// What NVRTC is told: every operation rounded on its own, to nearest even, denormals kept.
///
/// architecture: "sm_90" for machine code, "compute_90" for PTX. macros: "NAME=TEXT" each.
inline std::vector<std::string> kernel_options(const std::string& architecture,
                                               const std::vector<std::string>& macros) {
  std::vector<std::string> out{"--gpu-architecture=" + architecture,
                               "--std=c++17",
                               "--fmad=false",
                               "--ftz=false",
                               "--prec-div=true",
                               "--prec-sqrt=true"};
  for (const std::string& macro : macros) {
    out.push_back("--define-macro=" + macro);
  }
  return out;
}

/// What to compile for: the device's own code where NVRTC can make it, else PTX of the nearest
/// older architecture, which the driver then translates.
///
/// device: its compute capability, 90 for 9.0. known: those NVRTC knows, ascending.
/// Throws c10::Error when it knows newer ones only.
inline std::string architecture_for(int device, const std::vector<int>& known) {
  const auto newer = std::upper_bound(known.begin(), known.end(), device);
  TUTTI_CHECK(newer != known.begin(), "NVRTC makes no kernels for sm_", device,
              ", only for devices from sm_", known.empty() ? 0 : known.front(),
              " on; install an older CUDA toolkit, or train on the CPU");
  const int nearest = *(newer - 1);
  return (nearest == device ? "sm_" : "compute_") + std::to_string(nearest);
}

inline std::string joined(const std::vector<std::string>& options) {
  std::string out;
  for (const std::string& option : options) {
    out.append(out.empty() ? "" : " ").append(option);
  }
  return out;
}

#if TUTTI_WITH_CUDA

inline void check_nvrtc(nvrtcResult result, const char* what) {
  TUTTI_CHECK(result == NVRTC_SUCCESS, "NVRTC failed in ", what, ": ", nvrtcGetErrorString(result));
}

inline std::string nvrtc_version() {
  int major = 0;
  int minor = 0;
  check_nvrtc(nvrtcVersion(&major, &minor), "nvrtcVersion");
  return std::to_string(major) + "." + std::to_string(minor);
}

inline std::vector<int> nvrtc_architectures() {
  int count = 0;
  check_nvrtc(nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> out(static_cast<std::size_t>(count));
  check_nvrtc(nvrtcGetSupportedArchs(out.data()), "nvrtcGetSupportedArchs");
  std::sort(out.begin(), out.end());
  return out;
}

/// Compiles a source. Needs no GPU.
///
/// name: of the source, for messages. options: kernel_options().
/// Returns machine code, or PTX, as the first of the options says.
/// Throws c10::Error with the compiler's messages.
inline std::string compile(const std::string& source, const std::string& name,
                           const std::vector<std::string>& options) {
  struct Program {
    nvrtcProgram handle = nullptr;
    ~Program() { nvrtcDestroyProgram(&handle); }
  } program;
  check_nvrtc(
      nvrtcCreateProgram(&program.handle, source.c_str(), name.c_str(), 0, nullptr, nullptr),
      "nvrtcCreateProgram");
  std::vector<const char*> arguments;
  for (const std::string& option : options) {
    arguments.push_back(option.c_str());
  }
  const auto text = [&](auto size_of, auto get) {
    std::size_t size = 0;
    check_nvrtc(size_of(program.handle, &size), "reading its output");
    std::string out(size, '\0');
    check_nvrtc(get(program.handle, out.data()), "reading its output");
    return out;
  };
  const auto result =
      nvrtcCompileProgram(program.handle, static_cast<int>(arguments.size()), arguments.data());
  TUTTI_CHECK(result == NVRTC_SUCCESS, "NVRTC ", nvrtc_version(), " cannot compile ", name,
              " with ", joined(options), ": ", nvrtcGetErrorString(result), "\n",
              text(nvrtcGetProgramLogSize, nvrtcGetProgramLog));
  return options.front().find("sm_") != std::string::npos ? text(nvrtcGetCUBINSize, nvrtcGetCUBIN)
                                                          : text(nvrtcGetPTXSize, nvrtcGetPTX);
}

/// The same from where compiled kernels are kept, or compiled and then kept there.
///
/// folder: see kept().
inline std::string compiled(std::string_view source, const std::string& name,
                            const std::vector<std::string>& options, const std::string& folder) {
  const std::string key =
      "NVRTC " + nvrtc_version() + " " + joined(options) + "\n" + std::string(source);
  return kept(folder, key, [&] { return compile(std::string(source), name + ".cu", options); });
}

#endif

}  // namespace tutti::detail
