// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Python for tests that compare with what a package writes or reads.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace tutti_test {

/// The command of a Python that can import the modules ("torch", "torch, safetensors"): that of
/// TUTTI_TEST_PYTHON, the one that configuring has found or made (TUTTI_INTEROP_PYTHON), of the
/// wheel that LibTorch is from, or python3; empty when none can.
inline std::string python_with(const std::string& modules) {
  static std::map<std::string, std::string> known;  // importing torch takes seconds
  if (const auto found = known.find(modules); found != known.end()) {
    return found->second;
  }
  std::vector<std::string> candidates;
  for (const char* name : {"TUTTI_TEST_PYTHON", "TUTTI_INTEROP_PYTHON"}) {
    if (const char* given = std::getenv(name); given != nullptr && *given != 0) {
      candidates.emplace_back(given);
    }
  }
  ::Dl_info library{};
  void (*const place)(const char*, const char*, std::uint32_t, const std::string&) =
      &c10::detail::torchCheckFail;
  if (::dladdr(reinterpret_cast<const void*>(place), &library) != 0 &&
      library.dli_fname != nullptr) {
    // <environment>/lib/python3.x/site-packages/torch/lib/libc10.so
    std::filesystem::path folder = library.dli_fname;
    for (int i = 0; i < 6; ++i) {
      folder = folder.parent_path();
    }
    candidates.push_back((folder / "bin" / "python3").string());
  }
  candidates.emplace_back("python3");
  for (const std::string& candidate : candidates) {
    const std::string probe = "'" + candidate + "' -c 'import " + modules + "' >/dev/null 2>&1";
    if (std::system(probe.c_str()) == 0) {
      return known[modules] = "'" + candidate + "'";
    }
  }
  return known[modules];
}

/// Why a test that goes to Python and back cannot run: no Python has these modules, and what the
/// set-up says.
inline std::string no_python_with(const std::string& modules) {
  const char* why = std::getenv("TUTTI_INTEROP_REASON");
  return "no Python with " + modules +
         (why != nullptr && *why != 0
              ? ": " + std::string(why)
              : "; cmake/test.cmake makes one with -DTUTTI_ROUND_TRIP=ON, or name one in "
                "TUTTI_TEST_PYTHON");
}

/// Runs a Python script of that text, with arguments; whether it ended well.
inline bool run_python(const std::string& python, const std::string& script,
                       const std::string& arguments) {
  return std::system((python + " -c '" + script + "' " + arguments).c_str()) == 0;
}

}  // namespace tutti_test
