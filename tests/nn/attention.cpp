#include <tutti/nn/attention.hpp>

#include <memory>

#include "support/catch.hpp"

namespace {

using tutti::nn::Dropout;
using tutti::nn::HeadedAttention;
using tutti::nn::PositionBias;
using tutti::nn::PositionBiased;

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
