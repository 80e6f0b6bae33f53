// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/loader.hpp>

namespace tutti {

/// Tokens of a batch. A plain number is both.
struct TokenCount {
  std::int64_t total = 0;            ///< what the timestamp counts
  std::int64_t loss_generating = 0;  ///< what losses of microbatches are weighted by, if by tokens

  TokenCount() = default;
  TokenCount(std::int64_t all) : total(all), loss_generating(all) {}  // NOLINT: converts by design
  TokenCount(std::int64_t all, std::int64_t with_loss) : total(all), loss_generating(with_loss) {}

  friend bool operator==(const TokenCount&, const TokenCount&) = default;
};

/// What is done with the batches of a loader; every empty function means the default.
struct DataHooks {
  /// The batch in slices of at most `size` examples. Default: Batch::split.
  std::function<std::vector<Batch>(const Batch&, std::int64_t size)> split_batch{};
  /// Examples of a batch. Default: the size of dimension 0, on which all tensors must agree.
  std::function<std::int64_t(const Batch&)> num_samples{};
  /// Tokens of a batch. Default: Batch::num_tokens, the elements of "input_ids" without padding;
  /// the loss is a mean of DataSpec::num_loss_tokens.
  std::function<TokenCount(const Batch&)> num_tokens{};
  /// Applied to the whole batch, on the host. Default: nothing.
  std::function<Batch(Batch)> batch_transform{};
  /// Applied to every microbatch, on the device. Default: nothing.
  std::function<Batch(Batch)> microbatch_transform{};
};

/// A loader and what is done with its batches. A loader alone converts.
///
///     tutti::DataSpec train{loader, {.batch_transform = augment}};
///
/// Source: MosaicML Composer, `composer.core.DataSpec`.
class DataSpec {
 public:
  DataSpec() = default;

  template <class L>
    requires(!std::same_as<std::remove_cvref_t<L>, DataSpec> && std::convertible_to<L, AnyLoader>)
  DataSpec(L&& from, DataHooks with = {})  // NOLINT: converts by design
      : loader(std::forward<L>(from)), hooks(std::move(with)) {}

  AnyLoader loader;
  DataHooks hooks;

  /// There is a loader.
  explicit operator bool() const { return static_cast<bool>(loader); }

  /// The batch in slices of at most `size` examples. A size beyond the batch gives one slice, with
  /// a warning once where it is beyond the loader's batches, too.
  [[nodiscard]] std::vector<Batch> split(const Batch& batch, std::int64_t size) const {
    if (hooks.split_batch) {
      std::vector<Batch> own = hooks.split_batch(batch, size);
      TUTTI_CHECK_VALUE(!own.empty(),
                        "DataSpec: split_batch gave no microbatch of a batch, expected "
                        "one or more, of at most ",
                        size, " examples each");
      return own;
    }
    std::vector<Batch> parts = batch.split(size);
    if (size > batch.num_samples() && (!loader || size > loader.batch_size())) {
      TORCH_WARN_ONCE("the microbatch size ", size, " is larger than a batch of ",
                      batch.num_samples(), " examples, which is taken whole");
    }
    return parts;
  }

  /// Examples of a batch. Throws c10::ValueError when the function gives less than 0.
  [[nodiscard]] std::int64_t num_samples(const Batch& batch) const {
    if (!hooks.num_samples) {
      return batch.num_samples();
    }
    const std::int64_t count = hooks.num_samples(batch);
    TUTTI_CHECK_VALUE(count >= 0, "DataSpec: num_samples gave ", count,
                      " for a batch, expected 0 or more");
    return count;
  }

  /// Tokens of a batch. Throws c10::ValueError when the function gives less than 0.
  [[nodiscard]] TokenCount num_tokens(const Batch& batch) const {
    if (!hooks.num_tokens) {
      return {batch.num_tokens()};
    }
    const TokenCount count = hooks.num_tokens(batch);
    TUTTI_CHECK_VALUE(count.total >= 0 && count.loss_generating >= 0, "DataSpec: num_tokens gave ",
                      count.total, " tokens and ", count.loss_generating,
                      " that the loss is of for a batch, expected 0 or more of both");
    return count;
  }

  /// Those of a batch that its loss is a mean of. Without num_tokens: where "labels" (int64, at
  /// least two dimensions) say -100 for some, all others; else every token. next: the model says
  /// of each token which comes next, so that the first label of each row has nobody to say it.
  [[nodiscard]] std::int64_t num_loss_tokens(const Batch& batch, bool next = false) const {
    if (hooks.num_tokens || !(next ? batch.has_targets() : batch.contains("labels"))) {
      return num_tokens(batch).loss_generating;
    }
    const at::Tensor& labels = next ? batch.targets() : batch.at("labels");
    if (labels.scalar_type() != at::kLong || labels.dim() < 2) {
      return batch.num_tokens();
    }
    if (next) {
      return labels.slice(1, 1).ne(-100).sum().item<std::int64_t>();
    }
    const std::int64_t read = labels.numel() - labels.eq(-100).sum().item<std::int64_t>();
    return read < labels.numel() ? read : batch.num_tokens();
  }

  /// The batch as training sees it, on the host.
  [[nodiscard]] Batch transform(Batch batch) const {
    return hooks.batch_transform ? hooks.batch_transform(std::move(batch)) : batch;
  }

  /// The microbatch as the model sees it, on the device.
  [[nodiscard]] Batch transform_microbatch(Batch batch) const {
    return hooks.microbatch_transform ? hooks.microbatch_transform(std::move(batch)) : batch;
  }
};

}  // namespace tutti
