#include <tutti/loggers/detail/bar.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::columns;
using tutti::detail::line_text;
using tutti::detail::Look;
using tutti::detail::Progression;

namespace {

// In the middle of training: a loss and two metrics of an evaluation.
Progression training() {
  return {.label = "epoch 12/30",
          .done = 12,
          .total = 23,
          .seconds = 1.2,
          .left = 41,
          .values = {{"loss=0.3541"},
                     {"test/MulticlassAccuracy=0.9722", "MulticlassAccuracy=0.9722"},
                     {"test/CrossEntropy=0.2104", "CrossEntropy=0.2104"}}};
}

}  // namespace

TEST_CASE("at 120 columns a line has every number, then the bar", "[loggers][bar][law]") {
  CHECK(line_text(training(), {.width = 119}) ==
        "epoch 12/30  52% loss=0.3541 test/MulticlassAccuracy=0.9722 test/CrossEntropy=0.2104 "
        "00:41 left 10.0ba/s |######      |");
}

TEST_CASE("at 80 columns loss and accuracy are whole, and there is a bar", "[loggers][bar][law]") {
  CHECK(line_text(training(), {.width = 79}) ==
        "epoch 12/30  52% loss=0.3541 test/MulticlassAccuracy=0.9722 00:41 left |###   |");
}

TEST_CASE("at 50 columns loss and accuracy are whole, and the bar is gone", "[loggers][bar][law]") {
  CHECK(line_text(training(), {.width = 49}) ==
        "epoch 12/30 loss=0.3541 MulticlassAccuracy=0.9722");
}

TEST_CASE("below 60 columns there is no bar, from there on there is one where room is",
          "[loggers][bar][law]") {
  Progression what = training();
  what.values.resize(1);
  CHECK(line_text(what, {.width = 59}) == "epoch 12/30  52% loss=0.3541 00:41 left 10.0ba/s");
  CHECK(line_text(what, {.width = 60}) ==
        "epoch 12/30  52% loss=0.3541 00:41 left 10.0ba/s |####     |");
}

TEST_CASE("without a width a line has all numbers and no bar", "[loggers][bar][law]") {
  CHECK(line_text(training(), {}) ==
        "epoch 12/30  52% loss=0.3541 test/MulticlassAccuracy=0.9722 test/CrossEntropy=0.2104 "
        "00:41 left 10.0ba/s");
}

TEST_CASE("no line is wider than it may be, and no number is cut", "[loggers][bar][law]") {
  for (const bool unicode : {false, true}) {
    for (int width = 1; width <= 130; ++width) {
      const std::string line =
          line_text(training(), {.width = width, .unicode = unicode, .colours = false});
      INFO(width << ": " << line);
      CHECK(columns(line) <= width);
      for (const char* number : {"0.3541", "0.9722", "0.2104"}) {
        const std::string all(number);
        CHECK((line.find(all) != line.npos || line.find(all.substr(0, 4)) == line.npos));
      }
    }
  }
}

TEST_CASE("colours take no column and change no text", "[loggers][bar][law]") {
  for (const int width : {49, 79, 119}) {
    const std::string plain = line_text(training(), {.width = width});
    std::string coloured = line_text(training(), {.width = width, .colours = true});
    CHECK_THAT(coloured, ContainsSubstring("\033[1mepoch 12/30\033[0m"));
    for (auto at = coloured.find('\033'); at != coloured.npos; at = coloured.find('\033')) {
      coloured.erase(at, coloured.find('m', at) - at + 1);
    }
    CHECK(coloured == plain);
  }
}

TEST_CASE("a bar has eighths of a column where blocks can be drawn", "[loggers][bar][law]") {
  const Progression what{.label = "test", .done = 30, .total = 120};
  CHECK(line_text(what, {.width = 60, .unicode = false}) ==
        "test  25% |######                   |");
  CHECK(line_text(what, {.width = 60, .unicode = true}) ==
        "test  25% |\u2588\u2588\u2588\u2588\u2588\u2588\u258e                  |");
}

TEST_CASE("a rate below one a second is written the other way round", "[loggers][bar][law]") {
  Progression what{.label = "train", .done = 30, .total = 120, .began_at = 10, .seconds = 10};
  CHECK(line_text(what, {}) == "train  25% 2.00ba/s");
  what.seconds = 0.1;
  CHECK(line_text(what, {}) == "train  25% 200ba/s");
  what.seconds = 40;
  CHECK(line_text(what, {}) == "train  25% 2.00s/ba");
  what.seconds = 0;  // not known
  CHECK(line_text(what, {}) == "train  25%");
  what.seconds = 40;
  what.done = what.began_at;
  CHECK(line_text(what, {}) == "train   8%");
}

TEST_CASE("the per cent are whole ones that are reached", "[loggers][bar][law]") {
  for (int done = 0; done <= 100; ++done) {
    CHECK_THAT(line_text({.label = "a", .done = done, .total = 100}, {}),
               ContainsSubstring(" " + std::to_string(done) + "%"));
  }
  CHECK(line_text({.label = "a", .done = 999, .total = 1000}, {}) == "a  99%");
  CHECK(line_text({.label = "a", .done = 0, .total = 0}, {}) == "a 100%");
  // The last batch had more samples or tokens than were left.
  CHECK(line_text({.label = "a", .done = 150, .total = 120}, {.width = 70}) ==
        "a 100% |#########################|");
}

TEST_CASE("an unknown length has a count in place of per cent and bar", "[loggers][bar][law]") {
  const Progression what{.label = "epoch 1", .done = 7200, .total = -1, .seconds = 3700};
  CHECK(line_text(what, {.width = 120}) == "epoch 1 7200ba 1.95ba/s");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
