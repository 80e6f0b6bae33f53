// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of vision transformers: small ones, and those of the golden cases.

#include <cstdint>
#include <map>
#include <string>

#include <tutti/models/vit.hpp>

#include "nn/golden_model.hpp"
#include "support/golden.hpp"

namespace vision {

/// Two blocks for images of 8x8 pixels in four patches.
inline tutti::models::VisionTransformerOptions tiny() {
  return {.image_size = 8,
          .patch_size = 4,
          .num_layers = 2,
          .num_heads = 2,
          .hidden_dim = 16,
          .mlp_dim = 24,
          .num_classes = 4};
}

/// The shape by the names of torchvision's arguments. Throws for a name that it does not know.
inline tutti::models::VisionTransformerOptions options(const golden::Json& params) {
  tutti::models::VisionTransformerOptions out;
  const std::map<std::string, std::int64_t*> fields = {
      {"image_size", &out.image_size},   {"patch_size", &out.patch_size},
      {"num_layers", &out.num_layers},   {"num_heads", &out.num_heads},
      {"hidden_dim", &out.hidden_dim},   {"mlp_dim", &out.mlp_dim},
      {"num_classes", &out.num_classes}, {"representation_size", &out.representation_size}};
  for (const auto& [name, value] : params.object()) {
    *fields.at(name) = value.integer();
  }
  return out;
}

/// Loads a case's weights and hands what the case knows of one pass and its gradients to `judge`,
/// with the output's key.
template <class Judge>
void run(const golden::Case& c, tutti::models::VisionTransformer& net, Judge&& judge) {
  golden::load_state(*net, c.ins("state."));
  net->zero_grad();
  const at::Tensor x = c.in("x").requires_grad_();
  const at::Tensor y = net(x);
  y.mul(c.in("g")).sum().backward();
  judge("logits", y);
  judge("grad_x", x.grad());
  for (const auto& parameter : net->named_parameters()) {
    judge("grad." + parameter.key(), parameter.value().grad());
  }
}

}  // namespace vision
