// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>

#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>
#include <tutti/dist/flight_recorder.hpp>

namespace tutti {

namespace detail {

/// Leaves the failure where torchrun looks for it, in the file that TORCHELASTIC_ERROR_FILE names;
/// torchrun reports the earliest. Not that of a rank which failed since another one is gone.
/// Source: PyTorch, `torch.distributed.elastic.multiprocessing.errors.ErrorHandler`.
inline void write_error_file(const std::string& text) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == 0 || dist::flight_recorder().follows()) {
    return;
  }
  if (std::FILE* const file = std::fopen(path, "we")) {
    std::fprintf(file,
                 "{\"message\": {\"message\": %s, \"extraInfo\": {\"py_callstack\": \"\", "
                 "\"timestamp\": \"%lld\"}}}\n",
                 json_quoted(text).c_str(), static_cast<long long>(std::time(nullptr)));
    std::fclose(file);
  }
}

}  // namespace detail

/// Ends a program in words: prints what the exception being handled says, and returns the exit
/// status of a failure.
///
///     int main(int argc, char** argv) try {
///       ...
///     } catch (...) {
///       return tutti::report_failure();
///     }
///
/// By then all locals of main are destroyed, so that policies are closed and files are whole. A
/// program without it ends by abort(), and its locals may never be destroyed. Where the exception
/// came from is printed as well when TORCH_SHOW_CPP_STACKTRACES is 1 in the environment, as
/// LibTorch has it.
///
/// out: where it is printed, one line for most exceptions of tutti; what was printed to stdout is
/// there before. Under torchrun it is also left in the file that torchrun reports of.
/// Returns EXIT_FAILURE, or EXIT_SUCCESS when no exception is being handled.
inline int report_failure(std::FILE* out = stderr) {
  const std::exception_ptr error = std::current_exception();
  if (!error) {
    return EXIT_SUCCESS;
  }
  std::string text = detail::thrown();
  if (detail::wants_stack_traces()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      text = known.what();
    } catch (...) {  // has no more to say
    }
  }
  std::fflush(stdout);
  std::fprintf(out, "%s\n", text.c_str());
  std::fflush(out);
  detail::write_error_file(text);
  return EXIT_FAILURE;
}

}  // namespace tutti
