#include <tutti/loggers/detail/columns.hpp>

#include <string>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::columns;
using tutti::detail::cut;
using tutti::detail::folded;
using tutti::detail::printable;

TEST_CASE("wide characters take two columns and marks none", "[loggers][columns]") {
  CHECK(columns("") == 0);
  CHECK(columns("loss=0.5") == 8);
  CHECK(columns("größe") == 5);
  CHECK(columns("\u2588\u258e") == 2);  // what a bar is drawn with
  CHECK(columns("精度") == 4);          // "accuracy"
  CHECK(columns("e\u0301") == 1);       // an accent of its own
  CHECK(columns("\U0001F680") == 2);
}

TEST_CASE("a text is cut between characters", "[loggers][columns]") {
  CHECK(cut("accuracy", 3) == "acc");
  CHECK(cut("accuracy", 8) == "accuracy");
  CHECK(cut("accuracy", 0).empty());
  CHECK(cut("größe", 3) == "grö");
  CHECK(cut("精度", 3) == "精");
  CHECK(cut("e\u0301a", 1) == "e\u0301");
}

TEST_CASE("what would move a terminal's cursor is not printed", "[loggers][columns]") {
  CHECK(printable("a\nb\tc\r\033[31md\x7f") == "a?b?c??[31md?");
  CHECK(printable("\xff\xc3") == "??");
  CHECK(printable("\xc2\x9b") == "?");  // the same as "\033[" in one character
  CHECK(printable("größe 精度") == "größe 精度");
}

TEST_CASE("a long line is folded at blanks, behind its head", "[loggers][columns]") {
  CHECK(folded("one two three", 0, 4) == "one two three");
  CHECK(folded("one two three", 17, 4) == "one two three");
  CHECK(folded("one two three", 16, 4) == "one two\n    three");
  CHECK(folded("one two three", 4, 4) == "one\n    two\n    three");
  CHECK(folded("/a/long/path b", 8, 4) == "/a/long/path\n    b");
  CHECK(folded("", 8, 4).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
