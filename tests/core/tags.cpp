#include <tutti/core/tags.hpp>

#include <memory>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Silent {};
struct Images {
  using model_features = tutti::types<tutti::takes_images>;
};
template <class Net>
struct Wraps {
  using network_type = Net;
};
struct NeedsTokens {
  template <class M>
  static constexpr bool supports = tutti::offers<M, tutti::takes_tokens>;
};

}  // namespace

TEST_CASE("a model that lists features lacks the others", "[core][tags][law]") {
  STATIC_REQUIRE(tutti::offers<Images, tutti::takes_images>);
  STATIC_REQUIRE(!tutti::offers<Images, tutti::takes_tokens>);
  STATIC_REQUIRE(tutti::offers<Silent, tutti::takes_tokens>);
}

TEST_CASE("a wrapper's features are its network's", "[core][tags]") {
  STATIC_REQUIRE(!tutti::offers<Wraps<Images>, tutti::takes_tokens>);
  STATIC_REQUIRE(!tutti::offers<std::shared_ptr<Wraps<Images>>, tutti::takes_tokens>);
  STATIC_REQUIRE(tutti::offers<Wraps<Silent>, tutti::takes_tokens>);
}

TEST_CASE("a model lists what it says itself", "[core][tags]") {
  STATIC_REQUIRE(tutti::lists<Wraps<Images>, tutti::takes_images>);
  STATIC_REQUIRE(!tutti::lists<Images, tutti::takes_tokens>);
  STATIC_REQUIRE(!tutti::lists<Silent, tutti::takes_images>);
}

TEST_CASE("a policy supports every model unless it says otherwise", "[core][tags]") {
  STATIC_REQUIRE(tutti::Supports<Silent, Images>);
  STATIC_REQUIRE(!tutti::Supports<NeedsTokens, Images>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
