#include <tutti/optim/schedule_free.hpp>

#include "optim/golden_steps.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace golden_steps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("schedule-free optimizers take the steps of schedulefree", "[optim][golden]") {
  check("ScheduleFreeSGD", ScheduleFreeSGD{.lr = 0.1});
  check(
      "ScheduleFreeSGD/all",
      ScheduleFreeSGD{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .warmup_steps = 4, .r = 1});
  check("ScheduleFreeAdamW", ScheduleFreeAdamW{});
  check("ScheduleFreeAdamW/all", ScheduleFreeAdamW{.lr = 0.1,
                                                   .betas = {0.8, 0.9},
                                                   .eps = 1e-3,
                                                   .weight_decay = 0.1,
                                                   .warmup_steps = 4,
                                                   .r = 0.5,
                                                   .weight_lr_power = 1});
}

TEST_CASE("schedule-free optimizers refuse numbers out of range", "[optim][error]") {
  const Tensors none;
  CHECK_THROWS_WITH(ScheduleFreeSGD{.momentum = 0}.build(none), ContainsSubstring("momentum is 0"));
  CHECK_THROWS_WITH(ScheduleFreeAdamW{.warmup_steps = -1}.build(none),
                    ContainsSubstring("warmup_steps is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
