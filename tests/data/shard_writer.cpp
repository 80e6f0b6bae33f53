#include <tutti/data/shard_writer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

#include <tutti/data/webdataset.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;

}  // namespace

TEST_CASE("ShardWriter: a shard ends with its count or its bytes", "[data][webdataset]") {
  const TemporaryFolder folder;
  ShardWriter by_count((folder / "c-%02d.tar").string(), {.maxcount = 2, .start_shard = 9});
  ShardWriter by_size((folder / "s-%d.tar").string(), {.maxsize = 1000});
  for (int i = 0; i < 5; ++i) {
    by_count.write(std::to_string(i), {{"cls", i}});
    by_size.write(std::to_string(i), {{"bin", std::string(500, 'x')}});
  }
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"c-09.tar", "c-10.tar",
                                                                "c-11.tar.partial", "s-0.tar",
                                                                "s-1.tar", "s-2.tar.partial"});
  by_count.close();
  by_count.close();
  by_size.close();
  REQUIRE(by_count.shards().size() == 3);
  CHECK(WebDataset(by_count.shards()[2]).sample(0).key() == "4");
  CHECK(WebDataset(by_size.shards()).size() == 5);
}

TEST_CASE("ShardWriter: names of any length are read back", "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "a.tar").string();
  std::vector<std::string> keys;
  for (const std::size_t size : {1U, 95U, 96U, 97U, 150U, 256U, 300U, 985U, 3000U}) {
    keys.push_back(std::string(size, 'k'));
    keys.push_back("d/" + std::string(size, 'k'));
    keys.push_back(std::string(size, 'd') + "/z");
  }
  {
    ShardWriter writer(path);
    for (const std::string& key : keys) {
      writer.write(key, {{"txt", key}});
    }
  }
  const WebDataset set(path);
  REQUIRE(set.size() == std::ssize(keys));
  for (std::int64_t i = 0; i < set.size(); ++i) {
    CHECK(set.sample(i).key() == keys[static_cast<std::size_t>(i)]);
    CHECK(set.sample(i).text("txt") == keys[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("ShardWriter: the same samples make the same bytes", "[data][webdataset]") {
  const TemporaryFolder folder;
  for (const char* name : {"a.tar", "b.tar"}) {
    ShardWriter writer((folder / name).string());
    writer.write("k", {{"txt", "x"}, {"npy", at::ones({2})}, {"json", Json(Json::Object{})}});
  }
  CHECK(read_bytes(folder / "a.tar") == read_bytes(folder / "b.tar"));
}

TEST_CASE("ShardWriter: what would be read otherwise is refused", "[data][webdataset]") {
  const TemporaryFolder folder;
  ShardWriter writer((folder / "a.tar").string(), {.maxcount = 1});
  const auto refused = [&](const std::string& key, const ShardWriter::Fields& fields,
                           const std::string& says) {
    CHECK_THROWS_WITH(writer.write(key, fields), ContainsSubstring(says));
  };
  for (const char* key : {"", "a.b", "d/a.b", "../a", "/a", "__meta__/a", "d/"}) {
    refused(key, {{"txt", "x"}}, "the key is");
  }
  refused("k", {}, "has no field");
  refused("k", {{"TXT", "x"}}, "expected an extension in lower case");
  refused("k", {{"a/b", "x"}}, "expected an extension in lower case");
  refused("k", {{"", "x"}}, "expected an extension in lower case");
  refused("k", {{"__key__", "x"}}, "expected an extension in lower case");
  refused("k", {{"a", "x"}, {"a", "y"}}, "\"a\" twice");
  refused("k", {{"pth", at::ones({2})}}, "call the field npy");
  writer.write("k", {{"txt", "x"}});
  refused("l", {{"txt", "x"}}, "is full, and its name has no place for a number");
  ShardWriter other((folder / "b-%d.tar").string());
  other.write("k", {{"txt", "x"}});
  CHECK_THROWS_WITH(other.write("k", {{"cls", 1}}), ContainsSubstring("two samples in a row"));
  for (const char* pattern : {"%s.tar", "%6d.tar", "%0999d.tar", "%d%d", "%"}) {
    INFO(pattern);
    CHECK_THROWS_AS(ShardWriter(pattern), c10::ValueError);
  }
  ShardWriter nowhere((folder / "no" / "a.tar").string());
  CHECK_THROWS_WITH(nowhere.write("k", {{"txt", "x"}}), ContainsSubstring("cannot be written"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
