#include <tutti/data/webdataset.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/shard_writer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;

using Texts = std::vector<std::string>;

// `count` samples with a number each in shards of `per_shard`.
std::string shards_of(const TemporaryFolder& folder, std::int64_t count, std::int64_t per_shard) {
  ShardWriter writer((folder / "s-%03d.tar").string(), {.maxcount = per_shard});
  for (std::int64_t i = 0; i < count; ++i) {
    writer.write("k" + std::to_string(i), {{"cls", i}, {"txt", "text"}});
  }
  writer.close();
  return (folder / "s-").string() + "{000.." + std::to_string(writer.shards().size() - 1) + "}.tar";
}

// One tar header with a member's bytes behind it. B: what the checksum adds up.
template <class B = unsigned char>
std::string member(const std::string& name, const std::string& bytes, char type = '0') {
  tutti::data::detail::TarHeader header{};
  name.copy(header.data(), 100);
  std::snprintf(header.data() + 124, 12, "%011o", static_cast<unsigned>(bytes.size()));
  header[156] = type;
  std::fill_n(header.begin() + 148, 8, ' ');
  unsigned sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned>(static_cast<B>(c));
  }
  std::snprintf(header.data() + 148, 8, "%06o", sum);
  return std::string(header.data(), header.size()) + bytes +
         std::string((512 - bytes.size() % 512) % 512, '\0');
}

std::string tar_of(const TemporaryFolder& folder, const std::string& members) {
  write_bytes(folder / "a.tar", members + std::string(1024, '\0'));
  return (folder / "a.tar").string();
}

}  // namespace

static_assert(tutti::Dataset<WebDataset>);

TEST_CASE("lists of shards expand as in bash", "[data][webdataset]") {
  CHECK(shard_paths("a-{000..002}.tar") == Texts{"a-000.tar", "a-001.tar", "a-002.tar"});
  CHECK(shard_paths("a{9..11}") == Texts{"a9", "a10", "a11"});
  CHECK(shard_paths("a{09..11}") == Texts{"a09", "a10", "a11"});
  CHECK(shard_paths("{3..1}") == Texts{"3", "2", "1"});
  CHECK(shard_paths("{0..6..3}") == Texts{"0", "3", "6"});
  CHECK(shard_paths("{-1..1}") == Texts{"-1", "0", "1"});
  CHECK(shard_paths("{a..c}") == Texts{"a", "b", "c"});
  CHECK(shard_paths("{b..Y..2}") == Texts{"b", "Z"});
  CHECK(shard_paths("x{a,b}{1..2}") == Texts{"xa1", "xa2", "xb1", "xb2"});
  CHECK(shard_paths("{a,b{1..2},}c") == Texts{"ac", "b1c", "b2c", "c"});
  CHECK(shard_paths("a{x}b::c") == Texts{"a{x}b", "c"});
  CHECK(shard_paths("file:a.tar") == Texts{"a.tar"});
  for (const char* bad : {"a{1..2", "a1}", "", "a::", "pipe:cat x", "s3://b/x.tar", "{0..99999999}",
                          "{0..9999}{0..9999}", "{0..99999999999999999999}{"}) {
    INFO(bad);
    CHECK_THROWS_AS(shard_paths(bad), c10::ValueError);
  }
  CHECK_THROWS_AS(shard_paths(std::string(100, '{') + std::string(100, '}')), c10::ValueError);
}

TEST_CASE("stars in a list of shards stand for files that are there, in one order",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string() + "/";
  for (const char* name : {"b-1.tar", "b-0.tar", "B-2.tar", "c[1].tar", "c1.tar"}) {
    write_bytes(at + name, "");
  }
  CHECK(shard_paths(at + "?-*.tar") == Texts{at + "B-2.tar", at + "b-0.tar", at + "b-1.tar"});
  CHECK(shard_paths(at + "b-[1-9].tar::" + at + "{b,B}-?.tar") ==
        Texts{at + "b-1.tar", at + "b-0.tar", at + "b-1.tar", at + "B-2.tar"});
  CHECK(shard_paths(at + "c[1].tar") == Texts{at + "c[1].tar"});  // that is its name
  CHECK_THROWS_WITH(
      shard_paths(at + "trian-*.tar"),
      Catch::Matchers::ContainsSubstring("no file is called '" + at + "trian-*.tar'"));
}

TEST_CASE("WebDataset: samples of all shards are shuffled exactly, and a run resumes",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const WebDataset set(shards_of(folder, 50, 7), {.fields = {{"inputs", "jpg;cls"}}});
  REQUIRE(set.size() == 50);
  CHECK(set.shards().size() == 8);
  CHECK(set.sample(7).key() == "k7");
  CHECK(set.sample(7).shard() == (folder / "s-001.tar").string());
  tutti::DataLoader loader{set, {.batch_size = 8, .shuffle = true, .seed = 1, .num_workers = 2}};
  loader.start(2);
  std::vector<at::Tensor> batches;
  while (const auto batch = loader.next()) {
    batches.push_back(batch->inputs());
  }
  CHECK(std::get<0>(at::sort(at::cat(batches))).equal(at::arange(50)));
  loader.start(2, 4);
  CHECK(loader.next()->inputs().equal(batches.at(4)));
  CHECK_THROWS_AS(set.get(50), c10::IndexError);
}

TEST_CASE("WebDataset: fields are decoded by their extensions", "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "one.tar").string();
  ShardWriter writer(path);
  const at::Tensor array = at::arange(6, at::kFloat).reshape({2, 3});
  writer.write("k", {{"cls", " 7\n"},
                     {"boxes.json", "[[1, 2], [3, 4]]"},
                     {"emb.npy", array},
                     {"txt", "\xc3\xa9"},
                     {"bin", std::string("\0\1", 2)}});
  writer.close();
  const tutti::Batch all = WebDataset(path).get(0);
  CHECK(all.names() == "bin, boxes.json, cls, emb.npy, txt");
  CHECK(all.at("bin").equal(at::tensor({0, 1}, at::kByte)));
  CHECK(all.at("boxes.json").equal(at::tensor({1, 2, 3, 4}, at::kLong).reshape({2, 2})));
  CHECK(all.at("cls").equal(at::scalar_tensor(7, at::kLong)));
  CHECK(all.at("emb.npy").equal(array));
  CHECK(all.at("txt").equal(at::tensor({0xc3, 0xa9}, at::kByte)));
  const WebDataset own(path, {.decode = [](const WebSample& sample) {
                         return tutti::Batch{{"inputs", at::full({}, sample.integer("cls") + 1)}};
                       }});
  CHECK(own.get(0).inputs().item<std::int64_t>() == 8);
  CHECK_THROWS_AS(WebDataset(path, {.fields = {{"a", "b"}},
                                    .decode = [](const WebSample&) { return tutti::Batch{}; }}),
                  c10::ValueError);
}

TEST_CASE("WebDataset: what cannot be decoded is named", "[data][webdataset]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& field, const std::string& bytes,
                           const std::string& says) {
    const std::string path = tar_of(folder, member("k." + field, bytes));
    CHECK_THROWS_WITH(
        WebDataset(path).get(0),
        ContainsSubstring("a.tar', sample 'k', field '" + field) && ContainsSubstring(says));
  };
  refused("cls", "x", "expected a whole number");
  refused("cls", "99999999999999999999", "expected a whole number");
  refused("txt", "\xff", "not UTF-8 at its byte 0");
  refused("json", "{", "JSON");
  refused("json", "{\"a\": 1}", "an object");
  refused("json", std::string(10'000, '['), "nested deeper");
  refused("npy", "x", "no .npy file");
  refused("pkl", "x", "is a pickle");
  refused("model.pth", "x", "is a pickle");
  refused("png", "x", "");
  const WebDataset set(tar_of(folder, member("k.a", "") + member("k.b", "")),
                       {.fields = {{"inputs", "jpg;png"}}});
  CHECK_THROWS_WITH(set.get(0), ContainsSubstring("no field 'jpg;png'; there are: a, b"));
}

TEST_CASE("WebDataset: damaged tar files and names that lead outside are refused",
          "[data][webdataset]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& path, const std::string& says) {
    CHECK_THROWS_WITH(WebDataset(path), ContainsSubstring(says));
  };
  refused(tar_of(folder, member("../k.txt", "x")), "member '../k.txt' at byte 0");
  refused(tar_of(folder, member("a/../../k.txt", "x")), "expected names inside the tar file");
  refused(tar_of(folder, member("/etc/k.txt", "x")), "expected names inside the tar file");
  refused(tar_of(folder, member("k.x", "") + member("k.X", "")), "duplicate field 'x'");
  refused(tar_of(folder, member("noext", "x")), "have no sample");
  refused("nowhere.tar", "'nowhere.tar' cannot be opened");
  const std::string path = tar_of(folder, member("k.txt", std::string(600, 'x')));
  const std::string whole = read_bytes(path);
  for (std::size_t size = 0; size + 512 < whole.size(); size += 100) {
    write_bytes(path, whole.substr(0, size));
    refused(path, "a.tar'");
  }
  std::string changed = whole;
  changed[130] = '7';
  write_bytes(path, changed);
  refused(path, "the checksum at byte 0 does not fit");
}

TEST_CASE("WebDataset: a header whose checksum adds signed bytes is read", "[data][webdataset]") {
  const TemporaryFolder folder;
  const WebDataset set(tar_of(folder, member<signed char>("\xc3\xa9.txt", "text")));
  CHECK(set.sample(0).key() == "\xc3\xa9");
  CHECK(set.sample(0).text("txt") == "text");
}

TEST_CASE("WebDataset: a sparse file is refused, not passed over", "[data][webdataset]") {
  const TemporaryFolder folder;
  const std::string pax = member("PaxHeaders/x", "22 GNU.sparse.major=1\n", 'x');
  for (const std::string& sparse : {member("b.txt", "x", 'S'), pax + member("b.txt", "x")}) {
    CHECK_THROWS_WITH(WebDataset(tar_of(folder, member("a.txt", "x") + sparse)),
                      ContainsSubstring("'b.txt' at byte ") &&
                          ContainsSubstring("is a sparse file, which is not read"));
  }
  CHECK(
      WebDataset(tar_of(folder, member("PaxHeaders/x", "11 a=12345\n", 'x') + member("b.txt", "x")))
          .size() == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
