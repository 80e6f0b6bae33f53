#include <tutti/data/packing.hpp>

#include <cstdint>
#include <random>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/instructions.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::DocumentPacker;
using data::DocumentPiece;
using data::LongDocuments;
using data::PackedDataset;
using data::PackingOptions;
using data::PackingStrategy;
using Ids = std::vector<std::int64_t>;
// {document, begin, end} of each piece of each example.
using Plan = std::vector<std::vector<Ids>>;

// Document i has `lengths[i]` tokens: 100 i, 100 i + 1, ...
struct Documents {
  Ids lengths;
  [[nodiscard]] std::int64_t size() const { return std::ssize(lengths); }
  [[nodiscard]] Batch get(std::int64_t i) const {
    return Batch{{"input_ids", at::arange(lengths.at(static_cast<std::size_t>(i))) + 100 * i}};
  }
};

Plan plan_packing(const Ids& lengths, const PackingOptions& options = {}) {
  Plan out;
  for (const auto& example : data::plan_packing(lengths, options)) {
    out.emplace_back();
    for (const DocumentPiece& piece : example) {
      out.back().push_back({piece.document, piece.begin, piece.end});
    }
  }
  return out;
}

Ids values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

std::vector<Ids> ids_of(const std::vector<Batch>& examples) {
  std::vector<Ids> out;
  for (const Batch& example : examples) {
    out.push_back(values(example.at("input_ids")));
  }
  return out;
}

std::vector<Batch> packed(const Documents& documents, const PackingOptions& options) {
  DocumentPacker packer(options);
  std::vector<Batch> out;
  const auto add = [&](std::vector<Batch> some) {
    out.insert(out.end(), some.begin(), some.end());
  };
  for (std::int64_t i = 0; i < documents.size(); ++i) {
    add(packer.push(documents.get(i)));
  }
  add(packer.finish());
  CHECK(packer.pending() == 0);
  return out;
}

}  // namespace

TEST_CASE("documents are put where they leave the least room", "[data][packing]") {
  const Ids lengths{3, 5, 2, 6, 0, 4};
  CHECK(plan_packing(lengths, {.length = 8}) ==
        Plan{{{0, 0, 3}, {1, 0, 5}}, {{2, 0, 2}, {3, 0, 6}}, {{5, 0, 4}}});
  CHECK(plan_packing({}, {.length = 8}).empty());
}

TEST_CASE("best_fit packs every token once, and close to what is possible",
          "[data][packing][law]") {
  std::mt19937 random(7);
  Ids lengths(3000);
  for (std::int64_t& length : lengths) {
    length = static_cast<std::int64_t>(random() % 300);
  }
  const PackingOptions options{.length = 128};
  const auto plan = data::plan_packing(lengths, options);
  Ids next(lengths.size(), 0);
  std::int64_t total = 0;
  for (const auto& example : plan) {
    std::int64_t size = 0;
    for (const DocumentPiece& piece : example) {
      REQUIRE(piece.begin < piece.end);
      next[static_cast<std::size_t>(piece.document)] += piece.end - piece.begin;
      size += piece.end - piece.begin;
    }
    REQUIRE(size <= 128);
    total += size;
  }
  CHECK(next == lengths);
  CHECK(std::ssize(plan) <= (total + 127) / 128 * 102 / 100);
  CHECK((plan == data::plan_packing(lengths, options)));
}

TEST_CASE("a long document is cut, shortened or refused", "[data][packing]") {
  const Ids lengths{7};
  CHECK(plan_packing(lengths, {.length = 3}) == Plan{{{0, 0, 3}}, {{0, 3, 6}}, {{0, 6, 7}}});
  CHECK(plan_packing(lengths, {.length = 3, .long_documents = LongDocuments::truncate}) ==
        Plan{{{0, 0, 3}}});
  const PackingOptions refuse{.length = 3, .long_documents = LongDocuments::refuse};
  CHECK_THROWS_WITH(plan_packing(lengths, refuse),
                    ContainsSubstring("document 0 has 7 tokens, but an example has 3"));
  CHECK_THROWS_WITH(plan_packing(Ids{1, -1}), ContainsSubstring("document 1 has the length -1"));
  CHECK_THROWS_WITH(plan_packing(lengths, {.length = 0}), ContainsSubstring("length is 0"));
  CHECK_THROWS_WITH(DocumentPacker({.open_examples = 0}), ContainsSubstring("open_examples is 0"));
}

TEST_CASE("wrapped documents fill every example but the last", "[data][packing]") {
  const PackingOptions options{.length = 4, .strategy = PackingStrategy::wrapped};
  const Documents documents{{3, 6, 0, 2}};
  CHECK(plan_packing(documents.lengths, options) ==
        Plan{{{0, 0, 3}, {1, 0, 1}}, {{1, 1, 5}}, {{1, 5, 6}, {3, 0, 2}}});
  const std::vector<Ids> wanted{{0, 1, 2, 100}, {101, 102, 103, 104}, {105, 300, 301}};
  CHECK(ids_of(packed(documents, options)) == wanted);
}

TEST_CASE("an example says where its documents begin", "[data][packing]") {
  const PackedDataset set{Documents{{3, 2, 4}}, {.length = 5}};
  REQUIRE(set.size() == 2);
  const Batch example = set.get(0);
  CHECK(values(example.at("input_ids")) == Ids{0, 1, 2, 100, 101});
  CHECK(values(example.at("labels")) == Ids{-100, 1, 2, -100, 101});
  CHECK(values(example.at("sequence_id")) == Ids{0, 0, 0, 1, 1});
  CHECK(values(example.at("position_ids")) == Ids{0, 1, 2, 0, 1});
  CHECK(values(set.get(1).at("input_ids")) == Ids{200, 201, 202, 203});
  CHECK_THROWS_WITH(set.get(2), ContainsSubstring("index is 2, expected 0 to 1"));
  CHECK_THROWS_WITH((PackedDataset{Documents{{3}}, {}, Ids{3, 4}}),
                    ContainsSubstring("there are 2 lengths, expected one for each of the 1"));
  CHECK_THROWS_WITH((PackedDataset{Documents{{3}}, {}, Ids{4}}.get(0)),
                    ContainsSubstring("at least 4"));
}

TEST_CASE("joined documents keep their labels and other tensors", "[data][packing]") {
  const auto document = [](std::int64_t token) {
    return Batch{{"input_ids", at::full({2}, token)},
                 {"labels", at::tensor(Ids{-100, token})},
                 {"weight", at::full({2}, 0.5)}};
  };
  const Batch example = data::join_documents({document(3), document(4)}, -1);
  CHECK(values(example.at("labels")) == Ids{-1, 3, -1, 4});
  CHECK(example.at("weight").equal(at::full({4}, 0.5)));
  const Batch again = data::join_documents({example});
  CHECK(values(again.at("sequence_id")) == Ids{0, 0, 0, 0});
  CHECK(again.size() == 5);
  CHECK_THROWS_WITH(data::join_documents({}), ContainsSubstring("no document"));
  CHECK_THROWS_WITH(data::join_documents({Batch(at::zeros({2}))}),
                    ContainsSubstring("no \"input_ids\"; there are: inputs"));
  CHECK_THROWS_WITH(data::join_documents({Batch{{"input_ids", at::arange(2)}}, document(1)}),
                    ContainsSubstring("of document 1"));
  CHECK_THROWS_WITH(
      data::join_documents({Batch{{"input_ids", at::arange(2)}, {"labels", at::arange(3)}}}),
      ContainsSubstring("\"labels\" of document 0 is [3]"));
}

TEST_CASE("a packer gives full examples at once, then the fullest", "[data][packing]") {
  DocumentPacker packer({.length = 6, .open_examples = 2});
  const auto push = [&](std::int64_t first, std::int64_t length) {
    return ids_of(packer.push(Batch{{"input_ids", at::arange(first, first + length)}}));
  };
  CHECK(push(0, 4).empty());
  CHECK(push(10, 3).empty());
  CHECK(push(20, 2) == std::vector<Ids>{{0, 1, 2, 3, 20, 21}});
  CHECK(push(30, 4).empty());
  CHECK(packer.pending() == 7);
  CHECK(push(40, 5) == std::vector<Ids>{{30, 31, 32, 33}});
  CHECK(push(50, 13) == std::vector<Ids>{{50, 51, 52, 53, 54, 55},
                                         {56, 57, 58, 59, 60, 61},
                                         {40, 41, 42, 43, 44, 62}});
  CHECK(ids_of(packer.finish()) == std::vector<Ids>{{10, 11, 12}});
  CHECK(packer.finish().empty());
  CHECK_THROWS_WITH(packer.push(Batch(at::zeros({2}))), ContainsSubstring("no \"input_ids\""));
  CHECK_THROWS_WITH(packer.push(Batch{{"input_ids", at::arange(2)}, {"labels", at::arange(3)}}),
                    ContainsSubstring("\"labels\" of a document is [3], expected [2]"));
}

TEST_CASE("packed batches resume inside an epoch, and count their tokens", "[data][packing]") {
  Documents documents;
  for (std::int64_t i = 0; i < 60; ++i) {
    documents.lengths.push_back(1 + i * 7 % 23);
  }
  const auto load = [&] {
    return DataLoader{
        PackedDataset{documents, {.length = 24}},
        {.batch_size = 3, .shuffle = true, .seed = 5, .collate = data::PadSequences{}}};
  };
  auto whole = load();
  auto resumed = load();
  whole.start(1);
  resumed.start(1, 4);
  std::int64_t tokens = 0;
  for (std::int64_t number = 0; auto batch = whole.next(); ++number) {
    tokens += batch->num_tokens();
    const at::Tensor padding = batch->at("attention_mask").eq(0);
    CHECK(batch->at("sequence_id").eq(-1).equal(padding));
    if (number >= 4) {
      const auto same = resumed.next();
      REQUIRE(same);
      for (const auto& [name, tensor] : *batch) {
        CHECK(same->at(name).equal(tensor));
      }
    }
  }
  std::int64_t wanted = 0;
  for (const std::int64_t length : documents.lengths) {
    wanted += length;
  }
  CHECK(tokens == wanted);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
