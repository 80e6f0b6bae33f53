#include <tutti/models/image_processor.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <ATen/ATen.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::data::Interpolation;
using tutti::data::ResizeAndCrop;
using tutti::models::ImageProcessor;

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

ImageProcessor preprocessor(const std::string& text) {
  const TemporaryFolder folder;
  write_text(folder / "preprocessor_config.json", text);
  return ImageProcessor::read(folder.path().string());
}

ImageProcessor timm(const std::string& text) {
  const TemporaryFolder folder;
  write_text(folder / "config.json",
             R"({"architecture": "resnet18", "pretrained_cfg": )" + text + "}");
  return ImageProcessor::read(folder.path().string());
}

}  // namespace

TEST_CASE("a ViT's images are squashed to their size and scaled from -1 to 1",
          "[models][image_processor]") {
  const auto processor = preprocessor(R"({
    "do_normalize": true, "do_rescale": true, "do_resize": true,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTImageProcessor", "resample": 2,
    "rescale_factor": 0.00392156862745098, "size": {"height": 224, "width": 224}})");
  CHECK(processor.fit == ResizeAndCrop{.resize = 224, .crop = 224, .squash = true});
  CHECK(processor.mean == std::vector<double>{0.5, 0.5, 0.5});
  CHECK(processor.divisor == 255);
  const auto normalize = processor.normalize();
  CHECK(normalize.std == processor.std);
  CHECK(normalize.divisor == 255);
  CHECK(preprocessor(R"({"size": 384, "feature_extractor_type": "ViTFeatureExtractor"})").fit ==
        ResizeAndCrop{.resize = 384, .crop = 384, .squash = true});
}

TEST_CASE("a ResNet's images keep their shape and lose their edges", "[models][image_processor]") {
  const auto processor = preprocessor(R"({
    "crop_pct": 0.875, "do_resize": true, "feature_extractor_type": "ConvNextFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    "resample": 3, "size": 224})");
  CHECK(processor.fit == ResizeAndCrop{.resize = 256,
                                       .crop = 224,
                                       .interpolation = Interpolation::bicubic,
                                       .floor_center = true});
  CHECK(processor.std == std::vector<double>{0.229, 0.224, 0.225});
  CHECK(preprocessor(R"({"image_processor_type": "ConvNextImageProcessor",
                         "size": {"shortest_edge": 384}})")
            .fit == ResizeAndCrop{.resize = 384, .crop = 384, .squash = true});
  const auto clip = preprocessor(R"({"image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 240}, "do_center_crop": true,
    "crop_size": {"height": 224, "width": 224}, "do_normalize": false, "do_rescale": false})");
  CHECK(clip.fit == ResizeAndCrop{.resize = 240, .crop = 224, .floor_center = true});
  CHECK(clip.mean.empty());
  CHECK(clip.divisor == 1);
}

TEST_CASE("timm's pretrained_cfg says size, crop, mean and deviation",
          "[models][image_processor]") {
  const auto processor = timm(R"({"input_size": [3, 224, 224], "interpolation": "bicubic",
    "crop_pct": 0.9, "crop_mode": "center", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]})");
  CHECK(processor.fit ==
        ResizeAndCrop{.resize = 248, .crop = 224, .interpolation = Interpolation::bicubic});
  CHECK(processor.mean == std::vector<double>{0.1, 0.2, 0.3});
  CHECK(timm(R"({"input_size": [3, 64, 64], "crop_pct": 1.0, "crop_mode": "squash",
                 "interpolation": "bilinear"})")
            .fit == ResizeAndCrop{.resize = 64, .crop = 64, .squash = true});
}

TEST_CASE("Transformers' images are cropped at the half rounded down, timm's at the even number",
          "[models][image_processor]") {
  const at::Tensor image = at::arange(8 * 9).to(at::kByte).view({1, 8, 9});
  const auto hugging_face = preprocessor(R"({"image_processor_type": "BitImageProcessor",
    "do_resize": false, "do_center_crop": true, "crop_size": {"height": 5, "width": 5}})");
  CHECK(hugging_face.fit(image).equal(image.slice(1, 1, 6).slice(2, 2, 7)));
  const auto of_timm = timm(R"({"input_size": [3, 5, 5], "crop_pct": 0.625})");
  CHECK(of_timm.fit(image).equal(image.slice(1, 2, 7).slice(2, 2, 7)));
}

TEST_CASE("what images cannot be made to is refused by key and value",
          "[models][image_processor]") {
  CHECK_THROWS_WITH(preprocessor(R"({"resample": 1})"), ContainsSubstring("resample is 1"));
  CHECK_THROWS_WITH(preprocessor(R"({"size": {"height": 3, "width": 4}})"),
                    ContainsSubstring("expected a square"));
  CHECK_THROWS_WITH(preprocessor(R"({"image_mean": 0.5})"), ContainsSubstring("image_mean is 0.5"));
  CHECK_THROWS_WITH(timm(R"({"crop_mode": "border"})"), ContainsSubstring("crop_mode is"));
  CHECK_THROWS_WITH(timm(R"({"input_size": [3, 32, 64]})"), ContainsSubstring("input_size is"));
  const TemporaryFolder folder;
  write_text(folder / "config.json", "{}");
  CHECK_THROWS_WITH(ImageProcessor::read(folder.path().string()),
                    ContainsSubstring("has no preprocessor_config.json"));
  REQUIRE(::mkfifo((folder / "preprocessor_config.json").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(ImageProcessor::read(folder.path().string()),
                    ContainsSubstring("preprocessor_config.json") &&
                        ContainsSubstring("it is a named pipe, not a regular file"));
}

TEST_CASE("what is written reads back", "[models][image_processor]") {
  for (const ResizeAndCrop& fit :
       {ResizeAndCrop{}, ResizeAndCrop{.floor_center = true},
        ResizeAndCrop{.resize = 96, .crop = 96, .squash = true},
        ResizeAndCrop{
            .resize = 40, .crop = 32, .interpolation = Interpolation::bicubic, .squash = true},
        ResizeAndCrop{.resize = 40, .crop = 40, .interpolation = Interpolation::nearest}}) {
    const ImageProcessor processor{.mean = {0.25, 0.5, 0.75}, .fit = fit};
    const TemporaryFolder folder;
    processor.write(folder.path().string());
    CHECK(ImageProcessor::read(folder.path().string()) == processor);
  }
  const ImageProcessor plain{.mean = {}, .std = {}};
  const TemporaryFolder folder;
  plain.write(folder.path().string());
  CHECK(ImageProcessor::read(folder.path().string()) == plain);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
