#include <tutti/optim/initial_lr.hpp>

#include <memory>

#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a copy of a group's options has its rate, and the same schedule", "[optim][groups]") {
  optim::GroupOptions<SGD> options(SGD{.lr = 0.25});
  CHECK(options.initial_lr == 0.25);
  CHECK(options.schedule == nullptr);

  options.schedule = std::make_shared<const Schedule>(Step{"2ep"});
  options.set_lr(0.5);
  const auto copy = options.clone();
  const auto& same = dynamic_cast<const optim::InitialLearningRate&>(*copy);
  CHECK(copy->get_lr() == 0.5);
  CHECK(same.initial_lr == 0.25);
  CHECK(same.schedule == options.schedule);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
