#include <tutti/data/mds_writer.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/mds.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::data;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string refusal(const std::string& encoding, const MDSValue& value) {
  const TemporaryFolder folder;
  MDSWriter out((folder / "set").string(), {.columns = {{"x", encoding}}});
  return message([&] { out.write({{"x", value}}); });
}

}  // namespace

TEST_CASE("every compression gives back what was written", "[data][mds]") {
  for (const char* compression : {"", "zstd", "zstd:19", "gz", "gz:0", "bz2:1", "br:4", "snappy"}) {
    const TemporaryFolder folder;
    const std::string path = (folder / "set").string();
    try {
      MDSWriter out(path, {.columns = {{"x", "int32"}, {"s", "str"}},
                           .compression = compression,
                           .hashes = {"xxh64", "sha1"},
                           .size_limit = 5000});
      for (std::int64_t i = 0; i < 300; ++i) {
        out.write({{"x", -i}, {"s", std::string(static_cast<std::size_t>(i % 7) * 9, 'a')}});
      }
      out.finish();
      out.finish();
      CHECK_THROWS_AS(out.write({{"x", std::int64_t{1}}, {"s", std::string()}}), c10::Error);
    } catch (const c10::NotImplementedError& error) {
      CHECK_THAT(error.what_without_backtrace(), ContainsSubstring("is not linked to"));
      continue;
    }
    const MDSReader reader(path);
    CHECK(reader.shards().size() > 1);
    REQUIRE(reader.size() == 300);
    for (std::int64_t i = 0; i < 300; ++i) {
      CHECK(reader.sample(i).integer("x") == -i);
      CHECK(reader.sample(i).text("s").size() == static_cast<std::size_t>(i % 7) * 9);
    }
    if (*compression != 0) {  // cut off
      const std::string file = path + "/" + reader.shards()[0]->zip->basename;
      write_bytes(file, read_bytes(file).substr(0, 40));
      CHECK_THAT(message([&] { (void)MDSReader(path).sample(0); }), ContainsSubstring("cut off"));
    }
  }
}

TEST_CASE("a sample is written as values in braces or as a batch", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  MDSWriter out(path, {.columns = {{"t", "ndarray"}}});
  out.write({{"t", at::arange(3)}});
  out.write(tutti::Batch{{"t", at::arange(4)}});
  out.finish();
  const MDSReader reader(path);
  CHECK(reader.sample(0).tensor("t").equal(at::arange(3)));
  CHECK(reader.sample(1).tensor("t").equal(at::arange(4)));
}

TEST_CASE("a sample larger than the limit gets a shard alone", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  MDSWriter out(path, {.columns = {{"b", "bytes"}}, .size_limit = 400});
  out.write({{"b", std::string(1000, 'x')}});
  out.write({{"b", std::string("y")}});
  out.finish();
  const MDSReader reader(path);
  REQUIRE(reader.shards().size() == 3);
  CHECK(reader.shards()[0]->samples == 0);
  CHECK(reader.sample(0).bytes("b").size() == 1000);
  CHECK(reader.sample(1).bytes("b") == "y");
}

TEST_CASE("numbers are written as their encodings have them", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  MDSWriter out(
      path, {.columns = {{"f", "str_float"}, {"h", "float16"}, {"i", "str_int"}, {"u", "uint8"}}});
  const std::vector<std::pair<double, std::string>> texts{{0.1, "0.1"},
                                                          {3.0, "3.0"},
                                                          {1e22, "1e+22"},
                                                          {-2.5e-300, "-2.5e-300"},
                                                          {1e15, "1000000000000000.0"},
                                                          {1e16, "1e+16"},
                                                          {0.0001, "0.0001"},
                                                          {0.00001, "1e-05"}};
  for (const auto& [value, text] : texts) {
    out.write({{"f", value}, {"h", 1.5}, {"i", std::int64_t{-7}}, {"u", std::int64_t{255}}});
  }
  out.finish();
  const MDSReader reader(path);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const MDSSample sample = reader.sample(static_cast<std::int64_t>(i));
    CHECK(sample.text("f") == texts[i].second);
    CHECK(sample.number("f") == texts[i].first);
    CHECK(sample.number("h") == 1.5);
    CHECK(sample.integer("i") == -7);
    CHECK(sample.integer("u") == 255);
  }
}

TEST_CASE("bytes are stored as they are, whatever the encoding", "[data][mds]") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> encodings{
      {"array", "ndarray"},   {"bytes", "bytes"},     {"fixed", "ndarray:int16:2"},
      {"image", "pil"},       {"int", "int"},         {"json", "json"},
      {"list", "jpeg_array"}, {"lists", "list[png]"}, {"real", "float32"},
      {"str", "str"},         {"str_int", "str_int"}};
  const std::string written = (folder / "written").string();
  MDSWriter out(written, {.columns = encodings});
  const at::Tensor picture = at::arange(24).to(at::kByte).view({3, 2, 4});
  const std::vector<std::string> files{"a", "bc"};
  out.write({{"array", at::arange(3)},
             {"bytes", std::string("x\0y", 3)},
             {"fixed", at::ones({2}, at::kShort)},
             {"image", picture},
             {"int", std::int64_t{7}},
             {"json", std::string("[1]")},
             {"list", files},
             {"lists", files},
             {"real", 1.5},
             {"str", std::string("z")},
             {"str_int", std::int64_t{12}}});
  out.finish();
  const MDSReader reader(written);
  std::map<std::string, MDSValue> stored;
  for (const auto& [name, encoding] : encodings) {
    stored.emplace(name, StoredBytes(std::string(reader.sample(0).bytes(name))));
  }
  const std::string copied = (folder / "copied").string();
  MDSWriter copy(copied, {.columns = encodings});
  copy.write(stored);
  copy.finish();
  CHECK(read_bytes(copied + "/shard.00000.mds") == read_bytes(written + "/shard.00000.mds"));
  CHECK_THAT(refusal("int", StoredBytes("1234567")), ContainsSubstring("7 bytes, expected 8"));
  CHECK(refusal("str", StoredBytes("\xFF")) == "nothing");
}

TEST_CASE("a value that its encoding does not take is refused", "[data][mds]") {
  CHECK(refusal("int8", std::int64_t{-128}) == "nothing");
  CHECK_THAT(refusal("int8", std::int64_t{128}), ContainsSubstring("128 does not fit"));
  CHECK_THAT(refusal("uint8", std::int64_t{-1}), ContainsSubstring("-1 does not fit"));
  CHECK_THAT(refusal("int", 1.5), ContainsSubstring("expected an integer"));
  CHECK_THAT(refusal("int", std::string("1")), ContainsSubstring("the value is a text"));
  CHECK_THAT(refusal("str", std::string("\xFF")), ContainsSubstring("no UTF-8 at byte 0"));
  CHECK_THAT(refusal("json", std::string("{")), ContainsSubstring("JSON: "));
  CHECK_THAT(refusal("ndarray:int32", at::ones({2})), ContainsSubstring("expected int32"));
  CHECK_THAT(refusal("ndarray", at::ones({})), ContainsSubstring("1 to 63 dimensions"));
  CHECK_THAT(refusal("ndarray:int64:3", at::ones({2}, at::kLong)), ContainsSubstring("[3]"));
  CHECK_THAT(refusal("pil", at::ones({2, 3})),
             ContainsSubstring("expected uint8 [1 | 3 | 4, H, W]"));
  CHECK_THAT(refusal("str", at::ones({2})), ContainsSubstring("is a tensor"));
}

TEST_CASE("options that cannot be are refused", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  const auto refused = [&](MDSWriterOptions options) {
    return message([&] { MDSWriter(path, std::move(options)); });
  };
  CHECK_THAT(refused({}), ContainsSubstring("there are no columns"));
  CHECK_THAT(refused({.columns = {{"x", "pkl"}}}), ContainsSubstring("encoding \"pkl\""));
  CHECK_THAT(refused({.columns = {{"x", "int"}}, .compression = "lz4"}),
             ContainsSubstring("the compression is \"lz4\", expected br, bz2, gz, snappy or zstd"));
  CHECK_THAT(refused({.columns = {{"x", "int"}}, .compression = "zstd:99"}),
             ContainsSubstring("expected a level from 1 to 22") ||
                 ContainsSubstring("not linked to zstd"));
  CHECK_THAT(refused({.columns = {{"x", "int"}}, .hashes = {"crc32"}}),
             ContainsSubstring("the hash \"crc32\" is not known"));
  CHECK_THAT(refused({.columns = {{"x", "int"}}, .size_limit = 0}),
             ContainsSubstring("size_limit is 0"));
  MDSWriter(path, {.columns = {{"x", "int"}}}).finish();
  CHECK(MDSReader(path).size() == 0);
  CHECK_THAT(refused({.columns = {{"x", "int"}}}), ContainsSubstring("has an index.json already"));
  CHECK_THAT(refused({.columns = {{"x", "int"}}, .hashes = {"sha1", "md5", "sha1"}}),
             ContainsSubstring("the hash \"sha1\" is given twice"));
  CHECK(refused({.columns = {{"x", "int"}}, .exist_ok = true}) == "nothing");
  CHECK_THAT(message([&] { MDSReader{path}; }),  // until finish() there is none
             ContainsSubstring("index.json' cannot be read"));
}

TEST_CASE("a real number becomes a float16 in one rounding", "[data][mds]") {
  // Of NumPy: float16(value).tobytes(). A float between is a tie that rounds the other way.
  const std::vector<std::pair<double, std::uint16_t>> halves{{1 + 0x1p-11 + 0x1p-30, 0x3C01},
                                                             {-1 - 0x1p-11 - 0x1p-30, 0xBC01},
                                                             {1 + 0x1p-11, 0x3C00},
                                                             {1 + 3 * 0x1p-11 - 0x1p-30, 0x3C01},
                                                             {1 + 3 * 0x1p-11, 0x3C02},
                                                             {65519.99999999, 0x7BFF},
                                                             {65520.0, 0x7C00},
                                                             {-1e300, 0xFC00},
                                                             {0x1p-25, 0x0000},
                                                             {0x1p-25 + 0x1p-65, 0x0001},
                                                             {-5e-324, 0x8000},
                                                             {0x1p-14 - 0x1p-26, 0x0400},
                                                             {0x1p-14 - 0x1p-25 - 0x1p-60, 0x03FF},
                                                             {0.1, 0x2E66}};
  for (const auto& [value, bits] : halves) {
    CAPTURE(value);
    CHECK(tutti::data::detail::half_of(value).x == bits);
  }
}

TEST_CASE("what Python's streaming writes by other names is written", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  MDSWriter out(
      path,
      {.columns = {
           {"a", "ndarray:"}, {"b", "ndarray:int8:2, 3"}, {"j", "json"}, {"l", "jpegarray"}}});
  out.write({{"a", at::arange(3)},
             {"b", at::ones({2, 3}, at::kChar)},
             {"j", std::string(R"({"x": [NaN, -Infinity, 1e400], "x": "\ud800"})")},
             {"l", std::vector<std::string>{}}});
  out.finish();
  const MDSReader reader(path);
  const MDSSample sample = reader.sample(0);
  CHECK(sample.tensor("a").equal(at::arange(3)));
  CHECK(sample.tensor("b").equal(at::ones({2, 3}, at::kChar)));
  CHECK(sample.columns()[1].size == 6);
  CHECK(sample.text("j") == R"({"x": [NaN, -Infinity, 1e400], "x": "\ud800"})");
  CHECK(sample.tensors("l").empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
