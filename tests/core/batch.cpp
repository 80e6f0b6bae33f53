#include <tutti/core/batch.hpp>

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Loss;
using tutti::NamedTensors;
using tutti::Outputs;

at::Tensor numbers(std::int64_t count) {
  return at::arange(count);
}

// What a function that takes a Batch is handed.
Batch handed(Batch batch) {
  return batch;
}

}  // namespace

TEST_CASE("named tensors keep the order in which they were put in", "[core][batch]") {
  NamedTensors tensors{{"b", numbers(1)}, {"a", numbers(2)}};
  tensors["c"] = numbers(3);
  tensors["a"] = numbers(4);
  CHECK(tensors.names() == "b, a, c");
  CHECK(tensors.size() == 3);
  CHECK(tensors.at("a").numel() == 4);
  CHECK(tensors.contains("c"));
  CHECK(!tensors.contains("d"));
  CHECK(!tensors["d"].defined());
  tensors.clear();
  CHECK(tensors.empty());
}

TEST_CASE("a reference to a tensor stays valid when others are added", "[core][batch]") {
  Batch batch{{"input_ids", numbers(3)}};
  batch["labels"] = batch.at("input_ids");
  batch["a"] = batch.inputs();
  batch["b"] = batch["labels"];
  CHECK(batch.names() == "input_ids, labels, a, b");
  for (const auto& [name, tensor] : batch) {
    CHECK(tensor.is_same(batch.inputs()));
  }
  const at::Tensor& kept = batch.targets();
  const Batch moved = std::move(batch);
  CHECK(kept.is_same(moved.at("labels")));
  CHECK(std::is_nothrow_move_constructible_v<Batch>);
}

TEST_CASE("asking for a name that is missing says which there are", "[core][batch]") {
  const NamedTensors tensors{{"x", numbers(1)}, {"y", numbers(1)}};
  CHECK(tensors["y"].is_same(tensors.at("y")));
  CHECK_THROWS_WITH(tensors["z"], ContainsSubstring("no tensor is called \"z\""));
  CHECK_THROWS_WITH(tensors.at("z"),
                    ContainsSubstring("no tensor is called \"z\"; there are: x, y"));
  CHECK_THROWS_WITH(NamedTensors{}.at("z"), ContainsSubstring("there are: (none)"));
}

TEST_CASE("a tensor, a pair and a map convert to a batch", "[core][batch]") {
  CHECK(handed(numbers(3)).names() == "inputs");
  const Batch pair = handed(std::pair{numbers(3), numbers(4)});
  CHECK(pair.inputs().numel() == 3);
  CHECK(pair.targets().numel() == 4);
  CHECK(handed(std::map<std::string, at::Tensor>{{"b", numbers(1)}, {"a", numbers(2)}}).names() ==
        "a, b");
  CHECK(handed({{"x", numbers(1)}, {"y", numbers(2)}}).inputs().numel() == 1);
}

TEST_CASE("inputs are called inputs, else input_ids, else come first", "[core][batch]") {
  CHECK(Batch{{"a", numbers(1)}, {"inputs", numbers(2)}}.inputs().numel() == 2);
  CHECK(Batch{{"a", numbers(1)}, {"input_ids", numbers(3)}}.inputs().numel() == 3);
  CHECK(Batch{{"a", numbers(1)}, {"b", numbers(4)}}.inputs().numel() == 1);
  CHECK_THROWS_WITH(Batch{}.inputs(), ContainsSubstring("batch is empty"));
}

TEST_CASE("targets are called targets, else labels, and nothing else is a target",
          "[core][batch]") {
  CHECK(Batch{{"labels", numbers(1)}, {"targets", numbers(2)}}.targets().numel() == 2);
  CHECK(Batch{{"labels", numbers(1)}}.targets().numel() == 1);
  CHECK(!Batch(numbers(2)).has_targets());
  CHECK(Batch(numbers(2), numbers(2)).has_targets());
  CHECK_THROWS_WITH(
      Batch(numbers(2)).targets(),
      ContainsSubstring("no tensor called \"targets\" or \"labels\"; there are: inputs"));
}

TEST_CASE("assigning to inputs and targets changes the batch and not the tensor that was there",
          "[core][batch]") {
  const at::Tensor old = numbers(3);
  Batch batch(old, numbers(3));
  batch.inputs() = at::zeros({5});
  batch.targets() = at::ones({5});
  CHECK(batch.at("inputs").numel() == 5);
  CHECK(batch.at("targets").numel() == 5);
  CHECK(at::equal(old, numbers(3)));
}

TEST_CASE("samples are counted by dimension 0, on which all tensors agree", "[core][batch]") {
  CHECK(Batch(at::zeros({4, 2}), numbers(4)).num_samples() == 4);
  CHECK(Batch{{"scale", at::full({}, 2.0)}, {"inputs", at::zeros({6, 2})}}.num_samples() == 6);
  CHECK(Batch(at::zeros({0, 2})).num_samples() == 0);
  CHECK_THROWS_WITH(Batch(at::zeros({4}), numbers(3)).num_samples(),
                    ContainsSubstring("\"targets\" has 3, others have 4"));
  CHECK_THROWS_WITH(Batch(at::full({}, 1.0)).num_samples(),
                    ContainsSubstring("no tensor with a dimension to count examples by"));
}

TEST_CASE("tokens are the elements of input_ids", "[core][batch]") {
  CHECK(Batch{{"input_ids", at::zeros({3, 5})}, {"labels", at::zeros({3, 5})}}.num_tokens() == 15);
  CHECK(Batch(at::zeros({3, 5})).num_tokens() == 0);
  at::Tensor mask = at::ones({3, 5}, at::kLong);
  mask[1].slice(0, 2).zero_();
  CHECK(Batch{{"input_ids", at::zeros({3, 5})}, {"attention_mask", mask}}.num_tokens() == 12);
  CHECK(Batch{{"input_ids", at::zeros({3, 5})}, {"attention_mask", at::zeros({3, 1, 5, 5})}}
            .num_tokens() == 15);
}

TEST_CASE("splitting gives slices in order whose sum is the batch", "[core][batch][law]") {
  const Batch batch{{"inputs", numbers(7)}, {"scale", at::full({}, 2.0)}};
  for (const std::int64_t size : {1, 2, 3, 6, 7, 8, 100}) {
    const auto parts = batch.split(size);
    INFO("size " << size);
    REQUIRE(parts.size() == static_cast<std::size_t>((7 + size - 1) / size));
    std::int64_t seen = 0;
    for (const Batch& part : parts) {
      CHECK(part.num_samples() <= size);
      CHECK(part.inputs()[0].item<std::int64_t>() == seen);
      CHECK(part.at("scale").dim() == 0);
      seen += part.num_samples();
    }
    CHECK(seen == 7);
  }
  CHECK_THROWS_WITH(batch.split(0), ContainsSubstring("size is 0, expected at least 1"));
}

TEST_CASE("slices share the memory of the batch", "[core][batch]") {
  const Batch batch(numbers(4));
  const auto parts = batch.split(3);
  CHECK(parts[0].inputs().data_ptr() == batch.inputs().data_ptr());
}

TEST_CASE("moving a batch to where it is copies nothing", "[core][batch]") {
  Batch batch(numbers(4), numbers(4));
  batch["absent"] = at::Tensor{};
  const Batch there = batch.to(at::kCPU);
  CHECK(there.inputs().data_ptr() == batch.inputs().data_ptr());
  CHECK(!there.at("absent").defined());
  CHECK(batch.to(at::kMeta).targets().is_meta());
}

TEST_CASE("outputs are one tensor, or the one called logits or outputs", "[core][batch]") {
  CHECK(Outputs(numbers(2)).tensor().numel() == 2);
  CHECK(Outputs{{"hidden", numbers(3)}}.tensor().numel() == 3);
  CHECK(Outputs{{"hidden", numbers(3)}, {"logits", numbers(4)}}.tensor().numel() == 4);
  CHECK_THROWS_WITH((Outputs{{"a", numbers(3)}, {"b", numbers(4)}}.tensor()),
                    ContainsSubstring("none is called \"logits\"; there are: a, b"));
}

TEST_CASE("the total of a loss is its total, else the sum of its parts' means", "[core][batch]") {
  const auto total = [](const Loss& loss) { return loss.total().item<double>(); };
  CHECK(total(at::full({}, 3.0)) == 3);
  CHECK(total(at::full({4}, 3.0)) == 3);
  CHECK(total(Loss{{"a", at::full({4}, 1.0)}, {"b", at::full({}, 2.0)}}) == 3);
  CHECK(total(Loss{{"a", at::full({}, 1.0)}, {"total", at::full({}, 5.0)}}) == 5);
  CHECK_THROWS_WITH(Loss{}.total(), ContainsSubstring("returned nothing"));
}

TEST_CASE("a loss of one part is that part and not a copy of it", "[core][batch]") {
  const at::Tensor part = at::full({}, 2.0);
  CHECK(Loss{{"ce", part}}.total().is_same(part));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
