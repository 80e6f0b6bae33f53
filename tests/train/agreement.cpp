#include <tutti/train/agreement.hpp>

#include <string>
#include <utility>
#include <vector>

#include <tutti/optim/annealing.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"
#include "support/thread_ranks.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
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

TEST_CASE("ranks with other optimizers or schedules are refused", "[train][dist]") {
  const TrainerOptions usual{.optimizer = SGD{.lr = 0.1}, .schedule = Linear{.alpha_f = 0.5}};
  CHECK(refused(usual, usual) == Names(3, "nothing"));
  TrainerOptions other = usual;
  other.optimizer = SGD{.lr = 0.1000001};
  CHECK_THAT(
      refused(usual, other)[0],
      EndsWith("rank 2 has [optimizer/lr = 0.1000001] where rank 0 has [optimizer/lr = 0.1]; "
               "give every rank the same"));
  other = usual;
  other.schedule = Linear{.alpha_f = 0};
  CHECK_THAT(refused(usual, other)[1],
             EndsWith("rank 2 has [schedule/alpha_f = 0] where rank 0 has "
                      "[schedule/alpha_f = 0.5]; give every rank the "
                      "same"));
  TrainerOptions two;
  two.optimizers = {{.name = "critic", .optimizer = SGD{.lr = 0.1}}};
  other = two;
  other.optimizers[0].optimizer = SGD{.lr = 0.2};
  CHECK_THAT(refused(two, other)[1], EndsWith("rank 2 has [optimizer/critic/lr = 0.2] where rank 0 "
                                              "has [optimizer/critic/lr = 0.1]; give every rank "
                                              "the same"));
}

TEST_CASE("algorithms that differ by rank are warned of", "[train][dist]") {
  const auto says = [](const tutti::detail::Constants& last) {
    std::vector<Names> texts(3);
    const tutti::detail::Constants usual{{"LocalSGD/interval", "2ba"}, {"MixUp/alpha", 0.2}};
    const Names thrown = ThreadRanks::run(3, [&](dist::Communicator& world) {
      Warnings warnings;
      train::warn_of_other_algorithms(world.rank() == 2 ? last : usual, world);
      texts[static_cast<std::size_t>(world.rank())] = warnings.texts;
    });
    CHECK(thrown == Names(3, "nothing"));
    CHECK((texts[1].empty() && texts[2].empty()));
    return texts[0];
  };
  CHECK(says({{"LocalSGD/interval", "2ba"}, {"MixUp/alpha", 0.2}}).empty());
  CHECK(
      says({{"LocalSGD/interval", "3ba"}, {"MixUp/alpha", 0.2}}) ==
      Names{"the ranks have different algorithms: rank 2 has [LocalSGD/interval = 3ba] where rank "
            "0 has [LocalSGD/interval = 2ba]; they train one model, and may wait for each other "
            "in vain: give every rank the same"});
  CHECK_THAT(says({{"LocalSGD/interval", "2ba"}}).at(0),
             ContainsSubstring("rank 2 has nothing where rank 0 has [MixUp/alpha = 0.2]"));
}

TEST_CASE("ranks that average gradients differently are refused", "[train][dist]") {
  const auto says = [](const dist::DataParallelOptions& last) {
    TrainerOptions other;
    other.data_parallel = last;
    const Names texts = refused({}, other);
    CHECK((texts[0] == texts[1] && texts[1] == texts[2]));
    return texts[0];
  };
  const auto differs = [](const std::string& theirs, const std::string& usual) {
    return EndsWith("rank 2 has [data_parallel." + theirs + "] where rank 0 has [data_parallel." +
                    usual + "]; give every rank the same");
  };
  CHECK(says({}) == "nothing");
  CHECK(says({.sync_strategy = dist::SyncStrategy::single_auto_sync}) == "nothing");  // the default
  CHECK_THAT(says({.sync_strategy = dist::SyncStrategy::forced_sync}),
             differs("sync_strategy = forced_sync", "sync_strategy = single_auto_sync"));
  CHECK_THAT(says({.find_unused_parameters = true}),
             differs("find_unused_parameters = true", "find_unused_parameters = false"));
  CHECK_THAT(says({.broadcast_buffers = false}),
             differs("broadcast_buffers = false", "broadcast_buffers = true"));
  CHECK_THAT(says({.compression = dist::GradientCompression::fp16}),
             differs("compression = fp16", "compression = none"));
  CHECK_THAT(says({.power_sgd = {.rank = 2}}), differs("power_sgd.rank = 2", "power_sgd.rank = 1"));
  CHECK_THAT(says({.power_sgd = {.start_iteration = 5}}),
             differs("power_sgd.start_iteration = 5", "power_sgd.start_iteration = 1000"));
  CHECK_THAT(says({.power_sgd = {.min_compression_rate = 3}}),
             differs("power_sgd.min_compression_rate = 3", "power_sgd.min_compression_rate = 2"));
  CHECK_THAT(says({.power_sgd = {.error_feedback = false}}),
             differs("power_sgd.error_feedback = false", "power_sgd.error_feedback = true"));
  CHECK_THAT(says({.power_sgd = {.warm_start = false}}),
             differs("power_sgd.warm_start = false", "power_sgd.warm_start = true"));
  CHECK_THAT(says({.power_sgd = {.seed = 9}}), differs("power_sgd.seed = 9", "power_sgd.seed = 0"));
}

TEST_CASE("ranks that fit in different ways are told of the first difference", "[train][dist]") {
  const auto says = [](const FitOptions& last) {
    const Names texts = ThreadRanks::run(3, [&](dist::Communicator& world) {
      train::check_common_options(world.rank() == 2 ? last : FitOptions{}, world);
    });
    CHECK((texts[0] == texts[1] && texts[1] == texts[2]));
    return texts[0];
  };
  const auto differs = [](const std::string& theirs, const std::string& usual) {
    return EndsWith("rank 2 has [fit: " + theirs + "] where rank 0 has [fit: " + usual +
                    "]; give every rank the same");
  };
  CHECK(says({}) == "nothing");
  CHECK_THAT(says({.duration = "2ep"}), differs("duration = 2ep", "duration = 0.0dur"));
  CHECK_THAT(says({.reset_time = true}), differs("reset_time = true", "reset_time = false"));
  CHECK_THAT(says({.train_subset_num_batches = 3}),
             differs("train_subset_num_batches = 3", "train_subset_num_batches = none"));
  CHECK_THAT(says({.device_train_microbatch_size = "auto"}),
             differs("device_train_microbatch_size = auto", "device_train_microbatch_size = none"));
  CHECK_THAT(says({.precision = Precision::amp_bf16}),
             differs("precision = amp_bf16", "precision = none"));
  CHECK_THAT(says({.scale_schedule_ratio = 0.5}),
             differs("scale_schedule_ratio = 0.5", "scale_schedule_ratio = 1"));
}

TEST_CASE("one process has nobody to agree with", "[train][dist]") {
  dist::SingleProcess alone;
  train::check_common_options(TrainerOptions{}, alone);
  train::check_common_options(FitOptions{}, alone);
  CHECK(train::common_options(TrainerOptions{}).front() == "max_duration = 0ep");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
