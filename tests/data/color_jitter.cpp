#include <tutti/data/color_jitter.hpp>

#include <functional>
#include <set>
#include <string>

#include <ATen/ATen.h>

#include "data/vision_golden.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::data::ColorFactors;
using tutti::data::ColorJitter;
using vision_golden::furthest;
using vision_golden::golden;
namespace data = tutti::data;

constexpr double rounding = 2e-6;  // sums of floats in another order

}  // namespace

TEST_CASE("colours of bytes equal torchvision's of Pillow's images, of floats those of tensors",
          "[data][color_jitter][golden]") {
  using Change = std::function<at::Tensor(const at::Tensor&, double)>;
  for (const auto& [name, change] :
       std::vector<std::pair<std::string, Change>>{{"brightness", data::adjust_brightness},
                                                   {"contrast", data::adjust_contrast},
                                                   {"saturation", data::adjust_saturation}}) {
    for (const std::string factor : {"0.0", "1.7"}) {
      for (const std::string image : {"image", "grey"}) {
        const std::string key = name + "." + image + "." + factor;
        INFO(key);
        CHECK(change(golden(image), std::stod(factor)).equal(golden(key)));
      }
    }
    CHECK(furthest(change(golden("floats"), 1.7), name + ".floats") < rounding);
    CHECK(furthest(change(golden("floats"), 0.3), name + ".less_floats") < rounding);
  }
  for (const std::string shift : {"-0.31", "0.5"}) {
    CHECK(furthest(data::adjust_hue(golden("floats"), std::stod(shift)), "hue.floats." + shift) <
          rounding);
  }
  CHECK(data::adjust_hue(golden("grid"), -0.31).equal(golden("hue.grid.-0.31")));
  CHECK(furthest(data::adjust_hue(golden("grid").to(at::kFloat).div(255), 0.1), "hue.grid_floats") <
        rounding);
}

TEST_CASE("ColorJitter equals torchvision's with its draws", "[data][color_jitter][golden]") {
  const ColorJitter jitter{
      .brightness = 0.4, .contrast = {0.5, 1.3}, .saturation = 0.3, .hue = 0.1};
  Rng a = vision_golden::given("color_jitter.0");
  CHECK(jitter(golden("image"), a).equal(golden("color_jitter.0")));
  CHECK(vision_golden::used_up(a));
  Rng b = vision_golden::given("color_jitter.1");
  CHECK(furthest(jitter(golden("floats"), b), "color_jitter.1") < 2 * rounding);
  CHECK(vision_golden::used_up(b));
  Rng c = vision_golden::given("color_jitter.2");
  CHECK(ColorJitter{.contrast = 0.2}(golden("image"), c).equal(golden("color_jitter.2")));
  CHECK(vision_golden::used_up(c));
}

TEST_CASE("factors stay in their ranges, in every order", "[data][color_jitter][law]") {
  Rng rng(3);
  const ColorJitter jitter{.brightness = 3, .contrast = {0.2, 0.4}, .hue = {-0.1, 0.3}};
  std::set<std::array<std::int64_t, 4>> orders;
  for (int i = 0; i < 500; ++i) {
    const ColorFactors drawn = jitter.draw(rng);
    orders.insert(drawn.order);
    CHECK((drawn.brightness >= 0 && drawn.brightness < 4));
    CHECK((drawn.contrast >= 0.2 && drawn.contrast < 0.4));
    CHECK_FALSE(drawn.saturation);
    CHECK((drawn.hue >= -0.1 && drawn.hue < 0.3));
  }
  CHECK(orders.size() == 24);
}

TEST_CASE("nothing to change changes nothing, and types stay", "[data][color_jitter][law]") {
  Rng rng;
  CHECK(ColorJitter{}(golden("image"), rng).equal(golden("image")));
  const ColorJitter jitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.2};
  const at::Tensor batch = golden("image").expand({4, 3, 23, 31}).contiguous();
  for (const auto type : {at::kByte, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor x = type == at::kByte ? batch : batch.to(type).div(255);
    const at::Tensor y = jitter(x, rng);
    CHECK(y.scalar_type() == type);
    CHECK(y.sizes() == x.sizes());
    CHECK_FALSE(y[0].equal(y[1]));
    CHECK((type == at::kByte || y.max().item<double>() <= 1));
  }
  const at::Tensor grey = golden("grey").to(at::kFloat).div(255);
  CHECK(data::adjust_saturation(grey, 3).equal(grey));
  CHECK(data::adjust_hue(grey, 0.3).equal(grey));
}

TEST_CASE("ColorJitter says what it cannot do", "[data][color_jitter]") {
  Rng rng;
  const at::Tensor x = golden("image");
  CHECK_THROWS_WITH(ColorJitter{.brightness = -1}(x, rng),
                    ContainsSubstring("ColorJitter: brightness is from 2 to 0"));
  CHECK_THROWS_WITH((ColorJitter{.contrast = {-0.5, 1}}(x, rng)),
                    ContainsSubstring("contrast is from -0.5 to 1, expected numbers from 0"));
  CHECK_THROWS_WITH(ColorJitter{.hue = 0.6}(x, rng), ContainsSubstring("hue is from -0.5 to 0.6"));
  CHECK_THROWS_WITH(data::adjust_contrast(x, -1), ContainsSubstring("the factor is -1"));
  CHECK_THROWS_WITH(data::adjust_hue(x.to(at::kFloat).div(255), 2),
                    ContainsSubstring("adjust_hue: the shift is 2"));
  CHECK_THROWS_WITH(ColorJitter{}(x.narrow(0, 0, 2), rng),
                    ContainsSubstring("Byte[2, 23, 31] on cpu, expected 1 or 3 channels"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
