#include <tutti/models/pretrained_config.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::detail::Json;
using tutti::models::PretrainedConfig;

namespace {

PretrainedConfig of(const TemporaryFolder& folder, const std::string& text) {
  write_bytes(folder / "config.json", text);
  return PretrainedConfig::read(folder.path().string());
}

}  // namespace

TEST_CASE("a config gives values, defaults for what is absent or null, and refuses other kinds",
          "[models][pretrained]") {
  const TemporaryFolder folder;
  const PretrainedConfig c = of(folder, R"({"model_type": "gpt2", "architectures": ["A", "B"],
      "n": 3, "f": 2.0, "x": 1e-05, "t": "gelu", "b": true, "none": null, "ids": [1, 2],
      "rope": {"theta": 7}})");
  CHECK(c.model_type() == "gpt2");
  CHECK(c.architecture() == "A");
  CHECK(c.integer("n", 1) == 3);
  CHECK(c.integer("f", 1) == 2);
  CHECK(c.integer("absent", 1) == 1);
  CHECK(c.integer("none", 1) == 1);
  CHECK(!c.has("none"));
  CHECK(c.number("x", 0) == 1e-5);
  CHECK(c.number("n", 0) == 3);
  CHECK(c.text("t", "relu") == "gelu");
  CHECK(c.flag("b", false));
  CHECK(c.integers("ids") == std::vector<std::int64_t>{1, 2});
  CHECK(c.integers("n") == std::vector<std::int64_t>{3});
  CHECK(c.integers("none").empty());
  CHECK(c.section("rope").integer("theta") == 7);
  CHECK(c.section("absent") == PretrainedConfig());
  CHECK_THROWS_WITH(c.integer("x", 1), ContainsSubstring("config.json': x is 1e-05, expected an"));
  CHECK_THROWS_WITH(c.flag("n", true), ContainsSubstring("n is 3, expected true or false"));
  CHECK_THROWS_WITH(c.text("b", ""), ContainsSubstring("b is true, expected a text"));
  CHECK_THROWS_WITH(c.integer("absent"), ContainsSubstring("absent is absent"));
  CHECK_THROWS_WITH(c.section("rope").text("theta", ""),
                    ContainsSubstring("config.json': rope: theta is 7"));
  CHECK_THROWS_WITH(c.number("ids", 0), ContainsSubstring("ids is [1,2], expected a number"));
}

TEST_CASE("a token is an integer or a list with one", "[models][pretrained]") {
  const TemporaryFolder folder;
  const PretrainedConfig c =
      of(folder, R"({"a": 3, "b": [4], "none": [], "two": [1, 2], "null": null, "text": ["x"]})");
  CHECK(c.token("a") == 3);
  CHECK(c.token("b") == 4);
  CHECK_FALSE(c.token("null"));
  CHECK_FALSE(c.token("absent"));
  CHECK_THROWS_WITH(c.token("none"), ContainsSubstring("none is [], expected one token"));
  CHECK_THROWS_WITH(c.token("two"), ContainsSubstring("two is [1,2], expected one token"));
  CHECK_THROWS_WITH(c.token("text"), ContainsSubstring("expected an integer"));
}

TEST_CASE("a key that changes the computation is refused by its name and value",
          "[models][pretrained]") {
  const PretrainedConfig c(Json::Object{{"a", true}, {"b", 1}, {"none", nullptr}});
  CHECK_NOTHROW(c.only("a", {true}));
  CHECK_NOTHROW(c.only("b", {1.0, 2}));
  CHECK_NOTHROW(c.only("absent", {false}));
  CHECK_NOTHROW(c.only("none", {false}));
  CHECK_THROWS_AS(c.only("a", {false}), c10::ValueError);
  CHECK_THROWS_WITH(c.only("a", {false, "x"}, "take another model"),
                    ContainsSubstring("the config: a is true, which changes the computation") &&
                        ContainsSubstring("expected false or \"x\"; take another model"));
}

TEST_CASE("unknown keys stay in their order through a round trip", "[models][pretrained]") {
  const TemporaryFolder folder;
  PretrainedConfig c = of(folder, R"({"z": {"deep": [1, {"x": null}]}, "a": 1e-05, "m": 4})");
  c.set("m", 5);
  c.set("new", "x");
  c.set_default("a", 7);
  const TemporaryFolder other;
  c.write(other.path().string());
  const auto back = PretrainedConfig::read(other.path().string());
  CHECK(back == c);
  CHECK(back.values().front().first == "z");
  CHECK(back.integer("m") == 5);
  CHECK(back.number("a", 0) == 1e-5);
  c.erase("z");
  CHECK(!c.has("z"));
  CHECK(!(back == c));
}

TEST_CASE(
    "numbers as Python writes them stay through a round trip, and are no value of a known key",
    "[models][pretrained]") {
  const TemporaryFolder folder;
  const std::string text = R"({
  "model_max_length": 1000000000000000019884624838656,
  "best_metric": NaN,
  "deep": {
    "least": -Infinity
  }
}
)";
  const PretrainedConfig c = of(folder, text);
  const TemporaryFolder other;
  c.write(other.path().string());
  CHECK(read_bytes(other / "config.json") == text);
  CHECK(PretrainedConfig::read(other.path().string()) == c);
  CHECK_THROWS_WITH(c.number("best_metric", 0),
                    ContainsSubstring("best_metric is NaN, expected a number"));
  CHECK_THROWS_WITH(c.integer("best_metric", 0), ContainsSubstring("expected an integer"));
  CHECK_THROWS_WITH(c.section("deep").number_in("least", 0, -1, 1),
                    ContainsSubstring("deep: least is -Infinity, expected a number"));
}

TEST_CASE("the weights' type and the labels have an old and a new spelling",
          "[models][pretrained]") {
  using Config = PretrainedConfig;
  CHECK(Config(Json::Object{{"dtype", "bfloat16"}}).dtype() == at::kBFloat16);
  CHECK(Config(Json::Object{{"torch_dtype", "torch.float16"}}).dtype() == at::kHalf);
  CHECK(!Config().dtype());
  CHECK_THROWS_WITH(Config(Json::Object{{"dtype", "int4"}}).dtype(),
                    ContainsSubstring("dtype is \"int4\""));
  CHECK(Config().num_labels() == 2);
  CHECK(Config(Json::Object{{"num_labels", 5}}).num_labels() == 5);
  const Json labels = Json::Object{{"0", "a"}, {"1", "b"}, {"2", "c"}};
  CHECK(Config(Json::Object{{"id2label", labels}, {"num_labels", 5}}).num_labels() == 3);
  Config set(Json::Object{{"id2label", labels}, {"label2id", Json::Object{{"a", 0}}}});
  set.set("num_labels", 3);
  CHECK(set.has("id2label"));
  set.set("num_labels", 5);
  CHECK(set.num_labels() == 5);
  CHECK_FALSE(set.has("id2label"));
  CHECK_FALSE(set.has("label2id"));
}

TEST_CASE("a config that is missing or no object is refused by its path", "[models][pretrained]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(PretrainedConfig::read(folder.path().string()),
                    ContainsSubstring("config.json"));
  CHECK_THROWS_WITH(of(folder, "[1]"), ContainsSubstring("is an array, expected an object"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
