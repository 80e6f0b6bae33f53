#include <tutti/dist/tensor_parallel.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

// That loss and gradients are those of one process is in golden_dist/tp.cpp.

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;

namespace {

dist::TensorParallel rank_of(int rank, int ranks) {
  return {.group = std::make_shared<FakeCommunicator>(rank, ranks)};
}

/// The others have the maximum 1, and such values in the sums that follow, in this order.
struct Others final : FakeCommunicator {
  Others(int rank, int ranks, std::vector<double> sums)
      : FakeCommunicator(rank, ranks), its(std::move(sums)) {}
  void all_reduce(const at::Tensor& tensor, dist::ReduceOp op) override {
    if (op == dist::ReduceOp::maximum) {
      tensor.clamp_min_(1);
    } else {
      tensor.add_(its.at(calls++));
    }
  }
  std::vector<double> its;
  std::size_t calls = 0;
};

/// Rank 1 of two that say the same, and which calls it makes.
struct Calls final : FakeCommunicator {
  Calls() : FakeCommunicator(1, 2) {}
  void all_reduce(const at::Tensor&, dist::ReduceOp) override { made.emplace_back("all_reduce"); }
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    made.emplace_back("all_gather");
    return FakeCommunicator::all_gather(tensor);
  }
  std::function<void()> start_reduce_scatter_into(const at::Tensor& output,
                                                  const at::Tensor& input) override {
    made.emplace_back("reduce_scatter");
    output.view({-1}).copy_(input.view({2, -1}).select(0, 1) * 2);
    return [] {};
  }
  std::vector<std::string> made;
};

}  // namespace

TEST_CASE("a rank has its part of a tensor, or of each of several tensors in one",
          "[dist][tensor_parallel]") {
  const at::Tensor whole = at::arange(12);
  CHECK(dist::parallel_part(whole, 0, rank_of(1, 2)).equal(at::arange(6, 12)));
  CHECK(dist::parallel_part(whole, 0, rank_of(1, 2), 3)
            .equal(at::tensor({2, 3, 6, 7, 10, 11}, at::kLong)));
  CHECK_THAT(message([&] { dist::parallel_part(whole, 0, rank_of(0, 8), 3); }),
             ContainsSubstring("dimension 0 of a tensor [12] was to be cut over 8 ranks in 3 "
                               "tensors"));
}

TEST_CASE("rows are shared in equal chunks, and the last ranks have less",
          "[dist][tensor_parallel]") {
  CHECK(dist::own_rows(26, rank_of(0, 4)) == std::pair<std::int64_t, std::int64_t>(0, 7));
  CHECK(dist::own_rows(26, rank_of(3, 4)) == std::pair<std::int64_t, std::int64_t>(21, 26));
  CHECK(dist::own_rows(2, rank_of(3, 4)) == std::pair<std::int64_t, std::int64_t>(2, 2));
}

TEST_CASE("one rank's layers are the whole ones", "[dist][tensor_parallel]") {
  const dist::TensorParallel alone{.group = std::make_shared<dist::SingleProcess>()};
  const at::Tensor x = at::randn({2, 3, 4});
  const at::Tensor weight = at::randn({5, 4});
  const at::Tensor bias = at::randn({5});
  CHECK(dist::column_linear(x, weight, bias, alone).equal(at::linear(x, weight, bias)));
  CHECK(dist::row_linear(x, weight, bias, alone).allclose(at::linear(x, weight, bias)));
  const at::Tensor ids = at::randint(0, 5, {2, 3}, at::kLong);
  CHECK(dist::vocabulary_embedding(ids, weight, 5, alone).equal(at::embedding(weight, ids)));
  const at::Tensor logits = at::randn({6, 5});
  CHECK(dist::vocabulary_cross_entropy(logits, ids.flatten(), 5, alone)
            .allclose(at::cross_entropy_loss(logits, ids.flatten())));
}

TEST_CASE("parts that do not fit are refused", "[dist][tensor_parallel]") {
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  CHECK_THAT(message([&] { dist::vocabulary_embedding(ids, at::ones({5, 4}), 26, rank_of(0, 4)); }),
             ContainsSubstring("this rank has 5 rows of 26, expected 7"));
  CHECK_THAT(message([&] {
               dist::vocabulary_cross_entropy(at::ones({6, 5}), ids.flatten(), 26, rank_of(0, 4));
             }),
             ContainsSubstring("this rank has logits [6, 5], expected [n, 7] of 26 rows"));
  auto cut = rank_of(0, 2);
  cut.sequence = dist::SequenceParallel::yes;
  CHECK_THAT(message([&] { dist::leave_parallel(at::ones({2, 3, 4}), cut); }),
             ContainsSubstring("[2, 3, 4] was to be cut along dimension 1 over 2 ranks"));
}

TEST_CASE("one rank's losses are those of the whole vocabulary", "[dist][tensor_parallel]") {
  const dist::TensorParallel alone{.group = std::make_shared<dist::SingleProcess>()};
  const at::Tensor logits = at::randn({6, 5}, at::kDouble);
  const at::Tensor targets = at::tensor({0, 4, -100, 2, -100, 1}, at::kLong);
  CHECK(dist::vocabulary_losses(logits, targets, 5, alone)
            .allclose(at::cross_entropy_loss(logits, targets, {}, at::Reduction::None)));
  CHECK(dist::vocabulary_cross_entropy(logits, targets, 5, alone)
            .allclose(at::cross_entropy_loss(logits, targets)));
  CHECK(dist::vocabulary_losses(logits.to(at::kBFloat16), targets, 5, alone).scalar_type() ==
        at::kFloat);
  CHECK(dist::join_vocabulary(logits, 5, alone).equal(logits));
  CHECK_THAT(message([&] { dist::vocabulary_losses(logits, targets + 1, 5, alone); }),
             ContainsSubstring("a target is not of the vocabulary, expected 0 to 4"));
  CHECK_THAT(message([&] { dist::vocabulary_embedding(targets, at::ones({5, 2}), 5, alone); }),
             ContainsSubstring("an id is not of the vocabulary, expected 0 to 4"));
}

TEST_CASE("a rank without a row of the vocabulary makes the calls of the others",
          "[dist][tensor_parallel]") {
  const auto others = std::make_shared<Others>(3, 4, std::vector<double>{0, 2, 0.5, 0});
  const dist::TensorParallel last{.group = others};
  const at::Tensor ids = at::tensor({1, 4, -100}, at::kLong);
  const at::Tensor table = at::ones({0, 2}, at::kDouble).requires_grad_();
  const at::Tensor x =
      dist::vocabulary_embedding(ids.clamp_min(0).view({1, 3}), table, 5, last).squeeze(0);
  CHECK(x.equal(at::zeros({3, 2}, at::kDouble)));
  const at::Tensor logits = dist::column_linear(x.view({1, 3, 2}), table, {}, last).squeeze(0);
  const at::Tensor losses = dist::vocabulary_losses(logits, ids, 5, last);
  const double loss = std::log(2.0) - 0.5;
  CHECK(losses.allclose(at::tensor({loss, loss, 0.0}, at::kDouble)));
  CHECK(others->calls == 3);
  losses.sum().backward();
  CHECK(others->calls == 4);  // the sum of the gradients of x
  CHECK(table.grad().sizes() == at::IntArrayRef({0, 2}));
}

TEST_CASE("with sequence parallel a rank is sent its positions of a sum and no others",
          "[dist][tensor_parallel]") {
  const auto calls = std::make_shared<Calls>();
  const dist::TensorParallel over{.group = calls, .sequence = dist::SequenceParallel::yes};
  using Made = std::vector<std::string>;
  const at::Tensor whole = at::arange(2 * 4 * 3, at::kDouble).view({2, 4, 3});
  const at::Tensor own = whole.slice(1, 2);  // of each of the two examples
  const at::Tensor x = whole.clone().requires_grad_();
  const at::Tensor left = dist::leave_parallel(x, over);
  CHECK(left.equal(own * 2));
  left.backward(own.contiguous());
  CHECK(x.grad().equal(at::cat({own, own}, 1)));
  CHECK(calls->made == Made{"reduce_scatter", "all_gather"});
  calls->made.clear();
  const at::Tensor part = own.clone().requires_grad_();
  const at::Tensor entered = dist::enter_parallel(part, over);
  CHECK(entered.equal(at::cat({own, own}, 1)));
  entered.backward(whole.transpose(0, 2).contiguous().transpose(0, 2));  // of any strides
  CHECK(part.grad().equal(own * 2));
  CHECK(calls->made == Made{"all_gather", "reduce_scatter"});
}

TEST_CASE("a rank has its positions, and the gradient of all of them", "[dist][tensor_parallel]") {
  const auto over = rank_of(1, 2);
  const at::Tensor x = at::arange(8, at::kDouble).view({1, 4, 2}).requires_grad_();
  const at::Tensor own = dist::split_sequence(x, over);
  CHECK(own.equal(x.slice(1, 2)));
  own.sum().backward();
  CHECK(x.grad().equal(at::ones({1, 4, 2}, at::kDouble)));
  const at::Tensor part = at::ones({1, 2, 2}, at::kDouble).requires_grad_();
  const at::Tensor all = dist::join_sequence(part, over);
  CHECK(all.sizes() == at::IntArrayRef({1, 4, 2}));
  (all * at::arange(4, at::kDouble).view({1, 4, 1})).sum().backward();
  CHECK(part.grad().equal(at::tensor({2.0, 2.0, 3.0, 3.0}, at::kDouble).view({1, 2, 2})));
  CHECK_THAT(message([&] { dist::split_sequence(at::ones({1, 3, 2}), over); }),
             ContainsSubstring("[1, 3, 2] was to be cut along dimension 1 over 2 ranks"));
  CHECK_FALSE(dist::sum_gradient({}, over.group).defined());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
