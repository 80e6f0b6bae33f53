#include <tutti/train/agreement.hpp>

#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/thread_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::EndsWith;
using Names = std::vector<std::string>;

namespace {

/// What each of three ranks throws when the last one has these options.
Names refused(const TrainerOptions& usual, const TrainerOptions& last) {
  return ThreadRanks::run(3, [&](dist::Communicator& world) {
    train::check_common_options(world.rank() == 2 ? last : usual, world);
  });
}

}  // namespace

TEST_CASE("ranks with different options are told of the first difference", "[train][dist]") {
  const TrainerOptions usual{.max_duration = "3ep", .save_interval = "1ep"};
  CHECK(refused(usual, usual) == Names(3, "nothing"));
  TrainerOptions other = usual;
  other.progress_bar = false;
  other.device = "cpu";
  other.num_threads = 2;
  CHECK(refused(usual, other) == Names(3, "nothing"));  // each for itself

  other.save_interval = "10ba";
  other.load_ignore_keys = {"a", "b"};
  for (const std::string& text : refused(usual, other)) {
    CHECK_THAT(text, EndsWith("the ranks have different options: rank 2 has [save_interval = 10ba] "
                              "where rank 0 has [save_interval = 1ep]; give every rank the same"));
  }
  other.max_duration = "4ep";
  for (const std::string& text : refused(usual, other)) {
    CHECK_THAT(text, EndsWith("rank 2 has [max_duration = 4ep] where rank 0 has [max_duration = "
                              "3ep]; give every rank the same"));
  }
  other = usual;
  other.device_train_microbatch_size = "auto";
  CHECK_THAT(refused(usual, other)[0],
             EndsWith("rank 2 has [device_train_microbatch_size = auto] where rank 0 has "
                      "[device_train_microbatch_size = 0]; give every rank the same"));
  other = usual;
  other.num_threads = "auto";
  CHECK_THAT(refused(usual, other)[0],
             EndsWith("rank 2 has [num_threads is auto = true] where rank 0 has [num_threads is "
                      "auto = false]; give every rank the same"));
  other = usual;
  other.checkpoint_layout = CheckpointLayout::sharded;
  CHECK_THAT(refused(usual, other)[1],
             EndsWith("rank 2 has [checkpoint_layout = sharded] where rank 0 has "
                      "[checkpoint_layout = whole]; give every rank the same"));
  other = usual;
  other.dry_run = 2;
  CHECK_THAT(refused(usual, other)[1],
             EndsWith("rank 2 has [dry_run = 2] where rank 0 has [dry_run = 0]; give every rank "
                      "the same"));
  other = usual;
  other.optimizers = {{.name = "generator"}, {.name = "critic"}};
  CHECK_THAT(refused(usual, other)[1],
             EndsWith("rank 2 has [optimizers = generator, critic] where rank 0 has [optimizers = "
                      "]; give every rank the same"));
  other = usual;
  other.load_ignore_keys = {"state/optimizers", "rng"};
  CHECK_THAT(refused(usual, other)[2],
             EndsWith("rank 2 has [load_ignore_keys = state/optimizers, rng] where rank 0 has "
                      "[load_ignore_keys = ]; give every rank the same"));
}

TEST_CASE("one process has nobody to agree with", "[train][dist]") {
  dist::SingleProcess alone;
  train::check_common_options({}, alone);
  CHECK(train::common_options({}).front() == "max_duration = 0ep");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
