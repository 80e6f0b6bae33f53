#include <tutti/checkpoint/safetensors.hpp>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::checkpoint::NamedTensor;
using tutti::checkpoint::read_safetensors;
using tutti::checkpoint::SafetensorsFile;
using tutti::checkpoint::write_safetensors;

namespace {

// Equal type, shape and bytes; NaN equals NaN of the same bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return false;
  }
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

at::Tensor find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) {
      return tensor;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

// A file of the given header and data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data_bytes, '\0');
}

std::string small_file() {
  const TemporaryFolder folder;
  write_safetensors(folder / "f",
                    {{"a", at::arange(6, at::kFloat).view({2, 3})},
                     {"flag", at::tensor(std::vector<int>{1, 0}).to(at::kBool)},
                     {"empty", at::empty({0, 4})}},
                    {{"format", "pt"}});
  return read_bytes(folder / "f");
}

}  // namespace

TEST_CASE("tensors of every element type come back bit for bit", "[checkpoint][safetensors][law]") {
  const TemporaryFolder folder;
  std::vector<NamedTensor> tensors;
  for (const auto& [text, dtype] : tutti::checkpoint::detail::dtype_names) {
    const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype)) * 6;
    at::Tensor raw = at::arange(bytes, at::kByte).mul(37);
    tensors.emplace_back(std::string(text), dtype == at::kBool
                                                ? raw.remainder(2).to(dtype).view({2, 3})
                                                : raw.view(dtype).view({2, 3}));
  }
  write_safetensors(folder / "all.safetensors", tensors);
  const auto back = read_safetensors(folder / "all.safetensors");
  REQUIRE(back.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(same_bits(find(back, name), tensor));
  }
}

TEST_CASE("views, scalars, empty and shared tensors are written by value",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const at::Tensor base = at::arange(24, at::kFloat).view({2, 3, 4});
  const std::vector<NamedTensor> tensors = {
      {"transposed", base.transpose(0, 2)},
      {"strided", base.slice(2, 0, 4, 2)},
      {"expanded", at::ones({1}).expand({5})},
      {"channels_last",
       at::arange(48, at::kFloat).view({1, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"scalar", at::scalar_tensor(2.5)},
      {"none", at::empty({3, 0, 2})},
      {"whole", base},
      {"tied", base},
      {"grad", at::ones({2}).requires_grad_()},
      {"conjugate", at::complex(at::ones({2}), at::ones({2})).conj()},
      {"negative", at::imag(at::complex(at::ones({2}), at::ones({2})).conj())},
      {"caf\u00e9 \"quoted\"", at::ones({1}, at::kLong)},
  };
  write_safetensors(folder / "f", tensors);
  const auto back = read_safetensors(folder / "f");
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(find(back, name).sizes() == tensor.sizes());
    CHECK(find(back, name).equal(tensor.detach().resolve_conj().resolve_neg().contiguous()));
    CHECK(find(back, name).is_contiguous());
  }
  CHECK_FALSE(find(back, "tied").is_alias_of(find(back, "whole")));
}

TEST_CASE("data are aligned to their element type", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  for (std::string name = "b"; name.size() <= 8; name += "b") {
    write_safetensors(folder / name, {{name, at::ones({3}, at::kByte)},
                                      {"d", at::ones({3}, at::kDouble)},
                                      {"h", at::ones({3}, at::kHalf)}});
    const SafetensorsFile file(folder / name);
    for (const auto& tensor : file.tensors()) {
      CHECK(tensor.begin % c10::elementSize(tensor.dtype) == 0);
    }
    std::uint64_t header = 0;
    std::memcpy(&header, read_bytes(folder / name).data(), 8);
    CHECK(header % 8 == 0);
  }
}

TEST_CASE("a single tensor is read by name, and metadata with it", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_bytes(folder / "f", small_file());
  const SafetensorsFile file(folder / "f");
  CHECK(file.read("a").equal(at::arange(6, at::kFloat).view({2, 3})));
  CHECK(file.contains("empty"));
  CHECK_FALSE(file.contains("b"));
  CHECK(file.metadata().at("format") == "pt");
  CHECK_THROWS_WITH(file.read("b"), ContainsSubstring("no tensor 'b'"));
}

TEST_CASE("a file without tensors is a file", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {});
  CHECK(read_safetensors(folder / "f").empty());
  write_bytes(folder / "g", file_of("{}", 0));
  CHECK(read_safetensors(folder / "g").empty());
}

TEST_CASE("what the format cannot hold is refused by name and leaves no file",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const auto refused = [&](const NamedTensor& tensor, const std::string& why) {
    CHECK_THROWS_WITH(write_safetensors(folder / "f", {tensor}), ContainsSubstring(why));
    CHECK(std::filesystem::is_empty(folder.path()));
  };
  refused({"c", at::ones({1}, at::kComplexDouble)}, "'c' has the type ComplexDouble");
  refused({"s", at::ones({2, 2}).to_sparse()}, "'s' is Sparse");
  refused({"u", at::Tensor()}, "'u' is undefined");
  refused({"m", at::empty({2}, at::TensorOptions(at::kMeta))}, "'m' is Strided on meta");
  refused({"__metadata__", at::ones({1})}, "no tensor can be named __metadata__");
  refused({"\xff", at::ones({1})}, "not UTF-8");
  const NamedTensor one{"x", at::ones({1})};
  CHECK_THROWS_WITH(write_safetensors(folder / "f", {one, one}),
                    ContainsSubstring("two tensors are named 'x'"));
  write_safetensors(folder / "f", {one});
  CHECK_THROWS_WITH(write_safetensors(folder / "f", {one}), ContainsSubstring("File exists"));
  CHECK_THROWS_WITH(write_safetensors(folder / "no/f", {one}), ContainsSubstring("No such file"));
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full",
                                    folder / "full");  // O_EXCL refuses it: never written through
    CHECK_THROWS_WITH(write_safetensors(folder / "full", {one}), ContainsSubstring("File exists"));
  }
}

TEST_CASE("every truncation of a safetensors file is refused", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const std::string bytes = small_file();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    INFO(length << " of " << bytes.size() << " bytes");
    write_bytes(folder / "f", bytes.substr(0, length));
    CHECK_THROWS_WITH(read_safetensors(folder / "f"), ContainsSubstring("is refused"));
  }
  write_bytes(folder / "f", bytes + '\0');
  CHECK_THROWS_WITH(read_safetensors(folder / "f"), ContainsSubstring("it has 27"));
  write_bytes(folder / "f", bytes);
  CHECK(read_safetensors(folder / "f").size() == 3);
}

TEST_CASE("every changed byte of a header is refused or read within bounds",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const std::string bytes = small_file();
  const std::size_t header_end = bytes.size() - 26;
  int refused = 0;
  for (std::size_t i = 0; i < header_end; ++i) {
    for (const int flip : {0x01, 0x10, 0x80}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      write_bytes(folder / "f", changed);
      try {
        read_safetensors(folder /
                         "f");  // a changed name or type of the same width is still a good file
      } catch (const c10::Error&) {
        ++refused;
      }
    }
  }
  CHECK(refused > static_cast<int>(header_end));
}

TEST_CASE("headers that the format forbids are refused with the reason",
          "[checkpoint][safetensors]") {
  struct Bad {
    std::string header;
    std::size_t data;
    std::string why;
  };
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return R"({"a":)" + entry(dtype, shape, offsets) + "}";
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return R"({"a":)" + entry("U8", "[4]", first) + R"(,"b":)" + entry("U8", "[4]", second) + "}";
  };
  const Bad table[] = {
      {"[]", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"{", 0, "JSON"},
      {"{}x", 0, "something follows"},
      {"{}", 1, "need 0 bytes of data, it has 1"},
      {one("F32", "[2]", "[0,7]"), 7, "not what its shape needs"},
      {one("F32", "[2]", "[0,8]"), 7, "it is truncated"},
      {one("F32", "[2]", "[0,8]"), 9, "need 8 bytes of data, it has 9"},
      {one("F32", "[2]", "[4,12]"), 12, "begins at byte 4"},
      {one("F32", "[2]", "[8,0]"), 8, "no pair begin <= end"},
      {one("F32", "[2]", "[-8,0]"), 8, "no pair begin <= end"},
      {one("F32", "[2]", "[0]"), 8, "no pair begin <= end"},
      {one("F32", "[2]", "[0,8,8]"), 8, "no pair begin <= end"},
      {one("F32", "[2]", "[0,8.0]"), 8, "expected an integer"},
      {one("F32", "[-2]", "[0,8]"), 8, "negative extent -2"},
      {one("F32", "[2.0]", "[0,8]"), 8, "expected an integer"},
      {one("F32", "2", "[0,8]"), 8, "expected an array"},
      {one("F99", "[2]", "[0,8]"), 8, "unknown element type 'F99'"},
      {one("F32", "[4611686018427387904,4]", "[0,0]"), 0, "not what its shape needs"},
      {one("F32", "[0,4611686018427387904,4]", "[0,0]"), 0, "not what its shape needs"},
      {one("F32", "[9223372036854775807,9223372036854775807]", "[0,4]"), 4,
       "not what its shape needs"},
      {one("F32", "[99999999999999999999]", "[0,4]"), 4, "expected an integer"},
      {one("BOOL", "[1]", "[0,9223372036854775807]"), 1, "not what its shape needs"},
      {two("[0,4]", "[2,6]"), 6, "begins at byte 2 of the data, expected 4"},
      {two("[0,4]", "[0,4]"), 4, "begins at byte 0 of the data, expected 4"},
      {two("[0,4]", "[5,9]"), 9, "begins at byte 5 of the data, expected 4"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "no member 'data_offsets'"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1, "has fields besides"},
      {R"({"a":7})", 0, "JSON"},
      {R"({"__metadata__":{"a":1}})", 0, "expected a string"},
      {R"({"a":[[[[[[[[1]]]]]]]]})", 0, "nested deeper"},
  };
  const TemporaryFolder folder;
  for (const Bad& bad : table) {
    INFO(bad.header);
    write_bytes(folder / "f", file_of(bad.header, bad.data));
    CHECK_THROWS_WITH(SafetensorsFile(folder / "f"),
                      ContainsSubstring(bad.why) && ContainsSubstring("is refused"));
  }
  std::string repeated =
      R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"a":)" + entry("U8", "[1]", "[1,2]") + "}";
  write_bytes(folder / "f", file_of(repeated, 2));
  CHECK_THROWS_WITH(SafetensorsFile(folder / "f"), ContainsSubstring("'a' occurs twice"));
}

TEST_CASE("a header length beyond the file or the format's limit is refused",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  for (const std::uint64_t length : {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{3},
                                     std::uint64_t{100'000'001}, std::uint64_t{0}}) {
    std::string bytes(10, '{');
    std::memcpy(bytes.data(), &length, 8);
    write_bytes(folder / "f", bytes);
    INFO(length);
    CHECK_THROWS_WITH(SafetensorsFile(folder / "f"), ContainsSubstring("is refused"));
  }
}

TEST_CASE("files of other formats are refused in words", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_bytes(folder / "zip", "PK\x03\x04" + std::string(200, 'x'));
  CHECK_THROWS_WITH(SafetensorsFile(folder / "zip"), ContainsSubstring("no safetensors file"));
  CHECK_THROWS_WITH(SafetensorsFile(folder / "absent"), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(folder.path()),
                    ContainsSubstring("it is a folder, not a regular file"));
}

TEST_CASE("a text in place of a safetensors file is told from a damaged one",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const auto opens = [&](const std::string& bytes) {
    write_bytes(folder / "f", bytes);
    return message([&] { SafetensorsFile(folder / "f"); });
  };
  CHECK_THAT(opens(""), ContainsSubstring("it is empty; download"));
  CHECK_THAT(opens("<!DOCTYPE html>\n<html>\n</html>\n"),
             ContainsSubstring("it is a text, which begins \"<!DOCTYPE html>\", perhaps what a"));
  CHECK_THAT(opens("Entry not found"), ContainsSubstring("begins \"Entry not found\""));
  CHECK_THAT(opens("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
             ContainsSubstring("it is a pointer of Git LFS"));
}

TEST_CASE("a bool that is neither 0 nor 1 is refused", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})";
  std::string bytes = file_of(header, 1);
  bytes.back() = 2;
  write_bytes(folder / "f", bytes);
  CHECK_THROWS_WITH(read_safetensors(folder / "f"), ContainsSubstring("bytes other than 0 and 1"));
}

TEST_CASE("the checksum of a written file is that of its bytes", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const auto written =
      write_safetensors(folder / "f", {{"a", at::arange(100)}, {"b", at::ones({7}, at::kByte)}});
  const std::string bytes = read_bytes(folder / "f");
  tutti::detail::Xxh64 whole;
  whole.update(bytes.data(), bytes.size());
  CHECK(written.size == bytes.size());
  CHECK(written.checksum == whole.text());
  tutti::detail::Xxh64 read;
  SafetensorsFile(folder / "f").read_all(read);
  CHECK(read.text() == whole.text());
}

namespace {

// What opening a file of that header says, in memory of `times` its size and 16 MiB more.
std::string opens(const std::string& header, std::uint64_t times) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", file_of(header, 0));
  return tutti_test::in_bounds((16 << 20) + times * header.size(),
                               [&] { SafetensorsFile(folder / "f"); });
}

const std::string nothing = R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

}  // namespace

TEST_CASE("a header takes memory in proportion to its size", "[checkpoint][safetensors][native]") {
  std::string numbers = R"({"a":[0)";
  std::string tensors = "{\"x" + nothing;
  std::string metadata = R"({"__metadata__":{"x":"")";
  std::string shape = R"({"a":{"dtype":"U8","shape":[0)";
  for (int i = 0; i < 200'000; ++i) {
    numbers += ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0";
    tensors += ",\"" + std::to_string(i) + nothing;
    metadata += ",\"" + std::to_string(i) + "\":\"\"";
    shape += ",1,1,1,1,1,1,1,1,1,1";
  }
  CHECK_THAT(opens(numbers + "]}", 4), ContainsSubstring("is refused: JSON: more than 65536"));
  CHECK(opens(tensors + "}", 12) == "nothing");
  CHECK_THAT(opens(metadata + "}}", 4), ContainsSubstring("is refused: JSON: more than 65536"));
  CHECK_THAT(opens(shape + R"(],"data_offsets":[0,0]}})", 4),
             ContainsSubstring("is refused: JSON: more than 65536"));
}

TEST_CASE("names and shapes beyond any use are refused, in writing too",
          "[checkpoint][safetensors]") {
  CHECK_THAT(
      opens("{\"" + std::string(4097, 'n') + nothing + "}", 16),
      ContainsSubstring("tensor 'nnn") && ContainsSubstring("...' has a name of 4097 bytes"));
  CHECK(opens("{\"" + std::string(4096, 'n') + nothing + "}", 16) == "nothing");
  std::string many = R"({"a":{"dtype":"U8","shape":[0)";
  for (int i = 0; i < 64; ++i) {
    many += ",1";
  }
  CHECK_THAT(opens(many + R"(],"data_offsets":[0,0]}})", 16),
             ContainsSubstring("tensor 'a' has 65 dimensions, expected at most 64"));
  CHECK_THAT(opens(R"({"__metadata__":{},"__metadata__":{}})", 16),
             ContainsSubstring("'__metadata__' occurs twice"));
  std::string levels = "{\"x" + nothing;
  for (int i = 0; i < 12'000; ++i) {
    levels += ",\"" + std::to_string(i) + "/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a" + nothing;
  }
  CHECK_THAT(opens(levels + "}", 16), ContainsSubstring("levels, too many for its size"));

  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_safetensors(folder / "f", {{std::string(4097, 'n'), at::ones({1})}}),
                    ContainsSubstring("has a name of 4097 bytes, expected at most 4096"));
  CHECK_THROWS_WITH(
      write_safetensors(folder / "f", {{"a", at::ones(std::vector<std::int64_t>(65, 1))}}),
      ContainsSubstring("'a' has 65 dimensions, expected at most 64"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
