// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <ATen/core/Tensor.h>

/// Rotary position embeddings (RoPE): queries and keys that turn with their position.
namespace tutti::nn {

/// How the frequencies come about, by the names of Hugging Face.
enum class RopeType : std::uint8_t {
  plain,     ///< "default": theta^(-2i/d)
  linear,    ///< those divided by `factor`
  dynamic,   ///< "dynamic" NTK: a theta that grows with the length beyond the trained one
  llama3,    ///< Llama 3.1: low frequencies divided by `factor`, high ones kept
  yarn,      ///< YaRN: the same with a ramp between them, and sharper attention
  longrope,  ///< LongRoPE: a divisor for each frequency
};

constexpr std::string_view to_string(RopeType type) {
  switch (type) {
    case RopeType::plain:
      return "default";
    case RopeType::linear:
      return "linear";
    case RopeType::dynamic:
      return "dynamic";
    case RopeType::llama3:
      return "llama3";
    case RopeType::yarn:
      return "yarn";
    case RopeType::longrope:
      return "longrope";
  }
  return "unknown";
}

/// The parameters of rotary position embeddings; fields as in `rope_parameters`.
struct RotaryOptions {
  RopeType rope_type = RopeType::plain;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;  ///< the part of each head that turns
  std::optional<double> factor = {};   ///< yarn, longrope: none: M / N; else it has to be there
  std::int64_t max_position_embeddings = 2048;        ///< M, the longest sequence
  std::int64_t original_max_position_embeddings = 0;  ///< N, of the first training; 0: M
  double low_freq_factor = 1.0;                       ///< llama3
  double high_freq_factor = 4.0;                      ///< llama3
  double beta_fast = 32.0;                            ///< yarn
  double beta_slow = 1.0;                             ///< yarn
  bool truncate = true;                               ///< yarn: round the ends of the ramp
  std::optional<double> mscale = {};                  ///< yarn
  std::optional<double> mscale_all_dim = {};          ///< yarn
  std::optional<double> attention_factor = {};        ///< yarn, longrope: of cos and sin
  std::vector<double> short_factor = {};              ///< longrope: up to N positions, d / 2
  std::vector<double> long_factor = {};               ///< longrope: for more of them, d / 2
};

/// The cosines and sines of a forward pass, [1 or N, T, d / 2] each.
struct RotaryTables {
  at::Tensor cos{};
  at::Tensor sin{};
};

}  // namespace tutti::nn

namespace tutti::functional {

/// Turns each head by its position: `(a cos - b sin, b cos + a sin)`, where a and b are the halves
/// of the first d of its D numbers; the others stay.
///
/// x: [N, T, heads, D], floating. tables: [1 or N, T, d / 2], of x's device, d at most D. Returns
/// x's shape and dtype. Gradients of any order exist.
/// Throws c10::Error when the shapes do not fit.
/// Source: Su et al., "RoFormer", 2021; Hugging Face Transformers, `apply_rotary_pos_emb`.
at::Tensor rotate(const at::Tensor& x, const nn::RotaryTables& tables);

}  // namespace tutti::functional

namespace tutti::nn {

/// The frequencies of a model's rotary position embeddings, and the tables made of them.
///
/// Source: Hugging Face Transformers, `ROPE_INIT_FUNCTIONS`; Peng et al., "YaRN", ICLR 2024; Ding
/// et al., "LongRoPE", ICML 2024.
class Rotary {
 public:
  Rotary() = default;

  /// head_dim: D. Throws c10::Error (ValueError) naming an option that is out of range or lacks.
  Rotary(std::int64_t head_dim, const RotaryOptions& options);

  /// d: how many numbers of a head turn.
  [[nodiscard]] std::int64_t dim() const { return dim_; }

  /// The frequencies for sequences of `length`, fp32 [d / 2] on the CPU.
  [[nodiscard]] at::Tensor frequencies(std::int64_t length) const;

  /// What cosines and sines are multiplied by.
  [[nodiscard]] double attention_factor() const;

  /// The frequencies depend on the length of the sequences.
  [[nodiscard]] bool depends_on_length() const {
    return options_.rope_type == RopeType::dynamic || options_.rope_type == RopeType::longrope;
  }

  /// The frequencies of sequences of up to `most` positions depend on their length.
  [[nodiscard]] bool depends_on_length(std::int64_t most) const;

  /// The tables for some positions.
  ///
  /// positions: int64 [1 or N, T]. like: their dtype and device are those of this tensor; angles
  /// are computed in fp32. length: the largest position and 1; below 0: it is looked up where the
  /// frequencies depend on it.
  [[nodiscard]] RotaryTables tables(const at::Tensor& positions, const at::Tensor& like,
                                    std::int64_t length = -1);

  [[nodiscard]] const RotaryOptions& options() const { return options_; }

 private:
  [[nodiscard]] double factor() const;
  [[nodiscard]] std::int64_t original_length() const;
  [[nodiscard]] at::Tensor plain_frequencies(double theta) const;
  [[nodiscard]] at::Tensor llama3_frequencies() const;
  [[nodiscard]] at::Tensor yarn_frequencies() const;
  [[nodiscard]] const at::Tensor& on_device(at::Device device, std::int64_t length);
  void check() const;

  RotaryOptions options_;
  std::int64_t dim_ = 0;
  at::Tensor kept_;             // the frequencies on the device that last asked for them
  std::int64_t kept_for_ = -1;  // the length that they are for, if they depend on it
};

}  // namespace tutti::nn

#if TUTTI_BODIES
#include <tutti/nn/rotary.inl.hpp>
#endif
