#include <tutti/models/spread_of.hpp>

#include <memory>
#include <string>
#include <utility>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include <tutti/dist/spread_model.hpp>
#include <tutti/nn/linear.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

class Part final : public nn::Substitute, public dist::SpreadLayer {
 public:
  explicit Part(std::shared_ptr<dist::SpreadModel> all) : all_(std::move(all)) {}
  at::Tensor forward(const at::Tensor& x) { return x; }
  [[nodiscard]] const std::shared_ptr<dist::SpreadModel>& spread_model() const override {
    return all_;
  }

 private:
  std::shared_ptr<dist::SpreadModel> all_;
};

}  // namespace

TEST_CASE("a spread model is known by what stands in for its layers", "[models][tensor_parallel]") {
  nn::Linear layer(2, 2);
  torch::nn::Sequential model(torch::nn::ReLU(), layer);
  CHECK(models::spread_of(*model) == nullptr);
  const auto all = std::make_shared<dist::SpreadModel>(std::make_shared<FakeCommunicator>(0, 2), 2);
  layer->slot() = nn::Slot(std::make_shared<Part>(all));
  CHECK(models::spread_of(*model) == all);
  layer->slot() = {};
  CHECK(models::spread_of(*model) == nullptr);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
