// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>

/// How tutti throws: LibTorch's types of exceptions, whose what() is the sentence alone. Where one
/// comes from is in what() when TORCH_SHOW_CPP_STACKTRACES is 1 in the environment.

/// Throws `Type`, one of LibTorch's exceptions, unless `condition` holds; the rest is its sentence.
#define TUTTI_CHECK_AS(Type, condition, ...)                                                 \
  if (C10_UNLIKELY_OR_CONST(!(condition))) {                                                 \
    ::tutti::detail::raise<Type>({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, \
                                 ::c10::str(__VA_ARGS__));                                   \
  }
#define TUTTI_CHECK(condition, ...) TUTTI_CHECK_AS(::c10::Error, condition, __VA_ARGS__)
#define TUTTI_CHECK_VALUE(condition, ...) TUTTI_CHECK_AS(::c10::ValueError, condition, __VA_ARGS__)
#define TUTTI_CHECK_INDEX(condition, ...) TUTTI_CHECK_AS(::c10::IndexError, condition, __VA_ARGS__)
#define TUTTI_CHECK_NOT_IMPLEMENTED(condition, ...) \
  TUTTI_CHECK_AS(::c10::NotImplementedError, condition, __VA_ARGS__)

namespace tutti::detail {

// Whether the user wants to know where exceptions come from, by LibTorch's own variable.
inline bool wants_stack_traces() {
  const char* value = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  return value != nullptr && std::string_view(value) == "1";
}

// An exception to be thrown, one of LibTorch's types.
template <class Error>
Error make_error(c10::SourceLocation where, std::string text) {
  return wants_stack_traces() ? Error(where, std::move(text))
                              : Error(std::move(text), c10::Backtrace());
}

template <class Error>
[[noreturn]] C10_NOINLINE void raise(c10::SourceLocation where, std::string text) {
  throw make_error<Error>(where, std::move(text));
}

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE void raise<c10::Error>(c10::SourceLocation, std::string);
TUTTI_TEMPLATE void raise<c10::ValueError>(c10::SourceLocation, std::string);
TUTTI_TEMPLATE void raise<c10::IndexError>(c10::SourceLocation, std::string);
TUTTI_TEMPLATE void raise<c10::NotImplementedError>(c10::SourceLocation, std::string);
#endif

// Takes the stack trace out of an exception of LibTorch's own, which keeps its type.
void drop_stack_trace(const std::exception_ptr& thrown);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void drop_stack_trace(const std::exception_ptr& thrown) {
  if (wants_stack_traces()) {
    return;
  }
  try {
    std::rethrow_exception(thrown);
  } catch (c10::Error& error) {
    error = c10::Error(error.what_without_backtrace(), c10::Backtrace());
  } catch (...) {  // has none
  }
}

}  // namespace tutti::detail

#endif
