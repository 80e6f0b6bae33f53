#include <tutti/profiler/json_trace.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::Json;
using Names = std::vector<std::string>;

namespace {

// A rank's file: when all ranks met, and one span. Returns its path.
std::string trace(const TemporaryFolder& folder, const std::string& name, std::int64_t sync,
                  std::int64_t time) {
  write_bytes(folder / name,
              "[\n{\"name\": \"clock_sync_timestamp_us\", \"ph\": \"M\", \"ts\": 0, \"pid\": 9, "
              "\"tid\": 1, \"args\": {\"value\": " +
                  std::to_string(sync) + "}},\n{\"name\": \"x\", \"ph\": \"B\", \"ts\": " +
                  std::to_string(time) + ", \"pid\": 9, \"tid\": 1, \"args\": {}}\n]\n");
  return (folder / name).string();
}

}  // namespace

TEST_CASE("traces go where the reference puts them", "[profiler]") {
  const tutti::JSONTraceHandler handler;
  CHECK(handler.folder == "{run_folder}/traces");
  CHECK(handler.filename == "ep{epoch}-ba{batch}-rank{rank}.json");
  CHECK(handler.merged_trace_filename == "merged_trace.json");
  CHECK(handler.remote_file_name == "{run_name}/traces/" + handler.filename);
  CHECK(handler.merged_trace_remote_file_name == "{run_name}/traces/merged_trace.json");
  CHECK_FALSE(handler.overwrite);
  CHECK(handler.num_traces_to_keep == -1);
}

TEST_CASE("a merged trace has the ranks' times on one clock", "[profiler][dist]") {
  const TemporaryFolder folder;
  const auto path = [&](int rank, std::int64_t sync, std::int64_t time) {
    return trace(folder, std::to_string(rank), sync, time);
  };
  const std::string merged = (folder / "merged.json").string();
  for (int cycle = 0; cycle < 2; ++cycle) {
    tutti::merge_traces({{0, path(0, 1000, 1010)}, {2, path(2, 5000, 5012)}}, merged);
  }
  const Json events = tutti::detail::parse_json(read_bytes(merged));
  REQUIRE(events.size() == 8);
  CHECK(events[1]["ts"].integer() == 1010);
  CHECK(events[3]["ts"].integer() == 1012);
  CHECK(events[3]["pid"].integer() == 2);
  CHECK(events[2]["args"]["value"].integer() == 5000);
  CHECK(events[7]["ts"].integer() == 1012);
}

TEST_CASE("a merged trace keeps what events say but for their rank and time", "[profiler]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a",
              "[\n{\"name\":\"clock_sync_timestamp_us\",\"ph\":\"M\",\"ts\":3,\"pid\":9,"
              "\"args\":{\"value\":100}},\n"
              "{\"ph\":\"C\",\"ts\":130,\"name\":\"\\u00b5 \\\"x\\\"\",\"args\":{\"ts\":5}}\n]\n");
  trace(folder, "b", 1000, 1007);
  const std::string merged = (folder / "new/folder/merged.json").string();
  tutti::merge_traces({{7, (folder / "b").string()}, {4, (folder / "a").string()}}, merged);
  // By the clock of rank 4, the lowest; when something is said of the rank itself stays.
  CHECK(read_bytes(merged) ==
        "[\n{\"name\":\"clock_sync_timestamp_us\",\"ph\":\"M\",\"ts\":3,\"pid\":4,"
        "\"args\":{\"value\":100}},\n"
        "{\"ph\":\"C\",\"ts\":130,\"name\":\"\u00b5 \\\"x\\\"\",\"args\":{\"ts\":5}},\n"
        "{\"name\":\"clock_sync_timestamp_us\",\"ph\":\"M\",\"ts\":0,\"pid\":7,\"tid\":1,"
        "\"args\":{\"value\":1000}},\n"
        "{\"name\":\"x\",\"ph\":\"B\",\"ts\":107,\"pid\":7,\"tid\":1,\"args\":{}}\n]\n");
  CHECK(sorted_names(folder / "new/folder") == Names{"merged.json"});
}

TEST_CASE("a merged trace without events is one that others can be added to", "[profiler]") {
  const TemporaryFolder folder;
  const std::string merged = (folder / "merged.json").string();
  write_bytes(folder / "empty", "[\n]\n");
  tutti::merge_traces({{0, (folder / "empty").string()}}, merged);
  CHECK(read_bytes(merged) == "[\n]\n");
  tutti::merge_traces({}, merged);
  CHECK(read_bytes(merged) == "[\n]\n");
  tutti::merge_traces({{0, trace(folder, "a", 100, 107)}}, merged);
  CHECK(tutti::detail::parse_json(read_bytes(merged)).size() == 2);
}

TEST_CASE("a trace that cannot be read or written is refused, and the merged one stays",
          "[profiler]") {
  const TemporaryFolder folder;
  const std::string merged = (folder / "merged.json").string();
  const std::string good = trace(folder, "a", 100, 107);
  tutti::merge_traces({{0, good}}, merged);
  const std::string before = read_bytes(merged);
  const auto says = [&](const std::string& file, const std::string& to) {
    return message([&] { tutti::merge_traces({{0, good}, {1, file}}, to); });
  };
  const std::string none = (folder / "none").string();
  CHECK(says(none, merged) == "Profiler: cannot read '" + none + "'");
  write_bytes(folder / "damaged", "[\n{\"name\": \"x\", \"ph\n]\n");
  CHECK_THROWS_AS(says((folder / "damaged").string(), merged), std::invalid_argument);
  CHECK(read_bytes(merged) == before);

  const std::string pipe = (folder / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(tutti_test::in_bounds(64 << 20, [&] { tutti::merge_traces({{0, pipe}}, merged); }) ==
        "Profiler: cannot read '" + pipe + "'");

  const std::string below = (folder / "a/merged.json").string();  // a file is no folder
  CHECK(says(good, below) == "Profiler: cannot write '" + below + "'");
  std::filesystem::create_directories(folder / "taken/inside");
  const std::string taken = (folder / "taken").string();
  CHECK(says(good, taken) == "Profiler: cannot write '" + taken + "'");
  CHECK(sorted_names(folder.path()) == Names{"a", "damaged", "merged.json", "pipe", "taken"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
