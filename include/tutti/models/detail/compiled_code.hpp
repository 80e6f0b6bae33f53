// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/models/detail/compiled_package.hpp>

/// Programs that inductor has compiled: shared objects that run with the rights of this process.
namespace tutti::models::detail {

/// Runs a program on a device: its inputs, which it frees after their last use, to its results.
using ProgramRunner = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>&&, at::Device)>;

/// What instructions a processor has, of the text of /proc/cpuinfo; empty where it does not say.
std::set<std::string> processor_flags(const std::string& cpuinfo);

/// Throws c10::Error when the package's compiled.json has another SHA-256; empty: any may be.
void check_sha256(const std::string& folder, const std::string& wanted);

/// Throws c10::Error when the programs of a package were made for another LibTorch, another
/// architecture, or instructions that are not among `flags`.
void check_machine(const ExportedPackage& package, const std::string& folder,
                   const std::set<std::string>& flags);

/// Throws c10::Error when the program's file is not there, or not the one that compiled.json names
/// by its XXH64; by_sha256: by its SHA-256 as well.
void check_code(const std::string& path, const ExportedProgram& program, bool by_sha256);

/// Loads a program for "cpu" or "cuda", which runs what the file has in it; one for CUDA is loaded
/// for a device by its first call there. Throws c10::Error when it does not load.
ProgramRunner load_code(const std::string& path, const std::string& kind);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <sys/utsname.h>

#include <exception>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#endif

#include <tutti/core/detail/proc.hpp>
#include <tutti/core/detail/sha2.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::models::detail {

TUTTI_INLINE std::set<std::string> processor_flags(const std::string& cpuinfo) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("flags") || line.starts_with("Features")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      std::set<std::string> out;
      for (std::string word; words >> word;) {
        out.insert(word);
      }
      return out;
    }
  }
  return {};
}

// "2.11" of "2.11.0".
TUTTI_INLINE std::string minor_of(const std::string& version) {
  const auto dot = version.find('.');
  return version.substr(0, dot == std::string::npos ? dot : version.find('.', dot + 1));
}

TUTTI_INLINE void check_sha256(const std::string& folder, const std::string& wanted) {
  if (wanted.empty()) {
    return;
  }
  const std::string path = folder + "/compiled.json";
  const std::string got = ::tutti::detail::sha256(tutti::detail::file_text(path.c_str()));
  TUTTI_CHECK(got == wanted, "load_compiled: '", path, "' has the SHA-256 ", got,
              ", and expect_sha256 is ", wanted,
              "; it is another package, nothing of it was loaded");
}

TUTTI_INLINE void check_machine(const ExportedPackage& package, const std::string& folder,
                                const std::set<std::string>& flags) {
  TUTTI_CHECK(minor_of(package.torch) == minor_of(TORCH_VERSION),
              "load_compiled: the programs of '", folder, "' were compiled with torch ",
              package.torch, ", and this program has LibTorch ", TORCH_VERSION,
              "; export the model with torch ", minor_of(TORCH_VERSION),
              ", or with --data-only, which fits any version");
  ::utsname system{};
  ::uname(&system);
  TUTTI_CHECK(package.architecture == system.machine, "load_compiled: the programs of '", folder,
              "' were compiled for ", package.architecture, ", and this machine is ",
              system.machine, "; export the model on such a machine, or with --data-only");
  std::string missing;
  for (const std::string& flag : package.cpu) {
    missing += flags.contains(flag) ? "" : (missing.empty() ? "" : ", ") + flag;
  }
  TUTTI_CHECK(missing.empty(), "load_compiled: the programs of '", folder, "' were compiled for ",
              package.isa, ", and this processor lacks ", missing,
              "; export the model on a processor like this one, or with --data-only");
}

TUTTI_INLINE void check_code(const std::string& path, const ExportedProgram& program,
                             bool by_sha256) {
  const std::string code = tutti::detail::file_text(path.c_str());
  TUTTI_CHECK(!code.empty(), "load_compiled: there is no program '", path,
              "', which compiled.json names; copy the whole folder");
  const auto refuse = [&](const char* what, const std::string& got, const std::string& wanted) {
    TUTTI_CHECK(got == wanted, "load_compiled: the program '", path, "' has the ", what, " ", got,
                ", and compiled.json says ", wanted,
                "; it was changed or is of another export, take the folder as it was exported");
  };
  tutti::detail::Xxh64 hash;
  hash.update(code.data(), code.size());
  refuse("XXH64", hash.text(), program.xxh64);
  if (by_sha256) {
    refuse("SHA-256", ::tutti::detail::sha256(code), program.sha256);
  }
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11

/// A program and the device that it was loaded for.
struct LoadedCode {
  std::string path, kind;
  at::Device device = at::kCPU;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner;

  void load(at::Device where) {
    const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
    const auto maker = makers.find(kind);
    TUTTI_CHECK(maker != makers.end(), "load_compiled: '", path, "' was compiled for ", kind,
                ", and this LibTorch runs no such programs; link a LibTorch with ", kind);
    const std::string folder = path.substr(0, path.rfind('/'));  // of a GPU's kernels
    device = where;
    try {
      runner = maker->second(path, /*num_models=*/1, where.str(), folder,
                             /*run_single_threaded=*/true);
    } catch (const std::exception& error) {
      TUTTI_CHECK(false, "load_compiled: '", path,
                  "' does not load: ", std::string_view(error.what()).substr(0, 500));
    }
  }
};

TUTTI_INLINE ProgramRunner load_code(const std::string& path, const std::string& kind) {
  const auto code = std::make_shared<LoadedCode>();
  code->path = path;
  code->kind = kind;
  if (kind == "cpu") {
    code->load(at::kCPU);
  }
  return [code](std::vector<at::Tensor>&& inputs, at::Device device) {
    if (code->runner == nullptr || code->device != device) {
      code->load(device);
    }
    try {
      return code->runner->boxed_run(std::move(inputs));
    } catch (const std::exception&) {  // whose text names a line of LibTorch alone
      TUTTI_CHECK(false, "CompiledNet: the program '", code->path,
                  "' failed; what it says is on the standard error stream, above");
    }
  };
}

#else

TUTTI_INLINE ProgramRunner load_code(const std::string& path, const std::string&) {
  TUTTI_CHECK(false, "load_compiled: '", path, "' needs LibTorch 2.11 or newer, and this is ",
              TORCH_VERSION, "; export the model with --data-only");
}

#endif

}  // namespace tutti::models::detail

#endif
