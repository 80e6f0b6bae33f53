// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The functions that are no templates, for a program whose sources define
/// TUTTI_SEPARATE_COMPILATION: include it in exactly one of them, before any other header of tutti.

#if !defined(TUTTI_SEPARATE_COMPILATION)
#error "tutti: separate.hpp needs TUTTI_SEPARATE_COMPILATION in every source; link tutti::separate."
#elif defined(TUTTI_BODIES)
#error "tutti: include <tutti/separate.hpp> before any other header of tutti."
#else
#define TUTTI_SEPARATE_SOURCE
#include <tutti/tutti.hpp>
// Not in tutti.hpp, but its functions are compiled here:
#include <tutti/models/tensor_parallel.hpp>
#endif
