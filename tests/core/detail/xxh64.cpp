#include <tutti/core/detail/xxh64.hpp>

#include <cstddef>
#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::Xxh64;

namespace {

std::string hash(const std::string& bytes) {
  Xxh64 h;
  h.update(bytes.data(), bytes.size());
  return h.text();
}

}  // namespace

TEST_CASE("XXH64 gives the digits that xxhsum prints", "[checkpoint][xxh64]") {
  CHECK(hash("") == "ef46db3751d8e999");
  CHECK(hash("a") == "d24ec4f1a98c6e5b");
  CHECK(hash("abc") == "44bc2cf5ad770999");
  CHECK(hash("Nobody inspects the spammish repetition") == "fbcea83c8a378bf1");
}

TEST_CASE("XXH64 of a stream does not depend on how it is cut", "[checkpoint][xxh64][law]") {
  std::string bytes;
  for (int i = 0; i < 200; ++i) {
    bytes += static_cast<char>(i * 37);
  }
  const std::string whole = hash(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Xxh64 h;
    h.update(bytes.data(), cut);
    CHECK(h.value() != 0);  // reading the value in between changes nothing
    h.update(bytes.data() + cut, bytes.size() - cut);
    CHECK(h.text() == whole);
  }
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  CHECK(hash(bytes) != whole);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
