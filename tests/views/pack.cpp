#include <tutti/views/pack.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

#include <ATen/ops/arange.h>

#include <range/v3/view/transform.hpp>

#include <tutti/data/instructions.hpp>
#include <tutti/views/batch.hpp>
#include <tutti/views/filter.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Lengths = std::vector<std::int64_t>;

namespace {

// A document of n tokens, all of them n.
tutti::Batch document(std::int64_t n) {
  return {{"input_ids", at::full({n}, n, at::kLong)}};
}

const Lengths lengths{5, 3, 8, 2, 11, 1, 6, 4, 7};

}  // namespace

TEST_CASE("views::pack gives what DocumentPacker does", "[views][pack][law]") {
  for (const auto strategy :
       {tutti::data::PackingStrategy::best_fit, tutti::data::PackingStrategy::wrapped}) {
    const tutti::data::PackingOptions options{
        .length = 8, .strategy = strategy, .open_examples = 3};
    tutti::data::DocumentPacker packer(options);
    std::vector<tutti::Batch> expected;
    const auto take = [&](std::vector<tutti::Batch> some) {
      expected.insert(expected.end(), some.begin(), some.end());
    };
    for (const std::int64_t n : lengths) {
      take(packer.push(document(n)));
    }
    take(packer.finish());
    const auto examples = lengths | ranges::views::transform(document) | views::pack(options);
    const std::vector<tutti::Batch> packed = all_of(examples);
    REQUIRE(packed.size() == expected.size());
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < packed.size(); ++i) {
      for (const char* name : {"input_ids", "labels", "sequence_id", "position_ids"}) {
        CHECK(packed[i].at(name).equal(expected[i].at(name)));
      }
      tokens += packed[i].at("input_ids").numel();
    }
    CHECK(tokens == 47);
  }
}

TEST_CASE("views::pack says what it reads again, and begins anew each epoch", "[views][pack]") {
  auto loader = lengths | ranges::views::transform(document) | views::shuffle(3) | views::pack(8) |
                views::batch({.size = 2, .collate = tutti::data::PadSequences{}});
  CHECK(loader.size() == -1);
  const auto tokens = [](const std::vector<tutti::Batch>& batches) {
    std::vector<at::Tensor> out;
    for (const tutti::Batch& batch : batches) {
      out.push_back(batch.at("input_ids"));
    }
    return out;
  };
  const auto whole = tokens(rest_of(loader, 1));
  const auto rest = tokens(rest_of(loader, 1, 2));
  REQUIRE(rest.size() + 2 == whole.size());
  for (std::size_t i = 0; i < rest.size(); ++i) {
    CHECK(rest[i].equal(whole[i + 2]));
  }
  loader.start(1, 2);
  CHECK(loader.reads_again() > 0);

  // What a step below had to read counts, too.
  const auto few = lengths | views::filter([](std::int64_t n) { return n > 6; }) |
                   ranges::views::transform(document) | views::pack(8);
  tutti::detail::Pass pass;
  const auto flow = few.open(pass);
  CHECK(flow->skip(1) == 1);
  CHECK(flow->reads() == 1);
  const auto behind =
      lengths | ranges::views::transform(document) |
      views::filter([](const tutti::Batch& d) { return d.at("input_ids").numel() > 6; }) |
      views::pack(8);
  const auto other = behind.open(pass);
  CHECK(other->skip(1) == 1);
  CHECK(other->reads() == 3);
  CHECK(other->reader() == "filter");
}

TEST_CASE("views::pack refuses what it cannot pack", "[views][pack][failure]") {
  CHECK_THROWS_WITH(views::pack(0), ContainsSubstring("length is 0, expected 1 or more"));
  const auto documents = lengths | ranges::views::transform(document);
  const auto refusing =
      views::pack({.length = 8, .long_documents = tutti::data::LongDocuments::refuse});
  CHECK_THROWS_WITH(all_of(documents | refusing),
                    ContainsSubstring("views::pack: document 4") && ContainsSubstring("11 tokens"));
  const auto dealt = documents | views::shard() | views::pack(8);
  CHECK_THROWS_WITH(all_of(dealt, 0, 0, 1, 2),
                    ContainsSubstring("views::pack cannot stand behind views::shard"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
