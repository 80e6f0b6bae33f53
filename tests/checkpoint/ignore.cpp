#include <tutti/checkpoint/ignore.hpp>

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Archive;
using tutti::checkpoint::IgnoreKeys;
using Names = std::vector<std::string>;

namespace {

Archive sample() {
  Archive out;
  out.put("optimizers/0/lr", 0.1);
  out.put("optimizers/0/momentum", at::ones({2}));
  out.put("optimizers/1/lr", 0.2);
  out.put("timestamp/batch", std::uint64_t{1} << 63);
  out.put("name", "x");
  return out;
}

Names leaves(const Archive& archive) {
  Names out;
  archive.each_leaf([&](const std::string& path, const Archive::Leaf&) { out.push_back(path); });
  return out;
}

}  // namespace

TEST_CASE("what a glob matches is left out with all below it", "[checkpoint][ignore]") {
  IgnoreKeys keys({"state/optimizers", "state/na*"});
  Names left_out;
  const Archive rest = keys.without(sample(), "state/", left_out);
  CHECK(leaves(rest) == Names{"timestamp/batch"});
  CHECK(rest.get<std::uint64_t>("timestamp/batch") == std::uint64_t{1} << 63);
  CHECK(left_out == Names{"state/optimizers", "state/name"});
  CHECK(keys.unmatched().empty());
}

TEST_CASE("a star crosses slashes and a glob without a match is told", "[checkpoint][ignore]") {
  IgnoreKeys keys({"*/lr", "state/scaler"});
  Names left_out;
  const Archive rest = keys.without(sample(), "state/", left_out);
  CHECK(leaves(rest) == Names{"optimizers/0/momentum", "timestamp/batch", "name"});
  CHECK(left_out == Names{"state/optimizers/0/lr", "state/optimizers/1/lr"});
  CHECK(keys.unmatched() == Names{"state/scaler"});
}

TEST_CASE("what has nothing left below it is left out itself", "[checkpoint][ignore]") {
  IgnoreKeys keys({"state/optimizers/*"});
  Names left_out;
  Archive archive = sample();
  archive.child("empty");
  const Archive rest = keys.without(archive, "state/", left_out);
  CHECK_FALSE(rest.contains("optimizers"));
  CHECK(rest.contains("empty"));
  CHECK(left_out == Names{"state/optimizers/0", "state/optimizers/1"});
}

TEST_CASE("without globs everything stays, tensors shared", "[checkpoint][ignore]") {
  IgnoreKeys keys;
  Names left_out;
  const Archive all = sample();
  const Archive copy = keys.without(all, "state/", left_out);
  CHECK(leaves(copy) == leaves(all));
  CHECK(copy.tensor("optimizers/0/momentum").is_same(all.tensor("optimizers/0/momentum")));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
