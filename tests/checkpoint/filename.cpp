#include <tutti/checkpoint/filename.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Timestamp;
using tutti::checkpoint::check_no_newer;
using tutti::checkpoint::format_name;
using tutti::checkpoint::NameFields;
using tutti::checkpoint::parse_name;
using Numbers = std::map<std::string, std::int64_t>;

namespace {

NameFields fields() {
  NameFields out;
  out.run_name = "gentle-fox";
  out.rank = 3;
  out.local_rank = 1;
  out.world_size = 8;
  out.local_world_size = 2;
  out.node_rank = 4;
  out.timestamp.epoch = 2;
  out.timestamp.batch = 45;
  out.timestamp.batch_in_epoch = 5;
  out.timestamp.sample = 1440;
  out.timestamp.sample_in_epoch = 160;
  out.timestamp.token = 9000;
  out.timestamp.token_in_epoch = 900;
  out.timestamp.total_wct = std::chrono::milliseconds(1500);
  out.timestamp.epoch_wct = std::chrono::milliseconds(250);
  out.timestamp.batch_wct = std::chrono::seconds(2);
  return out;
}

}  // namespace

TEST_CASE("every placeholder of a checkpoint name is filled in", "[checkpoint][filename]") {
  CHECK(format_name("ep{epoch}-ba{batch}", fields()) == "ep2-ba45");
  CHECK(format_name("{run_name}/checkpoints", fields()) == "gentle-fox/checkpoints");
  CHECK(format_name("{run_folder}/checkpoints", fields()) == "gentle-fox/checkpoints");  // no other
  auto placed = fields();
  placed.run_folder = "/scratch/runs/a";
  CHECK(format_name("{run_folder}/{run_name}", placed) == "/scratch/runs/a/gentle-fox");
  CHECK(format_name("{rank}.{local_rank}.{world_size}.{local_world_size}.{node_rank}", fields()) ==
        "3.1.8.2.4");
  CHECK(format_name("{batch_in_epoch} {sample} {sample_in_epoch} {token} {token_in_epoch}",
                    fields()) == "5 1440 160 9000 900");
  CHECK(format_name("{total_wct} {epoch_wct} {batch_wct}", fields()) == "1.5 0.25 2");
}

TEST_CASE("a misspelt placeholder is refused with those that there are", "[checkpoint][filename]") {
  using tutti::checkpoint::check_placeholders;
  CHECK_THROWS_WITH(check_placeholders("ep{epcoh}-ba{batch}"),
                    ContainsSubstring("\"{epcoh}\" in \"ep{epcoh}-ba{batch}\"") &&
                        ContainsSubstring("there are {run_name}, {epoch}, {batch}"));
  CHECK_THROWS_WITH(check_placeholders("{batch:04d}"), ContainsSubstring("\"{batch:04d}\""));
  for (const char* fine : {"", "ep{epoch}-ba{batch}", "{run_name}/{run_folder}", "{}", "{epoch",
                           "}{", "{{epoch}}", "{rank}{local_rank}{world_size}{local_world_size}"}) {
    CHECK_NOTHROW(check_placeholders(fine));
  }
}

TEST_CASE("what is no placeholder is left as it is", "[checkpoint][filename]") {
  CHECK(format_name("{unknown}-{epoch}", fields()) == "{unknown}-2");
  CHECK(format_name("{{epoch}}", fields()) == "{2}");
  CHECK(format_name("{epoch", fields()) == "{epoch");
  CHECK(format_name("{}", fields()) == "{}");
  CHECK(format_name("", fields()).empty());
}

TEST_CASE("the numbers of a checkpoint name are read back", "[checkpoint][filename][law]") {
  CHECK(parse_name("ep{epoch}-ba{batch}", "ep2-ba45") == Numbers{{"epoch", 2}, {"batch", 45}});
  CHECK(parse_name("{run_name}-ep{epoch}", "a-ep1-ep2") == Numbers{{"epoch", 2}});
  CHECK(parse_name("{epoch}{batch}", "123").has_value());
  CHECK(parse_name("{total_wct}s-{rank}", "1.5s-3") == Numbers{{"rank", 3}});
  CHECK_FALSE(parse_name("ep{epoch}-ba{batch}", "ep2-ba45.tmp").has_value());
  CHECK_FALSE(parse_name("ep{epoch}-ba{batch}", ".tmp-ep2-ba45-0123456789ab").has_value());
  CHECK_FALSE(parse_name("ep{epoch}", "ep").has_value());
  CHECK_FALSE(parse_name("ep{epoch}", "ep-1").has_value());
  CHECK_FALSE(parse_name("ep{epoch}", "ep99999999999999999999").has_value());
  CHECK_FALSE(parse_name("ep{epoch}", "latest").has_value());
}

TEST_CASE("a folder that holds later checkpoints is refused", "[checkpoint][filename]") {
  const TemporaryFolder folder;
  const std::string pattern = "ep{epoch}-ba{batch}-{batch_in_epoch}";
  std::filesystem::create_directory(folder / "ep2-ba45-5");
  std::filesystem::create_directory(folder / "other");
  Timestamp now = fields().timestamp;
  CHECK_NOTHROW(check_no_newer(folder.path(), pattern, now));
  now.batch = 44;
  CHECK_THROWS_WITH(
      check_no_newer(folder.path(), pattern, now),
      ContainsSubstring("is from batch 45, later than this run's batch 44; resume from it"));
  now.batch = 45;
  now.batch_in_epoch = 4;
  CHECK_THROWS_WITH(check_no_newer(folder.path(), pattern, now),
                    ContainsSubstring("batch_in_epoch 5"));
  now.epoch = 3;  // another epoch: its batch_in_epoch says nothing
  CHECK_NOTHROW(check_no_newer(folder.path(), pattern, now));
  CHECK_NOTHROW(check_no_newer(folder / "missing", pattern, Timestamp{}));
}

TEST_CASE("a run's name stays in the folders that it is put into", "[checkpoint][filename]") {
  using tutti::checkpoint::check_run_name;
  for (const char* good : {"", "quiet-etude", "team/a", "a..b/...", "a/", "..a", "1 2"}) {
    CHECK_NOTHROW(check_run_name(good));
  }
  for (const char* bad : {"..", ".", "../a", "a/..", "a/../../b", "/a", "a/./b", "a\nb"}) {
    CHECK_THROWS_WITH(check_run_name(bad),
                      ContainsSubstring("run_name is \"" + std::string(bad) + "\", expected"));
  }
}

TEST_CASE("a checkpoint from later that is the run's own is no obstacle",
          "[checkpoint][filename]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ba4");
  std::filesystem::create_directory(folder / "ba6");
  Timestamp now;
  const auto own = [](const std::filesystem::path& path) { return path.filename() == "ba4"; };
  CHECK_THROWS_WITH(check_no_newer(folder.path(), "ba{batch}", now, own),
                    ContainsSubstring("ba6' is from batch 6, later than this run's batch 0"));
  std::filesystem::remove(folder / "ba6");
  CHECK_NOTHROW(check_no_newer(folder.path(), "ba{batch}", now, own));
  CHECK_THROWS_WITH(check_no_newer(folder.path(), "ba{batch}", now), ContainsSubstring("ba4'"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
