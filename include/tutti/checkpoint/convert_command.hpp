// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/convert.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/snapshot.hpp>

/// The command line of `tutti-checkpoint`.
namespace tutti::checkpoint {

namespace detail {

inline constexpr const char* convert_usage =
    "tutti-checkpoint consolidate FROM TO     makes a whole checkpoint of a sharded one\n"
    "tutti-checkpoint shard FROM TO RANKS     cuts a whole one into the files of so many ranks\n"
    "tutti-checkpoint verify FOLDER           reads all of a checkpoint and compares checksums\n"
    "FROM and FOLDER may be a pointer, such as runs/a/latest; TO is a new folder.\n";

// Does what the words say; false when they make no sense.
inline bool convert(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? std::string() : words.front();
  if (verb == "consolidate" && words.size() == 3) {
    consolidate_checkpoint(words[1], words[2]);
    return true;
  }
  if (verb == "shard" && words.size() == 4) {
    int ranks = 0;
    const char* const end = words[3].data() + words[3].size();
    const auto [last, error] = std::from_chars(words[3].data(), end, ranks);
    if (error != std::errc() || last != end) {
      return false;
    }
    shard_checkpoint(words[1], words[2], ranks);
    return true;
  }
  if (verb == "verify" && words.size() == 2) {
    if (is_sharded(words[1])) {
      ShardedCheckpoint(words[1]).verify();
    } else {
      read_snapshot(words[1]);
    }
    std::printf("%s is whole and undamaged\n", resolve(words[1]).c_str());
    return true;
  }
  return false;
}

}  // namespace detail

/// The program `tutti-checkpoint`. Returns its exit status: 0; 1 when a checkpoint is refused, of
/// which standard error says why; 2 for a wrong command line.
inline int convert_main(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const bool help = !words.empty() && (words.front() == "-h" || words.front() == "--help");
  try {
    if (!help && detail::convert(words)) {
      return 0;
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "tutti-checkpoint: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-checkpoint: %s\n", error.what());
    return 1;
  }
  std::fputs(detail::convert_usage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace tutti::checkpoint
