#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/data/loader.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a range-v3 pipeline is a loader, epoch after epoch", "[data][range-v3]") {
  namespace views = ranges::views;
  auto batches = views::iota(0, 6) | views::filter([](int i) { return i % 2 == 0; }) |
                 views::transform([](int i) { return Batch(at::full({2, 1}, i)); });
  AnyLoader loader(batches);
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch, epoch);  // the second one resumes behind its first batch
    for (int i = 2 * epoch; i < 6; i += 2) {
      const auto batch = loader.next();
      REQUIRE(batch.has_value());
      CHECK(batch->inputs().equal(at::full({2, 1}, i)));
    }
    CHECK(!loader.next().has_value());
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
