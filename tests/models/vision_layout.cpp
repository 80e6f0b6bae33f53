#include <tutti/models/vision_layout.hpp>

#include "support/catch.hpp"

#include <string>

#include <tutti/core/detail/json_parse.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
using Catch::Matchers::ContainsSubstring;
using models::PretrainedConfig;
using models::VisionFamily;
using models::VisionLayout;

PretrainedConfig config(const std::string& text) {
  const auto json = tutti::detail::parse_json(text);
  return PretrainedConfig(json.object());
}

}  // namespace

TEST_CASE("a config tells which library wrote it and which network it describes",
          "[models][vision]") {
  struct Example {
    const char* text;
    VisionLayout layout;
    VisionFamily family;
  };
  for (const Example& one :
       {Example{R"({"model_type": "vit"})", VisionLayout::huggingface,
                VisionFamily::vision_transformer},
        Example{R"({"model_type": "resnet"})", VisionLayout::huggingface, VisionFamily::resnet},
        Example{R"({"architecture": "vit_tiny_patch16_224.augreg_in21k"})", VisionLayout::timm,
                VisionFamily::vision_transformer},
        Example{R"({"architecture": "deit_small_patch16_224"})", VisionLayout::timm,
                VisionFamily::vision_transformer},
        Example{R"({"architecture": "resnext50_32x4d"})", VisionLayout::timm, VisionFamily::resnet},
        Example{R"({"model_type": "timm_wrapper", "architecture": "resnet18.a1_in1k"})",
                VisionLayout::timm_wrapper, VisionFamily::resnet},
        Example{R"({"function": "torchvision.models.vit_b_16"})", VisionLayout::torchvision,
                VisionFamily::vision_transformer},
        Example{R"({"class": "torchvision.models.ResNet"})", VisionLayout::torchvision,
                VisionFamily::resnet}}) {
    INFO(one.text);
    CHECK(models::vision_layout_of(config(one.text)) == one.layout);
    CHECK(models::vision_family_of(config(one.text)) == one.family);
  }
  CHECK(to_string(VisionLayout::timm_wrapper) == "timm_wrapper");
}

TEST_CASE("a config of something else is refused by what it says", "[models][vision]") {
  CHECK_THROWS_WITH(models::vision_layout_of(config(R"({"model_type": "beit"})")),
                    ContainsSubstring("model_type is \"beit\", expected \"vit\", \"resnet\""));
  CHECK_THROWS_WITH(models::vision_layout_of(config(R"({"width": 3})")),
                    ContainsSubstring("neither a model_type of Transformers"));
  CHECK_THROWS_WITH(models::vision_family_of(config(R"({"architecture": "convnext_tiny"})")),
                    ContainsSubstring("the architecture is \"convnext_tiny\""));
}

TEST_CASE("a first convolution is fitted to other channels with timm's numbers",
          "[models][vision]") {
  const at::Tensor file =
      at::tensor({0.5F, -1.25F, 2.0F, 3.5F, 0.75F, -0.125F}).reshape({2, 3, 1, 1});
  const auto fitted = [&](std::int64_t channels) {
    return models::detail::adapt_input_conv(file, at::empty({2, channels, 1, 1}));
  };
  CHECK(fitted(1).equal(at::tensor({1.25F, 4.125F}).reshape({2, 1, 1, 1})));
  CHECK(fitted(2).equal(at::tensor({0.75F, -1.875F, 5.25F, 1.125F}).reshape({2, 2, 1, 1})));
  CHECK(fitted(4).equal(
      at::tensor({0.375F, -0.9375F, 1.5F, 0.375F, 2.625F, 0.5625F, -0.09375F, 2.625F})
          .reshape({2, 4, 1, 1})));
  CHECK(fitted(5).allclose(
      at::tensor({0.3F, -0.75F, 1.2F, 0.3F, -0.75F, 2.1F, 0.45F, -0.075F, 2.1F, 0.45F})
          .reshape({2, 5, 1, 1})));
  CHECK(
      models::detail::adapt_input_conv(file.to(at::kHalf), at::empty({2, 1, 1, 1})).scalar_type() ==
      at::kHalf);
  CHECK_THROWS_WITH(models::detail::adapt_input_conv(file, at::empty({2, 1, 3, 3})),
                    ContainsSubstring("is [2, 3, 1, 1] in the file and [2, 1, 3, 3] in the model"));
}

TEST_CASE("a config that another library lacks names every option that differs",
          "[models][vision]") {
  CHECK_THROWS_WITH(
      models::detail::expect_expressed("ResNet", VisionLayout::timm,
                                       {{"stem", "small"}, {"groups", "1"}, {"width", "3"}},
                                       {{"stem", "imagenet"}, {"groups", "1"}, {"width", "4"}}),
      ContainsSubstring("ResNet: a config of timm cannot express this model: stem is small (there "
                        "imagenet), width is 3 (there 4); choose another layout"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
