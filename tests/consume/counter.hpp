// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/policy.hpp>

struct Counter final {
  int every = 1;
  void apply(tutti::BatchEnd, tutti::State& /*state*/) const {}
};
