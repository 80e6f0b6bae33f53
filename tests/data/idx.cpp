#include <tutti/data/idx.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

namespace {

// A file in the temporary folder that is gone afterwards.
struct TemporaryFile {
  std::string path;
  TemporaryFile() {
    const char* folder = std::getenv("TMPDIR");
    path = std::string(folder != nullptr ? folder : "/tmp") + "/tutti_idx_XXXXXX";
    const int fd = mkstemp(path.data());
    REQUIRE(fd >= 0);
    close(fd);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::remove(path.c_str()); }

  void write(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  [[nodiscard]] std::string read() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace

TEST_CASE("every IDX type comes back as it was written", "[data][law]") {
  const TemporaryFile file;
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kFloat, at::kDouble}) {
    const auto tensor = (at::randn({3, 4, 2}) * 40).abs().to(type);
    tutti::data::save_idx(file.path, tensor.transpose(0, 1));
    const auto back = tutti::data::load_idx(file.path);
    CHECK(back.scalar_type() == type);
    CHECK(back.equal(tensor.transpose(0, 1)));
  }
}

TEST_CASE("IDX bytes are those of the format", "[data][law]") {
  const TemporaryFile file;
  tutti::data::save_idx(file.path, at::tensor({1, 258}, at::kShort).view({2, 1}));
  CHECK(file.read() == std::string("\0\0\x0b\2\0\0\0\2\0\0\0\1\0\1\1\2", 16));
}

TEST_CASE("a scalar and an empty tensor have IDX files", "[data][law]") {
  const TemporaryFile file;
  tutti::data::save_idx(file.path, at::full({}, 2.5F));
  CHECK(tutti::data::load_idx(file.path).equal(at::full({}, 2.5F)));
  tutti::data::save_idx(file.path, at::zeros({0, 3}));
  CHECK(tutti::data::load_idx(file.path).sizes() == at::IntArrayRef({0, 3}));
}

TEST_CASE("what is no IDX file is refused with its name and its fault", "[data]") {
  const TemporaryFile file;
  const auto says = [&](const std::string& bytes) {
    file.write(bytes);
    try {
      (void)tutti::data::load_idx(file.path);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      CHECK_THAT(text, ContainsSubstring("'" + file.path + "'"));
      return text;
    }
    return std::string("nothing");
  };
  const std::string good("\0\0\x08\1\0\0\0\3abc", 11);
  CHECK(says(good) == "nothing");
  CHECK_THAT(says(""), ContainsSubstring("it has 0 bytes, expected at least 4"));
  CHECK_THAT(says("PNG!"), ContainsSubstring("begins with bytes 80, 78, expected 0, 0"));
  CHECK_THAT(says("\x1f\x8b\x08\x08"), ContainsSubstring("gunzip"));
  CHECK_THAT(says(std::string("\0\0\x0a\1\0\0\0\3abc", 11)),
             ContainsSubstring("type code is 10, expected 8 (uint8)"));
  CHECK_THAT(says(good.substr(0, 6)), ContainsSubstring("expected 8 for the header alone"));
  CHECK_THAT(says(good.substr(0, 10)),
             ContainsSubstring("has 10 bytes, expected 11 for dimensions [3] of Byte; it is cut "
                               "off"));
  CHECK_THAT(says(good + "d"), ContainsSubstring("expected 11"));
  std::string huge("\0\0\x0e\x08", 4);
  huge.append(32, '\xff');
  CHECK_THAT(says(huge), ContainsSubstring("do not fit into memory"));
}

TEST_CASE("files that cannot be opened or tensors without an IDX type are refused", "[data]") {
  CHECK_THROWS_WITH(tutti::data::load_idx("/no/such/file"),
                    ContainsSubstring("'/no/such/file' cannot be opened: No such file"));
  CHECK_THROWS_WITH(tutti::data::load_idx("/"),
                    ContainsSubstring("it is a folder, not a regular file"));
  CHECK_THROWS_WITH(tutti::data::save_idx("/no/such/file", at::zeros({1})),
                    ContainsSubstring("'/no/such/file' cannot be written: No such file"));
  CHECK_THROWS_WITH(tutti::data::save_idx("/dev/null", at::zeros({1}, at::kLong)),
                    ContainsSubstring("save_idx: the tensor is Long, expected uint8"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
