// SPDX-License-Identifier: Apache-2.0
#pragma once

// The texts of CUDA kernels, compiled as C++ and run on the host, one thread after the other.

#include <ATen/ATen.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>

#include <tutti/fused/detail/tables.hpp>

#include "fused/host_shim.hpp"
#include "support/temporary_folder.hpp"

namespace host_kernels {

using tutti::fused::detail::KernelBatch;
using tutti::fused::detail::Launch;

struct Variant {
  const char* out;  // as the kernel calls it
  at::ScalarType type;
  bool last;
};
inline const std::vector<Variant> variants{
    {"float", at::kFloat, false},       {"float", at::kFloat, true},
    {"Half", at::kHalf, false},         {"Half", at::kHalf, true},
    {"BFloat16", at::kBFloat16, false}, {"BFloat16", at::kBFloat16, true}};

class Library {
 public:
  using Run = void (*)(const KernelBatch*, void*, const unsigned*, const unsigned*);

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle_ != nullptr) {
      ::dlclose(handle_);
    }
  }

  // Returns the number of the source, to be built for all variants.
  std::size_t add(std::string_view source) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].data() == source.data()) {
        return i;
      }
    }
    sources_.push_back(source);
    return sources_.size() - 1;
  }

  // Returns what went wrong; empty: nothing.
  std::string build() {
    const std::string base = (folder_.path() / "kernels").string();
    {
      std::ofstream file(base + ".cpp");
      file << shim;
      for (std::size_t i = 0; i < sources_.size(); ++i) {
        for (const Variant& v : variants) {
          const std::string id = name(i, v);
          file << "#define tutti_fused_pass pass_" << id << "\n#define TUTTI_OUT " << v.out
               << "\n#define TUTTI_LAST " << int{v.last} << "\nnamespace " << id << " {"
               << sources_[i] << "}\nextern \"C\" void run_" << id
               << "(const void* batch, void* out, const unsigned* block, const unsigned* grid) {\n"
               << "  using namespace " << id << ";\n  for_threads(block, grid, [&] { pass_" << id
               << "(*static_cast<const " << id
               << "::Batch*>(batch), static_cast<TUTTI_OUT*>(out)); });\n}\n#undef "
                  "tutti_fused_pass\n#undef TUTTI_OUT\n"
               << "#undef TUTTI_LAST\n";
        }
      }
    }
    const std::string command = std::string(compile_command) + " -o '" + base + ".so' '" + base +
                                ".cpp' > '" + base + ".log' 2>&1";
    if (std::system(command.c_str()) != 0) {
      std::ifstream log(base + ".log");
      return command + "\n" + std::string(std::istreambuf_iterator<char>(log), {});
    }
    handle_ = ::dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      return ::dlerror();
    }
    set_round_to_half(handle_);
    return {};
  }

  [[nodiscard]] Run kernel(std::size_t source, const Variant& variant) const {
    return reinterpret_cast<Run>(::dlsym(handle_, ("run_" + name(source, variant)).c_str()));
  }

 private:
  static std::string name(std::size_t source, const Variant& v) {
    return "k" + std::to_string(source) + "_" + v.out + (v.last ? "_last" : "_first");
  }

  TemporaryFolder folder_;
  std::vector<std::string_view> sources_;
  void* handle_ = nullptr;
};

}  // namespace host_kernels
