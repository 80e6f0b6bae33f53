#include <tutti/sweep/metric.hpp>

#include <string>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::sweep::MetricQuery;
using tutti::sweep::MetricReading;
using tutti::sweep::read_metric;

namespace {

std::string line(int step, const std::string& values) {
  return "{\"type\": \"metrics\", \"step\": " + std::to_string(step) +
         ", \"time\": 1.5, \"values\": {" + values + "}}\n";
}

std::string start(int step) {
  return "{\"type\": \"start\", \"step\": " + std::to_string(step) + ", \"time\": 1.0}\n";
}

MetricReading reading(const std::string& text, const MetricQuery& query = {.metric = "acc"}) {
  const TemporaryFolder folder;
  write_bytes(folder / "metrics.jsonl", text);
  return read_metric(folder / "metrics.jsonl", query);
}

// "value@step"
std::string chosen(const std::string& text, const MetricQuery& query) {
  const MetricReading read = reading(text, query);
  CHECK(read.problem.empty());
  CHECK(read.has_metric);
  return std::to_string(static_cast<int>(read.value)) + "@" + std::to_string(read.step);
}

}  // namespace

TEST_CASE("a trial's value is the last or the best of its steps", "[sweep]") {
  const std::string text = start(0) + line(1, "\"loss\": 1, \"acc\": 5") + line(2, "\"acc\": 9") +
                           line(3, "\"acc\": 2") + line(4, "\"loss\": 0.5, \"acc\": 7") +
                           line(5, "\"loss\": 3");
  CHECK(chosen(text, {.metric = "acc"}) == "7@4");
  CHECK(chosen(text, {.metric = "acc", .maximize = true}) == "7@4");
  CHECK(chosen(text, {.metric = "acc", .maximize = true, .best = true}) == "9@2");
  CHECK(chosen(text, {.metric = "acc", .best = true}) == "2@3");
  CHECK(chosen(text, {.metric = "loss"}) == "3@5");
}

TEST_CASE("a run that begins anew takes back the steps that it repeats", "[sweep]") {
  const std::string text = start(0) + line(1, "\"acc\": 1") + line(2, "\"acc\": 50") +
                           line(3, "\"acc\": 60") + start(2) + line(2, "\"acc\": 20");
  CHECK(chosen(text, {.metric = "acc", .maximize = true, .best = true}) == "20@2");
  CHECK(chosen(text + start(3), {.metric = "acc"}) == "20@2");
  CHECK_FALSE(reading(text + start(0)).has_metric);
}

TEST_CASE("lines that are broken or of other types are skipped", "[sweep]") {
  const std::string text =
      "acc\n" + line(1, "\"acc\": 1") + "{\"type\": \"event\", \"text\": \"acc\"}\n" +
      "{\"type\": \"table\", \"name\": \"acc\"}\n[\"acc\"]\n" + line(2, "\"acc\": null") +
      line(3, "\"acc\": 2") + "{\"type\": \"metrics\", \"step\": 4, \"values\": {\"acc\": 9";
  CHECK(chosen(text, {.metric = "acc"}) == "2@3");
  CHECK(chosen(line(1, R"("a\"b": 3)"), {.metric = "a\"b"}) == "3@1");
}

TEST_CASE("a value that is no number is none", "[sweep]") {
  const std::string text = line(1, "\"acc\": 1") + line(2, "\"acc\": \"NaN\"");
  CHECK(reading(text).problem == "acc is no finite number at step 2");
  CHECK(chosen(text, {.metric = "acc", .best = true}) == "1@1");
  CHECK(reading(line(1, "\"acc\": \"-Infinity\""), {.metric = "acc", .best = true}).problem ==
        "acc is never a finite number");
  CHECK(reading(line(1, "\"acc\": \"Infinity\"")).problem == "acc is no finite number at step 1");
}

TEST_CASE("a metric that is not there is said, with those that are", "[sweep]") {
  MetricReading read = reading(line(1, "\"loss\": 1") + line(2, "\"time\": 2, \"loss\": 1"));
  CHECK_FALSE(read.has_metric);
  CHECK(read.problem == "it wrote no metric \"acc\"; it wrote loss, time");
  CHECK(reading("").problem == "it wrote no metric \"acc\"; it wrote nothing");
  const TemporaryFolder folder;
  read = read_metric(folder / "metrics.jsonl", {.metric = "acc"});
  CHECK_FALSE(read.has_metric);
  CHECK_THAT(read.problem, ContainsSubstring("it wrote no metrics.jsonl; put JSONLinesLogger"));
  CHECK_FALSE(read_metric(folder.path(), {.metric = "acc"}).has_metric);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
