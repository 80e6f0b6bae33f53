#include <tutti/core/detail/pattern.hpp>

#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::Pattern;

TEST_CASE("a pattern matches whole texts, as Python's re.fullmatch", "[core][pattern]") {
  const std::vector<std::pair<std::string, std::pair<std::string, std::string>>> cases{
      // expression, texts that match, texts that do not; commas between
      {R"(.*\.1\.(self_attn\.o_proj|mlp\.(gate|up)_proj))",
       {"model.layers.1.self_attn.o_proj,model.layers.1.mlp.up_proj",
        "model.layers.11.mlp.up_proj,model.layers.1.mlp.up_projx,1.mlp.up_proj"}},
      {R"(model\.layers\.\d+\.self_attn\.[qv]_proj)",
       {"model.layers.10.self_attn.q_proj", "model.layers..self_attn.q_proj,q_proj"}},
      {R"((?:.*?(?:text).*?(?:attn|mlp).*?(?:q_proj|v_proj).*?)|)"
       R"((?:\bmodel\.layers\.[\d]{1,}\.(?:attn)\.(?:(?:q_proj))))",
       {"text.attn.q_proj,model.layers.3.attn.q_proj", "model.layers.x.attn.q_proj,vision.attn"}},
      {R"(^(?!.*vision).*(?:q_proj|k_proj)$)", {"text.q_proj,k_proj", "vision.q_proj,v_proj"}},
      {R"(a(?=bc)\w{2}d)", {"abcd", "abbd"}},
      {"(.*\\.)?(down_proj)", {"down_proj,mlp.down_proj", "xdown_proj,down_proj.x"}},
      {"(?P<name>a|b)*", {",a,abba", "c"}},
      {"(a*)*b?", {",aaaa,aab", "ba"}},
      {"x{2,3}", {"xx,xxx", "x,xxxx"}},
      {"x{,2}y{3}", {"yyy,xxyyy", "xxxyyy,xyy"}},
      {"x{a}|[]x-]+", {"x{a},]x-]", "x{"}},
      {R"([^\d.]+\.[0-9a-f]+)", {"ab.1f", "a1.1f,ab.g"}},
      {R"(\w+\b.\B.)", {"ab..", "ab.c"}},
      {R"(a\+\.\\\tb|c??)", {"a+.\\\tb,c,", "a.b"}},
      {"", {"", "a"}}};
  const auto each = [](const std::string& texts, auto&& visit) {
    for (std::size_t begin = 0; begin <= texts.size();) {
      const std::size_t comma = std::min(texts.find(',', begin), texts.size());
      visit(texts.substr(begin, comma - begin));
      begin = comma + 1;
    }
  };
  for (const auto& [expression, texts] : cases) {
    const Pattern pattern(expression);
    CAPTURE(expression);
    each(texts.first, [&](const std::string& text) {
      CAPTURE(text);
      CHECK(pattern.matches(text));
    });
    each(texts.second, [&](const std::string& text) {
      CAPTURE(text);
      CHECK_FALSE(pattern.matches(text));
    });
  }
}

TEST_CASE("no pattern takes long", "[core][pattern]") {
  CHECK_FALSE(Pattern("(a+)+(a+)+(a+)+b").matches(std::string(5000, 'a')));
  CHECK(Pattern("(?:a|a)*").matches(std::string(5000, 'a')));
  CHECK_THAT(message([] { Pattern("((a{100}){100}){100}"); }), ContainsSubstring("too large"));
  CHECK_THAT(message([] { Pattern(std::string(100'000, '(')); }),
             ContainsSubstring("nested too deep"));
}

TEST_CASE("what a pattern cannot say is refused with its place", "[core][pattern]") {
  for (const auto& [expression, said] :
       std::vector<std::pair<std::string, std::string>>{{"a(b", "a ( without its )"},
                                                        {"a)b", "at place 1: a ) without its ("},
                                                        {"[ab", "a [ without its ]"},
                                                        {"*a", "nothing stands before the *"},
                                                        {"a**", "a repeat is repeated"},
                                                        {"a++", "a repeat is repeated"},
                                                        {"a{3,2}", "below the smallest"},
                                                        {"[b-a]", "no end above its beginning"},
                                                        {"(?<=a)b", "(?<= is not supported"},
                                                        {"(?i)a", "(?i) is not supported"},
                                                        {"(a)\\1", "\\1 is not supported"},
                                                        {"\\q", "\\q is not supported"},
                                                        {"a\\", "nothing follows the last \\"}}) {
    CAPTURE(expression);
    CHECK_THAT(message([&, &text = expression] { Pattern{text}; }), ContainsSubstring(said));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
