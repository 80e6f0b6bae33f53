#include <tutti/checkpoint/rng_state.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Archive;
using tutti::checkpoint::load_rng;
using tutti::checkpoint::save_rng;

TEST_CASE("the CPU generator goes on where it was saved", "[checkpoint][rng][law]") {
  at::manual_seed(3);
  at::randn({5});  // an odd count leaves half a pair of normals behind
  Archive archive;
  save_rng(archive);
  const at::Tensor first = at::randn({7});
  const at::Tensor second = at::randperm(9);
  at::manual_seed(99);
  load_rng(archive);
  CHECK(at::randn({7}).equal(first));
  CHECK(at::randperm(9).equal(second));
}

TEST_CASE("a CPU generator state of another size is refused and changes nothing",
          "[checkpoint][rng]") {
  at::manual_seed(3);
  Archive archive;
  archive.put("cpu", at::zeros({16}, at::kByte));
  CHECK_THROWS_WITH(load_rng(archive), ContainsSubstring("saved by another version of LibTorch"));
  CHECK_THROWS_WITH(load_rng(Archive()), ContainsSubstring("'cpu'"));
  const at::Tensor next = at::randn({3});
  at::manual_seed(3);
  CHECK(at::randn({3}).equal(next));
}

TEST_CASE("states of absent CUDA devices are left out and named", "[checkpoint][rng]") {
  Archive archive;
  save_rng(archive);
  const auto devices = tutti::checkpoint::detail::cuda_devices();
  CHECK(archive.contains("cuda") == (devices > 0));
  CHECK(load_rng(archive).empty());
  for (std::int64_t i = devices; i < devices + 2; ++i) {
    archive.put("cuda/" + std::to_string(i), at::zeros({16}, at::kByte));
  }
  const auto left_out = load_rng(archive);
  REQUIRE(left_out.size() == 2);
  CHECK_THAT(left_out.back(), ContainsSubstring("cuda:" + std::to_string(devices + 1)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
