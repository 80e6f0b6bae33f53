#include <tutti/fused/detail/kernels.hpp>

#include "support/catch.hpp"

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::fused::detail;

namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("every set of instructions computes what the table says", "[fused][law]") {
  if (available().size() == 1) {
    tutti_test::skip("all but the table itself: this processor has neither AVX2 nor AVX-512");
  }
  std::mt19937 random(1);
  std::vector<std::uint8_t> a(600);
  std::vector<std::uint8_t> b(600);
  std::iota(a.begin(), a.end(), std::uint8_t{0});
  for (auto& byte : b) {
    byte = static_cast<std::uint8_t>(random());
  }
  for (const Kernels& kernels : available()) {
    for (const float mean : {0.0F, 0.485F, 0.13F}) {
      for (const double mixing : {0.0, 0.2, 0.49999}) {
        const Values values(255, mean, 0.229F, mixing);
        INFO(kernels.name << ", mean " << mean << ", mixing " << mixing);
        REQUIRE(agrees(kernels, values));
        for (const std::size_t length : {0U, 1U, 7U, 8U, 9U, 15U, 16U, 17U, 31U, 33U, 255U, 300U}) {
          for (const std::size_t offset : {0U, 1U, 3U}) {
            std::vector<float> got(length + 1, 42);
            std::vector<float> want(length + 1, 42);
            const auto n = static_cast<std::int64_t>(length);
            for (std::size_t i = 0; i < length; ++i) {
              want[i] = values.plain[a[offset + i]];
            }
            kernels.plain(a.data() + offset, got.data(), n, values);
            CHECK(same_bits(got, want));
            for (std::size_t i = 0; i < length; ++i) {
              want[i] = values.own[a[offset + i]] + values.partner[b[offset + i]];
            }
            kernels.mixed(a.data() + offset, b.data() + offset, got.data(), n, values);
            CHECK(same_bits(got, want));
          }
        }
      }
    }
  }
}

TEST_CASE("where arithmetic rounds otherwise the table is taken", "[fused]") {
  Values values(255, 0.5F, 0.25F, 0.1);
  CHECK(std::string(choose(values).name) == available().back().name);
  values.plain[77] = std::nextafter(values.plain[77], 9.0F);
  CHECK(std::string(choose(values).name) == "table");
  const Values tiny(255, 0.5F, 1e-42F, 0.1);  // 1 / std overflows
  const Kernels chosen = choose(tiny);
  CHECK(agrees(chosen, tiny));
}

TEST_CASE("the table is what ImageLoader computes", "[fused]") {
  const Values values(255, 0.4914F, 0.247F, 0);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    CHECK(values.plain[byte] == (static_cast<float>(byte) / 255.0F - 0.4914F) / 0.247F);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
