// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <tutti/config.hpp>
#include <tutti/core/log.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti::train::detail {

// What all ranks have logged together, where one may have logged names that another has not; a
// collective.
::tutti::detail::LoggedValues::Sums over_ranks(::tutti::detail::LoggedValues::Sums own,
                                               dist::Communicator& communicator);

}  // namespace tutti::train::detail

#if TUTTI_BODIES

#include <cstdint>
#include <cstring>
#include <string_view>

namespace tutti::train::detail {

TUTTI_INLINE ::tutti::detail::LoggedValues::Sums over_ranks(::tutti::detail::LoggedValues::Sums own,
                                                            dist::Communicator& communicator) {
  using Sum = ::tutti::detail::LoggedValues::Sum;
  static_assert(sizeof(Sum) == 2 * sizeof(double));
  std::string message;  // of each: the length of the name, the name, the numbers
  for (const auto& [name, sum] : own) {
    const std::uint64_t length = name.size();
    message.append(reinterpret_cast<const char*>(&length), sizeof length).append(name);
    message.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  }
  own.clear();
  for (const std::string& bytes : communicator.all_gather_bytes(message)) {
    for (std::string_view rest = bytes; !rest.empty();) {
      std::uint64_t length = 0;
      std::memcpy(&length, rest.data(), sizeof length);
      rest.remove_prefix(sizeof length);
      const std::string name(rest.substr(0, length));
      rest.remove_prefix(length);
      Sum sum;
      std::memcpy(&sum, rest.data(), sizeof sum);
      rest.remove_prefix(sizeof sum);
      Sum& all = own[name];
      all.sum += sum.sum;
      all.weight += sum.weight;
    }
  }
  return own;
}

}  // namespace tutti::train::detail

#endif
