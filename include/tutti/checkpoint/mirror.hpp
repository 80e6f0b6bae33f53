// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tutti::checkpoint {

/// Keeps copies of a run's checkpoints elsewhere. A policy brings one with a member
/// `checkpoint::Mirror& checkpoint_mirror()`, valid from Init; the trainer tells it what was
/// written and asks it for what is to be loaded.
///
/// Only rank 0 is asked, but for fetch().
class Mirror {
 public:
  virtual ~Mirror() = default;

  /// A checkpoint is whole on disk; those that it replaces are removed once this returns. Called
  /// on the thread that wrote. path: its folder. link: the pointer that names it now, here too
  /// unless nothing is kept here; empty: none.
  virtual void written(const std::string& path, const std::string& link) noexcept = 0;

  /// A copy could not be made, which check() would tell.
  [[nodiscard]] virtual bool failed() const noexcept = 0;

  /// Throws c10::Error, or warns, of copies that could not be made since the last call.
  virtual void check() = 0;

  /// Waits until all copies are made, for no longer than `most`. Returns whether they are.
  virtual bool wait(std::chrono::milliseconds most) = 0;

  /// Brings the checkpoint that the copies' pointer names into `folder`, and points `latest` to it.
  /// Returns false when there are no copies of that folder.
  virtual bool fetch_latest(const std::string& folder, const std::string& latest) = 0;

  /// Brings the checkpoint of that address, or what a pointer there names, to the new folder
  /// `target`. Returns false when the address is none of its own.
  virtual bool fetch(const std::string& uri, const std::string& target) = 0;

  /// Brings the checkpoint `name` of the copies of `folder` to where it was. Returns false when
  /// there is no copy.
  virtual bool fetch_named(const std::string& /*folder*/, const std::string& /*name*/) {
    return false;
  }

  /// Takes what an earlier process has written and not copied. saved: the checkpoints that there
  /// are of one folder, oldest first. link: its pointer, which names one of them; empty: none.
  virtual void catch_up(const std::vector<std::string>& /*saved*/,
                        const std::string& /*link*/) noexcept {}

  /// Where the copies of a folder go, so that no two go to the same; empty: it cannot tell.
  [[nodiscard]] virtual std::string address_of(const std::string& /*folder*/) const { return {}; }
};

}  // namespace tutti::checkpoint
