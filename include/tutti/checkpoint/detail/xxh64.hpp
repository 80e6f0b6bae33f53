// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/detail/little_endian.hpp>
#include <tutti/core/detail/xxh64.hpp>

namespace tutti::checkpoint::detail {

using ::tutti::detail::Xxh64;

}  // namespace tutti::checkpoint::detail
