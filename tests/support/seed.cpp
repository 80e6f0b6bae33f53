// Every test case begins with LibTorch's generators at Catch's seed, 0 unless --rng-seed says
// another: what fails fails again, alone too. An assertion on a thread of its own ends the program:
// Catch2 damages its memory there, once in a hundred runs, and somewhere else.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "support/catch.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

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

  void assertionStarting(const Catch::AssertionInfo& info) override {
    if (std::this_thread::get_id() != tests_) {
      const std::string macro = static_cast<std::string>(info.macroName);
      std::fprintf(stderr,
                   "%s:%zu: %s on a thread that is not the test's, where Catch2 may not be used; "
                   "keep what that thread found and check it after the join\n",
                   info.lineInfo.file, info.lineInfo.line, macro.c_str());
      std::abort();
    }
  }

 private:
  std::thread::id tests_ = std::this_thread::get_id();
};
CATCH_REGISTER_LISTENER(Seed)

}  // namespace
