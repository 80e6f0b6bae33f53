#include <tutti/dist/backend.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <string>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("one process joins nobody and needs no backend", "[dist][backend]") {
  const auto group = dist::join(dist::Environment{}, at::kCPU, std::chrono::seconds(1));
  CHECK(group->size() == 1);
  CHECK(group->backend() == "none");
}

TEST_CASE("several processes without a backend are told what to include", "[dist][backend]") {
  const dist::Backend saved = dist::backend();
  dist::backend() = {};
  dist::Environment here;
  here.world_size = here.local_world_size = 2;
  std::string error;
  try {
    dist::join(here, at::kCPU, std::chrono::seconds(1));
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  dist::backend() = saved;
  CHECK_THAT(error, ContainsSubstring("rank 0 of 2 (local rank 0 of 2, node 0)") &&
                        ContainsSubstring("add #include <tutti/dist/ddp.hpp>"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
