#include <tutti/views/bucket_by_length.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/ops/zeros.h>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/data/instructions.hpp>
#include <tutti/views/batch.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<std::int64_t>;

namespace {

const auto itself = [](std::int64_t n) { return n; };

tutti::Batch text(std::int64_t tokens) {
  return {{"input_ids", at::full({tokens + 1}, tokens, at::kLong)}};
}

}  // namespace

TEST_CASE("views::bucket_by_length gives an element when its bucket has a batch",
          "[views][bucket_by_length]") {
  const Numbers lengths{1, 12, 3, 25, 11, 2, 9, 30, 15};
  const auto step = lengths | views::bucket_by_length({10, 20}, 2, itself);
  CHECK(all_of(step) == Numbers{1, 3, 12, 11, 2, 9, 25, 30, 15});
  tutti::detail::Pass pass;
  const auto flow = step.open(pass);
  CHECK(flow->size() == 9);
  CHECK(flow->skip(3) == 3);
  CHECK(flow->reads() == 5);
  CHECK(flow->reader() == "bucket_by_length");
  CHECK(flow->next() == 11);
  CHECK(flow->skip(9) == 5);
  CHECK_FALSE(flow->next());
}

TEST_CASE("batches of all ranks are of one bucket, and every element is in one of them",
          "[views][bucket_by_length]") {
  const auto texts = ranges::views::iota(std::int64_t(0), std::int64_t(40)) |
                     ranges::views::transform(text) | views::shuffle(7);
  for (const std::int64_t world : {1, 2}) {
    for (const bool dealt_before : {false, true}) {
      Numbers seen;
      std::vector<std::vector<Numbers>> batches;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const auto steps = [&](auto source) {
          return source | views::bucket_by_length({11, 21, 31}, 2) |
                 views::batch({.size = 2, .collate = tutti::data::PadSequences{}});
        };
        auto loader = dealt_before ? steps(texts | views::shard()) : steps(texts);
        loader.shard(rank, world);
        CHECK(loader.size() == 20 / world);
        batches.emplace_back();
        for (const tutti::Batch& batch : rest_of(loader, 2)) {
          Numbers numbers;
          for (std::int64_t i = 0; i < batch.at("input_ids").size(0); ++i) {
            numbers.push_back(batch.at("input_ids")[i][0].item<std::int64_t>());
          }
          seen.insert(seen.end(), numbers.begin(), numbers.end());
          batches.back().push_back(std::move(numbers));
        }
      }
      std::sort(seen.begin(), seen.end());
      CHECK(std::equal(seen.begin(), seen.end(),
                       ranges::views::iota(std::int64_t(0), std::int64_t(40)).begin()));
      std::size_t mixed = 0;
      for (std::size_t i = 0; i < batches[0].size(); ++i) {
        for (const auto& of_rank : batches) {
          mixed += of_rank[i].front() / 10 != of_rank[i].back() / 10;
          mixed += !dealt_before && of_rank[i].front() / 10 != batches[0][i].front() / 10;
        }
      }
      CHECK(mixed <= (world == 1 ? 0 : 4));  // of two ranks: what is left of four buckets
    }
  }
}

TEST_CASE("views::bucket_by_length says which element has no length",
          "[views][bucket_by_length][failure]") {
  CHECK_THROWS_WITH(views::bucket_by_length({10, 10}, 2), ContainsSubstring("boundary 1 is 10"));
  CHECK_THROWS_WITH(views::bucket_by_length({10}, 0), ContainsSubstring("batch size is 0"));
  const std::vector<tutti::Batch> bad{text(1), {{"ids", at::zeros({2})}}};
  CHECK_THROWS_WITH(all_of(bad | views::bucket_by_length({10}, 2)),
                    ContainsSubstring("the length of element 1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
