#include <tutti/nn/normalization.hpp>

#include <cstdint>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/normalization.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a group norm gives the same in either memory format, forward and backward",
          "[nn][law]") {
  constexpr auto last = at::MemoryFormat::ChannelsLast;
  // Groups of 4 and 1 in small images take the way round; of 8, in a large one or one pixel, not.
  struct Case {
    std::int64_t channels, groups, side;
  };
  for (const auto [channels, groups, side] :
       {Case{16, 4, 8}, Case{6, 6, 5}, Case{16, 2, 8}, Case{8, 2, 32}, Case{8, 2, 1}}) {
    CAPTURE(channels, groups, side);
    nn::GroupNorm norm(torch::nn::GroupNormOptions(groups, channels));
    torch::nn::init::normal_(norm->weight);
    torch::nn::init::normal_(norm->bias);
    const at::Tensor x = at::randn({3, channels, side, side});
    const at::Tensor slope = at::randn_like(x);
    const auto run = [&](at::MemoryFormat format) {
      const at::Tensor in = x.clone(format).requires_grad_();
      const at::Tensor out = norm(in);
      CHECK(out.is_contiguous(format));
      norm->zero_grad();
      out.backward(slope);
      return std::tuple{out, in.grad(), norm->weight.grad(), norm->bias.grad()};
    };
    const auto [y, dx, dw, db] = run(at::MemoryFormat::Contiguous);
    const auto [z, dx_last, dw_last, db_last] = run(last);
    CHECK(y.allclose(z, 1e-5, 1e-5));
    CHECK(dx.allclose(dx_last, 1e-4, 1e-5));
    CHECK(dw.allclose(dw_last, 1e-4, 1e-4));
    CHECK(db.allclose(db_last, 1e-4, 1e-4));
  }
}

TEST_CASE("only what is slow with the channels last is laid out anew", "[nn]") {
  using nn::detail::is_slow_group_norm;
  constexpr auto last = at::MemoryFormat::ChannelsLast;
  const at::Tensor x = at::zeros({2, 16, 8, 8}).contiguous(last);
  CHECK(is_slow_group_norm(x, 4));
  CHECK(is_slow_group_norm(x, 16));
  CHECK_FALSE(is_slow_group_norm(x, 2));
  CHECK_FALSE(is_slow_group_norm(x.contiguous(), 4));
  CHECK_FALSE(is_slow_group_norm(x.to(at::kBFloat16), 4));
  CHECK_FALSE(is_slow_group_norm(at::zeros({2, 16, 32, 32}).contiguous(last), 4));
  CHECK_FALSE(is_slow_group_norm(at::zeros({2, 16}), 4));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
