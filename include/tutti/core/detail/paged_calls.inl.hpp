// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <tutti/core/detail/paged_calls.hpp>

namespace tutti::detail {

// Views have the keys of what they are views of, and what operators make has none.
TUTTI_INLINE at::Tensor watched(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys =
      tensor.key_set() | c10::DispatchKeySet(c10::DispatchKey::DeferredInit);
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), keys,
                                                            tensor.dtype());
  out.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
  return out;
}

// Calls `f(tensor, element)` for the tensors of a value. element: their place in a list.
template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor(), std::optional<std::size_t>());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].isTensor()) {
        f(list[i].toTensor(), std::optional<std::size_t>(i));
      }
    }
  }
}

// Whether an operator looks at no more than the sizes, the type and the graph of what it gets.
TUTTI_INLINE bool reads_no_memory(const std::string& name) {
  return name == "aten::detach" || name == "aten::requires_grad_" || name == "aten::retain_grad" ||
         name.starts_with("aten::new_") || name.ends_with("_like");
}

// Brings the memory that an operator reads.
TUTTI_INLINE void bring_arguments(const c10::OperatorHandle& op,
                                  const std::vector<c10::IValue>& stack) {
  std::vector<Pager*> pagers;
  const std::string& name = op.schema().name();
  if (reads_no_memory(name)) {
    return;
  }
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(stack[stack.size() - arguments.size() + i],
                [&](const at::Tensor& tensor, const std::optional<std::size_t>&) {
                  Pager* const pager = Pager::of(tensor);
                  if (pager == nullptr) {
                    return;
                  }
                  if (pager == &Pager::gone()) {
                    pager->bring(name, 1);  // throws
                  }
                  const auto* const alias = arguments[i].alias_info();
                  TUTTI_CHECK(alias == nullptr || !alias->isWrite(), "sharding: ", name,
                              " writes into a parameter of which each rank has a part; write "
                              "within summon(/*write_back=*/true), on every rank");
                  if (std::find(pagers.begin(), pagers.end(), pager) == pagers.end()) {
                    pagers.push_back(pager);
                  }
                });
  }
  for (Pager* const pager : pagers) {
    pager->bring(name, pagers.size());
  }
}

}  // namespace tutti::detail
