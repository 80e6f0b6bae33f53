// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/loggers/run_path.hpp>

namespace tutti {

/// Writes what predict() finds into a file, batch by batch, so that it need not fit into memory:
/// `trainer.predict(loader, -1, /*return_outputs=*/false)`.
///
///     PredictionWriter{.filename = "{run_folder}/predictions.csv", .class_names = {"cat", "dog"},
///                      .top_k = 2, .scores = PredictionWriter::Scores::softmax}
///
///     example,class_1,score_1,class_2,score_2
///     0,dog,0.875,cat,0.125
///
/// A name that ends in .csv has a row for each example; the output is [N, C] (logits, as
/// Outputs::tensor() chooses it) or [N], one value an example. One that ends in .safetensors has
/// every output, joined along dimension 0, as predict_tensors() has them; with top_k `classes`
/// (int64) and `scores` [N, top_k] in place of the chosen one. That one is kept in memory until
/// the end. Each rank writes what it has predicted.
struct PredictionWriter final {
  /// What becomes of the chosen output: nothing, or probabilities of classes that exclude one
  /// another, or of each by itself.
  enum class Scores : std::uint8_t { raw, softmax, sigmoid };

  /// With {rank} where there are several; empty: `{run_folder}/predictions.csv`, or
  /// `{run_folder}/predictions-rank{rank}.csv` of several.
  std::string filename{};
  std::vector<std::string> class_names{};  ///< of all classes, in order; empty: their numbers
  std::int64_t top_k = 0;       ///< the so many classes with the highest scores; 0: all columns
  Scores scores = Scores::raw;  ///< of these columns
  bool overwrite = false;       ///< replace a file of that name
  /// Where it goes in a RemoteUploader's store; empty: nowhere.
  std::string remote_file_name{};
  /// What stands in a .csv in place of a row's number, which counts this rank's rows from 0: with
  /// one process, and a loader in order that skips nothing, the number in the data set. Empty: it.
  std::function<std::string(std::int64_t row)> example_name{};

  /// What it holds while it runs; not an option.
  struct Run {
    struct Close {
      void operator()(std::FILE* open) const { std::fclose(open); }
    };
    std::string path{};
    std::unique_ptr<std::FILE, Close> file{};                                // .csv: `<path>.part`
    std::vector<std::pair<std::string, std::vector<at::Tensor>>> tensors{};  // .safetensors
    std::int64_t examples = 0;
    std::int64_t columns = -1;
  } run{};

  static constexpr std::string_view name = "PredictionWriter";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  using events = types<Init, PredictStart, PredictBatchEnd, PredictEnd>;

  /// Throws c10::ValueError when an option is out of range.
  void validate() const;

  void apply(Init, const State& state);
  /// Throws c10::Error when the file is there and overwrite is not set, or cannot be made.
  void apply(PredictStart, const State& state);
  /// Throws c10::ValueError when the outputs do not fit the file, class_names or top_k.
  void apply(PredictBatchEnd, const State& state);
  void apply(PredictEnd, const State& state);

  /// What a prediction that failed has begun is removed.
  void close(const State& state);

 private:
  [[nodiscard]] bool is_csv() const { return filename.ends_with(".csv"); }
  [[nodiscard]] at::Tensor scored(const at::Tensor& output) const;
  void write_head(std::int64_t columns);
  void write_rows(const at::Tensor& values, const at::Tensor& classes);
  void keep(const std::string& tensor_name, const at::Tensor& tensor);
  void put(const std::string& text);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/prediction_writer.inl.hpp>
#endif
