#include <tutti/sweep/detail/toml.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/detail/json_text.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;
using tutti::sweep::detail::parse_toml;

namespace {

std::string json(const std::string& toml) {
  return tutti::detail::to_text(parse_toml(toml));
}

}  // namespace

TEST_CASE("a file has names, values, tables and comments", "[sweep]") {
  CHECK(json("") == "{}");
  CHECK(json("# nothing\n\n \t\r\n") == "{}");
  CHECK(json("a = 1\nb-c = 'x' # why\n\"d.e\" = true\r\n[t]\nf = [1, 2.5,\n  # more\n 3,\n]\n"
             "g = { uniform = [0, 1], step = 0.1 }\n[u]\n") ==
        R"({"a":1,"b-c":"x","d.e":true,"t":{"f":[1,2.5,3],)"
        R"("g":{"uniform":[0,1],"step":0.1}},"u":{}})");
}

TEST_CASE("numbers are whole or finite, with TOML's underscores and signs", "[sweep]") {
  CHECK(json("a = [0, -3, +4, 1_000, 1e-4, 2.50, -0.5, 6.02E+2]") ==
        R"({"a":[0,-3,4,1000,1e-04,2.5,-0.5,602.0]})");
  for (const char* bad :
       {"inf", "nan", "1__0", "_1", "1_", "1.2.3", "0x10", "3ep", "+-1", "1e999"}) {
    INFO(bad);
    CHECK_THROWS_WITH(json("x = 1\na = " + std::string(bad)),
                      StartsWith("line 2: expected a number, true, false, a text in quotes"));
  }
}

TEST_CASE("texts have escapes between double quotes and none between single ones", "[sweep]") {
  CHECK(parse_toml(R"(a = "q\"b\\n\n\t\u00e9\U0001F600")")["a"].string() ==
        "q\"b\\n\n\t\u00e9\U0001F600");
  CHECK(parse_toml(R"(a = 'C:\new')")["a"].string() == R"(C:\new)");
  CHECK(parse_toml("a = \"\"")["a"].string().empty());
  CHECK_THROWS_WITH(json("a = \"x"), Equals("line 1: a text has no end on its line"));
  CHECK_THROWS_WITH(json("a = 'x\n'"), Equals("line 1: a text has no end on its line"));
  CHECK_THROWS_WITH(json(R"(a = "\q")"), StartsWith("line 1: an unknown escape"));
  CHECK_THROWS_WITH(json(R"(a = "\ud800")"), StartsWith("line 1: \\u needs four"));
  CHECK_THROWS_WITH(json(R"(a = "\u12")"), StartsWith("line 1: \\u needs four"));
  CHECK_THROWS_WITH(json("a = \"\"\"x\"\"\""), StartsWith("line 1: a text of several lines"));
  CHECK_THROWS_WITH(json("a = \"\x01\""), StartsWith("line 1: a control character"));
  CHECK_THROWS_WITH(json("a = \"\xff\""), Equals("line 1: it is not UTF-8"));
}

TEST_CASE("what is no such file is refused with its line", "[sweep]") {
  CHECK_THROWS_WITH(json("a = 1\na = 2"), Equals("line 2: a is there twice"));
  CHECK_THROWS_WITH(json("[t]\n[t]"), Equals("line 2: t is there twice"));
  CHECK_THROWS_WITH(json("t = 1\n[t]"), Equals("line 2: t is there twice"));
  CHECK_THROWS_WITH(json("a = {b = 1, b = 2}"), Equals("line 1: b is there twice"));
  CHECK_THROWS_WITH(json("a.b = 1"), StartsWith("line 1: the name a is followed by a dot"));
  CHECK_THROWS_WITH(json("\n\na 1"), Equals("line 3: expected = behind a, as in name = value"));
  CHECK_THROWS_WITH(json("a ="), StartsWith("line 1: expected a number"));
  CHECK_THROWS_WITH(json("a = 1 b = 2"), StartsWith("line 1: something follows the value"));
  CHECK_THROWS_WITH(json("= 1"), StartsWith("line 1: expected a name"));
  CHECK_THROWS_WITH(json("[[t]]"), StartsWith("line 1: expected a name"));
  CHECK_THROWS_WITH(json("[t.u]"), StartsWith("line 1: the name t is followed by a dot"));
  CHECK_THROWS_WITH(json("a = [1 2]"), Equals("line 1: expected , or ] in a list"));
  CHECK_THROWS_WITH(json("a = [1,\n2"), Equals("line 2: expected , or ] in a list"));
  CHECK_THROWS_WITH(json("a = {b = 1\n}"), Equals("line 1: expected , or } in a table"));
  CHECK_THROWS_WITH(json("a = " + std::string(100'000, '[')),
                    Equals("line 1: values are nested deeper than 16"));
}

TEST_CASE("every beginning of a file is read or refused", "[sweep]") {
  const std::string whole =
      "a = \"x\\n\\u00e9\" # c\r\n[t]\nb = { c = [1, 'two', { d = -1e-4 }], e = true }\n";
  const std::size_t ends = 13;  // of a line that is whole
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    try {
      parse_toml(whole.substr(0, size));
    } catch (const std::invalid_argument& error) {
      CHECK_THAT(error.what(), StartsWith("line "));
    }
  }
  CHECK_NOTHROW(parse_toml(whole));
  CHECK_THROWS(parse_toml(whole.substr(0, ends)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
