#include <tutti/core/detail/host_empty.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <ATen/core/Tensor.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::host_empty;
using tutti::detail::least_in_huge_pages;

namespace {

// The kernel's flags for the memory that has this address; nothing where it does not tell.
std::optional<std::string> flags_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      found = begin <= wanted && wanted < end;
    } else if (found && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("an empty tensor has the sizes, the type and the order that were asked for",
          "[core][host_empty]") {
  const at::Tensor x = host_empty({2, 3, 4, 5}, at::kHalf, at::MemoryFormat::ChannelsLast);
  CHECK(x.sizes() == at::IntArrayRef({2, 3, 4, 5}));
  CHECK(x.scalar_type() == at::kHalf);
  CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(x.is_cpu());
  CHECK(host_empty({0, 3}, at::kFloat).is_contiguous());
  CHECK_THROWS(host_empty({-1}, at::kFloat));
}

TEST_CASE("only large tensors ask for huge pages", "[core][host_empty][native]") {
  constexpr auto least = static_cast<std::int64_t>(least_in_huge_pages);
  at::Tensor large = host_empty({least}, at::kByte);
  const std::string middle = " hg ";
  const auto flags = flags_of(large.mutable_data_ptr<std::uint8_t>() + least / 2);
  if (!flags || !std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled")) {
    WARN("skipped: this kernel has no huge pages for programs, or does not tell");
    return;
  }
  CHECK_THAT(*flags, Catch::Matchers::ContainsSubstring(middle));
  large.fill_(7);
  CHECK(large[least - 1].item<int>() == 7);
  at::Tensor small = host_empty({least - 1}, at::kByte);
  const auto others = flags_of(small.mutable_data_ptr<std::uint8_t>() + least / 2);
  REQUIRE(others);
  CHECK_THAT(*others, !Catch::Matchers::ContainsSubstring(middle));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
