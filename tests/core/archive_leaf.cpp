#include <tutti/core/archive_leaf.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::ArchiveLeaf;
using tutti::detail::leaf_kind;

// Nothing becomes a leaf by chance: an int, or a text that would be a bool.
static_assert(!std::convertible_to<bool, ArchiveLeaf>);
static_assert(!std::convertible_to<std::string, ArchiveLeaf>);
static_assert(std::is_nothrow_move_constructible_v<ArchiveLeaf>);

static_assert(leaf_kind<bool>() == "a bool" && leaf_kind<int>() == "an integer");
static_assert(leaf_kind<std::uint64_t>() == "an integer" && leaf_kind<float>() == "a double");
static_assert(leaf_kind<std::string>() == "text" && leaf_kind<at::Tensor>() == "a tensor");

// The value when it has the type T, as the visitor sees it.
template <class T>
T value_of(const ArchiveLeaf& leaf) {
  return leaf.visit([](const auto& value) -> T {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(value)>, T>) {
      return value;
    } else {
      throw std::runtime_error("another type");
    }
  });
}

}  // namespace

TEST_CASE("a leaf is visited as the type that it was made of", "[core][archive][law]") {
  CHECK(value_of<bool>(ArchiveLeaf(true)));
  CHECK_FALSE(value_of<bool>(ArchiveLeaf(false)));
  for (const std::int64_t number : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1},
                                    std::numeric_limits<std::int64_t>::max()}) {
    CHECK(value_of<std::int64_t>(ArchiveLeaf(number)) == number);
  }
  const auto large = std::numeric_limits<std::uint64_t>::max();
  CHECK(value_of<std::uint64_t>(ArchiveLeaf(large)) == large);
  CHECK(value_of<double>(ArchiveLeaf(0.1)) == 0.1);
  const std::string text("a\0b", 3);
  CHECK(value_of<std::string>(ArchiveLeaf(text)) == text);
  const at::Tensor tensor = at::arange(3);
  CHECK(value_of<at::Tensor>(ArchiveLeaf(tensor)).is_same(tensor));
}

TEST_CASE("a leaf says its kind as its type does, both kinds of integers alike",
          "[core][archive][law]") {
  CHECK(ArchiveLeaf(true).kind() == leaf_kind<bool>());
  CHECK(ArchiveLeaf(std::int64_t{1}).kind() == leaf_kind<std::int64_t>());
  CHECK(ArchiveLeaf(std::uint64_t{1}).kind() == leaf_kind<std::uint64_t>());
  CHECK(ArchiveLeaf(1.0).kind() == leaf_kind<double>());
  CHECK(ArchiveLeaf(std::string("1")).kind() == leaf_kind<std::string>());
  CHECK(ArchiveLeaf(at::ones({1})).kind() == leaf_kind<at::Tensor>());
}

TEST_CASE("only a tensor's leaf has a tensor", "[core][archive]") {
  const at::Tensor tensor = at::arange(3);
  const ArchiveLeaf leaf(tensor);
  REQUIRE(leaf.tensor() != nullptr);
  CHECK(leaf.tensor()->is_same(tensor));
  CHECK(ArchiveLeaf(std::string("1")).tensor() == nullptr);
  CHECK(ArchiveLeaf().tensor() == nullptr);
  REQUIRE(ArchiveLeaf(at::Tensor()).tensor() != nullptr);  // an undefined one is one too
  CHECK(ArchiveLeaf(at::Tensor()).kind() == "a tensor");
}

TEST_CASE("a leaf is false by default", "[core][archive]") {
  CHECK(ArchiveLeaf().kind() == "a bool");
  CHECK_FALSE(value_of<bool>(ArchiveLeaf()));
  CHECK_THROWS(value_of<std::int64_t>(ArchiveLeaf()));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
