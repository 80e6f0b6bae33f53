#include <tutti/train/signals.hpp>

#include <csignal>
#include <memory>

#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::train::received_signal;
using tutti::train::SignalScope;

namespace {

void handler_of_the_program(int) {}

void (*handler_of(int signal))(int) {
  struct sigaction now{};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

// Nobody handles the signals as long as this lives: Catch does, while a test runs.
struct NoHandlers {
  NoHandlers() : term(std::signal(SIGTERM, SIG_DFL)), interrupt(std::signal(SIGINT, SIG_DFL)) {}
  ~NoHandlers() {
    std::signal(SIGTERM, term);
    std::signal(SIGINT, interrupt);
  }
  void (*term)(int);
  void (*interrupt)(int);
};

// What a child process that runs f ends with, as waitpid() tells it.
template <class F>
int status_of_child(F f) {
  const pid_t child = ::fork();
  if (child == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a scope notes a signal instead of dying from it", "[train][signals][law]") {
  const NoHandlers none;
  {
    const SignalScope scope(/*on=*/true, /*replace=*/false);
    CHECK(received_signal() == 0);
    ::raise(SIGTERM);
    CHECK(received_signal() == SIGTERM);
    ::raise(SIGINT);  // within a second the same request
    CHECK(received_signal() == SIGTERM);
  }
  CHECK(handler_of(SIGTERM) == SIG_DFL);
  CHECK(handler_of(SIGINT) == SIG_DFL);
}

TEST_CASE("the next scope begins without the last one's signal", "[train][signals]") {
  const NoHandlers none;
  {
    const SignalScope scope(true, false);
    ::raise(SIGINT);
  }
  const SignalScope scope(true, false);
  CHECK(received_signal() == 0);
}

TEST_CASE("a handler of the program stays unless it is to be replaced", "[train][signals]") {
  const NoHandlers none;
  std::signal(SIGTERM, handler_of_the_program);
  {
    const SignalScope scope(true, /*replace=*/false);
    CHECK(handler_of(SIGTERM) == handler_of_the_program);
    CHECK(handler_of(SIGINT) != SIG_DFL);
  }
  {
    const SignalScope scope(true, /*replace=*/true);
    CHECK(handler_of(SIGTERM) != handler_of_the_program);
  }
  CHECK(handler_of(SIGTERM) == handler_of_the_program);
}

TEST_CASE("a signal is for all scopes that there are, and the last one puts handlers back",
          "[train][signals][law]") {
  const NoHandlers none;
  {
    const SignalScope outer(true, false);
    {
      const SignalScope inner(true, false);
      ::raise(SIGTERM);
      CHECK(received_signal() == SIGTERM);
    }
    CHECK(received_signal() == SIGTERM);
    CHECK(handler_of(SIGTERM) != SIG_DFL);
    const SignalScope later(true, false);  // does not forget it
    CHECK(received_signal() == SIGTERM);
    const SignalScope off(false, false);
    CHECK(received_signal() == SIGTERM);
  }
  CHECK(handler_of(SIGTERM) == SIG_DFL);
  const SignalScope scope(true, false);
  CHECK(received_signal() == 0);
}

TEST_CASE("scopes of two threads may end in any order", "[train][signals]") {
  const NoHandlers none;
  auto first = std::make_unique<SignalScope>(true, false);
  auto second = std::make_unique<SignalScope>(true, false);
  first.reset();
  CHECK(handler_of(SIGTERM) != SIG_DFL);
  ::raise(SIGTERM);
  CHECK(received_signal() == SIGTERM);
  second.reset();
  CHECK(handler_of(SIGTERM) == SIG_DFL);
}

TEST_CASE("a handler that the program sets within a scope stays", "[train][signals]") {
  const NoHandlers none;
  {
    const SignalScope scope(true, false);
    std::signal(SIGTERM, handler_of_the_program);
  }
  CHECK(handler_of(SIGTERM) == handler_of_the_program);
}

TEST_CASE("a scope that is off handles nothing", "[train][signals]") {
  const NoHandlers none;
  const SignalScope scope(/*on=*/false, /*replace=*/true);
  CHECK(handler_of(SIGTERM) == SIG_DFL);
}

TEST_CASE("a second signal, more than a second later, ends the process at once",
          "[train][signals]") {
  const NoHandlers none;
  const int status = status_of_child([] {
    const SignalScope scope(true, false);
    ::raise(SIGTERM);
    ::usleep(1'100'000);
    ::raise(SIGTERM);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}

TEST_CASE("the choices have names", "[train][signals]") {
  CHECK(to_string(tutti::OnSignal::exit) == "exit");
  CHECK(to_string(tutti::OnSignal::stop) == "stop");
  CHECK(to_string(tutti::OnSignal::ignore) == "ignore");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
