#include <tutti/models/logits_processors.hpp>

#include <limits>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

constexpr double gone = -std::numeric_limits<double>::infinity();

at::Tensor row(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).unsqueeze(0);
}

}  // namespace

TEST_CASE("a repetition penalty makes each token of the text less likely, once",
          "[functional][generation]") {
  const at::Tensor scores = row({2, -2, 0, 3});
  const at::Tensor tokens = at::tensor({0, 1, 1, 0, 2}, at::kLong).unsqueeze(0);
  CHECK(functional::penalize_repetition(scores, tokens, 2).equal(row({1, -4, 0, 3})));
  CHECK(scores.equal(row({2, -2, 0, 3})));
  CHECK_THROWS(functional::penalize_repetition(scores, tokens[0], 2));
}

TEST_CASE("top k keeps ties with its last token, and all tokens of a small vocabulary",
          "[functional][generation]") {
  CHECK(functional::keep_top_k(row({1, 3, 2, 2}), 2).equal(row({gone, 3, 2, 2})));
  CHECK(functional::keep_top_k(row({1, 3, 2, 2}), 1).equal(row({gone, 3, gone, gone})));
  CHECK(functional::keep_top_k(row({1, 3}), 100).equal(row({1, 3})));
}

TEST_CASE("top p removes the least likely tokens as long as they have 1 - p together",
          "[functional][generation]") {
  const at::Tensor scores = row({0.5, 0.25, 0.125, 0.125}).log();
  const auto kept = [&](double p) {
    return functional::keep_top_p(scores, p).gt(gone).sum().item<std::int64_t>();
  };
  CHECK(kept(0.99) == 4);
  CHECK(kept(0.8) == 3);
  CHECK(kept(0.6) == 2);
  CHECK(kept(0.4) == 1);
  CHECK(kept(0.0) == 1);
  CHECK(functional::keep_top_p(scores, 0.0).argmax().item<std::int64_t>() == 0);
}

TEST_CASE("min p is a part of the likeliest token's probability", "[functional][generation]") {
  const at::Tensor scores = row({0.5, 0.3, 0.15, 0.05}).log();
  CHECK(functional::keep_min_p(scores, 0.25).gt(gone).sum().item<std::int64_t>() == 3);
  CHECK(functional::keep_min_p(scores, 1.0).gt(gone).sum().item<std::int64_t>() == 1);
}

TEST_CASE(
    "scores are processed in the order of Transformers, and drawing's only where tokens are "
    "drawn",
    "[functional][generation]") {
  const at::Tensor scores = row({4, 3, -1, -1});
  const at::Tensor tokens = at::tensor({0}, at::kLong).unsqueeze(0);
  models::GenerationConfig config{.repetition_penalty = 2, .temperature = 0.5, .top_k = 2};
  CHECK(functional::process_scores(scores, tokens, config).equal(row({2, 3, -1, -1})));
  config.do_sample = true;
  CHECK(functional::process_scores(scores, tokens, config).equal(row({4, 6, gone, gone})));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
