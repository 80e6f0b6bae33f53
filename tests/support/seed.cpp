// Every test case begins with LibTorch's generators at Catch's seed, 0 unless --rng-seed says
// another: what fails fails again, alone too.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "support/catch.hpp"

#include <cstdio>
#include <cstdlib>

#include <ATen/Context.h>

#include "support/device.hpp"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct Seed final : Listener {
  using Listener::Listener;

  void testRunStarting(const Catch::TestRunInfo& /*info*/) override {
    if (tutti_test::device_name() != "cpu" && !at::hasCUDA()) {
      std::puts("skipped: TUTTI_TEST_DEVICE asks for a device, and there is no CUDA device here");
      std::exit(77);
    }
  }

  void testCaseStarting(const Catch::TestCaseInfo& /*info*/) override {
    at::manual_seed(Catch::getCurrentContext().getConfig()->rngSeed());
  }
};
CATCH_REGISTER_LISTENER(Seed)

}  // namespace
