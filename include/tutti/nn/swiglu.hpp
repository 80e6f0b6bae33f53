// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>

#include <ATen/core/Tensor.h>

/// SwiGLU: the gated nonlinearity of the Llama family.
namespace tutti::functional {

/// `silu(gate) * up`, element by element.
///
/// gate, up: of one shape and floating dtype. Returns their shape. Gradients of any order exist.
/// Throws c10::Error when the shapes differ.
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace tutti::functional

#if TUTTI_BODIES
#include <tutti/nn/swiglu.inl.hpp>
#endif
