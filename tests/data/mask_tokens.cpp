#include <tutti/data/mask_tokens.hpp>

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using data::MaskTokens;

// Within five standard deviations of what n draws of probability p give.
bool is_likely(std::int64_t count, std::int64_t n, double p) {
  const double mean = static_cast<double>(n) * p;
  return std::abs(static_cast<double>(count) - mean) <= 5 * std::sqrt(mean * (1 - p)) + 1;
}

}  // namespace

TEST_CASE("tokens are masked with the probabilities of BERT", "[data][mask_tokens]") {
  constexpr std::int64_t n = 400'000;
  const at::Tensor ids = at::arange(n).remainder(20).add(5);  // 5 to 24
  const MaskTokens mask{.mask_token_id = 4, .vocab_size = 25, .special_ids = {5, 6}};
  Rng rng(17);
  const Batch out = mask(Batch{{"input_ids", ids}}, rng);
  const auto* before = ids.const_data_ptr<std::int64_t>();
  const auto* after = out.at("input_ids").const_data_ptr<std::int64_t>();
  const auto* label = out.at("labels").const_data_ptr<std::int64_t>();
  std::int64_t chosen = 0;
  std::int64_t masked = 0;
  std::map<std::int64_t, std::int64_t> drawn;  // that are neither the mask nor the token itself
  for (std::int64_t i = 0; i < n; ++i) {
    const bool wrong = label[i] == -100 ? after[i] != before[i] : label[i] != before[i];
    REQUIRE_FALSE(wrong);
    if (label[i] == -100) {
      continue;
    }
    REQUIRE(before[i] > 6);
    ++chosen;
    masked += after[i] == 4 ? 1 : 0;
    drawn[after[i]] += after[i] != 4 && after[i] != before[i] ? 1 : 0;
  }
  CHECK(is_likely(chosen, n * 18 / 20, 0.15));
  CHECK(is_likely(masked, chosen, 0.8 + 0.1 / 25));
  for (std::int64_t id = 0; id < 25; ++id) {
    if (id != 4) {
      CHECK(is_likely(drawn[id], chosen, 0.1 / 25 * (id > 6 ? 17.0 / 18 : 1)));
    }
  }
}

TEST_CASE("the same random numbers mask the same tokens", "[data][mask_tokens]") {
  const Batch example{{"input_ids", at::arange(1000)}, {"token_type_ids", at::zeros({1000})}};
  const MaskTokens mask{.vocab_size = 1000};
  Rng one(3);
  Rng two(3);
  Rng other(4);
  const Batch first = mask(example, one);
  CHECK(first.at("input_ids").equal(mask(example, two).at("input_ids")));
  CHECK_FALSE(first.at("labels").equal(mask(example, other).at("labels")));
  CHECK(first.contains("token_type_ids"));
  CHECK(example.at("input_ids").equal(at::arange(1000)));  // is left alone
}

TEST_CASE("a mask of special tokens says which stay", "[data][mask_tokens]") {
  const Batch example{{"input_ids", at::arange(100)},
                      {"special_tokens_mask", at::arange(100).lt(50).to(at::kLong)}};
  Rng rng(3);
  const Batch out = MaskTokens{.mask_token_id = 7,
                               .mlm_probability = 1,
                               .mask_replace_prob = 1,
                               .random_replace_prob = 0}(example, rng);
  CHECK(out.at("input_ids").slice(0, 0, 50).equal(at::arange(50)));
  CHECK(out.at("input_ids").slice(0, 50).eq(7).all().item<bool>());
  CHECK(out.at("labels").slice(0, 0, 50).eq(-100).all().item<bool>());
  CHECK(out.at("labels").slice(0, 50).equal(at::arange(50, 100)));
  CHECK_FALSE(out.contains("special_tokens_mask"));
  CHECK_THROWS_AS(MaskTokens{.mlm_probability = 1.5}(example, rng), c10::ValueError);
  CHECK_THROWS_AS((MaskTokens{.mask_replace_prob = 0.95}(example, rng)), c10::ValueError);
}

TEST_CASE("an epoch that is resumed masks the same tokens, with any number of threads",
          "[data][mask_tokens]") {
  struct Rows {
    at::Tensor ids = at::arange(5, 5 + 24 * 16).view({24, 16});
    [[nodiscard]] std::int64_t size() const { return ids.size(0); }
    [[nodiscard]] Batch get(std::int64_t i) const { return {{"input_ids", ids[i]}}; }
  };
  const auto epoch = [](std::int64_t number, std::int64_t first, std::int64_t workers) {
    DataLoader loader{Rows{},
                      {.batch_size = 4,
                       .shuffle = true,
                       .seed = 3,
                       .num_workers = workers,
                       .transform = MaskTokens{.mask_token_id = 4, .vocab_size = 400}}};
    loader.start(number, first);
    std::vector<at::Tensor> out;
    while (const auto batch = loader.next()) {
      out.push_back(at::stack({batch->at("input_ids"), batch->at("labels")}));
    }
    return at::cat(out, 1);
  };
  const at::Tensor whole = epoch(1, 0, 0);
  CHECK(whole.size(1) == 24);
  CHECK(whole[0].eq(4).any().item<bool>());
  CHECK(epoch(1, 2, 0).equal(whole.slice(1, 8)));
  CHECK(epoch(1, 0, 2).equal(whole));
  CHECK_FALSE(epoch(2, 0, 0).equal(whole));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
