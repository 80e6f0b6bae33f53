#include <tutti/data/transforms.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Rng;
using tutti::data::Transforms;

namespace {

at::Tensor noise(const at::Tensor& image, Rng& rng) {
  return image + rng.integer(0, 1 << 20);
}
at::Tensor twice(const at::Tensor& image, Rng&) {
  return image * 2;
}

}  // namespace

TEST_CASE("transforms run in their order, and one of the same name takes its place",
          "[data][transforms]") {
  const auto plus = [](std::int64_t n) {
    return [n](const at::Tensor& image, Rng&) { return image + n; };
  };
  Transforms all{{"one", plus(1)}, {"twice", twice}};
  const at::Tensor image = torch::zeros({1, 2, 2}, at::kLong);
  CHECK(all(image, 0).eq(2).all().item<bool>());
  all.put("one", plus(5));
  CHECK(all.entries().size() == 2);
  CHECK(all(image, 0).eq(10).all().item<bool>());
  all.remove("twice");
  all.remove("nobody");
  CHECK(all(image, 0).eq(5).all().item<bool>());
  CHECK(Transforms().empty());
}

TEST_CASE("what a transform draws depends on the image's number alone", "[data][transforms][law]") {
  const at::Tensor image = torch::zeros({1}, at::kLong);
  const Transforms alone{{"noise", noise}};
  const Transforms among{{"other", noise},
                         {"zero", [](const at::Tensor& x, Rng&) { return x * 0; }},
                         {"noise", noise}};
  CHECK(alone(image, 3).equal(alone(image, 3)));
  CHECK_FALSE(alone(image, 3).equal(alone(image, 4)));
  CHECK_FALSE(alone(image, 3, /*seed=*/1).equal(alone(image, 3, /*seed=*/2)));
  CHECK(among(image, 3).equal(alone(image, 3)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
