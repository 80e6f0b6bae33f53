#include <tutti/dist/communicator.hpp>

#include "support/catch.hpp"

#include <span>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("one process alone needs no group", "[dist][communicator]") {
  const auto group = dist::default_group();
  CHECK_FALSE(dist::is_initialized());
  CHECK(dist::rank() == 0);
  CHECK(dist::world_size() == 1);
  CHECK(dist::local_rank() == 0);
  CHECK(dist::local_world_size() == 1);
  CHECK(dist::node_rank() == 0);
  CHECK(group->is_rank_zero());
  CHECK(group->backend() == "none");
}

TEST_CASE("reductions of one process change nothing and gathers return one element",
          "[dist][communicator]") {
  dist::SingleProcess alone;
  dist::Communicator& group = alone;
  const at::Tensor tensor = at::arange(4);
  for (const dist::ReduceOp op : {dist::ReduceOp::sum, dist::ReduceOp::product}) {
    group.all_reduce(tensor, op);
  }
  group.broadcast(tensor);
  CHECK(tensor.sum().item<std::int64_t>() == 6);
  REQUIRE(group.all_gather(tensor).size() == 1);
  CHECK(group.all_gather(tensor)[0].equal(tensor));
  std::vector<double> numbers{1, 2};
  group.all_reduce(std::span<double>(numbers));
  CHECK(numbers == std::vector<double>{1, 2});
  CHECK(group.all_reduce_value(7) == 7);
  CHECK(group.broadcast_bytes("a") == "a");
  CHECK(group.all_gather_bytes("a") == std::vector<std::string>{"a"});
  group.barrier();
}

TEST_CASE("one process gathers into, scatters to and splits off itself", "[dist][communicator]") {
  dist::SingleProcess alone;
  dist::Communicator& group = alone;
  const at::Tensor x = at::arange(4);
  const at::Tensor whole = at::empty_like(x);
  group.all_gather_into(whole, x);
  CHECK(whole.equal(x));
  const at::Tensor part = at::empty_like(x);
  group.reduce_scatter_into(part, x);
  CHECK(part.equal(x));
  const at::Tensor received = at::empty_like(x);
  group.all_to_all_into(received, x);
  CHECK(received.equal(x));
  CHECK(group.subgroup({0})->size() == 1);
  CHECK_THROWS_WITH(group.subgroup({1}), ContainsSubstring("expected ascending ranks from 0 to 0"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
