#include <tutti/core/archive.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Archive;

namespace {

Archive sample() {
  Archive archive;
  archive.put("lr", 0.1);
  archive.put("steps", 7);
  archive.put("name", "sgd");
  archive.put("nesterov", true);
  archive.put("momentum/0", at::arange(3));
  archive.put("momentum/1", at::arange(4));
  return archive;
}

}  // namespace

TEST_CASE("an archive returns every kind of value as it was put", "[core][archive][law]") {
  const Archive archive = sample();
  CHECK(archive.get<double>("lr") == 0.1);
  CHECK(archive.get<int>("steps") == 7);
  CHECK(archive.get<std::int64_t>("steps") == 7);
  CHECK(archive.get<std::string>("name") == "sgd");
  CHECK(archive.get<bool>("nesterov"));
  CHECK(archive.tensor("momentum/1").equal(at::arange(4)));
  CHECK(archive.child("momentum").get<at::Tensor>("0").equal(at::arange(3)));
  CHECK(archive.child("momentum").path() == "momentum");
}

TEST_CASE("entries keep the order in which they were put", "[core][archive]") {
  const Archive archive = sample();
  CHECK(archive.names() == std::vector<std::string>{"lr", "steps", "name", "nesterov", "momentum"});
  std::vector<std::string> paths;
  archive.each_leaf([&](const std::string& path, const Archive::Leaf&) { paths.push_back(path); });
  CHECK(paths ==
        std::vector<std::string>{"lr", "steps", "name", "nesterov", "momentum/0", "momentum/1"});
  CHECK(archive.size() == 5);
  CHECK(Archive().empty());
}

TEST_CASE("lists of scalars and texts go in and out whole", "[core][archive]") {
  Archive archive;
  archive.put("losses", std::vector<double>{0.5, 0.25});
  archive.put("flags", std::vector<bool>{true, false, true});
  archive.put("files", std::vector<std::string>{"ep1", "ep2"});
  archive.put("none", std::vector<int>{});
  CHECK(archive.get<std::vector<double>>("losses") == std::vector<double>{0.5, 0.25});
  CHECK(archive.get<std::vector<bool>>("flags") == std::vector<bool>{true, false, true});
  CHECK(archive.get<std::vector<std::string>>("files") == std::vector<std::string>{"ep1", "ep2"});
  CHECK(archive.get<std::vector<int>>("none").empty());
}

TEST_CASE("integers are kept exactly and refused where they do not fit", "[core][archive]") {
  Archive archive;
  const auto largest = std::numeric_limits<std::int64_t>::max();
  archive.put("largest", largest);
  archive.put("unsigned", static_cast<std::uint64_t>(largest));
  CHECK(archive.get<std::uint64_t>("unsigned") == static_cast<std::uint64_t>(largest));
  CHECK_THROWS_WITH(archive.get<int>("largest"),
                    ContainsSubstring("'largest' is 9223372036854775807"));
  archive.put("beyond", std::numeric_limits<std::uint64_t>::max());
  CHECK(archive.get<std::uint64_t>("beyond") == std::numeric_limits<std::uint64_t>::max());
  CHECK_THROWS_WITH(archive.get<std::int64_t>("beyond"), ContainsSubstring("cannot hold"));
  archive.put("minus", -1);
  CHECK_THROWS(archive.get<unsigned>("minus"));
}

TEST_CASE("a missing entry is reported with its full path and what is there", "[core][archive]") {
  const Archive archive = sample();
  CHECK_THROWS_WITH(archive.get<double>("momentum/2"),
                    ContainsSubstring("nothing is saved under 'momentum/2'; 'momentum' has 0, 1"));
  CHECK_THROWS_WITH(archive.child("momentum").tensor("2"), ContainsSubstring("under 'momentum/2'"));
  CHECK_THROWS_WITH(
      archive.get<double>("beta"),
      ContainsSubstring("'beta'; the archive has lr, steps, name, nesterov, momentum"));
  CHECK_THROWS_WITH(archive.child("deep/er"), ContainsSubstring("'deep'"));
  CHECK(archive.get_or("beta", 0.5) == 0.5);
  CHECK(archive.get_or("lr", 0.5) == 0.1);
}

TEST_CASE("an entry of another kind is reported with both kinds", "[core][archive]") {
  const Archive archive = sample();
  CHECK_THROWS_WITH(archive.get<double>("steps"),
                    ContainsSubstring("'steps' is an integer, expected a double"));
  CHECK_THROWS_WITH(archive.tensor("lr"), ContainsSubstring("'lr' is a double, expected a tensor"));
  CHECK_THROWS_WITH(archive.get<bool>("momentum"),
                    ContainsSubstring("'momentum' is a child archive, expected a bool"));
  CHECK_THROWS_WITH(archive.child("lr"),
                    ContainsSubstring("'lr' is a double, expected a child archive"));
  CHECK_THROWS_WITH(archive.get<double>("lr/x"), ContainsSubstring("'lr' is a double"));
  CHECK_THROWS_WITH(archive.get_or("steps", 0.5), ContainsSubstring("expected a double"));
}

TEST_CASE("a name is put once", "[core][archive]") {
  Archive archive = sample();
  CHECK_THROWS_WITH(archive.put("lr", 0.2), ContainsSubstring("'lr' is saved twice"));
  CHECK_THROWS_WITH(archive.put("momentum/0", 1), ContainsSubstring("'momentum/0' is saved twice"));
  CHECK_THROWS_WITH(archive.put("momentum", std::vector<int>{1}), ContainsSubstring("twice"));
  CHECK_THROWS_WITH(archive.put("lr/x", 1), ContainsSubstring("'lr' is a double"));
  CHECK_THROWS_WITH(archive.put("", 1), ContainsSubstring("empty name"));
  CHECK_THROWS_WITH(archive.put("a//b", 1), ContainsSubstring("empty name"));
  CHECK(archive.erase("lr"));
  CHECK_FALSE(archive.erase("lr"));
  CHECK(archive.erase("momentum/0"));
  archive.put("lr", 0.2);
  CHECK(archive.get<double>("lr") == 0.2);
  CHECK(archive.names().back() == "lr");
  CHECK(archive.get<int>("steps") == 7);
}

TEST_CASE("a path has so many names at most, however it is put together", "[core][archive]") {
  std::string deepest = "a";
  for (std::size_t i = 1; i < Archive::max_depth; ++i) {
    deepest += "/a";
  }
  Archive archive;
  archive.put(deepest, 1);
  CHECK(archive.get<int>(deepest) == 1);
  CHECK_THROWS_WITH(archive.put("b/" + deepest, 1),
                    ContainsSubstring("has 33 names in its path, expected at most 32"));
  CHECK_THROWS_WITH(archive.child("b/" + deepest), ContainsSubstring("33 names"));
  CHECK_THROWS_WITH(archive.put("b", archive), ContainsSubstring("33 names"));
  CHECK_THROWS_WITH(archive.child("b").put(deepest, 1), ContainsSubstring("33 names"));
  CHECK(archive.child("b").empty());  // nothing of what was refused
  std::string endless;
  for (int i = 0; i < 60'000; ++i) {
    endless += "a/";
  }
  CHECK_THROWS_WITH(archive.put(endless + "a", 1), ContainsSubstring("60001 names"));
  CHECK_FALSE(archive.contains(endless + "a"));
}

TEST_CASE("what is erased is gone, and the rest keeps names, values and order", "[core][archive]") {
  Archive archive;
  for (const char* name : {"b", "c", "a", "d"}) {
    archive.put(name, std::string(name));
  }
  archive.put("e/f", 1);
  CHECK_FALSE(archive.erase("e/g"));
  CHECK_FALSE(archive.erase("a/b"));
  CHECK(archive.erase("c"));
  CHECK(archive.erase("b"));
  CHECK(archive.names() == std::vector<std::string>{"a", "d", "e"});
  for (const char* name : {"a", "d"}) {
    CHECK(archive.get<std::string>(name) == name);
  }
  CHECK(archive.get<int>("e/f") == 1);
}

TEST_CASE("an error names what is there, and how much more", "[core][archive]") {
  Archive archive;
  for (int i = 0; i < 20; ++i) {
    archive.put("n" + std::to_string(i), i);
  }
  CHECK_THROWS_WITH(archive.get<int>("x"),
                    ContainsSubstring("n18, n19") && !ContainsSubstring("more"));
  archive.put("n20", 20);
  CHECK_THROWS_WITH(archive.get<int>("x"), ContainsSubstring("n18, n19, and 1 more"));
}

TEST_CASE("copies of an archive have their own tree and share the tensors", "[core][archive]") {
  Archive outer;
  const Archive inner = sample();
  outer.put("first/second", inner);
  CHECK(outer.child("first/second/momentum").path() == "first/second/momentum");
  CHECK_THROWS_WITH(outer.get<double>("first/second/momentum/9"),
                    ContainsSubstring("'first/second/momentum/9'"));
  Archive copy = outer;
  copy.child("first").put("new", 1);
  CHECK_FALSE(outer.contains("first/new"));
  CHECK(copy.tensor("first/second/momentum/0").is_same(inner.tensor("momentum/0")));
  CHECK_THROWS_WITH(outer.put("first", inner), ContainsSubstring("twice"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
