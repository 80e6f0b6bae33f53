// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

#include <tutti/dist/process_group.hpp>

namespace tutti_test {

/// What one process does, without the variables and the group of this rank.
template <class Body>
auto alone(Body body) {
  tutti::dist::shutdown();
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    ::unsetenv(name);
  }
  return body();
}

}  // namespace tutti_test
