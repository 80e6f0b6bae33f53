// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/data/transforms.hpp>

namespace tutti::detail {

// The list of transforms of the training data, for the policy `who` to add to.
inline data::Transforms& train_transforms(const State& state, std::string_view who) {
  TUTTI_CHECK(state.train_transforms != nullptr, who,
              " changes every image on its own and the training loader has no list of transforms "
              "to put it into; train from tutti::ImageLoader or tutti::DataLoader, or leave ",
              who, " out and call its functional form in a loader of your own");
  return *state.train_transforms;
}

}  // namespace tutti::detail
