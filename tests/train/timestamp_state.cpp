#include <tutti/train/timestamp_state.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

TEST_CASE("a timestamp comes back field by field", "[timestamp][checkpoint]") {
  Timestamp now = Timestamp{}
                      .to_next_batch(8, 64, std::chrono::nanoseconds(1234567890123))
                      .to_next_epoch()
                      .to_next_batch(5, 40, std::chrono::nanoseconds(7));
  now.iteration = 3;
  Archive archive;
  train::save_timestamp(now, archive);
  CHECK(train::load_timestamp(archive) == now);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
