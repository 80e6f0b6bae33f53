#include <tutti/checkpoint/manifest.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Archive;
using tutti::checkpoint::Manifest;
using tutti::checkpoint::parse_manifest;
using tutti::checkpoint::to_text;
namespace internal = tutti::checkpoint::detail;

namespace {

Manifest sample() {
  Manifest out;
  out.created = "2025-01-31T12:00:00Z";
  out.tutti = "0.1.0";
  out.libtorch = "2.11.0";
  out.meta.put("run_name", "gentle-fox");
  out.meta.put("epoch", 3);
  out.files["model.safetensors"] = {1234, "0123456789abcdef"};
  Archive state;
  state.put("lr", 0.1);
  out.state = internal::to_json(state);
  return out;
}

// The text sealed again after a change, as a foreign writer would.
std::string sealed(std::string text) {
  text.resize(text.rfind(internal::seal));
  tutti::detail::Xxh64 hash;
  hash.update(text.data(), text.size());
  return text + std::string(internal::seal) + hash.text() + std::string(internal::seal_end);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  return sealed(text.replace(text.find(from), from.size(), to));
}

}  // namespace

TEST_CASE("an archive's scalars keep every bit and their kind through JSON",
          "[checkpoint][manifest][law]") {
  Archive archive;
  archive.put("one", 1);
  archive.put("one point zero", 1.0);
  archive.put("third", 1.0 / 3.0);
  archive.put("tiny", std::numeric_limits<double>::denorm_min());
  archive.put("minus zero", -0.0);
  archive.put("inf", std::numeric_limits<double>::infinity());
  archive.put("-inf", -std::numeric_limits<double>::infinity());
  archive.put("nan", std::numeric_limits<double>::quiet_NaN());
  archive.put("least", std::numeric_limits<std::int64_t>::min());
  archive.put("most", std::numeric_limits<std::uint64_t>::max());
  archive.put("yes", true);
  archive.put("text", "a \"quoted\"\nline");
  archive.put("list", std::vector<double>{0.1, 0.2});
  archive.put("x/y/z", "deep");
  archive.put("x/t", at::arange(3));
  archive.child("empty");
  const auto text = tutti::detail::to_text(internal::to_json(archive), 1);
  const Archive back =
      internal::from_json(tutti::detail::parse_json(text), {{"x/t", at::arange(3)}});
  CHECK(back.names() == archive.names());
  CHECK(back.get<int>("one") == 1);
  CHECK(back.get<double>("one point zero") == 1.0);
  CHECK(back.get<double>("third") == 1.0 / 3.0);
  CHECK(back.get<double>("tiny") == std::numeric_limits<double>::denorm_min());
  CHECK(std::signbit(back.get<double>("minus zero")));
  CHECK(back.get<double>("inf") == std::numeric_limits<double>::infinity());
  CHECK(back.get<double>("-inf") == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(back.get<double>("nan")));
  CHECK(back.get<std::int64_t>("least") == std::numeric_limits<std::int64_t>::min());
  CHECK(back.get<std::uint64_t>("most") == std::numeric_limits<std::uint64_t>::max());
  CHECK(back.get<bool>("yes"));
  CHECK(back.get<std::string>("text") == "a \"quoted\"\nline");
  CHECK(back.get<std::vector<double>>("list") == std::vector<double>{0.1, 0.2});
  CHECK(back.get<std::string>("x/y/z") == "deep");
  CHECK(back.tensor("x/t").equal(at::arange(3)));
  CHECK(back.child("empty").empty());
}

TEST_CASE("a tree and its tensors must fit each other", "[checkpoint][manifest]") {
  const auto tree = tutti::detail::parse_json(R"({"a":{"t":["tensor"]}})");
  CHECK_THROWS_WITH(internal::from_json(tree), ContainsSubstring("the tensor 'a/t' is missing"));
  CHECK_THROWS_WITH(internal::from_json(tree, {{"a/t", at::ones({1})}, {"b", at::ones({1})}}),
                    ContainsSubstring("the tensor 'b' belongs to nothing"));
  for (const char* bad : {R"({"a":["other","x"]})", R"({"a":[]})", R"({"a":["double","1"]})",
                          R"({"a":null})", R"({"a":["integer","x"]})", R"({"a":["integer"]})",
                          R"({"a/b":1})", R"({"":1})", R"([])", R"({"a":[1,2]})"}) {
    INFO(bad);
    CHECK_THROWS_AS(internal::from_json(tutti::detail::parse_json(bad)), std::invalid_argument);
  }
}

TEST_CASE("a manifest reads back what was written", "[checkpoint][manifest]") {
  const Manifest back = parse_manifest(to_text(sample()));
  CHECK(back.version == 1);
  CHECK(back.sharded.is_null());
  CHECK(back.created == "2025-01-31T12:00:00Z");
  CHECK(back.libtorch == "2.11.0");
  CHECK(back.meta.get<std::string>("run_name") == "gentle-fox");
  CHECK(back.files.at("model.safetensors").size == 1234);
  CHECK(back.files.at("model.safetensors").checksum == "0123456789abcdef");
  CHECK(internal::from_json(back.state).get<double>("lr") == 0.1);
}

TEST_CASE("every truncation and every changed byte of a manifest is refused",
          "[checkpoint][manifest]") {
  const std::string text = to_text(sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    INFO(i);
    CHECK_THROWS_AS(parse_manifest(text.substr(0, i)), std::invalid_argument);
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    CHECK_THROWS_AS(parse_manifest(changed), std::invalid_argument);
  }
  CHECK_THROWS_WITH(parse_manifest(text + "\n"),
                    ContainsSubstring("does not end with its checksum"));
  CHECK_THROWS_WITH(parse_manifest("{}"), ContainsSubstring("truncated or no manifest"));
}

TEST_CASE("a manifest of another program or a newer version is refused in words",
          "[checkpoint][manifest]") {
  const std::string text = to_text(sample());
  CHECK_NOTHROW(parse_manifest(sealed(text)));
  CHECK_THROWS_WITH(parse_manifest(replaced(text, "tutti-checkpoint", "other")),
                    ContainsSubstring("its format is 'other', expected 'tutti-checkpoint'"));
  CHECK_THROWS_WITH(parse_manifest(replaced(text, "\"version\": 1", "\"version\": 3")),
                    ContainsSubstring("its version is 3, this library reads up to 2"));
  CHECK_THROWS_WITH(parse_manifest(replaced(text, "\"files\"", "\"filed\"")),
                    ContainsSubstring("no member 'files'"));
}

TEST_CASE("text that could not be read back is not written", "[checkpoint][manifest]") {
  Manifest bad = sample();
  bad.meta.put("name", "\xff");
  CHECK_THROWS_WITH(to_text(bad), ContainsSubstring("not UTF-8"));
  Manifest deep = sample();
  for (int i = 0; i < 70; ++i) {
    deep.state = internal::Json::Object{{"x", deep.state}};
  }
  CHECK_THROWS_WITH(to_text(deep), ContainsSubstring("nested deeper"));
  Manifest large = sample();
  large.meta.put("text", std::string(internal::max_manifest, 'x'));
  CHECK_THROWS_WITH(to_text(large), ContainsSubstring("bytes, expected at most 33554432"));
}

TEST_CASE("an archive as deep as one can be is written and read back", "[checkpoint][manifest]") {
  Manifest deep = sample();
  std::string path = "x";
  for (std::size_t i = 1; i < Archive::max_depth; ++i) {
    path += "/x";
  }
  deep.meta.put(path, std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(parse_manifest(to_text(deep)).meta.get<double>(path)));
}

TEST_CASE("a manifest of nothing but numbers takes no memory", "[checkpoint][manifest]") {
  std::string text = to_text(sample());
  std::string numbers = R"("meta": {"x": [0)";
  for (int i = 0; i < 200'000; ++i) {
    numbers += ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0";
  }
  const std::string hostile = replaced(text, R"("meta": {)", numbers + R"(], )");
  CHECK_THAT(tutti_test::in_bounds(160 << 20, [&] { parse_manifest(hostile); }),
             ContainsSubstring("JSON: more than"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
