#include <tutti/train/sharding.hpp>

#include <string_view>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/local_sgd.hpp>
#include <tutti/core/switch.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using dist::ShardStage;

namespace {

struct NeedsWhole final {
  static constexpr About about{.no_parameter_sharding = "it reads them"};
  void apply(BatchEnd, State&) {}
};

}  // namespace

TEST_CASE("parameters are whole below the last stage and in their own type", "[train][sharding]") {
  CHECK(train::keeps_whole({.stage = ShardStage::optimizer}));
  CHECK(train::keeps_whole({.stage = ShardStage::gradients}));
  CHECK_FALSE(train::keeps_whole({.stage = ShardStage::parameters}));
  CHECK_FALSE(train::keeps_whole({.stage = ShardStage::optimizer, .param_dtype = at::kBFloat16}));
}

TEST_CASE("a run is told of the copies that autocast would keep of sharded weights",
          "[train][sharding]") {
  dist::ShardingOptions with{.stage = ShardStage::parameters};
  CHECK_THAT(train::autocast_notice(with, Precision::amp_bf16),
             ContainsSubstring("precision is amp_bf16, but sharding.param_dtype is not set") &&
                 ContainsSubstring("set sharding.param_dtype to at::kBFloat16 and "
                                   "sharding.reduce_dtype to at::kFloat"));
  CHECK_THAT(train::autocast_notice(with, Precision::amp_fp16), ContainsSubstring("at::kHalf"));
  CHECK(train::autocast_notice(with, Precision::fp32).empty());
  CHECK(train::autocast_notice(with, Precision::bf16_true).empty());
  with.param_dtype = at::kBFloat16;
  CHECK(train::autocast_notice(with, Precision::amp_bf16).empty());
  CHECK(train::autocast_notice({.stage = ShardStage::gradients}, Precision::amp_bf16).empty());
}

TEST_CASE("a policy says why it cannot train a sharded model", "[train][sharding]") {
  for (const bool whole : {true, false}) {
    CHECK(train::why_no_sharding(LocalSGD{}, whole) == LocalSGD::about.no_sharding);
    CHECK(train::why_no_sharding(GradientClipping{}, whole).empty());
    CHECK(train::why_no_sharding(Factorize{}, whole).empty());
    CHECK_FALSE(train::why_no_sharding(Factorize{.refactorize_interval = "1ep"}, whole).empty());
  }
  CHECK(train::why_no_sharding(NeedsWhole{}, true).empty());
  CHECK(train::why_no_sharding(NeedsWhole{}, false) == "it reads them");
}

TEST_CASE("a policy that a sharded model may have may not fit a spread one", "[train][sharding]") {
  CHECK(train::why_no_sharding(EMA{}, false, /*spread=*/false).empty());
  CHECK(train::why_no_sharding(EMA{}, false, /*spread=*/true) == EMA::about.no_tensor_parallel);
  CHECK(train::why_no_sharding(GradientClipping{}, false, /*spread=*/true).empty());
  CHECK(train::why_no_sharding(LocalSGD{}, false, /*spread=*/true) == LocalSGD::about.no_sharding);
}

TEST_CASE("a policy that is off has nothing against it", "[train][sharding]") {
  CHECK(train::why_no_sharding(Switch<LocalSGD>(LocalSGD{}, false), true).empty());
  CHECK(train::why_no_sharding(Switch<LocalSGD>(LocalSGD{}, true), true) ==
        LocalSGD::about.no_sharding);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
