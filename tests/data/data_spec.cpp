#include <tutti/data/data_spec.hpp>

#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::DataSpec;
using tutti::TokenCount;

namespace {
Batch sentences() {
  return Batch({{"input_ids", at::zeros({3, 7}, at::kLong)}, {"labels", at::zeros({3, 7})}});
}
std::int64_t length(const DataSpec& spec) {
  return spec.loader.size();
}
}  // namespace

TEST_CASE("a loader alone is a data spec", "[data][law]") {
  CHECK(length(std::vector<Batch>(4)) == 4);
  CHECK_FALSE(static_cast<bool>(DataSpec{}));
  CHECK(static_cast<bool>(DataSpec{std::vector<Batch>{}}));
}

TEST_CASE("the defaults split by examples, count them and count tokens of input_ids",
          "[data][law]") {
  const DataSpec spec;
  const Batch batch = sentences();
  const auto parts = spec.split(batch, 2);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].at("labels").size(0) == 2);
  CHECK(parts[1].at("labels").size(0) == 1);
  CHECK(spec.split(batch, 5).size() == 1);
  CHECK(spec.num_samples(batch) == 3);
  CHECK(spec.num_tokens(batch) == TokenCount(21));
  CHECK(spec.num_tokens(Batch(at::zeros({2, 3}))) == TokenCount(0));
  CHECK(spec.num_loss_tokens(batch) == 21);
  CHECK(spec.transform(batch).at("labels").is_same(batch.at("labels")));
  CHECK(spec.transform_microbatch(batch).at("labels").is_same(batch.at("labels")));
}

TEST_CASE("a loss is a mean over labels other than -100", "[data]") {
  const DataSpec spec;
  const at::Tensor ids = at::ones({2, 4}, at::kLong);
  at::Tensor labels = ids.clone();
  labels.narrow(1, 0, 3).fill_(-100);
  const Batch answers({{"input_ids", ids}, {"labels", labels}});
  CHECK(spec.num_tokens(answers) == TokenCount(8));
  CHECK(spec.num_loss_tokens(answers) == 2);
  CHECK(spec.num_loss_tokens(answers.split(1)[0]) == 1);
  // Classes of whole texts are none, nor are padded texts whose labels all count.
  CHECK(spec.num_loss_tokens({{"input_ids", ids}, {"labels", at::full({2}, -100, at::kLong)}}) ==
        8);
  at::Tensor mask = ids.clone();
  mask.narrow(1, 3, 1).zero_();
  CHECK(spec.num_loss_tokens({{"input_ids", ids}, {"labels", ids}, {"attention_mask", mask}}) == 6);
  // Of what says the next token the first label is nobody's.
  CHECK(spec.num_loss_tokens(Batch{{"input_ids", ids}, {"labels", ids}}, /*next=*/true) == 6);
  CHECK(spec.num_loss_tokens(answers, /*next=*/true) == 2);
  CHECK(spec.num_loss_tokens(Batch(ids, ids), /*next=*/true) == 6);
  CHECK(spec.num_loss_tokens(Batch{{"input_ids", ids}}, /*next=*/true) == 8);
}

TEST_CASE("examples that disagree in number ask for a function", "[data]") {
  const Batch odd({{"a", at::zeros({2})}, {"b", at::zeros({3})}});
  CHECK_THROWS_WITH(DataSpec{}.num_samples(odd),
                    ContainsSubstring("give DataSpec a num_samples function"));
  const DataSpec spec{std::vector<Batch>{}, {.num_samples = [](const Batch&) { return 1; }}};
  CHECK(spec.num_samples(odd) == 1);
  CHECK_THROWS_WITH(DataSpec{}.num_samples(Batch({{"a", at::Tensor()}})),
                    ContainsSubstring("the batch's \"a\" is an undefined tensor; leave it out"));
  const DataSpec nothing{std::vector<Batch>{}, {.split_batch = [](const Batch&, std::int64_t) {
                           return std::vector<Batch>();
                         }}};
  CHECK_THROWS_WITH(nothing.split(odd, 2), ContainsSubstring("split_batch gave no microbatch"));
  const DataSpec negative{std::vector<Batch>{},
                          {.num_samples = [](const Batch&) { return -1; },
                           .num_tokens = [](const Batch&) { return tutti::TokenCount(3, -2); }}};
  CHECK_THROWS_WITH(negative.num_samples(odd),
                    ContainsSubstring("num_samples gave -1 for a batch, expected 0 or more"));
  CHECK_THROWS_WITH(negative.num_tokens(odd), ContainsSubstring("num_tokens gave 3 tokens and -2"));
}

TEST_CASE("given functions replace the defaults", "[data][law]") {
  const DataSpec spec{
      std::vector<Batch>{},
      {.split_batch = [](const Batch& batch, std::int64_t) { return std::vector{batch, batch}; },
       .num_tokens = [](const Batch&) { return TokenCount(10, 4); },
       .batch_transform = [](Batch batch) { return Batch(batch.inputs() + 1); },
       .microbatch_transform = [](Batch batch) { return Batch(batch.inputs() * 2); }}};
  const Batch batch(at::ones({4}));
  CHECK(spec.split(batch, 4).size() == 2);
  CHECK(spec.num_tokens(batch).loss_generating == 4);
  CHECK(spec.num_loss_tokens(batch) == 4);
  CHECK(spec.transform(batch).inputs().equal(at::full({4}, 2.0)));
  CHECK(spec.transform_microbatch(spec.transform(batch)).inputs().equal(at::full({4}, 4.0)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
