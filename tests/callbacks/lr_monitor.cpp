#include <tutti/callbacks/lr_monitor.hpp>

#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

static_assert(role_of<LRMonitor> == Role::callback);

TEST_CASE("the rate of the next batch is logged for every group", "[callbacks][lr_monitor]") {
  auto options = callback_run::options(5, "1ep");
  options.optimizer = [](torch::nn::Module& model) {
    auto parameters = model.parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.push_back(optim::group({parameters[0]}, DecoupledSGDW{.lr = 1.0}));
    groups.push_back(optim::group({parameters[1], parameters[2]}, DecoupledSGDW{.lr = 0.5}));
    return DecoupledSGDW{.lr = 1.0}.build(std::move(groups));
  };
  options.schedule = Linear{.alpha_i = 1.0, .alpha_f = 0.0};
  Trainer trainer{tiny::net(), options, LRMonitor{}, InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  const std::vector<double> expected{1.0, 0.8, 0.6, 0.4, 0.2};
  const auto& first = memory.series("lr-DecoupledSGDW/group0");
  const auto& second = memory.series("lr-DecoupledSGDW/group1");
  REQUIRE(first.values.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(first.values[i] == Approx(expected[i]));
    CHECK(second.values[i] == Approx(expected[i] / 2));
    CHECK(first.timestamps[i].batch == static_cast<std::int64_t>(i) + 1);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
