#include <tutti/fused/half_inputs.hpp>

#include <utility>

#include <ATen/ATen.h>
#include <torch/types.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("inputs are rounded to what autocast computes in", "[fused]") {
  const at::Tensor x = torch::rand({2, 3, 4, 4});
  const auto rounded = [&](auto event, Precision precision, const at::Tensor& images) {
    State state;
    state.precision = precision;
    state.batch = Batch{images, torch::tensor({1, 2})};
    fused::HalfInputs{}.apply(event, state);
    CHECK(state.batch.targets().scalar_type() == at::kLong);
    return state.batch.inputs();
  };
  CHECK(rounded(BeforeForward{}, Precision::fp32, x).is_same(x));
  for (const auto& [precision, type] :
       {std::pair(Precision::amp_bf16, at::kBFloat16), std::pair(Precision::amp_fp16, at::kHalf)}) {
    CHECK(rounded(BeforeForward{}, precision, x).equal(x.to(type)));
    CHECK(rounded(EvalBeforeForward{}, precision, x).equal(x.to(type)));
    CHECK(rounded(PredictBeforeForward{}, precision, x).equal(x.to(type)));
    const at::Tensor tokens = torch::arange(4).view({2, 2});  // are no fp32
    CHECK(rounded(BeforeForward{}, precision, tokens).is_same(tokens));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
