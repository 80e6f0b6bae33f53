#include <tutti/dist/sharding.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;

TEST_CASE("stages have names and come in order", "[dist][sharding]") {
  CHECK(to_string(dist::ShardStage::none) == "none");
  CHECK(to_string(dist::ShardStage::optimizer) == "optimizer");
  CHECK(to_string(dist::ShardStage::gradients) == "gradients");
  CHECK(to_string(dist::ShardStage::parameters) == "parameters");
  CHECK(dist::ShardStage::optimizer < dist::ShardStage::gradients);
  CHECK(dist::ShardStage::gradients < dist::ShardStage::parameters);
}

TEST_CASE("nothing is sharded unless it is asked for", "[dist][sharding]") {
  CHECK(dist::ShardingOptions{}.stage == dist::ShardStage::none);
  CHECK(dist::ShardingOptions{}.shard_degree == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
