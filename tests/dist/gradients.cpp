#include <tutti/dist/gradients.hpp>

#include <tutti/dist/process_group.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

// Rank 0 of two; the other has zeros for gradients, where it has any. Notes what is sent.
class Pair final : public FakeCommunicator {
 public:
  using FakeCommunicator::all_reduce;

  std::vector<std::string> sent;     // type and number of elements, message by message
  std::vector<std::int64_t> theirs;  // the parameters that the other one has gradients of

  void all_reduce(const at::Tensor& tensor, dist::ReduceOp op) override {
    REQUIRE(op == dist::ReduceOp::mean);
    sent.push_back(std::string(c10::toString(tensor.scalar_type())) + " " +
                   std::to_string(tensor.numel()));
    tensor.div_(2);
  }
  void all_reduce(std::span<std::int64_t> values, dist::ReduceOp op) override {
    REQUIRE(op == dist::ReduceOp::maximum);
    sent.push_back("numbers " + std::to_string(values.size()));
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      values[i] = std::max(values[i], theirs[i]);
    }
  }
};

using Messages = std::vector<std::string>;

// A parameter whose gradient is `value` everywhere.
at::Tensor with_gradient(at::IntArrayRef sizes, double value, at::ScalarType type = at::kFloat) {
  at::Tensor out = at::zeros(sizes, type);
  out.mutable_grad() = at::full(sizes, value, type);
  return out;
}

constexpr double bytes_64 = 64.0 / 1024 / 1024;  // in MiB

}  // namespace

TEST_CASE("rank body: gradients on some ranks only", "[.rank]") {
  const auto group = dist::initialize();
  std::vector<at::Tensor> weights{at::zeros({1, 1}), at::zeros({1, 1}), at::zeros({1, 1})};
  weights[0].mutable_grad() = at::full({1, 1}, 4.0);
  if (group->rank() == 1) {
    weights[1].mutable_grad() = at::full({1, 1}, 6.0);
  }
  dist::all_reduce_gradients(weights, *group);
  CHECK(weights[0].grad().item<double>() == 4);
  CHECK(weights[1].grad().item<double>() == 3);
  CHECK_FALSE(weights[2].grad().defined());

  const at::Tensor mixed = at::zeros({2, 3}, at::kDouble).t();  // strided, another dtype
  mixed.mutable_grad() = at::full({2, 3}, group->rank() * 2.0, at::kDouble).t();
  dist::all_reduce_gradients({weights[0], mixed}, *group);
  CHECK(mixed.grad().sum().item<double>() == 6);
}

TEST_CASE("gradients that exist on some ranks count as zero on the others", "[dist][gradients]") {
  CHECK(run_ranks("rank body: gradients on some ranks only") == all_passed);
}

TEST_CASE("gradients of one type travel together up to the cap", "[dist][gradients]") {
  Pair group;
  const std::vector<at::Tensor> parameters{
      with_gradient({8}, 2),                 // 32 bytes
      with_gradient({2, 4}, 4),              // 64: just fits
      with_gradient({1}, 6),                 //
      with_gradient({1}, 8, at::kDouble),    // another type
      with_gradient({100}, 10, at::kDouble)  // larger than the cap: alone
  };
  dist::all_reduce_gradients(parameters, group, bytes_64);
  CHECK(group.sent == Messages{"numbers 5", "Float 16", "Float 1", "Double 1", "Double 100"});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    CHECK(gradient.sizes() == parameters[i].sizes());
    CHECK(gradient.eq(static_cast<double>(i) + 1).all().item<bool>());
  }
  group.sent.clear();
  dist::all_reduce_gradients(parameters, group);
  CHECK(group.sent == Messages{"numbers 5", "Float 17", "Double 101"});
  group.sent.clear();
  dist::all_reduce_gradients(parameters, group, std::numeric_limits<double>::infinity());
  CHECK(group.sent == Messages{"numbers 5", "Float 17", "Double 101"});
  group.sent.clear();
  dist::all_reduce_gradients(parameters, group, 1e-12);
  CHECK(group.sent ==
        Messages{"numbers 5", "Float 8", "Float 8", "Float 1", "Double 1", "Double 100"});
}

TEST_CASE("gradients of several devices travel apart", "[dist][gradients]") {
  Pair group;
  at::Tensor elsewhere = at::empty({3}, at::kMeta);
  elsewhere.mutable_grad() = at::empty({3}, at::kMeta);
  dist::all_reduce_gradients({with_gradient({2}, 2), elsewhere, with_gradient({1}, 4)}, group);
  CHECK(group.sent == Messages{"numbers 3", "Float 2", "Float 3", "Float 1"});
}

TEST_CASE("every gradient gets its own part of a message, whatever its strides",
          "[dist][gradients]") {
  Pair group;
  at::Tensor turned = at::zeros({3, 2}).t();
  turned.mutable_grad() = at::arange(6).to(at::kFloat).view({3, 2}).t();
  at::Tensor none = at::zeros({0, 4});
  none.mutable_grad() = at::zeros({0, 4});
  at::Tensor scalar = at::zeros({});
  scalar.mutable_grad() = at::full({}, 20.0);
  const at::Tensor held = turned.grad();
  dist::all_reduce_gradients({turned, none, scalar}, group);
  CHECK(group.sent == Messages{"numbers 3", "Float 7"});
  CHECK(turned.grad().equal(at::arange(6).to(at::kFloat).view({3, 2}).t() / 2));
  CHECK(turned.grad().is_same(held));  // who holds a gradient sees its mean
  CHECK(none.grad().sizes() == at::IntArrayRef({0, 4}));
  CHECK(scalar.grad().item<double>() == 10);
}

TEST_CASE("a gradient that only another rank has is made, one that nobody has is not",
          "[dist][gradients]") {
  Pair group;
  group.theirs = {1, 0, 1};
  std::vector<at::Tensor> parameters{with_gradient({2}, 4), at::zeros({3}), at::zeros({4})};
  parameters[2].set_requires_grad(true);
  dist::all_reduce_gradients(parameters, group);
  CHECK(group.sent == Messages{"numbers 3", "Float 6"});
  CHECK(parameters[0].grad().equal(at::full({2}, 2.0)));
  CHECK_FALSE(parameters[1].grad().defined());
  CHECK(parameters[2].grad().equal(at::zeros({4})));
  CHECK_FALSE(parameters[2].grad().requires_grad());
}

TEST_CASE("nothing is sent where there is nothing to average", "[dist][gradients]") {
  Pair group;
  dist::all_reduce_gradients({}, group);
  CHECK(group.sent.empty());
  dist::all_reduce_gradients({at::zeros({2})}, group);
  CHECK(group.sent == Messages{"numbers 1"});
  dist::SingleProcess alone;
  const at::Tensor parameter = with_gradient({2}, 4);
  dist::all_reduce_gradients({parameter}, alone);
  CHECK(parameter.grad().equal(at::full({2}, 4.0)));
}

TEST_CASE("sparse gradients and a cap that holds nothing are refused before a message",
          "[dist][gradients]") {
  Pair group;
  at::Tensor sparse = at::zeros({2, 2});
  sparse.mutable_grad() = at::ones({2, 2}).to_sparse();
  const at::Tensor dense = with_gradient({2}, 4);
  CHECK_THAT(message([&] { dist::all_reduce_gradients({dense, sparse}, group); }),
             ContainsSubstring("a gradient is sparse; use single_auto_sync or multi_auto_sync"));
  for (const double cap : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(message([&] { dist::all_reduce_gradients({dense}, group, cap); }),
               ContainsSubstring("all_reduce_gradients: bucket_cap_mb is ") &&
                   ContainsSubstring(", expected more than 0"));
  }
  CHECK(group.sent.empty());
  CHECK(dense.grad().equal(at::full({2}, 4.0)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
