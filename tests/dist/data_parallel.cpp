#include <tutti/dist/data_parallel.hpp>

#include "support/catch.hpp"

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using dist::DataParallelOptions;
using dist::SyncStrategy;

static_assert(!std::is_copy_constructible_v<dist::NoSync>);
static_assert(!std::is_copy_constructible_v<dist::DataParallel>);
static_assert(std::has_virtual_destructor_v<dist::DataParallel>);

namespace {

// Notes in which passes it would average.
class Noting final : public dist::DataParallel {
 public:
  void before_forward(bool last) override { notes += last && requires_sync() ? "S" : "-"; }
  void before_backward(const at::Tensor&) override {}
  void after_backward() override {}
  void broadcast_buffers() override {}
  void reset() override {}

  std::string notes;
};

}  // namespace

TEST_CASE("gradients are averaged in the last backward pass unless unused ones are looked for",
          "[dist][data_parallel]") {
  CHECK(DataParallelOptions{}.strategy() == SyncStrategy::single_auto_sync);
  CHECK(DataParallelOptions{.find_unused_parameters = true}.strategy() ==
        SyncStrategy::multi_auto_sync);
  for (const SyncStrategy chosen :
       {SyncStrategy::single_auto_sync, SyncStrategy::multi_auto_sync, SyncStrategy::forced_sync}) {
    for (const bool unused : {false, true}) {
      CHECK(DataParallelOptions{.sync_strategy = chosen, .find_unused_parameters = unused}
                .strategy() == chosen);
    }
  }
}

TEST_CASE("the options' defaults are PyTorch's", "[dist][data_parallel]") {
  const DataParallelOptions options;
  CHECK_FALSE(options.sync_strategy);
  CHECK_FALSE(options.find_unused_parameters);
  CHECK_FALSE(options.gradient_as_bucket_view);
  CHECK(options.broadcast_buffers);
  CHECK(options.bucket_cap_mb == 25);
}

TEST_CASE("NoSync lasts as long as it lives, also within another and through an exception",
          "[dist][data_parallel]") {
  Noting parallel;
  const auto pass = [&] { parallel.before_forward(true); };
  CHECK(parallel.requires_sync());
  pass();
  {
    const dist::NoSync local(&parallel);
    pass();
    {
      const dist::NoSync inner(&parallel);
    }
    pass();  // the inner one puts back what it found
  }
  pass();
  try {
    const dist::NoSync local(&parallel);
    pass();
    throw std::runtime_error("the closure failed");
  } catch (const std::runtime_error&) {
    pass();
  }
  CHECK(parallel.notes == "S--S-S");
  CHECK(parallel.requires_sync());
}

TEST_CASE("NoSync of one process is nothing", "[dist][data_parallel]") {
  CHECK_NOTHROW([] { const dist::NoSync nothing(nullptr); }());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
