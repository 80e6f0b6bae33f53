// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <tutti/config.hpp>

namespace tutti::models::detail {

/// While it lives, parameters that this thread makes keep the values of their memory: normal_() and
/// uniform_() do nothing. For a model whose weights are read from a file right afterwards; drawing
/// them would take ten times as long as reading them.
class WithoutInit {
 public:
  WithoutInit() : guard_(key()) {}

 private:
  static c10::DispatchKey key();

  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

// LibTorch has a dispatch key for libraries that put off the initialisation of modules, and nothing
// behind it. Here the two random fills get an implementation under it, all else passes through.
TUTTI_INLINE c10::DispatchKey WithoutInit::key() {
  static constexpr auto key = c10::DispatchKey::DeferredInit;
  using Random = std::optional<at::Generator>;
  static const auto fills = [] {
    torch::Library library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library.impl("normal_",
                 [](at::Tensor& self, double, double, Random) -> at::Tensor& { return self; });
    library.impl("uniform_",
                 [](at::Tensor& self, double, double, Random) -> at::Tensor& { return self; });
    return library;
  }();
  static const auto others = [] {
    torch::Library library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) {
      library.fallback(torch::CppFunction::makeFallthrough());
    }
    return library;
  }();
  return key;
}

}  // namespace tutti::models::detail

#endif
