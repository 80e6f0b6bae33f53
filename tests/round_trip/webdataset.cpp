// Tar files of Python's webdataset: what it writes is read here, and what is written here it reads.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <string>

#include <tutti/data/shard_writer.hpp>
#include <tutti/data/webdataset.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

constexpr int count = 7;

std::string key_of(int i) {
  return i == 4 ? "long/" + std::string(200, 'n')
                : "dir" + std::to_string(i % 2) + "/s00" + std::to_string(i);
}

}  // namespace

TEST_CASE("WebDataset's tar files go to Python's webdataset and back",
          "[round_trip][webdataset][python]") {
  const std::string python = tutti_test::python_with("webdataset, numpy");
  if (python.empty()) {
    return tutti_test::skip(
        "no Python with webdataset and numpy; name one in TUTTI_TEST_PYTHON, or in "
        "TUTTI_INTEROP_PYTHON when configuring");
  }
  const TemporaryFolder folder;
  const auto run = [&](const std::string& what) {
    const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/webdataset_tars.py";
    return std::system(
        (python + " '" + script + "' " + what + " '" + folder.path().string() + "'").c_str());
  };
  REQUIRE(run("make") == 0);
  const tutti::data::WebDataset theirs((folder / "theirs-{000000..000002}.tar").string());
  REQUIRE(theirs.size() == count);
  tutti::data::ShardWriter ours((folder / "ours-%06d.tar").string(), {.maxcount = 3});
  for (int i = 0; i < count; ++i) {
    const tutti::data::WebSample sample = theirs.sample(i);
    CHECK(sample.key() == key_of(i));
    CHECK(sample.integer("cls") == 3 * i);
    CHECK(sample.text("txt") == "text " + std::to_string(i) + " \xc3\xa9");
    CHECK(sample.json("json")["i"].integer() == i);
    CHECK(sample.tensor("emb.npy").equal(at::arange(i, at::kFloat)));
    CHECK(sample.bytes("bin").size() == static_cast<std::size_t>(i));
    ours.write(sample.key(), {{"cls", sample.integer("cls")},
                              {"txt", sample.text("txt")},
                              {"json", sample.json("json")},
                              {"emb.npy", sample.tensor("emb.npy")},
                              {"bin", sample.bytes("bin")}});
  }
  ours.close();
  CHECK(run("check") == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
