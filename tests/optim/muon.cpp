#include <tutti/optim/muon.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Muon takes PyTorch's steps, and AdamW's where there is no matrix", "[optim][golden]") {
  check("Muon", Muon{.ns_dtype = "float32"});
  check("Muon/all", Muon{.lr = 0.1,
                         .weight_decay = 0.05,
                         .momentum = 0.8,
                         .nesterov = false,
                         .ns_steps = 3,
                         .adjust_lr_fn = "match_rms_adamw",
                         .ns_dtype = "float32"});
}

TEST_CASE("Muon orthogonalizes in bfloat16 as PyTorch does", "[optim][golden]") {
  const at::Tensor matrix = tensors().at("p0").clone().requires_grad_();
  const auto optimizer = Muon{.lr = 0.1, .ns_dtype = "bfloat16"}.build(Tensors{matrix});
  for (std::int64_t step = 0; step < 8; ++step) {
    matrix.mutable_grad() = tensors().at("g0")[step].clone();
    optimizer->step();
  }
  // Sums in bfloat16 differ with their order: two units of 2^-8 in each of 8 steps of size 0.1.
  CHECK(torch::allclose(matrix, tensors().at("Muon/bfloat16/p0"), 0.0, 8 * 0.1 * 2 / 256));
}

TEST_CASE("orthogonalize brings singular values near 1", "[optim][muon][functional]") {
  torch::manual_seed(2);
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{6, 10}, {10, 6}, {2, 5, 3}}) {
    const at::Tensor x = torch::randn(shape);
    const at::Tensor values = std::get<1>(torch::linalg_svd(functional::orthogonalize(x), false));
    CHECK(values.min().item<float>() > 0.4F);
    CHECK(values.max().item<float>() < 1.3F);
  }
  CHECK_THROWS_WITH(functional::orthogonalize(torch::ones({3})),
                    ContainsSubstring("orthogonalize: x is [3]"));
}

TEST_CASE("Muon refuses numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(Muon{.adjust_lr_fn = "spectral"}.build(none),
                    ContainsSubstring("adjust_lr_fn is \"spectral\", expected \"original\""));
  CHECK_THROWS_WITH(Muon{.ns_steps = 0}.build(none), ContainsSubstring("ns_steps is 0"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
