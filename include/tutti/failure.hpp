// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <tutti/core/detail/error_file.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>

namespace tutti {

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
