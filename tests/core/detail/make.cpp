#include <tutti/core/detail/make.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <utility>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Shared : std::enable_shared_from_this<Shared> {
  Shared(std::unique_ptr<int> n, const std::string& text) : number(std::move(n)), text(text) {}
  std::unique_ptr<int> number;
  std::string text;
};

}  // namespace

TEST_CASE("what is made once is owned as std::make_shared would have it") {
  const auto made = tutti::detail::make<Shared>(std::make_unique<int>(3), "text");
  CHECK(*made->number == 3);
  CHECK(made->text == "text");
  CHECK(made->shared_from_this() == made);
  CHECK(made.use_count() == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
