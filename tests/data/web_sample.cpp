#include <tutti/data/web_sample.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <tutti/data/shard_writer.hpp>

#ifdef TUTTI_WITH_JPEG
#include "data/encode_jpeg.hpp"
#endif

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;

std::string split(const std::string& name) {
  const auto found = tutti::data::detail::web_name(name);
  return found ? found->key + "|" + found->field : "";
}

}  // namespace

TEST_CASE("a member's name is split at the first dot of its last part", "[data][webdataset]") {
  CHECK(split("a.txt") == "a|txt");
  CHECK(split("a.seg.PNG") == "a|seg.png");
  CHECK(split("x.y/a.txt") == "x.y/a|txt");
  CHECK(split("./a.txt") == "./a|txt");
  CHECK(split("dir/.a.txt") == "dir/|a.txt");
  CHECK(split("a.").empty() == false);
  CHECK(split("a.") == "a|");
  for (const char* none :
       {"noext", "dir/noext", ".hidden", "a.b/.hidden", "./.x", "__index__", "__meta__/x.json"}) {
    INFO(none);
    CHECK(split(none).empty());
  }
  CHECK(split("dir/__x__.y") == "dir/__x__|y");
  CHECK(split("__a.txt") == "__a|txt");
}

TEST_CASE("WebSample has the fields of a part of a tar file", "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "a.tar").string();
  ShardWriter writer(path);
  writer.write("k", {{"txt", "hello"}, {"json", R"({"a": [1]})"}, {"cls", 3}});
  writer.close();
  const auto samples = tutti::data::detail::web_samples(path);
  REQUIRE(samples.size() == 1);
  const std::string bytes = read_bytes(path);
  const WebSample sample(path, bytes.substr(samples[0].begin, samples[0].end - samples[0].begin));
  CHECK(sample.key() == "k");
  CHECK(sample.fields() == std::vector<std::string>{"cls", "json", "txt"});
  CHECK(sample.contains("jpg;txt"));
  CHECK_FALSE(sample.contains("jpg"));
  CHECK(sample.text("jpg;txt") == "hello");
  CHECK(sample.bytes("cls") == "3");
  CHECK(sample.integer("cls") == 3);
  CHECK(sample.json("json")["a"][0].integer() == 1);
  CHECK_THROWS_WITH(sample.text("jpg"),
                    ContainsSubstring("the sample 'k' has no field 'jpg'; there are: cls, json"));
}

TEST_CASE("the JSON of a sample may be what Python's json.dumps writes", "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "a.tar").string();
  ShardWriter writer(path);
  writer.write("k",
               {{"json", R"({"x": NaN, "t": "\ud800", "x": -Infinity})"}, {"y.json", "[NaN]"}});
  writer.close();
  const auto samples = tutti::data::detail::web_samples(path);
  REQUIRE(samples.size() == 1);
  const std::string bytes = read_bytes(path);
  const WebSample sample(path, bytes.substr(samples[0].begin, samples[0].end - samples[0].begin));
  const auto json = sample.json("json");
  CHECK(json.size() == 2);
  CHECK(json["x"].number() == -std::numeric_limits<double>::infinity());
  CHECK(json["t"].string() == "\uFFFD");
  CHECK(sample.tensor("y.json").isnan().item<bool>());
}

TEST_CASE("an image of a sample is decoded to its pixels", "[data][webdataset][jpeg]") {
#ifdef TUTTI_WITH_JPEG
  const TemporaryFolder folder;
  const std::string path = (folder / "a.tar").string();
  const std::string jpeg = encode_jpeg(picture(), JCS_RGB);
  ShardWriter writer(path);
  writer.write("k", {{"jpg", jpeg}});
  writer.close();
  const auto samples = tutti::data::detail::web_samples(path);
  const WebSample sample(path, read_bytes(path).substr(0, samples.at(0).end - samples.at(0).begin));
  CHECK(sample.tensor("png;jpg").equal(decode_jpeg(jpeg)));
#else
  tutti_test::skip("this program was built without libjpeg, TUTTI_WITH_JPEG");
#endif
}

}  // namespace UNITY_BUILD_UNIQUE_ID
