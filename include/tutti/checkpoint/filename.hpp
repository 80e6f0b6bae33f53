// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/time.hpp>

namespace tutti::checkpoint {

/// What the placeholders of folder and file names stand for.
struct NameFields {
  std::string run_name;
  std::string run_folder{};  ///< empty: the run's name stands for it
  std::int64_t rank = 0;
  std::int64_t local_rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_world_size = 1;
  std::int64_t node_rank = 0;
  Timestamp timestamp{};
};

namespace detail {

/// Counters that a file name can hold and that grow during a run.
std::map<std::string, std::int64_t, std::less<>> counters(const Timestamp& t);

std::optional<std::string> field_text(std::string_view name, const NameFields& fields);

/// The name inside the braces that `text` begins with; empty when it does not begin with a
/// placeholder.
std::string_view placeholder(std::string_view text);

}  // namespace detail

/// A name with its placeholders filled in: "ep{epoch}-ba{batch}" is "ep1-ba45".
///
/// Known: run_name, run_folder, rank, local_rank, world_size, local_world_size, node_rank, epoch,
/// batch, batch_in_epoch, sample, sample_in_epoch, token, token_in_epoch, and total_wct, epoch_wct,
/// batch_wct in seconds. Others are left as they are. Source: Composer,
/// composer/utils/file_helpers.py, format_name_with_dist_and_time.
std::string format_name(std::string_view pattern, const NameFields& fields);

/// Refuses a pattern with a word in braces that format_name() would leave as it is, such as a
/// misspelt placeholder, with which every checkpoint would have one name.
/// Throws c10::ValueError with the ones that there are.
void check_placeholders(std::string_view pattern);

/// check_placeholders() for a name that a run has once: refuses counters and clocks, too.
/// what: "folder", for the message.
void check_constant_placeholders(std::string_view what, std::string_view pattern);

/// Whether a name stays in the folder that it is put into: not empty, no slash, no dot first, since
/// names with one are those of what is not finished.
bool is_plain_name(std::string_view name);

/// Refuses a run's name that leads out of the folders that it is put into: "../b", "/b".
/// Throws c10::ValueError.
void check_run_name(std::string_view name);

/// The numbers that a pattern's placeholders have in a name, or nothing when the name is not made
/// by it.
///
/// Placeholders other than counters and ranks match any text.
std::optional<std::map<std::string, std::int64_t>> parse_name(std::string_view pattern,
                                                              std::string_view name);

/// Refuses to go on in a folder whose checkpoints are from later in a run than this one is.
///
/// folder: may be missing. pattern: that of the file names, with run_name and ranks filled in or
/// not. A counter within the epoch counts only when the epoch is the same. is_own: of a path,
/// whether this run wrote it and may write it anew; empty: none. Throws c10::Error naming the newer
/// checkpoint and what to do.
void check_no_newer(const std::filesystem::path& folder, std::string_view pattern,
                    const Timestamp& now,
                    const std::function<bool(const std::filesystem::path&)>& is_own = {});

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/filename.inl.hpp>
#endif
