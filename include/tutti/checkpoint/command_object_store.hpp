// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/command.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>

namespace tutti {

/// An object store behind a command line program: aws, gsutil, az, rclone, scp.
///
///     tutti::CommandObjectStore{
///         .uri = "s3://bucket",
///         .upload = "aws s3 cp --only-show-errors {file} s3://bucket/{name}",
///         .download = "aws s3 cp --only-show-errors s3://bucket/{name} {file}",
///         .size = "aws s3api head-object --bucket bucket --key {name} "
///                 "--query ContentLength --output text",
///         .list = "aws s3api list-objects-v2 --bucket bucket --prefix {prefix} "
///                 "--query Contents[].[Key] --output text"}
///
/// A command is split into words as a shell would, quotes included, and run without one; what
/// stands for {file}, {name} and {prefix} stays within its word, whatever is in it. Exit status 0
/// is success.
struct CommandObjectStore final {
  std::string uri;       ///< what names begin with, "s3://bucket"
  std::string upload;    ///< has {file} and {name}
  std::string download;  ///< has {file} and {name}
  std::string size{};    ///< has {name}, prints bytes; empty: sizes are not known
  std::string list{};    ///< has {prefix}, prints a name a line; empty: list_objects() throws
  /// What the program says, or its exit status as "status 44", when an object is not there.
  std::vector<std::string> not_found = {
      "404",          "Not Found",         "not found", "NoSuchKey", "does not exist",
      "No such file", "matched no objects"};
  std::chrono::seconds timeout{3600};  ///< of one command; then it is killed

  /// Throws c10::ValueError when a command lacks a placeholder or a quote.
  void validate() const;

  [[nodiscard]] std::string get_uri(const std::string& name) const { return uri + '/' + name; }

  /// These throw c10::Error with the command, its exit status and the end of what it said;
  /// ObjectNotFound when it said what is in not_found.
  void upload_object(const std::string& name, const std::string& file) const {
    run(upload, {{"{file}", file}, {"{name}", name}});
  }
  void download_object(const std::string& name, const std::string& file) const {
    run(download, {{"{file}", file}, {"{name}", name}}, name);
  }
  [[nodiscard]] std::int64_t get_object_size(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> list_objects(const std::string& prefix = "") const;

 private:
  using Values = std::vector<std::pair<std::string_view, std::string>>;

  static void require(std::string_view which, const std::string& command,
                      std::vector<std::string_view> placeholders);

  // Fills in the placeholders of one word, never twice.
  static std::string filled(std::string_view word, const Values& values);

  // Returns what the command printed. object: whose absence it may report.
  std::string run(const std::string& command, const Values& values,
                  const std::string& object = {}) const;
};

static_assert(ObjectStore<CommandObjectStore>);

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/checkpoint/command_object_store.inl.hpp>
#endif
