#include <tutti/sweep/space.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/sweep/detail/toml.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::sweep::Flags;
using tutti::sweep::Space;

namespace {

Space space(const std::string& toml) {
  return Space(tutti::sweep::detail::parse_toml(toml));
}

std::string text(const Flags& flags) {
  std::string out;
  for (const auto& [name, value] : flags) {
    out += (out.empty() ? "" : " ") + name + "=" + tutti::sweep::flag_text(value);
  }
  return out;
}

std::vector<std::string> texts(const std::vector<Flags>& all) {
  std::vector<std::string> out;
  for (const Flags& flags : all) {
    out.push_back(text(flags));
  }
  return out;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a grid has every combination, the last flag fastest", "[sweep]") {
  CHECK(texts(space("a = [1, 2]\nb = ['x', true]\nc = 0.5").grid()) ==
        Texts{"a=1 b=x c=0.5", "a=1 b=true c=0.5", "a=2 b=x c=0.5", "a=2 b=true c=0.5"});
  CHECK(texts(space("a = {uniform = [0, 1], points = 5}").grid()) ==
        Texts{"a=0", "a=0.25", "a=0.5", "a=0.75", "a=1"});
  CHECK(texts(space("a = {uniform = [0, 1], step = 0.3}").grid()) ==
        Texts{"a=0", "a=0.3", "a=0.6", "a=0.9"});
  CHECK(texts(space("a = {log_uniform = [1e-4, 1e-1], points = 4}").grid()) ==
        Texts{"a=1e-04", "a=0.001", "a=0.01", "a=0.1"});
  CHECK(texts(space("a = {int = [1, 7], step = 3}").grid()) == Texts{"a=1", "a=4", "a=7"});
  CHECK(texts(space("a = {int = [-1, 1]}").grid()) == Texts{"a=-1", "a=0", "a=1"});
  CHECK(texts(space("a = {int = [1, 3], points = 9}").grid()) == Texts{"a=1", "a=2", "a=3"});
  CHECK(texts(space("a = {log_int = [1, 100], points = 3}").grid()) ==
        Texts{"a=1", "a=10", "a=100"});
  CHECK_THROWS_WITH(space("lr = {uniform = [0, 1]}").grid(),
                    ContainsSubstring("how many values the flag lr has; write points = 5"));
  CHECK_THROWS_WITH(space("a = {int = [0, 400]}\nb = {int = [0, 400]}").grid(),
                    ContainsSubstring("more than 100000 combinations"));
  CHECK_THROWS_WITH(space("a = {int = [0, 4000000]}").grid(),
                    ContainsSubstring("more than 100000 values"));
}

TEST_CASE("what is drawn lies in its range and follows its distribution", "[sweep]") {
  const Space all = space(
      "u = {uniform = [-1, 3]}\nl = {log_uniform = [1e-4, 1]}\ni = {int = [0, 9], step = 3}\n"
      "w = {log_int = [1, 1000]}\nc = ['a', 'b', 'c']\ns = {uniform = [0, 1], step = 0.25}");
  const int n = 4000;
  std::map<std::string, int> counts;
  double mean = 0;
  double log_mean = 0;
  for (const Flags& flags : all.draw(1, n)) {
    std::map<std::string, tutti::detail::Json> values(flags.begin(), flags.end());
    const double u = values["u"].number();
    const double l = values["l"].number();
    CHECK((u >= -1 && u <= 3));
    CHECK((l >= 1e-4 && l <= 1));
    mean += u / n;
    log_mean += std::log10(l) / n;
    ++counts["i" + std::to_string(values["i"].integer())];
    ++counts[values["w"].integer() <= 31 ? "w small" : "w large"];
    CHECK((values["w"].integer() >= 1 && values["w"].integer() <= 1000));
    ++counts["c" + values["c"].string()];
    ++counts["s" + tutti::sweep::flag_text(values["s"])];
  }
  // Bounds of five standard deviations of the means and counts; draws are the same on each machine.
  CHECK(mean == Approx(1).margin(5 * 4 / std::sqrt(12.0 * n)));
  CHECK(log_mean == Approx(-2).margin(5 * 4 / std::sqrt(12.0 * n)));
  const auto count = [&](const std::string& name, double share) {
    INFO(name);
    CHECK(counts[name] == Approx(n * share).margin(5 * std::sqrt(n * share * (1 - share))));
  };
  for (const char* name : {"i0", "i3", "i6", "i9"}) {
    count(name, 0.25);
  }
  for (const char* name : {"ca", "cb", "cc"}) {
    count(name, 1.0 / 3);
  }
  for (const char* name : {"s0", "s0.25", "s0.5", "s0.75", "s1"}) {
    count(name, 0.2);
  }
  count("w small", std::log(31.5 / 0.5) / std::log(1000.5 / 0.5));
  CHECK(counts.size() == 4 + 2 + 3 + 5);
}

TEST_CASE("the same seed draws the same, and more trials begin with the same ones", "[sweep]") {
  const std::string two = "lr = {log_uniform = [1e-4, 1e-1]}\nn = [1, 2, 3]";
  const Texts first = texts(space(two).draw(7, 20));
  CHECK(first == texts(space(two).draw(7, 20)));
  CHECK(first != texts(space(two).draw(8, 20)));
  CHECK(first.front() == "lr=0.0198212 n=3");  // on every machine
  const Texts more = texts(space(two).draw(7, 40));
  CHECK(std::equal(first.begin(), first.end(), more.begin()));
  // A flag more leaves the draws of the others alone.
  const auto with = space(two + "\nm = {uniform = [0, 1]}").draw(7, 20);
  for (std::size_t i = 0; i < with.size(); ++i) {
    CHECK_THAT(text(with[i]), Catch::Matchers::StartsWith(first[i] + " m="));
  }
}

TEST_CASE("no combination is drawn twice, and more than there are is refused", "[sweep]") {
  const Space small = space("a = [1, 2, 3]\nb = {int = [0, 3]}");
  const Texts all = texts(small.draw(0, 12));
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == 12);
  CHECK_THROWS_WITH(small.draw(0, 13),
                    ContainsSubstring("there are 12 combinations of the flags, fewer than trials "
                                      "= 13; take method = \"grid\""));
  CHECK_THROWS_WITH(space("a = {uniform = [1, 1.000001]}").draw(0, 50),
                    ContainsSubstring("combinations; take fewer trials"));
}

TEST_CASE("a range that is none is refused by the flag's name", "[sweep]") {
  const auto refuses = [](const std::string& toml, const std::string& says) {
    INFO(toml);
    CHECK_THROWS_WITH(space(toml), ContainsSubstring("tutti-sweep: ") && ContainsSubstring(says));
  };
  refuses("", "there are no flags to try; write a table [flags]");
  refuses("lr = []", "the flag lr has an empty list of values");
  refuses("lr = [1, 1]", "the flag lr has the value 1 twice");
  refuses("lr = [1, [2]]", "the flag lr has an array among its values");
  refuses("lr = {}", "the flag lr has no range; write for instance {uniform = [0, 1]}");
  refuses("lr = {points = 3}", "the flag lr has no range");
  refuses("lr = {normal = [0, 1]}",
          "the flag lr has a \"normal\", expected one of choice, uniform");
  refuses("lr = {uniform = [0, 1], int = [0, 1]}", "the flag lr has two kinds of range");
  refuses("lr = {uniform = [1, 1]}", "the range of the flag lr is empty: 1 to 1");
  refuses("lr = {uniform = [2, 1]}", "the range of the flag lr is empty: 2 to 1");
  refuses("lr = {uniform = 1}", "the range of the flag lr has to be [low, high], two numbers");
  refuses("lr = {uniform = ['a', 'b']}", "has to be [low, high], two numbers");
  refuses("n = {int = [1, 2.5]}", "has to be [low, high], two whole numbers");
  refuses("lr = {log_uniform = [0, 1]}",
          "the range of the flag lr is 0 to 1 on a log scale, where there is no 0 and nothing "
          "below it; begin above 0, or take uniform");
  refuses("n = {log_int = [-1, 8]}", "begin above 0, or take int");
  refuses("lr = {log_uniform = [1, 2], step = 0.1}", "the flag lr has a step on a log scale");
  refuses("lr = {uniform = [0, 1], step = 0}", "step of the flag lr has to be a number above 0");
  refuses("lr = {uniform = [0, 1], step = 2}", "step of the flag lr is larger than its range");
  refuses("n = {int = [0, 8], step = 0.5}", "step of the flag n has to be a whole number");
  refuses("lr = {uniform = [0, 1], points = 1}", "points of the flag lr has to be a whole number");
  refuses("lr = {uniform = [0, 1], step = 0.1, points = 3}", "the flag lr has step and points");
  refuses("lr = {choice = [1], points = 3}", "which has neither step nor points");
  refuses("lr = {uniform = [-1e308, 1e308]}", "which is too wide");
  refuses("n = {int = [0, 9223372036854775807]}", "which is wider than -2^53 to 2^53");
  refuses("\"--lr\" = 1", "the flag \"--lr\" is named wrong; write lr for --lr");
  refuses("\"l r\" = 1", "the flag \"l r\" is named wrong");
}

TEST_CASE("a flag's text is what the program reads back", "[sweep]") {
  using tutti::detail::Json;
  CHECK(tutti::sweep::flag_text(Json(3)) == "3");
  CHECK(tutti::sweep::flag_text(Json(0.1)) == "0.1");
  CHECK(tutti::sweep::flag_text(Json(2.0)) == "2");
  CHECK(tutti::sweep::flag_text(Json(1e-5)) == "1e-05");
  CHECK(tutti::sweep::flag_text(Json(true)) == "true");
  CHECK(tutti::sweep::flag_text(Json("a b")) == "a b");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
