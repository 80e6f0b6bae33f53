#include <tutti/data/lines.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

#include <tutti/data/data_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;

std::string file_of(const TemporaryFolder& folder, const std::string& text,
                    const std::string& name = "a.txt") {
  write_bytes(folder / name, text);
  return (folder / name).string();
}

std::vector<std::string> all(const TextLines& lines) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    out.emplace_back(lines.line(i));
  }
  return out;
}

using Texts = std::vector<std::string>;

}  // namespace

static_assert(tutti::Dataset<TextLines>);
static_assert(tutti::Dataset<JsonLines>);

TEST_CASE("TextLines: line ends of both kinds, a last line without one, a byte order mark",
          "[data][lines]") {
  const TemporaryFolder folder;
  CHECK(all(TextLines(file_of(folder, "a\nbc\n"))) == Texts{"a", "bc"});
  CHECK(all(TextLines(file_of(folder, "a\r\nbc\r\n"))) == Texts{"a", "bc"});
  CHECK(all(TextLines(file_of(folder, "a\nbc"))) == Texts{"a", "bc"});
  CHECK(all(TextLines(file_of(folder, "\xef\xbb\xbf\xc3\xa9\n x "))) == Texts{"\xc3\xa9", " x "});
}

TEST_CASE("TextLines: empty lines are refused or passed over, and places count them",
          "[data][lines]") {
  const TemporaryFolder folder;
  const std::string path = file_of(folder, "a\n\nb\n \t\r\n\nc\nd");
  CHECK_THROWS_WITH(TextLines(path), ContainsSubstring(path + "', line 2 is empty"));
  const TextLines lines(path, {.empty_lines = EmptyLines::skip});
  CHECK(all(lines) == Texts{"a", "b", "c", "d"});
  CHECK(lines.place(0) == "'" + path + "', line 1");
  CHECK(lines.place(1) == "'" + path + "', line 3");
  CHECK(lines.place(2) == "'" + path + "', line 6");
  CHECK(lines.place(3) == "'" + path + "', line 7");
}

TEST_CASE("TextLines: several files are one behind the other", "[data][lines]") {
  const TemporaryFolder folder;
  const std::string first = file_of(folder, "a\nb", "1.txt");
  const std::string second = file_of(folder, "c\n", "2.txt");
  const TextLines lines({first, second});
  CHECK(all(lines) == Texts{"a", "b", "c"});
  CHECK(lines.place(2) == "'" + second + "', line 1");
  CHECK_THROWS_AS(lines.line(3), c10::IndexError);
  CHECK_THROWS_AS(lines.line(-1), c10::IndexError);
}

TEST_CASE("TextLines: files that cannot be read are refused by name", "[data][lines]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes, const std::string& says) {
    CHECK_THROWS_WITH(TextLines(file_of(folder, bytes), {.empty_lines = EmptyLines::skip}),
                      ContainsSubstring("a.txt'") && ContainsSubstring(says));
  };
  refused("", "has no line");
  refused("\n\n", "has no line");
  refused("\x1f\x8b\x08", "gunzip");
  refused("\x28\xb5\x2f\xfd", "unzstd");
  refused("\xff\xfe\x61", "UTF-16");
  CHECK_THROWS_WITH(TextLines("nowhere"), ContainsSubstring("'nowhere' cannot be opened"));
  CHECK_THROWS_AS(TextLines(std::vector<std::string>{}), c10::ValueError);
  const TextLines lines(file_of(folder, "good\nba\xffg\n"));
  CHECK(lines.line(0) == "good");
  CHECK_THROWS_WITH(lines.line(1), ContainsSubstring("line 2 is not UTF-8 at its byte 2"));
}

TEST_CASE("TextLines: an example is the bytes of a line, or what a function makes of it",
          "[data][lines]") {
  const TemporaryFolder folder;
  const std::string path = file_of(folder, "ab\nc");
  CHECK(TextLines(path).get(0).inputs().equal(at::tensor({97, 98}, at::kByte)));
  const TextLines sizes(
      path, {.example = [](std::string_view line) {
        TUTTI_CHECK(line != "c", "it is c");
        return tutti::Batch{{"inputs", at::full({}, static_cast<std::int64_t>(line.size()))}};
      }});
  CHECK(sizes.get(0).inputs().item<std::int64_t>() == 2);
  CHECK_THROWS_WITH(sizes.get(1), ContainsSubstring("line 2: it is c"));
}

TEST_CASE("JsonLines: members that are numbers are tensors by their names", "[data][lines]") {
  const TemporaryFolder folder;
  const JsonLines lines(
      file_of(folder,
              "{\"x\": [[1, 2.5], [3, 4]], \"label\": 7, \"ok\": true, \"none\": []}\n"
              "{\"label\": \"text\"}\n"
              "{\"x\": [1, [2]]}\n"
              "{\"x\": [[1], [2, 3]]}\n"
              "[1]\n"
              "{\"x\": [true, 1]}"));
  const tutti::Batch first = lines.get(0);
  CHECK(first.names() == "x, label, ok, none");
  CHECK(first.at("x").equal(at::tensor({1.0, 2.5, 3.0, 4.0}, at::kDouble).reshape({2, 2})));
  CHECK(first.at("label").equal(at::scalar_tensor(7, at::kLong)));
  CHECK(first.at("ok").scalar_type() == at::kBool);
  CHECK(first.at("none").sizes() == at::IntArrayRef{0});
  CHECK_THROWS_WITH(lines.get(1), ContainsSubstring("line 2, \"label\" holds a string"));
  CHECK_THROWS_WITH(lines.get(2), ContainsSubstring("line 3, \"x\" holds an array"));
  CHECK_THROWS_WITH(lines.get(3), ContainsSubstring("line 4, \"x\" is no tensor"));
  CHECK_THROWS_WITH(lines.get(4), ContainsSubstring("line 5 is an array, expected an object"));
  CHECK_THROWS_WITH(lines.get(5), ContainsSubstring("line 6, \"x\" holds an integer"));
  CHECK(lines.value(4)[0].integer() == 1);
}

TEST_CASE("JsonLines: a line that is no JSON is named", "[data][lines]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& line, const std::string& says) {
    const JsonLines lines(file_of(folder, "{}\n" + line + "\n"));
    CHECK_THROWS_WITH(lines.get(1), ContainsSubstring("a.txt', line 2") && ContainsSubstring(says));
  };
  refused("{", "JSON");
  refused("{\"a\": 1, \"a\": 2}", "occurs twice");
  refused(std::string(10'000, '[') + std::string(10'000, ']'), "nested deeper than 64");
  refused("{\"a\": \"\xff\"}", "not UTF-8");
  refused("{} {}", "something follows");
  const JsonLines array(file_of(folder, "[\n  {\"a\": 1},\n  {\"a\": 2}\n]"));
  CHECK_THROWS_WITH(array.get(1), ContainsSubstring("line 2: JSON") &&
                                      ContainsSubstring("seems to be one array over several lines, "
                                                        "expected one object per line"));
  const JsonLines object(file_of(folder, "{\n  \"a\": 1\n}"));
  CHECK_THROWS_WITH(object.get(0), ContainsSubstring("an object over several lines"));
}

TEST_CASE("JsonLines: a loader shuffles lines exactly and resumes inside an epoch",
          "[data][lines]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "{\"id\": " + std::to_string(i) + "}\r\n";
  }
  const JsonLines lines(file_of(folder, text), {.example = [](const auto& line) {
                          return tutti::Batch{{"inputs", at::full({}, line["id"].integer())}};
                        }});
  tutti::DataLoader loader{lines, {.batch_size = 7, .shuffle = true, .seed = 3, .num_workers = 2}};
  loader.start(1);
  std::vector<at::Tensor> batches;
  while (const auto batch = loader.next()) {
    batches.push_back(batch->inputs());
  }
  CHECK(std::get<0>(at::sort(at::cat(batches))).equal(at::arange(100)));
  CHECK_FALSE(at::cat(batches).equal(at::arange(100)));
  loader.start(1, 9);
  CHECK(loader.next()->inputs().equal(batches.at(9)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
