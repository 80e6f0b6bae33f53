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
