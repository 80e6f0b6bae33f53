// Every test case begins with LibTorch's generators at Catch's seed, 0 unless --rng-seed says
// another: what fails fails again, alone too.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "support/catch.hpp"

#include <ATen/Context.h>

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct Seed final : Listener {
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& /*info*/) override {
    at::manual_seed(Catch::getCurrentContext().getConfig()->rngSeed());
  }
};
CATCH_REGISTER_LISTENER(Seed)

}  // namespace
