// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tutti/checkpoint/module_state.hpp>

namespace tutti {

/// What a trainer took of a checkpoint and what not. Parts are named by their path in it:
/// "optimizers", "policies/EMA".
struct RunLoadReport {
  std::string path;                   ///< the checkpoint; empty: none was loaded
  bool weights_only = false;          ///< only the model was asked for
  checkpoint::LoadReport model;       ///< weight by weight
  std::vector<std::string> restored;  ///< parts that the run took
  std::vector<std::string> afresh;    ///< parts of this run that the checkpoint has nothing for
  std::vector<std::string> unused;    ///< parts of the checkpoint that this run has no place for
  std::vector<std::string> ignored;   ///< full paths left out by load_ignore_keys, also of weights
                                      ///< that only the model has
  std::vector<std::string> notes;     ///< sentences about what may surprise

  /// Everything in the checkpoint was taken, and nothing of this run starts afresh. What was left
  /// out as asked, by load_ignore_keys, was not taken.
  [[nodiscard]] bool complete() const {
    return model.complete() && afresh.empty() && unused.empty() && ignored.empty() && notes.empty();
  }

  /// All of it in words, a line per kind; empty when nothing was loaded.
  [[nodiscard]] std::string text() const {
    if (path.empty()) {
      return {};
    }
    std::string out = "loaded '" + path + "': " + std::to_string(model.loaded.size()) + " of " +
                      std::to_string(model.loaded.size() + model.missing.size() +
                                     model.mismatched.size() + model.ignored.size()) +
                      " weights" + (weights_only ? " and nothing else, as asked" : "");
    list(out, "restored", restored);
    list(out, "starting afresh", afresh);
    list(out, "not used, since this run has no place for it", unused);
    list(out, "left out by load_ignore_keys", ignored);
    out += model.text();
    for (const std::string& note : notes) {
      out += "\n  " + note;
    }
    return out;
  }

 private:
  static void list(std::string& out, std::string_view title,
                   const std::vector<std::string>& names) {
    constexpr std::size_t shown = 12;
    if (names.empty()) {
      return;
    }
    out.append("\n  ").append(title).append(": ");
    for (std::size_t i = 0; i < names.size() && i < shown; ++i) {
      out += (i == 0 ? "" : ", ") + names[i];
    }
    if (names.size() > shown) {
      out += " and " + std::to_string(names.size() - shown) + " more";
    }
  }
};

}  // namespace tutti
