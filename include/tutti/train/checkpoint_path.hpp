// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/train/detail/checkpoints.hpp>
#include <tutti/train/run_checkpoints.hpp>

namespace tutti {

struct TrainerOptions;

/// A path among the options that brings along what is done with it. To its user it is a
/// std::string.
///
/// What saves and loads checkpoints is a good part of what a Trainer takes to compile. Only setting
/// a path names it, so that a program that sets none does not compile it.
class CheckpointPath : public std::string {
 public:
  CheckpointPath() = default;
  template <std::convertible_to<std::string> Text>
    requires(!std::same_as<std::remove_cvref_t<Text>, CheckpointPath>)
  CheckpointPath(Text&& text)
      : std::string(std::forward<Text>(text)), make_(make<TrainerOptions>) {}

  /// As a std::filesystem::path, which takes no class derived from std::string by itself.
  template <class Path>
    requires std::same_as<typename Path::string_type, std::string>
  operator Path() const {
    return static_cast<const std::string&>(*this);
  }

  /// The checkpoints of a run with such a path.
  /// Throws c10::Error when the path was never assigned, but read into or appended to in place.
  [[nodiscard]] std::unique_ptr<train::Checkpoints> checkpoints(State& state,
                                                                train::Run& run) const {
    TUTTI_CHECK(make_ != nullptr, "save_folder or load_path was changed in place to \"", c_str(),
                "\"; assign the whole path instead");
    return make_(state, run);
  }

 private:
  template <class Options>
  static std::unique_ptr<train::Checkpoints> make(State& state, train::Run& run);

  std::unique_ptr<train::Checkpoints> (*make_)(State&, train::Run&) = nullptr;
};

template <class Options>
std::unique_ptr<train::Checkpoints> CheckpointPath::make(State& state, train::Run& run) {
  return std::make_unique<train::RunCheckpoints<Options>>(state, run);
}

}  // namespace tutti
