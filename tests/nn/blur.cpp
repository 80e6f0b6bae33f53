#include <tutti/nn/blur.hpp>

#include "support/catch.hpp"
#include "support/golden.hpp"

#include <tutti/core/autocast.hpp>

#include <cstdint>
#include <string>
#include <tuple>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using tutti::BlurBorder;
using tutti::functional::blur_2d;
using tutti::functional::blurmax_pool2d;

}  // namespace

TEST_CASE("blur_2d agrees with the reference", "[functional][blurpool][golden]") {
  for (const golden::Case& c : golden::cases("blur_2d")) {
    CHECK_GOLDEN(c, "filter", tutti::functional::blur_filter());
    CHECK_GOLDEN(c, "y",
                 blur_2d(c.in("x"), c.params["channels"].integer(), c.params["stride"].integer()));
  }
}

TEST_CASE("blurmax_pool2d and its layer agree with the reference",
          "[functional][blurpool][golden]") {
  for (const golden::Case& c : golden::cases("blurmax_pool2d")) {
    const auto value = [&](const char* name, std::int64_t otherwise) {
      return c.params.contains(name) ? c.params[name].integer() : otherwise;
    };
    const std::int64_t kernel = value("kernel_size", 2);
    const std::int64_t stride = value("stride", kernel);
    const bool ceil_mode = c.params.contains("ceil_mode") && c.params["ceil_mode"].boolean();
    CHECK_GOLDEN(c, "y",
                 blurmax_pool2d(c.in("x"), kernel, stride, value("padding", 0),
                                value("dilation", 1), ceil_mode));
    auto options = torch::nn::MaxPool2dOptions(kernel)
                       .padding(value("padding", 0))
                       .dilation(value("dilation", 1))
                       .ceil_mode(ceil_mode);
    if (c.params.contains("stride")) {
      options.stride(stride);
    }
    CHECK_GOLDEN(c, "y", nn::BlurMaxPool2d(options)(c.in("x")));
  }
}

TEST_CASE("a blurred image of ones darkens at the border unless the border is treated",
          "[functional][blurpool][law]") {
  const at::Tensor ones = torch::ones({1, 2, 3, 3});
  const at::Tensor zero = blur_2d(ones);
  CHECK(zero[0][1][0][0].item<double>() == 0.5625);
  CHECK(zero[0][1][0][1].item<double>() == 0.75);
  CHECK(zero[0][1][1][1].item<double>() == 1.0);
  for (const BlurBorder border : {BlurBorder::renormalize, BlurBorder::reflect}) {
    CHECK(blur_2d(ones, -1, 1, {}, border).allclose(ones));
    CHECK(blur_2d(ones, -1, 2, {}, border).allclose(torch::ones({1, 2, 2, 2})));
    CHECK(
        blur_2d(torch::ones({1, 2, 1, 5}), -1, 1, {}, border).allclose(torch::ones({1, 2, 1, 5})));
  }
}

TEST_CASE("a blur smooths, keeps the inside alike for every border, and works per channel",
          "[functional][blurpool][law]") {
  const at::Tensor x = torch::randn({2, 3, 8, 7});
  const at::Tensor blurred = blur_2d(x);
  CHECK(blurred.std().item<double>() <= x.std().item<double>());
  CHECK(blurred.narrow(1, 1, 1).equal(blur_2d(x.narrow(1, 1, 1))));
  CHECK(blurred[1].allclose(blur_2d(x[1]), 1e-5, 1e-6));  // [C, H, W] too
  for (const BlurBorder border : {BlurBorder::renormalize, BlurBorder::reflect}) {
    const at::Tensor other = blur_2d(x, -1, 1, {}, border);
    const auto inside = [](const at::Tensor& y) { return y.narrow(2, 1, 6).narrow(3, 1, 5); };
    CHECK(inside(other).allclose(inside(blurred), 1e-5, 1e-6));
    CHECK_FALSE(other.allclose(blurred));
  }
  CHECK(blur_2d(x.to(torch::kBFloat16)).scalar_type() == torch::kBFloat16);
}

TEST_CASE("blur_2d takes filters of its own and refuses what does not fit",
          "[functional][blurpool]") {
  const at::Tensor x = torch::randn({1, 2, 6, 6});
  CHECK(blur_2d(x, 2, 1, torch::ones({2, 1, 1, 1})).equal(x));
  const at::Tensor wide = torch::full({1, 1, 1, 3}, 1. / 3);
  CHECK(blur_2d(torch::ones({1, 2, 6, 6}), -1, 1, wide, BlurBorder::renormalize)
            .allclose(torch::ones({1, 2, 6, 6})));
  const at::Tensor two =
      at::cat({tutti::functional::blur_filter(), torch::ones({1, 1, 3, 3}) / 9});  // one a channel
  CHECK(blur_2d(torch::ones({1, 2, 6, 6}), -1, 1, two, BlurBorder::renormalize)
            .allclose(torch::ones({1, 2, 6, 6})));
  CHECK(blur_2d(torch::ones({1, 2, 0, 6})).size(2) == 0);
  CHECK_THROWS_AS(blur_2d(x, -1, 1, torch::ones({1, 1, 2, 2})), c10::IndexError);
  CHECK_THROWS_WITH(blur_2d(x, 3), ContainsSubstring("x has 2 channels"));
  CHECK_THROWS_WITH(blur_2d(x, -1, {0, 2}), ContainsSubstring("stride is 0 x 2, expected 1"));
  CHECK_THROWS_WITH(blur_2d(x[0][0]), ContainsSubstring("expected [N, C, H, W] or [C, H, W]"));
}

TEST_CASE("blurred layers give the shapes of the plain ones", "[nn][blurpool][law]") {
  for (const auto& side : {std::pair{3, 3}, {3, 7}, {4, 4}}) {
    const at::Tensor x = torch::randn({1, 2, side.first, side.second});
    for (const std::int64_t stride : {1, 2}) {
      for (const auto& kernel : {std::pair{1, 1}, {1, 3}, {3, 3}}) {
        const auto options = torch::nn::Conv2dOptions(2, 3, {kernel.first, kernel.second})
                                 .stride(stride)
                                 .padding({kernel.first / 2, kernel.second / 2});
        const at::Tensor plain = torch::nn::Conv2d(options)(x);
        CHECK(nn::BlurConv2d(options)(x).sizes() == plain.sizes());
        CHECK(nn::BlurConv2d(options, false)(x).sizes() == plain.sizes());
        const auto pool = torch::nn::MaxPool2dOptions({kernel.first, kernel.second})
                              .stride(stride)
                              .padding({kernel.first / 2, kernel.second / 2});
        CHECK(nn::BlurMaxPool2d(pool)(x).sizes() == torch::nn::MaxPool2d(pool)(x).sizes());
      }
    }
  }
}

TEST_CASE("a blurred convolution is the blur and the convolution one after the other",
          "[nn][blurpool][law]") {
  const auto options = [] {
    return torch::nn::Conv2dOptions(4, 6, 3).padding(1).groups(2).padding_mode(torch::kReflect);
  };
  torch::nn::Conv2d conv(options().stride({2, 1}));
  const at::Tensor x = torch::randn({2, 4, 8, 8});
  CHECK(nn::BlurConv2d(*conv)(x).allclose(conv(blur_2d(x))));
  nn::BlurConv2d after(*conv, false);
  CHECK(conv->options.stride()->at(0) == 2);
  torch::nn::Conv2d dense(options());
  dense->weight = conv->weight;
  dense->bias = conv->bias;
  CHECK(after(x).allclose(blur_2d(dense(x), -1, {2, 1})));
}

TEST_CASE("the filter is a buffer, and a BlurPool2d clones", "[nn][blurpool]") {
  nn::BlurPool2d pool(3, 2);
  CHECK(pool->parameters().empty());
  const at::Tensor x = torch::randn({1, 3, 5, 5});
  CHECK(pool(x).equal(blur_2d(x, 3, 2)));
  auto copy = std::dynamic_pointer_cast<nn::BlurPool2dImpl>(pool->clone());
  REQUIRE(copy != nullptr);
  CHECK(copy->forward(x).equal(pool(x)));
  CHECK(nn::BlurPool2d()(x).equal(blur_2d(x, -1, 2)));
}

TEST_CASE("on the CPU the filter and its gradients are those of the convolution",
          "[functional][blurpool][law]") {
  torch::manual_seed(7);
  for (const std::int64_t rows : {1, 2, 3, 6}) {
    for (const std::int64_t columns : {1, 2, 5, 8}) {
      for (const std::int64_t stride : {1, 2, 3}) {
        for (const at::MemoryFormat format :
             {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
          INFO(rows << " x " << columns << ", stride " << stride << ", " << format);
          const at::Tensor x = torch::randn({2, 4, rows, columns}, at::kDouble).contiguous(format);
          const at::Tensor ours = x.clone().requires_grad_();
          const at::Tensor theirs = x.clone().requires_grad_();
          const at::Tensor y = blur_2d(ours, 4, {stride, 1});
          const at::Tensor expected = at::conv2d(
              theirs, tutti::functional::blur_filter().to(at::kDouble).repeat({4, 1, 1, 1}), {},
              {stride, 1}, at::IntArrayRef{1, 1}, 1, 4);
          REQUIRE(y.sizes() == expected.sizes());
          CHECK(y.allclose(expected, 1e-12, 1e-12));
          CHECK(y.is_contiguous(x.suggest_memory_format()));
          const auto slope = [](const at::Tensor& out, const at::Tensor& in) {
            return torch::autograd::grad({out.pow(3).sum()}, {in}, {}, true, true)[0];
          };
          const at::Tensor first = slope(y, ours);
          const at::Tensor first_expected = slope(expected, theirs);
          CHECK(first.allclose(first_expected, 1e-12, 1e-12));
          CHECK(slope(first, ours).allclose(slope(first_expected, theirs), 1e-10, 1e-10));
        }
      }
    }
  }
}

TEST_CASE("under autocast a blur computes in the type of convolutions", "[functional][blurpool]") {
  const tutti::Autocast autocast(at::kCPU, at::kBFloat16);
  CHECK(blur_2d(torch::ones({1, 2, 4, 4})).scalar_type() == at::kBFloat16);
}

TEST_CASE("a blur reads signs that are still to be turned, and zeros without memory",
          "[functional][blurpool]") {
  const at::Tensor x = torch::randn({2, 3, 5, 4}).requires_grad_();
  const at::Tensor y = blur_2d(x, 3, 2);
  CHECK(blur_2d(at::_neg_view(x), 3, 2).allclose(y.neg(), 1e-5, 1e-6));
  const at::Tensor zeros = at::_efficientzerotensor({2, 3, 5, 4}, at::kFloat);
  CHECK(blur_2d(zeros, 3, 2).eq(0).all().item<bool>());
  const at::Tensor dy = at::ones_like(y);
  const auto gradient = [&](const at::Tensor& of_y) {
    return torch::autograd::grad({y}, {x}, {of_y}, /*retain_graph=*/true)[0];
  };
  CHECK(at::equal(gradient(at::_neg_view(dy)), gradient(dy).neg()));
  const at::Tensor none = at::_efficientzerotensor(y.sizes(), at::kFloat);
  CHECK(gradient(none).eq(0).all().item<bool>());
}

TEST_CASE("forward-mode gradients go through a blur", "[functional][blurpool][law]") {
  const at::Tensor x = torch::randn({2, 3, 5, 4});
  const at::Tensor direction = torch::randn({2, 3, 5, 4});
  const auto level = static_cast<std::int64_t>(torch::autograd::ForwardADLevel::get_next_idx());
  const at::Tensor y = blur_2d(at::_make_dual(x, direction, level), -1, 2);
  const at::Tensor slope = std::get<1>(at::_unpack_dual(y, level));
  torch::autograd::ForwardADLevel::release_idx(static_cast<std::uint64_t>(level));
  REQUIRE(slope.defined());
  CHECK(slope.allclose(blur_2d(direction, -1, 2), 1e-5, 1e-6));  // the blur is linear
}

}  // namespace UNITY_BUILD_UNIQUE_ID
