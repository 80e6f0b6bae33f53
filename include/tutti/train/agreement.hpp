// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/count_or_auto.hpp>
#include <tutti/core/detail/constants.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh64.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/options.hpp>

namespace tutti::train {

/// Options by which all ranks of a run have to do the same: how long it is, when it evaluates and
/// saves, how batches are cut and gradients averaged. Each is a line, "save_interval = 1ep".
///
/// Those that each rank may have for itself are not among them: what it prints, its device, its
/// data, where its files are. dist::ShardingOptions are compared when the model is sharded. Of
/// optimizers and schedules the hyperparameters are, where they can be listed.
std::vector<std::string> common_options(const TrainerOptions& options);
std::vector<std::string> common_options(const FitOptions& options);

/// Refuses ranks whose common options differ, before they would wait for each other; a collective.
/// Throws c10::ValueError on every rank with the first difference.
void check_common_options(const std::vector<std::string>& options, dist::Communicator& world);
template <class Options>
void check_common_options(const Options& options, dist::Communicator& world) {
  if (world.size() > 1) {
    check_common_options(common_options(options), world);
  }
}

/// Warns at rank 0 of algorithms whose hyperparameters differ by rank; a collective. They are
/// compared as text: one may have a member that is each rank's own.
void warn_of_other_algorithms(const tutti::detail::Constants& algorithms,
                              dist::Communicator& world);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/agreement.inl.hpp>
#endif
