#include <tutti/nn/attention.hpp>

#include <memory>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::nn::Dropout;
using tutti::nn::HeadedAttention;
using tutti::nn::PositionBias;
using tutti::nn::PositionBiased;
using tutti::nn::SeenKeys;

// The further the key, the less it counts.
struct Distance final : PositionBias {
  at::Tensor operator()(std::int64_t length, const at::Tensor& like) override {
    const at::Tensor at = torch::arange(length, like.options());
    return (at.unsqueeze(1) - at.unsqueeze(0)).abs().neg().unsqueeze(0);
  }
};

struct Inputs {
  at::Tensor q = torch::randn({2, 3, 5, 4}, at::kDouble);
  at::Tensor k = torch::randn({2, 3, 5, 4}, at::kDouble);
  at::Tensor v = torch::randn({2, 3, 5, 4}, at::kDouble);
};

// One head of one example, written out.
at::Tensor by_hand(const Inputs& in, bool causal, bool biased, const at::Tensor& keep) {
  at::Tensor out = torch::zeros({2, 5, 12}, at::kDouble);
  for (int n = 0; n < 2; ++n) {
    for (int h = 0; h < 3; ++h) {
      at::Tensor scores = in.q[n][h].matmul(in.k[n][h].t()) / 2;  // sqrt(4)
      for (int i = 0; i < 5; ++i) {
        for (int j = 0; j < 5; ++j) {
          const bool hidden =
              (causal && j > i) || (keep.defined() && !keep[n][0][0][j].item<bool>());
          if (hidden) {
            scores[i][j] = -1e300;
          } else if (biased) {
            scores[i][j] -= std::abs(i - j);
          }
        }
      }
      out[n].slice(1, 4 * h, 4 * h + 4).copy_(scores.softmax(-1).matmul(in.v[n][h]));
    }
  }
  return out;
}

}  // namespace

TEST_CASE("attention with and without bias, mask and past alone is the formula written out",
          "[nn][law]") {
  torch::manual_seed(3);
  const Inputs in;
  at::Tensor some = torch::ones({2, 1, 1, 5}, at::kBool);
  some[1][0][0][3] = false;
  Dropout none(0.0);
  for (const bool causal : {false, true}) {
    for (const bool biased : {false, true}) {
      for (const at::Tensor& keep : {at::Tensor(), some}) {
        INFO("causal " << causal << ", biased " << biased << ", masked " << keep.defined());
        PositionBiased attention(3, causal);
        if (biased) {
          attention.set_position_bias(std::make_shared<Distance>());
        }
        const at::Tensor expected = by_hand(in, causal, biased, keep);
        CHECK(attention.attend(in.q, in.k, in.v, keep, none).allclose(expected, 1e-9, 1e-9));
        const at::Tensor weighted =
            attention.probabilities(in.q, in.k, keep).matmul(in.v).transpose(1, 2).flatten(2);
        CHECK(weighted.allclose(expected, 1e-9, 1e-9));
        if (!biased) {
          Dropout absent{nullptr};
          const HeadedAttention plain(3, causal);
          CHECK(plain.attend(in.q, in.k, in.v, keep, absent).allclose(expected, 1e-9, 1e-9));
        }
      }
    }
  }
}

TEST_CASE("an example of which every key is hidden gets numbers, in any precision", "[nn]") {
  torch::manual_seed(4);
  const Inputs in;
  at::Tensor keep = torch::ones({2, 1, 1, 5}, at::kBool);
  keep[1].fill_(false);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto of = [&](const at::Tensor& x) { return x.to(type); };
    for (const bool biased : {false, true}) {
      PositionBiased attention(3, false);
      if (biased) {
        attention.set_position_bias(std::make_shared<Distance>());
      }
      Dropout none(0.0);
      const at::Tensor y = attention.attend(of(in.q), of(in.k), of(in.v), keep, none);
      INFO(type << ", biased " << biased);
      const at::Tensor mean = in.v[1].mean(1).flatten().expand({5, 12});
      CHECK(y.isfinite().all().item<bool>());
      if (type != at::kHalf) {  // whose least number leaves the scores' differences
        CHECK(y[1].to(at::kDouble).allclose(mean, 2e-2, 2e-2));
      }
      const at::Tensor p = attention.probabilities(of(in.q), of(in.k), keep)[1];
      CHECK(p.to(at::kDouble).allclose(torch::full({3, 5, 5}, 0.2, at::kDouble), 2e-2, 2e-2));
    }
  }
}

TEST_CASE("heads are split so that each has neighbouring channels", "[nn]") {
  const HeadedAttention attention(3, false);
  const at::Tensor x = torch::arange(2 * 5 * 12).view({2, 5, 12});
  const at::Tensor heads = attention.split_heads(x);
  CHECK(heads.sizes() == at::IntArrayRef{2, 3, 5, 4});
  CHECK(heads[1][2].equal(x[1].slice(1, 8, 12)));
}

TEST_CASE("attention with fewer key-value heads is that with each of them repeated in place",
          "[nn][law]") {
  torch::manual_seed(5);
  const at::Tensor q = torch::randn({2, 6, 5, 4}, at::kDouble);
  const at::Tensor k = torch::randn({2, 2, 5, 4}, at::kDouble);
  const at::Tensor v = torch::randn({2, 2, 5, 4}, at::kDouble);
  const at::Tensor all_k = k.repeat_interleave(3, 1);
  const at::Tensor all_v = v.repeat_interleave(3, 1);
  at::Tensor keep = torch::ones({2, 1, 1, 5}, at::kBool);
  keep[1][0][0][0] = false;
  Dropout none{nullptr};
  Dropout off(0.0);
  for (const bool causal : {false, true}) {
    const HeadedAttention grouped({.heads = 6, .causal = causal, .key_value_heads = 2});
    const HeadedAttention plain(6, causal);
    for (const at::Tensor& seen : {at::Tensor(), keep}) {
      for (const std::int64_t queries : {1, 5}) {  // one query takes another way
        const at::Tensor some = q.slice(2, 5 - queries);
        const at::Tensor want = plain.attend(some, all_k, all_v, seen, none);
        CHECK(grouped.attend(some, k, v, seen, none).allclose(want, 1e-9, 1e-9));
        CHECK(grouped.probabilities(some, k, seen)
                  .matmul(all_v)
                  .transpose(1, 2)
                  .flatten(2)
                  .allclose(want, 1e-9, 1e-9));
      }
    }
  }
  CHECK_THROWS_AS(HeadedAttention({.heads = 6, .key_value_heads = 4}), c10::ValueError);
}

TEST_CASE("the last queries of a text see what they see in the whole text, also in a window",
          "[nn][law]") {
  torch::manual_seed(6);
  const at::Tensor q = torch::randn({2, 3, 9, 4}, at::kDouble);
  const at::Tensor k = torch::randn({2, 3, 9, 4}, at::kDouble);
  const at::Tensor v = torch::randn({2, 3, 9, 4}, at::kDouble);
  at::Tensor keep = torch::ones({2, 1, 1, 9}, at::kBool);
  keep[1].slice(-1, 0, 2).fill_(false);
  Dropout none{nullptr};
  for (const std::int64_t window : {0, 3, 9, 20}) {
    for (const at::Tensor& seen : {at::Tensor(), keep}) {
      const HeadedAttention attention({.heads = 3, .causal = true, .window = window});
      const at::Tensor whole = attention.attend(q, k, v, seen, none);
      for (const std::int64_t queries : {1, 2, 6}) {
        INFO("window " << window << ", masked " << seen.defined() << ", queries " << queries);
        const at::Tensor last = q.slice(2, 9 - queries);
        const at::Tensor want = whole.slice(1, 9 - queries);
        CHECK(attention.attend(last, k, v, seen, none).allclose(want, 1e-9, 1e-9));
        if (window > 0 && window + queries - 1 <= 9) {  // a cache keeps back the oldest keys
          const std::int64_t first = 9 - (window + queries - 1);
          CHECK(attention.attend(last, k.slice(2, first), v.slice(2, first), seen, none)
                    .allclose(want, 1e-9, 1e-9));
        }
      }
      // By hand: position 8 sees its window.
      const std::int64_t from = window > 0 && window < 9 ? 9 - window : 0;
      const at::Tensor scores =
          q.select(2, 8).unsqueeze(2).matmul(k.slice(2, from).transpose(-2, -1)) / 2;
      at::Tensor weights = scores;
      if (seen.defined()) {
        weights = scores.masked_fill(seen.slice(-1, from).logical_not(), -1e300);
      }
      const at::Tensor y = weights.softmax(-1).matmul(v.slice(2, from)).transpose(1, 2).flatten(2);
      CHECK(whole.slice(1, 8).allclose(y, 1e-9, 1e-9));
    }
  }
}

TEST_CASE("the mask of a forward pass is made once for all of its layers", "[nn]") {
  const at::Tensor q = torch::zeros({1, 2, 4, 2});
  at::Tensor keep = torch::ones({1, 1, 1, 4}, at::kBool);
  keep[0][0][0][0] = false;
  const SeenKeys keys(keep);
  const SeenKeys::Positions at{.queries = 4, .keys = 4, .causal = true};
  const at::Tensor first = keys.added(at, q, {});
  CHECK(first.sizes() == at::IntArrayRef{1, 1, 4, 4});
  const SeenKeys copy = keys;
  CHECK(copy.added(at, q, {}).is_same(first));
  CHECK_FALSE(
      keys.added({.queries = 4, .keys = 4, .causal = true, .window = 2}, q, {}).is_same(first));
  CHECK_FALSE(keys.added(at, q.to(at::kDouble), {}).is_same(first));
  const SeenKeys all(torch::ones({1, 1, 1, 4}, at::kBool));  // hides nothing
  CHECK(all.only_causal(at));
  CHECK_FALSE(all.added({.queries = 4, .keys = 4}, q, {}).defined());
}

TEST_CASE("scores may be multiplied by another number", "[nn]") {
  torch::manual_seed(7);
  const Inputs in;
  const HeadedAttention usual(3, true);
  const HeadedAttention scaled({.heads = 3, .causal = true, .scale = 0.25});
  Dropout none{nullptr};
  CHECK(scaled.attend(in.q.mul(2), in.k, in.v, {}, none)
            .allclose(usual.attend(in.q, in.k, in.v, {}, none), 1e-9, 1e-9));
  CHECK(scaled.probabilities(in.q.mul(2), in.k, {})
            .allclose(usual.probabilities(in.q, in.k, {}), 1e-9, 1e-9));
}

TEST_CASE("a layer can have a share of its heads", "[nn]") {
  using Catch::Matchers::ContainsSubstring;
  HeadedAttention grouped({.heads = 8, .key_value_heads = 4});
  CHECK_FALSE(grouped.has_share());
  grouped.take_share(2);
  CHECK(grouped.has_share());
  CHECK(grouped.heads() == 4);
  CHECK(grouped.key_value_heads() == 2);
  grouped.take_share(4);  // fewer heads of keys than shares
  CHECK(grouped.heads() == 1);
  CHECK(grouped.key_value_heads() == 1);
  HeadedAttention six({.heads = 6, .key_value_heads = 3});
  CHECK_THROWS_WITH(six.take_share(2), ContainsSubstring("6 heads, with 3 of keys and values, are "
                                                         "to be shared by 2 ranks"));
  CHECK_THROWS_AS(six.take_share(4), c10::ValueError);
  six.take_share(3);
  CHECK(six.heads() == 2);
  PositionBiased biased(4, false);
  biased.set_position_bias(std::make_shared<Distance>());
  CHECK_THROWS_WITH(biased.take_share(2), ContainsSubstring("bias by position (ALiBi)"));
  biased.set_position_bias(nullptr);
  biased.take_share(2);
  CHECK_THROWS_WITH(biased.set_position_bias(std::make_shared<Distance>()),
                    ContainsSubstring("is of all heads, of which this rank has a share"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
