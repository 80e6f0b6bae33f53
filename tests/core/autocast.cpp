#include <tutti/core/autocast.hpp>

#include <ATen/autocast_mode.h>  // the declarations in our header must agree with these

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Autocast;

TEST_CASE("an autocast scope lowers matrix products and ends with it", "[autocast]") {
  const at::Tensor x = at::randn({4, 4});
  {
    const Autocast low(at::kCPU, at::kBFloat16);
    CHECK(at::matmul(x, x).scalar_type() == at::kBFloat16);
    {
      const Autocast off(at::kCPU, at::kBFloat16, false);
      CHECK(at::matmul(x, x).scalar_type() == at::kFloat);
    }
    CHECK(at::matmul(x, x).scalar_type() == at::kBFloat16);
  }
  CHECK(at::matmul(x, x).scalar_type() == at::kFloat);
  CHECK(!at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("a scope that asks for nothing changes nothing", "[autocast]") {
  const Autocast low(at::kCPU, at::kBFloat16);
  const Autocast none;
  CHECK(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
