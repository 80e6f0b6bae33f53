#include <tutti/checkpoint/json_file.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using tutti::detail::Json;

TEST_CASE("a JSON file is indented, ends in a newline and reads back equal", "[checkpoint][json]") {
  const TemporaryFolder folder;
  const Json value = Json::Object{{"a", 1}, {"b", Json::Object{{"c", 1e-5}}}, {"d", nullptr}};
  write_json(folder / "x.json", value);
  CHECK(read_bytes(folder / "x.json") ==
        "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": 1e-05\n  },\n  \"d\": null\n}\n");
  CHECK(read_json(folder / "x.json") == value);
  CHECK_THROWS_WITH(write_json(folder / "x.json", value), ContainsSubstring("x.json"));
}

TEST_CASE("a JSON file that is missing, large or wrong is refused by its path",
          "[checkpoint][json]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_json(folder / "none.json"), ContainsSubstring("none.json"));
  write_bytes(folder / "x.json", "{\"a\": 1");
  CHECK_THROWS_WITH(read_json(folder / "x.json"),
                    ContainsSubstring("x.json' is refused: JSON: expected ','"));
  CHECK_THROWS_WITH(read_json(folder / "x.json", 4),
                    ContainsSubstring("8 bytes") || ContainsSubstring("7 bytes"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
