#include <tutti/callbacks/free_outputs.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<FreeOutputs> == Role::callback);

namespace {

struct Look final {
  std::vector<std::size_t> sizes;
  void apply(AfterForward, const State& state) { sizes.push_back(state.outputs.size()); }
  void apply(BeforeBackward, const State& state) { sizes.push_back(state.outputs.size()); }
};

}  // namespace

TEST_CASE("the outputs are gone once the loss is known", "[callbacks][free_outputs]") {
  Trainer<FreeOutputs, Look> trainer(tiny::net(), callback_run::options(1, "1ep"));
  trainer.fit();
  CHECK(trainer.get<Look>().sizes == std::vector<std::size_t>{1, 0});
}

TEST_CASE("FreeOutputs changes nothing of the training", "[callbacks][free_outputs][law]") {
  auto freed = tiny::net();
  auto kept = tiny::net();
  Trainer<FreeOutputs>(freed, callback_run::options()).fit();
  Trainer<>(kept, callback_run::options()).fit();
  CHECK(tiny::flat(*freed).equal(tiny::flat(*kept)));
}

TEST_CASE("FreeOutputs refuses a model with training metrics", "[callbacks][free_outputs]") {
  Trainer<FreeOutputs> trainer(callback_run::metric_net({}, {1.0}), callback_run::options());
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("the model has training metrics"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
