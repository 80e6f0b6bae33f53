#include <tutti/models/weight_layout.hpp>

#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::models::WeightLayout;

TEST_CASE("a layout takes the tensors of modules under names on disk, and views of tensors",
          "[models][pretrained]") {
  const torch::nn::Linear linear(torch::nn::LinearOptions(3, 2).bias(false));
  const torch::nn::BatchNorm1d norm(2);
  WeightLayout layout{.model = "x"};
  layout.add("w", linear->weight.t());
  layout.add("absent", linear->bias);
  layout.add_module("bn.", *norm);
  std::vector<std::string> names;
  for (const auto& tensor : layout.tensors) {
    names.push_back(tensor.name);
    CHECK(!tensor.tensor.requires_grad());
  }
  CHECK(names == std::vector<std::string>{"w", "bn.weight", "bn.bias", "bn.running_mean",
                                          "bn.running_var", "bn.num_batches_tracked"});
  layout.tensors.front().tensor.fill_(4);
  CHECK(linear->weight.sum().item<float>() == 24);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
