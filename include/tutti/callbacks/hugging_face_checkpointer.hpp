// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time_or_function.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/models/save_pretrained.hpp>

namespace tutti {

/// Writes the model as folders that Transformers reads, while it is trained.
///
///     auto net = tutti::models::from_pretrained<tutti::models::GPT2LMHeadModel>("/models/gpt2");
///     tutti::HuggingFaceCheckpointer{.model = net, .folder = "{run_name}/huggingface",
///                                    .save_interval = "1000ba", .dtype = at::kBFloat16}
///
/// Each is what models::save_pretrained() writes, with the adapters of LoRA merged into the weights
/// (or these alone, when the model is functional::lora_adapters() of it), and with the averaged
/// weights where EMA or SWA give these to checkpoints. The trainer writes them as it writes its
/// checkpoints: on rank 0, whole or not at all, in the background when save_async is set, and
/// removes only what this run has written here. The run resumes from its checkpoints, not from
/// these.
///
/// Source: MosaicML LLM Foundry, `llmfoundry.callbacks.HuggingFaceCheckpointer`.
struct HuggingFaceCheckpointer final {
  static constexpr std::string_view name = "HuggingFaceCheckpointer";
  static constexpr About about{.reads_gradients = false};
  using events = types<Init, FitStart>;

  models::AnyPretrained model{};                  ///< the network that is trained; obligatory
  std::string folder = "{run_name}/huggingface";  ///< placeholders as in save_folder
  std::string filename = "ba{batch}";             ///< of each folder in it
  std::string latest_filename = "latest";         ///< points to the newest; empty: no pointer
  TimeOrFunction save_interval = "1ep";
  bool overwrite = false;  ///< go on in a folder that has some from later in a run
  std::int64_t num_checkpoints_to_keep = -1;     ///< the newest; -1: all
  std::optional<c10::ScalarType> dtype{};        ///< of the files; empty: the parameters' own
  std::uint64_t max_shard_size = 5'000'000'000;  ///< bytes of a file at most
  std::string copy_files_from{};  ///< a folder whose tokenizer and the like are copied; empty: none

  /// What it holds while it runs; not an option.
  struct Run {
    std::optional<checkpoint::Saver> saver{};  ///< from Init
  } run{};

  /// Throws c10::ValueError when options are out of range.
  void validate() const {
    expect(static_cast<bool>(model),
           "HuggingFaceCheckpointer: model is empty, expected the network that is trained.");
    expect(!folder.empty(), "HuggingFaceCheckpointer: folder", folder, "a path");
    expect(!filename.empty() && filename.find('/') == std::string::npos,
           "HuggingFaceCheckpointer: filename", filename, "a name without slashes");
    expect(num_checkpoints_to_keep >= -1, "HuggingFaceCheckpointer: num_checkpoints_to_keep",
           num_checkpoints_to_keep, "-1 or more");
    expect(max_shard_size > 0, "HuggingFaceCheckpointer: max_shard_size", max_shard_size,
           "1 or more");
  }

  void apply(Init, const State& state) {
    run.saver.emplace(checkpoint::SaverOptions{.folder = folder,
                                               .filename = filename,
                                               .latest_filename = latest_filename,
                                               .interval = save_interval,
                                               .overwrite = overwrite,
                                               .weights_only = true,
                                               .keep = num_checkpoints_to_keep,
                                               .fill_files = filler()},
                      state);
  }

  /// Throws as models::check_expressible() where the algorithms have made a model that no folder
  /// holds.
  void apply(FitStart, const State& /*state*/) const {
    models::check_expressible(model, /*merge_adapters=*/true);
  }

  /// What the trainer asks and writes for.
  [[nodiscard]] checkpoint::Saver& checkpoint_saver() { return *run.saver; }

  /// The folders that it has written and not removed: oldest first.
  [[nodiscard]] std::vector<std::string> saved() const {
    return run.saver ? run.saver->saved() : std::vector<std::string>();
  }

  /// One that a Switch has turned off has no list, and keeps none.
  void save(Archive& archive) const {
    if (run.saver) {
      run.saver->save(archive);
    }
  }
  void load(const Archive& archive) {
    if (run.saver && archive.contains("names")) {
      run.saver->load(archive);
    }
  }

 private:
  [[nodiscard]] std::function<void(checkpoint::SnapshotFiles&)> filler() const {
    const models::SavePretrainedOptions options{.dtype = dtype,
                                                .max_shard_size = max_shard_size,
                                                .merge_adapters = true,
                                                .copy_files_from = copy_files_from};
    return [net = model, options](checkpoint::SnapshotFiles& files) {
      files.folder = models::pretrained_folder(net, options, files.model);
    };
  }
};

}  // namespace tutti
