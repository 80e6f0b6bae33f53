#include <tutti/data/tokens.hpp>

#include "support/catch.hpp"

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/models/gpt2.hpp>

#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::data::TokenBlocks;
using tutti::data::TokenType;

template <class T>
std::string write(const std::filesystem::path& path, const std::vector<T>& tokens) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(T)));
  return path.string();
}

template <class T>
std::vector<T> count_up(std::size_t n, T from = 0) {
  std::vector<T> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>(from + i);
  }
  return out;
}

at::Tensor longs(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

}  // namespace

static_assert(tutti::Dataset<TokenBlocks>);

TEST_CASE("TokenBlocks: blocks follow one another and a rest at the end is left out",
          "[data][tokens]") {
  const TemporaryFolder folder;
  const std::string path = write(folder / "train.bin", count_up<std::uint16_t>(11, 65530));
  const TokenBlocks blocks(path, {.length = 4});
  CHECK(blocks.num_tokens() == 11);
  REQUIRE(blocks.size() == 2);
  tutti::Rng rng;
  const tutti::Batch second = blocks.get(1, rng);
  CHECK(second.inputs().equal(longs({65534, 65535, 0, 1})));  // as it wraps
  CHECK(second.targets().equal(second.inputs()));
  CHECK(second.contains("input_ids"));
  CHECK(second.contains("labels"));
  CHECK(rng.position() == 0);
}

TEST_CASE("TokenBlocks: tokens of four bytes are numbers without a sign", "[data][tokens]") {
  const TemporaryFolder folder;
  const std::string path =
      write(folder / "train.bin", std::vector<std::uint32_t>{7, 4294967295U, 70000, 3});
  const TokenBlocks blocks(path, {.length = 2, .type = TokenType::uint32});
  CHECK(blocks.at(0).inputs().equal(longs({7, 4294967295L})));
  CHECK(blocks.at(2).inputs().equal(longs({70000, 3})));
}

TEST_CASE("TokenBlocks: random examples lie anywhere in the file, also at both ends",
          "[data][tokens]") {
  const TemporaryFolder folder;
  const std::string path = write(folder / "train.bin", count_up<std::uint16_t>(7));
  const tutti::DataLoader loader{TokenBlocks{path, {.length = 3, .random_offsets = true}},
                                 {.batch_size = 2, .seed = 3}};
  std::vector<int> seen(7);
  auto epochs = loader;
  for (int epoch = 0; epoch < 100; ++epoch) {
    epochs.start(epoch);
    const at::Tensor ids = epochs.next()->inputs();
    CHECK(ids.sizes() == at::IntArrayRef({2, 3}));
    CHECK(ids.diff().eq(1).all().item<bool>());
    for (int i = 0; i < 2; ++i) {
      ++seen[static_cast<std::size_t>(ids[i][0].item<std::int64_t>())];
    }
  }
  for (std::size_t offset = 0; offset < 5; ++offset) {
    CHECK(seen[offset] > 10);
  }
  CHECK(seen[5] + seen[6] == 0);
  const tutti::DataLoader threads{TokenBlocks{path, {.length = 3, .random_offsets = true}},
                                  {.batch_size = 2, .seed = 3, .num_workers = 4}};
  auto together = threads;
  together.start(99);
  epochs.start(99);
  CHECK(together.next()->inputs().equal(epochs.next()->inputs()));
}

TEST_CASE("TokenBlocks: places beyond 2^31 tokens are read where they are", "[data][tokens]") {
  constexpr std::int64_t far = (std::int64_t{1} << 31) + 12;
  static_assert(std::is_same_v<decltype(std::declval<TokenBlocks>().num_tokens()), std::int64_t>);
  const TemporaryFolder folder;
  const std::string path =
      (folder / "huge.bin").string();  // a hole of 4 GB, which takes no room on the disk
  const std::vector<std::uint16_t> end{11, 12, 13, 14};
  const int descriptor = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(descriptor >= 0);
  const bool wrote = ::pwrite(descriptor, end.data(), 8, 2 * far) == 8;
  ::close(descriptor);
  if (!wrote) {
    std::printf("left out: the temporary folder takes no file of 4 GB\n");
    return;
  }
  const TokenBlocks blocks(path, {.length = 4});
  CHECK(blocks.num_tokens() == far + 4);
  REQUIRE(blocks.size() == far / 4 + 1);
  tutti::Rng rng;
  CHECK(blocks.get(far / 4, rng).inputs().equal(longs({11, 12, 13, 14})));
  CHECK(blocks.at(far - 2).inputs().equal(longs({0, 0, 11, 12})));
}

TEST_CASE("TokenBlocks: files and options that cannot be meant are refused", "[data][tokens]") {
  const TemporaryFolder folder;
  const std::string path = write(folder / "train.bin", count_up<std::uint16_t>(5));
  CHECK_THROWS_WITH(TokenBlocks((folder / "none.bin").string()),
                    ContainsSubstring("none.bin' cannot be open"));
  CHECK_THROWS_WITH(TokenBlocks(folder.path().string()),
                    ContainsSubstring("it is a folder, not a regular file"));
  CHECK_THROWS_WITH(TokenBlocks(path, {.length = 6}),
                    ContainsSubstring("has 5 tokens, expected at least options.length = 6"));
  CHECK_THROWS_WITH(TokenBlocks(path, {.length = 2, .type = TokenType::uint32}),
                    ContainsSubstring("has 10 bytes, expected a multiple of 4: the file was cut"));
  CHECK_THROWS_WITH(TokenBlocks(write(folder / "empty.bin", std::vector<std::uint16_t>{})),
                    ContainsSubstring("has 0 tokens"));
  CHECK_THROWS_WITH(TokenBlocks(path, {.length = 0}), ContainsSubstring("length is 0, expected 1"));
  CHECK_THROWS_WITH(TokenBlocks(path, {.length = 2, .vocab_size = -1}),
                    ContainsSubstring("vocab_size is -1"));
  const TokenBlocks blocks(path, {.length = 2, .vocab_size = 3});
  tutti::Rng rng;
  CHECK(blocks.get(0, rng).inputs().equal(longs({0, 1})));
  CHECK_THROWS_WITH(blocks.get(1, rng),
                    ContainsSubstring("has the token 3 at place 3, expected less than vocab_size"));
  CHECK_THROWS_WITH(blocks.get(2, rng), ContainsSubstring("index is 2, expected 0 to 1"));
  CHECK_THROWS_WITH(blocks.get(-1, rng), ContainsSubstring("index is -1"));
  CHECK_THROWS_WITH(blocks.at(4), ContainsSubstring("offset is 4, expected 0 to 3"));
  CHECK_THROWS_WITH(blocks.at(std::numeric_limits<std::int64_t>::max()),
                    ContainsSubstring("expected 0 to 3"));
}

TEST_CASE("TokenBlocks: GPT-2 learns to count from a file", "[data][tokens]") {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> tokens(512);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint16_t>(i % 8);
  }
  at::manual_seed(1);
  tutti::models::GPT2LMHeadModelImpl model(tutti::models::GPT2Options{
      .vocab_size = 8, .n_positions = 16, .n_embd = 16, .n_layer = 1, .n_head = 2});
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-2));
  tutti::DataLoader loader{
      TokenBlocks{write(folder / "train.bin", tokens), {.length = 16, .vocab_size = 8}},
      {.batch_size = 8, .shuffle = true}};
  double first = 0;
  double last = 0;
  for (int epoch = 0; epoch < 12; ++epoch) {
    loader.start(epoch);
    while (const auto batch = loader.next()) {
      adam.zero_grad();
      const at::Tensor loss = model.loss(model.forward(*batch), *batch).total();
      loss.backward();
      adam.step();
      last = loss.item<double>();
      first = first == 0 ? last : first;
    }
  }
  CHECK(first > 1.8);  // ln 8 = 2.08
  CHECK(last < 1.0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
