// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti::dist {

/// Returns the rows of all ranks, one after the other in rank order; a collective.
///
/// rows: [n, ...] on the group's device. n may differ and be 0; ranks that have rows agree on their
/// type and on their other sizes, and a rank without rows may have others.
/// Throws c10::Error with the ranks and both shapes when they do not.
at::Tensor gather_rows(Communicator& group, const at::Tensor& rows);

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/gather_rows.inl.hpp>
#endif
