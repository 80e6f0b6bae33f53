#include <tutti/dist/start_alike.hpp>

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// A rank other than 0, which says `first` and sends ones.
class Rank final : public FakeCommunicator {
 public:
  Rank() : FakeCommunicator(1, 2) {}
  std::string broadcast_bytes(const std::string& own, int) override {
    return first.empty() ? own : first;
  }
  void broadcast(const std::vector<at::Tensor>& tensors, int) override {
    for (const at::Tensor& tensor : tensors) {
      tensor.detach().fill_(1);
    }
  }
  std::string first{};
};

}  // namespace

TEST_CASE("ranks start from rank 0's numbers", "[dist]") {
  Rank world;
  const torch::nn::Linear layer(2, 3);
  dist::start_alike(*layer, "so\n", world, "somebody");
  CHECK(layer->weight.equal(at::ones({3, 2})));
  CHECK(layer->bias.equal(at::ones({3})));
}

TEST_CASE("ranks with different models or options do not start", "[dist]") {
  Rank world;
  world.first = "so\n";
  const torch::nn::Linear layer(2, 3);
  CHECK_THAT(message([&] { dist::start_alike(*layer, "so\n", world, "somebody"); }),
             ContainsSubstring("somebody: rank 0 has [parameter weight float [3, 2]] where rank 0 "
                               "has [nothing more]; build the same model"));
  CHECK_THAT(message([&] { dist::start_alike(*layer, "other\n", world, "somebody"); }),
             ContainsSubstring("has [other] where rank 0 has [so]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
