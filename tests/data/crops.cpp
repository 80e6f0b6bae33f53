#include <tutti/data/crops.hpp>

#include <set>
#include <string>

#include <ATen/ATen.h>

#include <tutti/data/transforms.hpp>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::data::CenterCrop;
using tutti::data::CropBox;
using tutti::data::Framing;
using tutti::data::ImageSize;
using tutti::data::PaddingMode;
using tutti::data::RandomCrop;
using tutti::data::RandomResizedCrop;
using tutti::data::Resize;
using vision_golden::golden;

// What the transform makes of the image with the draws that torchvision was given.
template <class T>
void check(const std::string& key, const T& transform, const std::string& image) {
  INFO(key);
  Rng rng = vision_golden::given(key);
  CHECK(vision_golden::equals(transform(golden(image), rng), key));
  CHECK(vision_golden::used_up(rng));
}

}  // namespace

TEST_CASE("Resize finds torchvision's sizes and pixels", "[data][crops][golden]") {
  for (const std::string kind : {"image", "floats"}) {
    CHECK(
        vision_golden::equals(Resize{.size = 11}(golden(kind)), "resize_shorter." + kind + ".11"));
    CHECK(
        vision_golden::equals(Resize{.size = 37}(golden(kind)), "resize_shorter." + kind + ".37"));
    CHECK(vision_golden::equals(Resize{.size = 20, .max_size = 24}(golden(kind)),
                                "resize_max." + kind));
  }
  CHECK(Resize{.size = {12, 17}}(golden("image")).equal(golden("resize.image.bilinear.12")));
  CHECK(Resize{.size = 10}.target(40, 25) == ImageSize{16, 10});
  CHECK(Resize{.size = 10}.target(25, 40) == ImageSize{10, 16});
  CHECK(Resize{.size = 10, .max_size = 11}.target(1, 1000) == ImageSize{1, 11});
  CHECK(CenterCrop{.size = {9, 30}}(golden("image")).equal(golden("center_crop.image.9")));
}

TEST_CASE("RandomCrop and RandomResizedCrop equal torchvision's with its draws",
          "[data][crops][golden]") {
  const RandomResizedCrop usual{.size = {9, 8}};
  check("random_resized_crop.0", usual, "image");
  check("random_resized_crop.1", usual, "image");
  check("random_resized_crop.2",
        RandomResizedCrop{.size = {9, 8}, .scale = {0.99, 1}, .ratio = {0.2, 0.3}}, "image");
  check("random_resized_crop.3",
        RandomResizedCrop{.size = {9, 8}, .scale = {0.99, 1}, .ratio = {3, 4}}, "image");
  check("random_resized_crop.4", usual, "floats");
  check("random_crop.0", RandomCrop{.size = {20, 25}}, "image");
  check("random_crop.1", RandomCrop{.size = {23, 31}, .padding = 4}, "image");
  check("random_crop.2",
        RandomCrop{.size = {30, 29},
                   .padding = {1, 2, 3, 4},
                   .pad_if_needed = true,
                   .padding_mode = PaddingMode::reflect},
        "image");
  check("random_crop.3", RandomCrop{.size = {23, 31}, .padding = 4, .fill = 0.5}, "floats");
}

TEST_CASE("RandomCrop takes every place in the frame, and a frame of 0 is a frame",
          "[data][crops][law]") {
  Rng rng(3);
  const RandomCrop crop{.size = {4, 6}, .padding = 1};
  std::set<std::int64_t> rows;
  std::set<std::int64_t> columns;
  for (int i = 0; i < 200; ++i) {
    const CropBox box = crop.draw(5, 6, rng);
    rows.insert(box.top);
    columns.insert(box.left);
  }
  CHECK(rows == std::set<std::int64_t>{-1, 0, 1, 2});
  CHECK(columns == std::set<std::int64_t>{-1, 0, 1});
  const at::Tensor x = golden("image");
  Rng a(5);
  Rng b(5);
  CHECK(RandomCrop{.size = 28, .padding = 6}(x, a).equal(
      tutti::data::crop(tutti::data::pad(x, 6), [&] {
        CropBox box = RandomCrop{.size = 28, .padding = 6}.draw(23, 31, b);
        box.top += 6;
        box.left += 6;
        return box;
      }())));
}

TEST_CASE("RandomResizedCrop keeps area and shape in their ranges", "[data][crops][law]") {
  const RandomResizedCrop crop{.size = 8, .scale = {0.2, 0.5}, .ratio = {0.5, 2}};
  Rng rng(7);
  double smallest = 1;
  double largest = 0;
  for (int i = 0; i < 500; ++i) {
    const CropBox box = crop.draw(400, 300, rng);
    CHECK((box.top >= 0 && box.left >= 0 && box.top + box.height <= 400 &&
           box.left + box.width <= 300));
    const double area = static_cast<double>(box.height * box.width) / (400 * 300);
    const double shape = static_cast<double>(box.width) / static_cast<double>(box.height);
    CHECK((area > 0.195 && area < 0.505 && shape > 0.49 && shape < 2.05));
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
  }
  CHECK(smallest < 0.22);
  CHECK(largest > 0.48);
}

TEST_CASE("RandomResizedCrop of a line of pixels is a box of it", "[data][crops]") {
  Rng rng(1);
  const RandomResizedCrop crop{.size = 4, .ratio = {3, 4}};
  CHECK(crop.draw(50, 1, rng) == CropBox{24, 0, 1, 1});
  CHECK(crop.draw(1, 50, rng).height == 1);
  CHECK(crop(golden("image").narrow(2, 0, 1), rng).sizes() == at::IntArrayRef{3, 4, 4});
}

TEST_CASE("a crop before and after the pixels are there has the same draws", "[data][crops][law]") {
  const RandomResizedCrop crop{.size = {9, 8}};
  const at::Tensor x = golden("image");
  for (std::uint64_t i = 0; i < 20; ++i) {
    Rng a(i);
    Rng b(i);
    const Framing plan = crop(x.size(1), x.size(2), a);
    CHECK(crop(x, b).equal(tutti::data::resized_crop(x, plan.box, plan.size)));
  }
}

TEST_CASE("each image of a batch has draws of its own, the same for any number of threads",
          "[data][crops][law]") {
  const at::Tensor batch = golden("image").expand({6, 3, 23, 31}).contiguous();
  const RandomResizedCrop crop{.size = 12};
  const int threads = at::get_num_threads();
  Rng a(1);
  const at::Tensor alone = crop(batch, a);
  CHECK(alone.sizes() == at::IntArrayRef{6, 3, 12, 12});
  CHECK_FALSE(alone[0].equal(alone[1]));
  at::set_num_threads(4);
  Rng b(1);
  CHECK(crop(batch, b).equal(alone));
  CHECK_FALSE(crop(batch, b).equal(alone));
  at::set_num_threads(threads);
}

TEST_CASE("crops are transforms of a loader", "[data][crops]") {
  const tutti::data::Transforms transforms{{"resize", Resize{.size = 26}},
                                           {"crop", RandomCrop{.size = 20, .padding = 2}},
                                           {"center", CenterCrop{.size = 18}},
                                           {"random", RandomResizedCrop{.size = 10}}};
  const at::Tensor once = transforms(golden("image"), 5);
  CHECK(once.sizes() == at::IntArrayRef{3, 10, 10});
  CHECK(once.equal(transforms(golden("image"), 5)));
  CHECK_FALSE(once.equal(transforms(golden("image"), 6)));
}

TEST_CASE("crops say which option does not fit", "[data][crops]") {
  Rng rng;
  const at::Tensor x = golden("image");
  CHECK_THROWS_WITH(Resize{.size = 0}(x), ContainsSubstring("Resize: the size is 0 x 0"));
  CHECK_THROWS_WITH((Resize{.size = 8, .max_size = 8}(x)),
                    ContainsSubstring("max_size is 8, expected more than the size, 8"));
  CHECK_THROWS_WITH((Resize{.size = {8, 9}, .max_size = 10}(x)),
                    ContainsSubstring("max_size is 10 and both sides are given"));
  CHECK_THROWS_WITH((RandomCrop{.size = 24}(x, rng)),
                    ContainsSubstring("a piece of 24 x 24 does not fit into an image of 23 x 31"));
  CHECK_THROWS_WITH((RandomResizedCrop{.scale = {0.5, 0.2}}(x, rng)),
                    ContainsSubstring("RandomResizedCrop: scale is from 0.5 to 0.2"));
  CHECK_THROWS_WITH((RandomResizedCrop{.ratio = {0, 1}}(x, rng)),
                    ContainsSubstring("ratio is from 0 to 1, expected more than 0"));
  CHECK_THROWS_WITH(RandomResizedCrop{}(x.to(at::kInt), rng),
                    ContainsSubstring("RandomResizedCrop: the image is Int[3, 23, 31]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
