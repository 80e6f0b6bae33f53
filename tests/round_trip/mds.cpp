// MDS shards: what Python's streaming wrote is read here, what is written here is read there.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include <tutti/data/mds.hpp>
#include <tutti/data/mds_writer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace data = tutti::data;

std::map<std::string, data::MDSValue> sample(std::int64_t i) {
  return {{"f", static_cast<double>(i) / 4},
          {"i", i * 1'000'000'000'000 - 5},
          {"j", R"({"k": [)" + std::to_string(i) + R"(, null, "\u00e9"]})"},
          {"s", "caf\u00e9 " + std::to_string(i)},
          {"x", at::arange(i % 2 == 0 ? 3 : 300, at::kDouble) + i},
          {"y", at::full({2, 3}, i, at::kShort)}};
}

// Whether the program is linked to what compresses so.
bool write(const std::string& folder, const std::string& compression) {
  data::MDSWriterOptions options{.columns = {{"f", "float32"},
                                             {"i", "int"},
                                             {"j", "json"},
                                             {"s", "str"},
                                             {"x", "ndarray"},
                                             {"y", "ndarray:int16:2,3"}},
                                 .compression = compression,
                                 .hashes = {"xxh64", "sha256", "xxh128", "blake2b", "sha3_256"},
                                 .size_limit = 20000};
  try {
    data::MDSWriter out(folder, options);
    for (std::int64_t i = 0; i < 60; ++i) {
      out.write(sample(i));
    }
    out.finish();
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  }
}

}  // namespace

TEST_CASE("MDS shards go to Python's streaming and come from there", "[round_trip][mds][python]") {
  const std::string python = tutti_test::python_with("streaming, numpy");
  if (python.empty()) {
    return tutti_test::skip(
        "no Python with mosaicml-streaming; name one in TUTTI_TEST_PYTHON, or in "
        "TUTTI_INTEROP_PYTHON when configuring");
  }
  const TemporaryFolder folder;
  const auto run = [&](const std::string& what) {
    const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/mds.py";
    return std::system(
        (python + " '" + script + "' " + what + " '" + folder.path().string() + "'").c_str());
  };
  int written = 0;
  for (const char* compression : {"", "zstd:7", "gz", "bz2", "br:3", "snappy"}) {
    const std::string name = std::string("c") + compression;
    written += write((folder / name.substr(0, name.find(':'))).string(), compression) ? 1 : 0;
  }
  CHECK(written >= 1);
  REQUIRE(run("make") == 0);
  CHECK(run("check") == 0);
#ifdef TUTTI_WITH_ZSTD
  const data::MDSReader reader((folder / "python").string());
  REQUIRE(reader.size() == 60);
  for (std::int64_t i = 0; i < 60; ++i) {
    const data::MDSSample got = reader.sample(i);
    const auto want = sample(i);
    CHECK(got.number("f") == std::get<double>(want.at("f")));
    CHECK(got.integer("i") == std::get<std::int64_t>(want.at("i")));
    CHECK(got.text("j") == std::get<std::string>(want.at("j")));
    CHECK(got.text("s") == std::get<std::string>(want.at("s")));
    CHECK(got.tensor("x").equal(std::get<at::Tensor>(want.at("x"))));
    CHECK(got.tensor("y").equal(std::get<at::Tensor>(want.at("y"))));
  }
#endif
}

}  // namespace UNITY_BUILD_UNIQUE_ID
