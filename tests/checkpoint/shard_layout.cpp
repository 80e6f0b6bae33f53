#include <tutti/checkpoint/shard_layout.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using Sizes = std::vector<std::int64_t>;

namespace {

std::vector<TensorBox> shards(const Sizes& shape, int ranks, std::size_t dim = 0) {
  std::vector<TensorBox> out;
  for (int rank = 0; rank < ranks; ++rank) {
    out.push_back(shard_box(shape, rank, ranks, dim));
  }
  return out;
}

std::vector<std::string> faults(std::vector<TensorBox> boxes) {
  std::vector<std::string> out;
  TensorPieces(std::move(boxes)).each_fault([&](const TensorPieces::Fault& fault) {
    out.push_back(fault.where.text() + " x" + std::to_string(fault.pieces.size()));
  });
  return out;
}

// How often each element of a tensor is in a box.
std::vector<int> counts(const Sizes& shape, const std::vector<TensorBox>& boxes) {
  std::vector<int> out(static_cast<std::size_t>(shape[0] * shape[1]), 0);
  for (const TensorBox& box : boxes) {
    for (std::int64_t i = box.offsets[0]; i < box.offsets[0] + box.sizes[0]; ++i) {
      for (std::int64_t j = box.offsets[1]; j < box.offsets[1] + box.sizes[1]; ++j) {
        ++out[static_cast<std::size_t>(i * shape[1] + j)];
      }
    }
  }
  return out;
}

// The shapes of GPT-2's parameters.
std::vector<Sizes> gpt2_shapes() {
  std::vector<Sizes> out{{50257, 768}, {1024, 768}, {768}, {768}};
  for (int block = 0; block < 12; ++block) {
    for (const Sizes& shape :
         {Sizes{768}, Sizes{768}, Sizes{768, 2304}, Sizes{2304}, Sizes{768, 768}, Sizes{768},
          Sizes{768}, Sizes{768}, Sizes{768, 3072}, Sizes{3072}, Sizes{3072, 768}, Sizes{768}}) {
      out.push_back(shape);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("ranks hold the chunks that torch.chunk makes, the last ones less or nothing",
          "[checkpoint][sharded]") {
  CHECK(shard_box({9, 4}, 2, 4).text() == "[6:9, 0:4]");
  CHECK(shard_box({9, 4}, 3, 4) == TensorBox{{9, 0}, {0, 4}});
  CHECK(shard_box({2}, 1, 4).text() == "[1:2]");
  CHECK(shard_box({2}, 3, 4).numel() == 0);
  CHECK(shard_box({4, 8}, 1, 2, 1).text() == "[0:4, 4:8]");
  CHECK_THAT(message([] { shard_box({}, 0, 2); }), ContainsSubstring("holds a scalar whole"));
  CHECK_THAT(message([] { shard_box({4}, 2, 2); }),
             ContainsSubstring("this is rank 2 of 2, expected 0 to 1"));
}

TEST_CASE("pieces of any cut cover a tensor, and a hole or an overlap is told by its place",
          "[checkpoint][sharded]") {
  for (const int ranks : {1, 2, 3, 4, 7, 100}) {
    CHECK(faults(shards({9, 4}, ranks)).empty());
    CHECK(faults(shards({9, 4}, ranks, 1)).empty());
    CHECK(faults(shards({6, 2, 3, 3}, ranks)).empty());
  }
  CHECK(faults({TensorBox{{}, {}}}).empty());
  CHECK(faults({{{0, 0}, {0, 5}}}).empty());              // a tensor without an element
  CHECK(faults({{{0, 0}, {4, 4}}, {{4}, {0}}}).empty());  // an empty shard of fewer dimensions
  CHECK(faults({{{}, {}}, {{}, {}}}) == std::vector<std::string>{"[] x2"});
  auto lost = shards({9, 4}, 3);
  lost.erase(lost.begin() + 1);
  CHECK(faults(lost) == std::vector<std::string>{"[3:6, 0:4] x0"});
  CHECK(faults({{{0}, {5}}, {{3}, {4}}}) == std::vector<std::string>{"[3:5] x2"});
  // Five boxes around a middle, as no straight cut can part them.
  std::vector<TensorBox> wheel{
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{1, 0}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 1}, {1, 1}}};
  CHECK(faults(wheel).empty());
  wheel.pop_back();
  CHECK(faults(wheel) == std::vector<std::string>{"[1:2, 1:2] x0"});
}

TEST_CASE("holes and overlaps are those that counting each element finds",
          "[checkpoint][sharded]") {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most));
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorBox> boxes{{{7, 6}, {1, 1}}};  // so that the shape is [8, 7]
    for (std::int64_t i = draw(8); i >= 0; --i) {
      const std::int64_t row = draw(8);
      const std::int64_t column = draw(7);
      boxes.push_back({{row, column}, {draw(9 - row), draw(8 - column)}});
    }
    std::vector<int> found(56, 1);
    TensorPieces(boxes).each_fault([&](const TensorPieces::Fault& fault) {
      const auto in = counts({8, 7}, {fault.where});
      for (std::size_t i = 0; i < in.size(); ++i) {
        found[i] = in[i] > 0 ? static_cast<int>(fault.pieces.size()) : found[i];
      }
    });
    REQUIRE(found == counts({8, 7}, boxes));
  }
}

TEST_CASE("boxes that fit no tensor are refused", "[checkpoint][sharded]") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto refusal = [](std::vector<TensorBox> boxes) {
    return message([&] { TensorPieces pieces(std::move(boxes)); });
  };
  CHECK_THAT(refusal({{{-1}, {3}}}), ContainsSubstring("begins at -1 and has 3 of dimension 0"));
  CHECK_THAT(refusal({{{most}, {1}}}), ContainsSubstring("which no tensor has"));
  CHECK_THAT(refusal({{{0, 0}, {1}}}), ContainsSubstring("2 offsets for 1 dimensions"));
  CHECK_THAT(refusal({{{0}, {1}}, {{0, 0}, {1, 1}}}),
             ContainsSubstring("its pieces have 1 and 2 dimensions"));
}

TEST_CASE("pieces that overlap in all ways are refused before they take long",
          "[checkpoint][sharded]") {
  std::vector<TensorBox> boxes;
  for (std::int64_t i = 0; i < 2000; ++i) {
    boxes.push_back({{i, 0}, {4000 - 2 * i, 8000}});
    boxes.push_back({{0, i}, {8000, 4000 - 2 * i}});
  }
  CHECK_THAT(message([&] { TensorPieces(boxes).each_fault([](const auto&) {}); }),
             ContainsSubstring("4000 pieces overlap in too many ways"));
}

TEST_CASE("768 ranks read what 1,024 wrote: each row from the rank that had it",
          "[checkpoint][sharded]") {
  for (const Sizes& shape : gpt2_shapes()) {
    const TensorPieces pieces(shards(shape, 1024));
    REQUIRE(pieces.shape() == shape);
    pieces.each_fault([](const auto&) { FAIL("the shards do not cover the tensor"); });
    const std::int64_t chunk = (shape[0] + 1023) / 1024;
    std::int64_t rows = 0;
    for (int rank = 0; rank < 768; ++rank) {
      const TensorBox wanted = shard_box(shape, rank, 768);
      std::int64_t next = wanted.offsets[0];
      for (const auto& part : pieces.parts_of(wanted)) {
        REQUIRE(part.box.offsets[0] == next);
        for (std::int64_t row = next; row < next + part.box.sizes[0]; ++row) {
          REQUIRE(static_cast<std::int64_t>(part.piece) == row / chunk);
        }
        REQUIRE(part.box.numel() / part.box.sizes[0] == whole_box(shape).numel() / shape[0]);
        next += part.box.sizes[0];
      }
      REQUIRE(next == wanted.offsets[0] + wanted.sizes[0]);
      rows += wanted.sizes[0];
    }
    REQUIRE(rows == shape[0]);
  }
}

TEST_CASE("the parts of a box are those of a search through all pieces", "[checkpoint][sharded]") {
  std::vector<TensorBox> grid;
  for (const TensorBox& rows : shards({10, 12}, 3)) {
    for (const TensorBox& columns : shards({10, 12}, 4, 1)) {
      grid.push_back(*intersection(rows, columns));
    }
  }
  const TensorPieces pieces(grid);
  for (int rank = 0; rank < 5; ++rank) {
    const TensorBox box = shard_box({10, 12}, rank, 5, rank % 2 == 0 ? 0 : 1);
    std::size_t expected = 0;
    for (const TensorBox& piece : grid) {
      expected += intersection(piece, box) ? 1U : 0U;
    }
    std::int64_t elements = 0;
    for (const auto& part : pieces.parts_of(box)) {
      CHECK(intersection(grid[part.piece], box) == part.box);
      elements += part.box.numel();
    }
    CHECK(pieces.parts_of(box).size() == expected);
    CHECK(elements == box.numel());
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
