#include <tutti/profiler/torch_trace.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

// The events of a file, one in each line.
std::string lines_of(const std::filesystem::path& merged) {
  std::string lines;
  const auto trace = tutti::detail::parse_json(read_bytes(merged));
  for (std::size_t i = 0; i < trace.size(); ++i) {
    lines += tutti::detail::to_text(trace[i]) + "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("a trace of LibTorch's profiler is put on the clock, without what it says of itself",
          "[profiler][trace]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", R"({"baseTimeNanoseconds": 2000000, "traceEvents": [
    {"ph": "X", "name": "aten::mul", "pid": 77, "tid": 5, "ts": 10.5, "dur": 2},
    {"ph": "X", "name": "MulBackward0", "pid": 77, "tid": 6, "ts": 11, "dur": 2},
    {"ph": "X", "name": "aten::add", "pid": 77, "tid": 6, "ts": 11.5, "dur": 1},
    {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 12, "dur": 2},
    {"ph": "M", "name": "thread_name", "pid": 77, "tid": 5, "ts": 1, "args": {"name": "t"}},
    {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 1, "args": {"name": "p"}},
    {"ph": "X", "name": "Spans", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 9},
    {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9}]})");
  write_bytes(folder / "merged", "[\n{\"name\": \"before\"}\n]\n");
  tutti::merge_torch_traces({{3, {(folder / "a").string(), 5}}}, (folder / "merged").string());
  CHECK(lines_of(folder / "merged") ==
        R"({"name":"before"}
{"ph":"X","name":"aten::mul","pid":3,"tid":5,"ts":2010.5,"dur":2}
{"ph":"X","name":"MulBackward0","pid":3,"tid":6,"ts":2011.0,"dur":2}
{"ph":"X","name":"aten::add","pid":3,"tid":6,"ts":2011.5,"dur":1}
{"ph":"X","name":"kernel","pid":3,"tid":7,"ts":2012.0,"dur":2}
{"ph":"M","name":"thread_name","pid":3,"tid":5,"ts":1,"args":{"name":"t"}}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":3,"tid":5,"args":{"sort_index":0}}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":3,"tid":6,"args":{"sort_index":1}}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":3,"tid":7,"args":{"sort_index":99999}}
)");
}

TEST_CASE("traces of several ranks and cycles stand one behind the other", "[profiler]") {
  const TemporaryFolder folder;
  const auto file = [&](const char* name, const std::string& event) {
    write_bytes(folder / name, "{\"traceEvents\": [" + event + "]}");
    return (folder / name).string();
  };
  const std::string merged = (folder / "new/merged").string();
  const std::string x = R"({"ph": "X", "name": "x", "pid": 7, "tid": 5, "ts": 1})";
  const std::string y = R"({"ph": "i", "name": "y", "pid": 7, "tid": 5, "ts": 2.5, "s": "t"})";
  tutti::merge_torch_traces({{1, {file("b", y), 5}}, {0, {file("a", x), 6}}}, merged);
  tutti::merge_torch_traces({{0, {file("a", ""), 5}}}, merged);  // a cycle without events
  tutti::merge_torch_traces({{0, {file("a", y), 5}}}, merged);
  // Without a base the times are as they are.
  CHECK(lines_of(merged) ==
        R"({"ph":"X","name":"x","pid":0,"tid":5,"ts":1.0}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":0,"tid":5,"args":{"sort_index":99999}}
{"ph":"i","name":"y","pid":1,"tid":5,"ts":2.5,"s":"t"}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":1,"tid":5,"args":{"sort_index":0}}
{"ph":"i","name":"y","pid":0,"tid":5,"ts":2.5,"s":"t"}
{"name":"thread_sort_index","ph":"M","ts":0,"pid":0,"tid":5,"args":{"sort_index":0}}
)");
}

TEST_CASE("a merged trace may begin without any event of LibTorch's", "[profiler]") {
  const TemporaryFolder folder;
  const std::string merged = (folder / "merged").string();
  tutti::merge_torch_traces({}, merged);
  CHECK(read_bytes(merged) == "[\n]\n");
  write_bytes(folder / "a",
              R"({"traceEvents": [{"ph": "X", "name": "x", "pid": 7, "tid": 5, "ts": 1}]})");
  tutti::merge_torch_traces({{0, {(folder / "a").string(), 5}}}, merged);
  CHECK(tutti::detail::parse_json(read_bytes(merged)).size() == 2);
}

TEST_CASE("a trace of LibTorch's that cannot be read is refused, and the merged one stays",
          "[profiler]") {
  const TemporaryFolder folder;
  const std::string merged = (folder / "merged").string();
  write_bytes(merged, "[\n]\n");
  const std::string none = (folder / "none").string();
  CHECK(message([&] { tutti::merge_torch_traces({{0, {none, 5}}}, merged); }) ==
        "TorchProfiler: cannot read '" + none + "'");
  for (const char* text : {"", "{\"traceEvents\": [", "{\"events\": []}"}) {
    write_bytes(folder / "damaged", text);
    CHECK_THROWS_AS(tutti::merge_torch_traces({{0, {(folder / "damaged").string(), 5}}}, merged),
                    std::invalid_argument);
  }
  CHECK(read_bytes(merged) == "[\n]\n");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
