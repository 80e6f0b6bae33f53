// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti {

/// How targets name classes.
enum class TargetType : std::uint8_t {
  indices,  ///< [N, d1, ...]: the class of each position
  dense,  ///< [N, C, d1, ...]: a weight for every class of each position; one-hot, mixed, smoothed
};

namespace functional {

/// The targets' type is an integer one, so they are indices of classes unless they have the
/// outputs' shape.
/// Source: MosaicML Composer, `composer.loss.utils.check_for_index_targets`.
bool is_index_targets(const at::Tensor& targets);

/// What the targets are, by their shape alone.
///
/// input: [N, C, d1, ...], the outputs. targets: the same shape (dense) or [N, d1, ...] (indices).
/// Throws c10::Error (ValueError) for any other shape.
/// Source: MosaicML Composer, `composer.loss.utils.infer_target_type`.
TargetType infer_target_type(const at::Tensor& input, const at::Tensor& targets);

}  // namespace functional

namespace detail {

at::Tensor one_hot(const at::Tensor& targets, std::int64_t classes);

}  // namespace detail

namespace functional {

/// Targets as a weight for every class: indices become one-hot rows, dense ones only change type.
///
/// input: [N, C, d1, ...], the outputs, read for their shape only. targets: indices [N, d1, ...] of
/// an integer type, or dense [N, C, d1, ...]. num_classes: how many classes the rows have; C unless
/// given.
/// Returns fp32 [N, num_classes, d1, ...] on the targets' device. A negative index gives a row of
/// zeros, with a warning on the CPU.
/// Throws c10::Error (ValueError) for other shapes, for indices of a floating type and for an index
/// of num_classes or more; on other devices than the CPU the last is a device-side assertion, so
/// that nobody waits for the device.
/// Source: MosaicML Composer, `composer.loss.utils.ensure_targets_one_hot`.
at::Tensor ensure_targets_one_hot(const at::Tensor& input, const at::Tensor& targets,
                                  std::optional<std::int64_t> num_classes = {});

}  // namespace functional
}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/losses/targets.inl.hpp>
#endif
