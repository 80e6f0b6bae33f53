#include <tutti/data/mds.hpp>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/mds_writer.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::data;
using Catch::Matchers::ContainsSubstring;

namespace {

// A folder with three samples in one shard.
struct Set {
  TemporaryFolder folder;
  std::string path = (folder / "set").string();
  std::string shard = path + "/shard.00000.mds";

  explicit Set(std::vector<std::string> hashes = {}) {
    MDSWriter out(path, {.columns = {{"id", "int"}, {"text", "str"}}, .hashes = std::move(hashes)});
    for (const char* text : {"one", "two", "three"}) {
      out.write({{"id", out.size()}, {"text", std::string(text)}});
    }
    out.finish();
  }

  // What reading sample 1 says after `edit` of a file's bytes.
  std::string after(const std::string& file, const std::function<void(std::string&)>& edit) const {
    std::string bytes = read_bytes(file);
    edit(bytes);
    write_bytes(file, bytes);
    return message([&] { (void)MDSReader(path).sample(1).text("text"); });
  }
  std::string index_with(const std::string& from, const std::string& to) const {
    return after(path + "/index.json", [&](std::string& text) {
      REQUIRE(text.find(from) != std::string::npos);
      text.replace(text.find(from), from.size(), to);
    });
  }
};

void put(std::string& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

TEST_CASE("samples of shards are a data set for DataLoader", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "a" / "b").string();
  MDSWriter out(path, {.columns = {{"x", "ndarray"}, {"y", "int64"}}, .size_limit = 400});
  for (std::int64_t i = 0; i < 10; ++i) {
    out.write({{"x", at::full({2, 3}, static_cast<double>(i), at::kFloat)}, {"y", i}});
  }
  out.finish();
  const MDSReader reader(path);
  CHECK(reader.size() == 10);
  CHECK(reader.shards().size() > 1);
  tutti::DataLoader loader{reader, {.batch_size = 4}};
  loader.start(0);
  std::int64_t seen = 0;
  while (const auto batch = loader.next()) {
    for (std::int64_t i = 0; i < batch->at("y").size(0); ++i, ++seen) {
      CHECK(batch->at("y")[i].item<std::int64_t>() == seen);
      CHECK(batch->at("x")[i].equal(at::full({2, 3}, static_cast<double>(seen), at::kFloat)));
    }
  }
  CHECK(seen == 10);
}

TEST_CASE("a reader's transform makes the batch", "[data][mds]") {
  const Set set;
  const MDSReader reader(
      set.path, {.transform = [](const MDSSample& sample) {
        return tutti::Batch(at::tensor(static_cast<std::int64_t>(sample.text("text").size())));
      }});
  CHECK(reader.get(2).inputs().item<std::int64_t>() == 5);
  CHECK_THAT(message([&] { (void)MDSReader(set.path).get(0); }),
             ContainsSubstring("sample 0: column 'text' (str): it is no tensor"));
  CHECK_THROWS_AS(reader.sample(3), c10::IndexError);
  CHECK_THAT(message([&] { (void)reader.sample(0).text("titel"); }),
             ContainsSubstring("there is no column 'titel'; there are: id, text"));
}

TEST_CASE("a damaged shard is refused with the place", "[data][mds]") {
  const std::vector<std::pair<std::function<void(std::string&)>, std::string>> damages{
      {[](std::string& s) { s.pop_back(); }, "it is cut off"},
      {[](std::string& s) { put(s, 0, 4); }, "it has 4 samples, and the index says 3"},
      {[](std::string& s) { put(s, 4, 12); }, "within the offsets, which end at 20"},
      {[](std::string& s) { put(s, 8, 0xFFFFFFFF); }, "expected offsets that rise"},
      {[](std::string& s) { put(s, 16, 20); }, "expected offsets that rise"},
      {[](std::string& s) { s[20] = '['; }, "its header at byte 20: JSON: "},
      {[](std::string& s) { s[s.find("\"int\"") + 1] = 'I'; }, "its columns are not those"},
      {[](std::string& s) { s[s.find("two")] = '\xFF'; }, "no UTF-8 at byte 0 of 3"},
      {[](std::string& s) { put(s, s.find("two") - 12, 99); }, "the offsets of the shard give it"}};
  for (const auto& [damage, expected] : damages) {
    const Set set;
    const std::string text = set.after(set.shard, damage);
    CHECK_THAT(text, ContainsSubstring(expected));
    CHECK_THAT(text, ContainsSubstring("shard.00000.mds': "));
  }
}

TEST_CASE("an index that cannot be is refused with the reason", "[data][mds]") {
  const auto check = [](const std::string& from, const std::string& to, const std::string& says) {
    CHECK_THAT(Set().index_with(from, to), ContainsSubstring(says));
  };
  check("shard.00000.mds", "../shard.mds", "it names the file '../shard.mds'");
  check("shard.00000.mds", ".hidden", "it names the file '.hidden'");
  check("\"mds\"", "\"csv\"", "its format is csv version 2, expected mds version 2");
  check("\"samples\": 3", "\"samples\": -1", "it has -1 samples");
  check("\"samples\": 3", "\"samples\": 3e0", "expected an integer, got a number");
  check("[8, null]", "[4, null]", "column 'id' is int and has the size 4, expected 8");
  check("[8, null]", "[8]", "2 column_names, 2 column_encodings and 1 column_sizes");
  check("\"zip_data\": null", "\"zip\": null", "no member 'zip_data'");
  check("\"compression\": null", "\"compression\": \"gz\"", "and no compressed file (zip_data)");
  check("{\"shards\"", std::string(10000, '['), "nested deeper than 64");
  check("\"text\"", "\"\xFF\"", "a string is not UTF-8");
  CHECK_THAT(message([] { (void)MDSReader("/no/such"); }),
             ContainsSubstring("'/no/such/index.json' cannot be read"));
}

TEST_CASE("hashes are compared, unless that is not wanted", "[data][mds]") {
  for (const auto& known : tutti::detail::known_digests) {
    const std::string hash(known.name);
    const Set set({hash});
    CHECK_THAT(set.after(set.shard, [](std::string& s) { s[s.find("two")] = 'T'; }),
               ContainsSubstring("its " + hash + " is "));
    CHECK(MDSReader(set.path, {.validate_hash = false}).sample(1).text("text") == "Two");
  }
  CHECK_THAT(Set({"sha1"}).index_with("\"hashes\": {\"sha1\"", "\"hashes\": {\"sha9\""),
             ContainsSubstring("the hash \"sha9\" is not known"));
}

TEST_CASE("a pickle is refused by its name", "[data][mds]") {
  const Set set;
  for (const std::string& file : {set.path + "/index.json", set.shard}) {
    std::string bytes = read_bytes(file);
    bytes.replace(bytes.find("\"str\""), 5, "\"pkl\"");
    write_bytes(file, bytes);
  }
  const MDSReader reader(set.path);
  CHECK(reader.sample(2).integer("id") == 2);
  CHECK_THAT(message([&] { (void)reader.get(0); }),
             ContainsSubstring("column 'text' (pkl): a pickle may run any code"));
}

TEST_CASE("arrays and lists that end too soon are refused", "[data][mds]") {
  using namespace tutti::data::detail;
  const std::string where = "here: ";
  const auto array = [&](const char* encoding, const std::string& bytes) {
    return message([&] { (void)read_mds_array(*mds_array(encoding), bytes, where); });
  };
  CHECK(array("ndarray:uint8:2", "ab") == "nothing");
  CHECK_THAT(array("ndarray:uint8:2", "abc"), ContainsSubstring("1 bytes follow the value"));
  CHECK_THAT(array("ndarray:uint8:2", "a"), ContainsSubstring("1 bytes are left, expected 2"));
  CHECK_THAT(array("ndarray", ""), ContainsSubstring("ends within the type of an array"));
  CHECK_THAT(array("ndarray", "\x07"), ContainsSubstring("the type code 7"));
  CHECK_THAT(array("ndarray:int8", "\x03"), ContainsSubstring("has no dimension"));
  CHECK_THAT(array("ndarray:int8", std::string("\x04\0", 2)), ContainsSubstring("is 0, expected"));
  CHECK_THAT(array("ndarray:int8", "\x0B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
             ContainsSubstring("dimension 0 of an array is"));
  CHECK_FALSE(mds_array("ndarray:int8:0"));
  CHECK_FALSE(mds_array("ndarray:int8:2,"));
  CHECK_FALSE(mds_array("ndarray:complex64"));
  CHECK_THAT(
      message([&] { (void)read_mds_list(std::string("\x02\0\0\0\1\0\0\0", 8), false, where); }),
      ContainsSubstring("it ends within the sizes of a list"));
  CHECK_THAT(
      message([&] { (void)read_pil(std::string("\1\0\0\0\1\0\0\0\1\0\0\0", 12) + "X", where); }),
      ContainsSubstring("has the mode \"X\""));
}

TEST_CASE("a number of more digits than int64 is read as a double", "[data][mds]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "set").string();
  MDSWriter out(path, {.columns = {{"i", "str_int"}, {"u", "uint64"}}});
  out.write({{"i", std::string("-1000000000000000000000000000000")},
             {"u", at::tensor({std::int64_t{-1}}).view(at::kUInt64)}});
  out.write({{"i", std::int64_t{-7}}, {"u", std::int64_t{7}}});
  out.finish();
  const MDSReader reader(path);
  CHECK(reader.sample(0).number("i") == -1e30);
  CHECK(reader.sample(0).number("u") == 0x1p64);
  CHECK(reader.sample(1).number("i") == -7);
  CHECK(reader.sample(1).number("u") == 7);
  CHECK_THAT(message([&] { (void)reader.sample(0).integer("i"); }),
             ContainsSubstring("is no number that fits"));
  CHECK_THAT(message([&] { (void)reader.sample(0).integer("u"); }),
             ContainsSubstring("18446744073709551615 does not fit into int64"));
}

TEST_CASE("JSON of a column is checked as Python's json reads it", "[data][mds]") {
  const auto check = [](const std::string& text) {
    try {
      tutti::data::detail::PythonJson(text).check();
      return std::string("nothing");
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
  };
  for (const char* good :
       {"0", "-0.5e+3", " [ ] ", "{}", "{\"a\": {\"b\": [1, NaN]}}", "\"\\u00e9\\n\\/\"", "1e999",
        "-Infinity", "[true, false, null]", "\"\x7F\xC3\xA9\""}) {
    CHECK(check(good) == "nothing");
  }
  CHECK(check(std::string(1000, '[') + std::string(1000, ']')) == "nothing");
  const std::vector<std::pair<std::string, std::string>> bad{
      {"", "expected a value at byte 0 of 0"},
      {"[1,]", "expected a value at byte 3 of 4"},
      {"[1 2]", "expected ',' at byte 3"},
      {"{\"a\" 1}", "expected ':' at byte 5"},
      {"{a: 1}", "expected '\"' at byte 1"},
      {"01", "something follows the value at byte 1"},
      {"1.", "expected a digit at byte 2"},
      {"1e", "expected a digit at byte 2"},
      {"nan", "expected a value at byte 0"},
      {"-", "expected a value at byte 1"},
      {"\"a", "the text ends inside a string at byte 2"},
      {"\"\\", "unknown escape at byte 2"},
      {"\"\\x\"", "unknown escape at byte 2"},
      {"\"\\u12\"", "four hexadecimal digits at byte 5"},
      {"\"\n\"", "a control character inside a string at byte 1"},
      {std::string("\"\0\"", 3), "a control character inside a string at byte 1"},
      {"[\"\\", "unknown escape at byte 3"},
      {std::string(10000, '['), "nested deeper than 1000 at byte 1001"}};
  for (const auto& [text, says] : bad) {
    CHECK_THAT(check(text), ContainsSubstring(says));
  }
}

TEST_CASE("Pillow's images of no pixels are tensors of none", "[data][mds]") {
  using tutti::data::detail::read_pil;
  const std::string where = "here: ";
  const auto image = [](std::uint32_t width, std::uint32_t height, const std::string& mode) {
    std::string out(12, '\0');
    put(out, 0, width);
    put(out, 4, height);
    put(out, 8, static_cast<std::uint32_t>(mode.size()));
    return out + mode;
  };
  CHECK(read_pil(image(0, 5, "RGB"), where).sizes() == at::IntArrayRef({3, 5, 0}));
  CHECK(read_pil(image(3, 0, "1"), where).sizes() == at::IntArrayRef({1, 0, 3}));
  CHECK_THAT(message([&] { (void)read_pil(image(0xFFFFFFFF, 0xFFFFFFFF, "F"), where); }),
             ContainsSubstring("has only"));
  CHECK_THAT(message([&] { (void)read_pil(image(0, 1, "L") + "x", where); }),
             ContainsSubstring("1 bytes follow the value"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
