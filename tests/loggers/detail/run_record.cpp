#include <tutti/loggers/detail/run_record.hpp>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/whole_file.hpp>
#include <tutti/loggers/detail/dashboard_report.hpp>
#include <tutti/loggers/detail/run_summary.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::Bucket;
using tutti::detail::Json;
using tutti::detail::RunRecord;
using tutti::detail::Series;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

const std::string start =
    R"({"type": "start", "step": 0, "time": 100.0, "run_name": "r", "rank": 0, "world_size": 1})"
    "\n";

std::string metrics(int step, const std::string& values) {
  return "{\"type\": \"metrics\", \"step\": " + std::to_string(step) +
         ", \"time\": " + std::to_string(100 + step) + ".5, \"values\": {" + values + "}}\n";
}

void append(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

// "loss@0:1 acc@0:2": curves with their ranks and latest values.
std::string outline(const RunRecord& record) {
  std::string text;
  for (const auto& curve : record.facts().series) {
    std::string value;
    tutti::detail::append_short(value, curve.series.latest());
    text += (text.empty() ? "" : " ") + curve.name + "@" + std::to_string(curve.rank) + ":" + value;
  }
  return text;
}

}  // namespace

TEST_CASE("a curve of any length keeps its extremes in bounded memory", "[dashboard][law]") {
  Series series;
  for (int i = 0; i < 1000000; ++i) {
    series.add(i, i * 0.01,
               i == 123457   ? 1e6
               : i == 700001 ? -1e6
               : i == 999    ? not_a_number
                             : i % 10);
  }
  CHECK(series.points() == 1000000);
  CHECK(series.latest() == 9);
  for (const std::size_t count : {1U, 7U, 500U, 1000000U}) {
    const auto buckets = series.between(0, 999999, count);
    CHECK(buckets.size() <= std::min<std::size_t>(count, Series::most));
    double low = 0;
    double high = 0;
    double sum = 0;
    std::uint64_t points = 0;
    std::uint64_t odd = 0;
    std::int64_t last = -1;
    for (const Bucket& bucket : buckets) {
      low = std::min(low, bucket.low);
      high = std::max(high, bucket.high);
      sum += bucket.sum;
      points += bucket.points();
      odd += bucket.nan;
      CHECK(bucket.first > last);
      last = bucket.last;
    }
    CHECK(low == -1e6);
    CHECK(high == 1e6);
    CHECK(points == 1000000);
    CHECK(odd == 1);
    CHECK(sum == Approx(4500000 - 7 - 1 - 9));
  }
  // A part of it comes finer, with a neighbour on either side.
  const auto part = series.between(500000, 500999, 500);
  CHECK(part.size() > 30);
  CHECK(part.front().first < 500000);
  CHECK(part.back().last > 500999);
}

TEST_CASE("a curve takes a step back and a value twice", "[dashboard]") {
  Series series;
  for (int i = 0; i < 10; ++i) {
    series.add(i, i, i);
  }
  series.add(9, 9.5, 90);
  CHECK(series.points() == 10);
  CHECK(series.between(0, 9, 100).back().high == 90);
  series.add(4, 20, 40);
  CHECK(series.points() == 5);
  CHECK(series.last_step() == 4);
  series.cut(0);
  CHECK(series.empty());
  CHECK(series.between(0, 9, 10).empty());
}

TEST_CASE("sums beyond the range of double give no infinite mean", "[dashboard]") {
  Bucket bucket;
  bucket.add(0, 0, 1.5e308);
  bucket.add(1, 0, 1.6e308);
  CHECK(bucket.mean() == 1.6e308);
  CHECK(tutti::detail::series_json({bucket}, 0) ==
        R"({"x":[0],"t":[0],"m":[1.6e+308],"lo":[1.5e+308],"hi":[1.6e+308]})");
}

TEST_CASE("a file is read while it grows, line by line", "[dashboard]") {
  const TemporaryFolder folder;
  const auto path = folder / "dashboard.jsonl";
  RunRecord record{folder.path()};
  CHECK(record.status() == "empty");
  const std::string second = metrics(1, R"("loss": 0.5, "acc": "NaN")");
  write_bytes(path, start + metrics(0, R"("loss": 1)") + second.substr(0, 60));
  CHECK(record.poll());
  CHECK(outline(record) == "loss@0:1");
  CHECK_FALSE(record.poll());
  append(path, second.substr(60));
  CHECK(record.poll());
  CHECK(outline(record) == "loss@0:0.5 throughput/batches_per_sec_seen@0:1 acc@0:\"NaN\"");
  CHECK(record.facts().events.back().text == "acc is NaN");
  CHECK(record.facts().broken == 0);

  // What a resumed run repeats replaces what was there; another run's file replaces all.
  append(path, metrics(2, R"("loss": 0.4)"));
  append(path, R"({"type": "start", "step": 1, "time": 200, "run_name": "r", "rank": 0, )"
               R"("world_size": 1})"
               "\n");
  record.poll();
  CHECK(record.facts().series.front().series.points() == 1);
  CHECK(record.facts().events.back().text == "resumed");
  write_bytes(folder / "other", start + metrics(0, R"("other": 3)"));
  std::filesystem::rename(folder / "other", path);
  record.poll();
  record.poll();
  CHECK(outline(record) == "other@0:3");
}

TEST_CASE("metrics in another form of JSON are the same", "[dashboard]") {
  const TemporaryFolder folder;
  write_bytes(folder / "metrics.jsonl",
              start +
                  "{\"time\":101,\"type\":\"metrics\",\"values\":{\"a\":\"-Infinity\",\"b\\u0041\":"
                  "1e3,\"c\":\"text\",\"d\":true},\"step\":3}\n" +
                  metrics(4, R"("q\"uoted": 5)"));
  RunRecord record{folder.path()};
  record.poll();
  CHECK(outline(record) == "a@0:\"-Infinity\" bA@0:1000 q\"uoted@0:5");
  CHECK(record.facts().broken == 0);
  CHECK(record.status() == "quiet");  // JSONLinesLogger holds no lock
}

TEST_CASE("what is no line of a run is counted and harms nobody", "[dashboard][bad input]") {
  const TemporaryFolder folder;
  const std::string deep(100000, '[');
  std::string bad;
  for (const std::string& line : std::vector<std::string>{
           "nonsense", "{}", "[]",
           "{\"type\": \"metrics\", \"step\": 1e99, \"time\": 1, \"values\": {\"a\": 1}}",
           "{\"type\": \"metrics\", \"step\": 1, \"time\": 1, \"values\": {\"a\": 1", deep,
           "{\"type\": \"image\", \"time\": 1, \"step\": 1, \"name\": \"i\", \"file\": "
           "\"../../etc\"}",
           "{\"type\": \"table\", \"time\": 1, \"step\": 1, \"name\": 3}",
           std::string("\0\xFF\xFE", 3)}) {
    bad += line + "\n";
  }
  write_bytes(folder / "dashboard.jsonl",
              start + bad + "{\"type\": \"unknown\", \"time\": 1}\n" + metrics(1, R"("a": 1)"));
  RunRecord record{folder.path()};
  record.poll();
  CHECK(outline(record) == "a@0:1");
  CHECK(record.facts().broken == 9);
  CHECK(record.facts().images.empty());
  // Of metrics there are as many as a page can hold.
  std::string many;
  for (int i = 0; i < 10010; ++i) {
    many += metrics(2, "\"m" + std::to_string(i) + "\": 1");
  }
  append(folder / "dashboard.jsonl", many);
  record.poll();
  CHECK(record.facts().series.size() == RunRecord::most_series);
  CHECK(record.facts().left_out == 12);  // a and the rate are curves, too
}

TEST_CASE("what is no file of the folder is not read", "[dashboard][bad input]") {
  const TemporaryFolder folder;
  write_bytes(folder / "secret", start);
  std::filesystem::create_symlink(folder / "secret", folder / "dashboard.jsonl");
  RunRecord linked{folder.path()};
  linked.poll();
  CHECK(linked.status() == "empty");

  std::filesystem::remove(folder / "dashboard.jsonl");
  write_bytes(folder / "dashboard.jsonl",
              start + R"({"type": "image", "step": 1, "time": 1, "name": "i", "file": 7})"
                      "\n");
  std::filesystem::create_directory(folder / "dashboard");
  std::filesystem::create_symlink("/etc/passwd", folder / "dashboard/7.png");
  write_bytes(folder / "dashboard/8.png", "\x89PNG");
  RunRecord record{folder.path()};
  record.poll();
  CHECK(tutti::detail::image_bytes(record, 7).empty());  // a link
  CHECK(tutti::detail::image_bytes(record, 8).empty());  // of which nobody told
  std::filesystem::remove(folder / "dashboard/7.png");
  write_bytes(folder / "dashboard/7.png", "no picture");
  CHECK(tutti::detail::image_bytes(record, 7).empty());
  write_bytes(folder / "dashboard/7.png", "\x89PNG and so on");
  CHECK(tutti::detail::image_bytes(record, 7) == "\x89PNG and so on");
}

TEST_CASE("a run whose process is gone has died", "[dashboard]") {
  const TemporaryFolder folder;
  const auto path = folder / "dashboard.jsonl";
  write_bytes(path, start);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    const int fd = ::open(path.c_str(), O_RDWR);
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    ::fcntl(fd, F_SETLK, &lock);
    ::write(ready[1], "x", 1) == 1 ? ::pause() : 0;
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  RunRecord record{folder.path()};
  record.poll();
  CHECK(record.status() == "running");
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  CHECK(record.poll());  // that is news
  CHECK(record.status() == "died");
  append(path, R"({"type": "end", "step": 5, "time": 9, "status": "stopped"})"
               "\n");
  record.poll();
  CHECK(record.status() == "stopped");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("several ranks are one run", "[dashboard]") {
  const TemporaryFolder folder;
  for (int rank = 0; rank < 64; ++rank) {
    std::string first = start;
    first.replace(first.find("\"rank\": 0"), 9, "\"rank\": " + std::to_string(rank));
    write_bytes(folder / ("dashboard-rank" + std::to_string(rank) + ".jsonl"),
                first + metrics(0, R"("loss": )" + std::to_string(rank)));
  }
  RunRecord record{folder.path()};
  record.poll();
  CHECK(record.facts().series.size() == 64);
  const Json summary = tutti::detail::parse_json(tutti::detail::summary_json(record));
  CHECK(summary["series"].size() == 64);
  const Json curves = tutti::detail::parse_json(
      tutti::detail::curves_json(record, std::vector<std::size_t>{0, 63, 64, 1000000}, 0, 10, 100));
  CHECK(curves.size() == 2);
}

TEST_CASE("a page is told all in JSON, whatever the names are", "[dashboard]") {
  const TemporaryFolder folder;
  write_bytes(
      folder / "dashboard.jsonl",
      start + metrics(0, R"("<script>alert(1)</script>": "Infinity", "b": 1)") +
          R"({"type": "plan", "step": 0, "time": 100, "text": "a\n\"b\""})"
          "\n"
          R"({"type": "hyperparameters", "time": 100, "values": {"lr": 0.1, "x": "</script>"}})"
          "\n"
          R"({"type": "table", "step": 1, "time": 101, "name": "t", "columns": ["a"], )"
          R"("rows": [["1"]]})"
          "\n"
          R"({"type": "end", "step": 9, "time": 109, "status": "failed", "error": "<b>"})"
          "\n");
  std::filesystem::create_directories(folder / "checkpoints/ep1");
  write_bytes(folder / "checkpoints/ep1/model", "12345");
  std::filesystem::create_directory_symlink("/", folder / "checkpoints/root");
  RunRecord record{folder.path()};
  record.poll();
  const Json summary = tutti::detail::parse_json(tutti::detail::summary_json(record));
  CHECK(summary["name"].string() == "r");
  CHECK(summary["status"].string() == "failed");
  CHECK(summary["error"].string() == "<b>");
  CHECK(summary["plan"].string() == "a\n\"b\"");
  CHECK(summary["step"].integer() == 9);
  CHECK(summary["series"][0][0].string() == "<script>alert(1)</script>");
  CHECK(summary["series"][0][2].string() == "Infinity");
  CHECK(summary["hyperparameters"]["lr"].number() == 0.1);
  CHECK(summary["tables"]["t"][0]["rows"][0][0].string() == "1");
  CHECK(summary["disk_free"].integer() >= 0);
  REQUIRE(summary["checkpoints"].size() == 1);
  CHECK(summary["checkpoints"][0]["name"].string() == "ep1");
  CHECK(summary["checkpoints"][0]["bytes"].integer() == 5);

  const std::string page = tutti::detail::report_page(record);
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK_THAT(page, ContainsSubstring("\\u003cscript>alert(1)\\u003c/script>"));
  std::size_t ends = 0;
  for (auto at = page.find("</script"); at != std::string::npos;
       at = page.find("</script", at + 1)) {
    ++ends;
  }
  CHECK(ends == 2);
}

TEST_CASE("a file is written whole or not at all", "[dashboard]") {
  const TemporaryFolder folder;
  CHECK(tutti::detail::write_whole_file(folder / "a", "text").empty());
  CHECK(read_bytes(folder / "a") == "text");
  CHECK(tutti::detail::write_whole_file(folder / "none/a", "text") == "No such file or directory");
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"a"});
  CHECK(tutti::detail::base64("a") == "YQ==");
  CHECK(tutti::detail::base64("ab") == "YWI=");
  CHECK(tutti::detail::base64("abc") == "YWJj");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
