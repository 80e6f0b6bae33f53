#include <tutti/core/detail/json_parse.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include <tutti/core/detail/json_text.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::Json;
using tutti::detail::parse_json;
using tutti::detail::to_text;

TEST_CASE("JSON values are read as the kinds they are", "[core][json]") {
  const Json json =
      parse_json(R"( {"a": [1, -2.5, 1e3, true, false, null, "x"], "b": {}, "c": []} )");
  CHECK(json["a"][0].integer() == 1);
  CHECK(json["a"][1].number() == -2.5);
  CHECK_FALSE(json["a"][2].is_int());
  CHECK(json["a"][2].number() == 1000.0);
  CHECK(json["a"][3].boolean());
  CHECK_FALSE(json["a"][4].boolean());
  CHECK(json["a"][5].is_null());
  CHECK(json["a"][6].string() == "x");
  CHECK(json["a"].size() == 7);
  CHECK(json["b"].is_object());
  CHECK(json["c"].is_array());
  CHECK(json.contains("b"));
  CHECK(json.find("d") == nullptr);
}

TEST_CASE("asking JSON for what it is not says what it is", "[core][json]") {
  const Json json = parse_json(R"({"a": 1.5, "b": [1]})");
  CHECK_THROWS_WITH(json["a"].integer(), ContainsSubstring("expected an integer, got a number"));
  CHECK_THROWS_WITH(json["a"].string(), ContainsSubstring("expected a string, got a number"));
  CHECK_THROWS_WITH(json["c"], ContainsSubstring("no member 'c'; there are: a, b"));
  CHECK_THROWS_WITH(json["b"][1], ContainsSubstring("no element 1 in an array of 1"));
}

TEST_CASE("numbers keep every bit through JSON text", "[core][json][law]") {
  for (const double x : {0.0, -0.0, 0.1, 1.0, 1e300, 5e-324, std::numeric_limits<double>::max(),
                         1e16, 123456789.123456789, -1.0 / 3.0}) {
    const Json back = parse_json(to_text(x));
    INFO(to_text(x));
    CHECK_FALSE(back.is_int());
    CHECK(back.number() == x);
    CHECK(std::signbit(back.number()) == std::signbit(x));
  }
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    CHECK(parse_json(to_text(n)).integer() == n);
  }
  CHECK_THROWS_AS(to_text(std::numeric_limits<double>::infinity()), std::invalid_argument);
}

TEST_CASE("integers of more than 64 bits keep their digits through JSON text",
          "[core][json][law]") {
  const std::string text = R"({"a":1000000000000000019884624838656,"b":-9223372036854775809})";
  const Json json = parse_json(text);
  CHECK(to_text(json) == text);
  CHECK_FALSE(json["a"].is_int());
  CHECK(json["a"].number() == 1e30);
  CHECK(json == parse_json(text));
  CHECK_FALSE(json["a"] == parse_json("1000000000000000019884624838657"));
  CHECK(parse_json("1.5").number_text().empty());
  CHECK(parse_json("\"1.5\"").number_text().empty());
}

TEST_CASE("numbers that are not finite are read and written where Python's are allowed",
          "[core][json][law]") {
  const std::string text = R"([NaN,Infinity,-Infinity,-1,"NaN"])";
  const Json json = parse_json(text, {.not_finite = true});
  CHECK(std::isnan(json[0].number()));
  CHECK(json[1].number() == std::numeric_limits<double>::infinity());
  CHECK(json[2].number() == -std::numeric_limits<double>::infinity());
  CHECK(json[3].integer() == -1);
  CHECK(to_text(json) == text);
  CHECK(json == parse_json(text, {.not_finite = true}));
  CHECK_FALSE(json[1] == json[2]);
  CHECK_THROWS_AS(parse_json(text), std::invalid_argument);
  for (const char* bad : {"nan", "-NaN", "Inf", "-Infinit", "+Infinity", "NaNs"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_json(bad, {.not_finite = true}), std::invalid_argument);
  }
}

TEST_CASE("what Python's json writes beyond JSON is read where it is asked for", "[core][json]") {
  const auto read = [](const std::string& text) {
    return to_text(parse_json(text, {.python = true}));
  };
  CHECK(read(R"({"a":NaN,"b":[-Infinity]})") == R"({"a":NaN,"b":[-Infinity]})");
  CHECK(read(R"({"a":1,"b":2,"a":3,"c":4,"b":5})") == R"({"a":3,"b":5,"c":4})");
  CHECK(read(R"({"a":1,"a":{"x":1,"x":2}})") == R"({"a":{"x":2}})");
  CHECK(read(R"("\ud800")") == "\"\uFFFD\"");
  CHECK(read(R"("\ud800\u0041\udc00\ud83d\ude00\ud83d\ud83d\ude00")") ==
        "\"\uFFFDA\uFFFD\U0001F600\uFFFD\U0001F600\"");
  CHECK_THROWS_AS(read(R"("\ud800\u12")"), std::invalid_argument);
  CHECK_THROWS_AS(read("\"\xed\xa0\x80\""), std::invalid_argument);
  CHECK_THROWS_AS(read("[1,]"), std::invalid_argument);
}

TEST_CASE("text keeps every character through JSON", "[core][json][law]") {
  std::string text;
  for (int c = 0; c < 128; ++c) {
    text += static_cast<char>(c);
  }
  text += "\u00e9\u20ac\U0001F600";
  CHECK(parse_json(to_text(Json(text))).string() == text);
  CHECK(parse_json(R"("\u00e9\u20ac\ud83d\ude00\/\b\f\n\r\t\"\\")").string() ==
        "\u00e9\u20ac\U0001F600/\b\f\n\r\t\"\\");
}

TEST_CASE("indented and flat JSON text read back equal", "[core][json][law]") {
  const Json json = parse_json(R"({"a":{"b":[1,[2.5,"x"]],"c":{}},"d":null})");
  CHECK(to_text(json) == R"({"a":{"b":[1,[2.5,"x"]],"c":{}},"d":null})");
  CHECK(parse_json(to_text(json, 2)) == json);
}

TEST_CASE("text that is not JSON is refused with the place", "[core][json]") {
  const char* const bad[] = {"",
                             " ",
                             "{",
                             "[",
                             "[1",
                             "[1,]",
                             "[1 2]",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\":1,}",
                             "{a:1}",
                             "{'a':1}",
                             "tru",
                             "nul",
                             "NaN",
                             "Infinity",
                             "-",
                             "+1",
                             "01",
                             "-01",
                             "1.",
                             ".5",
                             "1e",
                             "1e+",
                             "0x10",
                             "1 2",
                             "{} x",
                             "\"",
                             "\"\\x\"",
                             "\"\\u12\"",
                             "\"\\u12g4\"",
                             "\"\\ud800\"",
                             "\"\\ud800\\u0041\"",
                             "\"\\udc00\"",
                             "\"\n\"",
                             "\"\x01\"",
                             "1e999",
                             "[1]]",
                             "// c\n1",
                             "\"\xff\"",
                             "\"\xc0\x80\"",
                             "\"\xe0\x80\x80\"",
                             "\"\xed\xa0\x80\"",
                             "\"\xf4\x90\x80\x80\"",
                             "\"\xf0\x80\x80\x80\"",
                             "\"\xe2\x82\"",
                             "\"\xe2\x82",
                             "{\"a\":1,\"a\":2}",
                             "{\"a\":1,\"\\u0061\":2}"};
  for (const char* text : bad) {
    INFO(text);
    CHECK_THROWS_AS(parse_json(text), std::invalid_argument);
  }
  CHECK_THROWS_WITH(parse_json("[1,x]"), ContainsSubstring("expected a value at byte 3 of 5"));
  CHECK_THROWS_WITH(parse_json("{\"a\":1,\"a\":2}"), ContainsSubstring("'a' occurs twice"));
}

TEST_CASE("every cut of a JSON text is refused", "[core][json]") {
  const std::string text = R"({"a":[1,-2.5e3,"x\u00e9y",true,null],"b":{"c":"d"}})";
  for (std::size_t length = 0; length < text.size(); ++length) {
    INFO(length);
    CHECK_THROWS_AS(parse_json(std::string_view(text).substr(0, length)), std::invalid_argument);
  }
  CHECK_NOTHROW(parse_json(text));
}

TEST_CASE("JSON nested too deep is refused before it can exhaust the stack", "[core][json]") {
  const std::string deep(1'000'000, '[');
  CHECK_THROWS_WITH(parse_json(deep), ContainsSubstring("nested deeper than 64"));
  CHECK_NOTHROW(parse_json("[[[[1]]]]", {.depth = 4}));
  CHECK_THROWS_AS(parse_json("[[[[[1]]]]]", {.depth = 4}), std::invalid_argument);
}

TEST_CASE("values beyond the limit are refused where they begin", "[core][json]") {
  CHECK_NOTHROW(parse_json("[1,[2],{\"a\":3}]", {.values = 6}));
  CHECK_THROWS_WITH(parse_json("[1,[2],{\"a\":3}]", {.values = 5}),
                    ContainsSubstring("more than 5 values at byte 12 of 15"));
}

TEST_CASE("the members of an object come one by one, each within the limits", "[core][json]") {
  using tutti::detail::each_json_member;
  std::string seen;
  const auto see = [&](const std::string& key, const Json& value) {
    seen += key + "=" + to_text(value) + ";";
  };
  each_json_member(" { \"a\" : [1] , \"b\":{} ,\"a\":2}  ", {.values = 2}, see);
  CHECK(seen == "a=[1];b={};a=2;");
  seen.clear();
  each_json_member("{}", {}, see);
  CHECK(seen.empty());
  for (const char* bad : {"", "[]", "{", "{\"a\":1", "{\"a\":1,}", "{\"a\":1 \"b\":2}", "{}x",
                          "{\"a\"}", "{\"a\":[1,2]}", "{\"a\":[[[1]]]}"}) {
    INFO(bad);
    CHECK_THROWS_AS(each_json_member(bad, {.depth = 3, .values = 2}, see), std::invalid_argument);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
