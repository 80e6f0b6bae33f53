// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <tutti/checkpoint/latest.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/train/checkpointing.hpp>

namespace tutti::train {

/// What a trainer loads when it is made, and how.
struct LoadSource {
  std::string path;        ///< empty: nothing
  LoadOptions options{};   ///< what is taken of it
  bool continues = false;  ///< it is where this run's own folder points to
};

namespace detail {

// What every rank found, which must be the same.
inline std::string agree_on(const std::string& found, dist::Communicator& world) {
  const std::vector<std::string> all = world.all_gather_bytes(found);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    TUTTI_CHECK(all[rank] == all.front(), "autoresume: rank 0 found ",
                all.front().empty() ? "no checkpoint" : "'" + all.front() + "'", ", rank ", rank,
                " found ", all[rank].empty() ? "none" : "'" + all[rank] + "'",
                "; save_folder must be on a file system that all ranks share");
  }
  return all.front();
}

}  // namespace detail

/// What to load: with autoresume the newest checkpoint of the save folder's run, see find_latest(),
/// when there is one, whole and whatever the options leave out; else load_path as the options say.
/// A collective.
///
/// fetch: a collective, called where rank 0 finds none; brings one from elsewhere if it can.
/// options: TrainerOptions, which check_autoresume() has seen. folder: their save_folder, filled
/// in, and latest: their save_latest_filename likewise. Throws c10::Error when the ranks find
/// different checkpoints or the pointer names one that is gone.
/// load_path: the options', its placeholders filled in.
template <class Options, class Fetch>
LoadSource choose_load(const Options& options, const std::string& load_path,
                       const std::string& folder, const std::string& latest,
                       dist::Communicator& world, Fetch&& fetch) {
  if (options.autoresume) {
    std::string found;
    bool lacks = false;
    if (const auto error =
            on_rank_zero(world, [&] { lacks = !checkpoint::find_latest(folder, latest); })) {
      std::rethrow_exception(error);
    }
    if (world.all_reduce_value(std::int64_t{lacks}, dist::ReduceOp::maximum) != 0) {
      fetch();
    }
    detail::on_every_rank(world,
                          [&] { found = checkpoint::find_latest(folder, latest).value_or(""); });
    found = detail::agree_on(found, world);
    if (!found.empty()) {
      return {.path = found,
              .options = {.strict = options.load_strict_model_weights},
              .continues = true};
    }
  }
  return {.path = load_path,
          .options = {.weights_only = options.load_weights_only,
                      .strict = options.load_strict_model_weights,
                      .ignore_keys = options.load_ignore_keys},
          .continues = !folder.empty() && !latest.empty() && load_path == folder + "/" + latest};
}

}  // namespace tutti::train
