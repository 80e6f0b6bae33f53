// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

static_assert(std::endian::native == std::endian::little,
              "tutti: checkpoint files are little-endian and are read without swapping bytes; "
              "this machine is big-endian, which is not supported.");
