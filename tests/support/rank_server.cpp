#include "support/rank_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

extern char** environ;

extern "C" void __gcov_dump() __attribute__((weak));  // of a build that counts lines

namespace {

constexpr int served = 3;                // the server's end of the socket
constexpr std::size_t longest = 100000;  // of a request, in bytes
const char* const variable = "TUTTI_TEST_SERVES_RANKS";

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// A request: the folder, the test case and the environment, each ended by a zero; and two files,
/// for what is printed and for reports.
union Files {
  std::array<char, CMSG_SPACE(2 * sizeof(int))> bytes;
  cmsghdr aligned;
};

msghdr message(iovec& text, Files& files) {
  msghdr result{};
  result.msg_iov = &text;
  result.msg_iovlen = 1;
  result.msg_control = files.bytes.data();
  result.msg_controllen = files.bytes.size();
  return result;
}

/// Waits for the ranks that have ended and writes how to those who asked.
void report(std::map<pid_t, int>& running) {
  int status = 0;
  for (pid_t process = 0; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto at = running.find(process);
    (void)!::write(at->second, &status, sizeof status);  // the other side may have gone
    ::close(at->second);
    running.erase(at);
  }
}

/// Ends without the destructors of LibTorch's globals, which would copy most of what forks share:
/// half a rank's time. Programs that tests start by themselves end with them.
[[noreturn]] void end(int status) {
#if defined(__SANITIZE_ADDRESS__)
  std::exit(status);  // which looks for leaks
#else
  std::fflush(nullptr);
  if (__gcov_dump != nullptr) {
    __gcov_dump();
  }
  std::_Exit(status);
#endif
}

/// In a fork.
[[noreturn]] void run_rank(const std::string& request, int output, tutti_test::RunCases run) {
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < request.size(); at += parts.back().size() + 1) {
    parts.emplace_back(request.c_str() + at);
  }
  if (::chdir(parts[0].c_str()) != 0) {
    fail(parts[0].c_str());
  }
  ::clearenv();
  for (std::size_t i = 2; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    ::setenv(parts[i].substr(0, equals).c_str(), parts[i].c_str() + equals + 1, 1);
  }
  std::string name = "rank";
  std::array<char*, 3> words{name.data(), parts[1].data(), nullptr};
  end(run(2, words.data()));
}

/// Reads one request and forks its rank; false at the end of the starter.
bool serve(std::map<pid_t, int>& running, int signals, tutti_test::RunCases run) {
  std::string request(longest, '\0');
  iovec text{request.data(), request.size()};
  Files files{};
  msghdr header = message(text, files);
  const ssize_t size = ::recvmsg(served, &header, MSG_CMSG_CLOEXEC);
  if (size <= 0) {
    return false;
  }
  request.resize(static_cast<std::size_t>(size));
  std::array<int, 2> received{};
  std::memcpy(received.data(), CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof received);
  const pid_t process = ::fork();
  if (process == 0) {
    ::close(served);
    ::close(signals);
    for (const auto& [other, reports] : running) {
      ::close(reports);
    }
    ::close(received[1]);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    run_rank(request, received[0], run);
  }
  (void)!::write(received[1], &process, sizeof process);
  ::close(received[0]);
  if (process > 0) {
    running.emplace(process, received[1]);
  } else {
    ::close(received[1]);
  }
  return true;
}

/// This side's end of the socket to the server, which the first call starts.
int server() {
  static const int connection = [] {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      fail("socketpair");
    }
    std::vector<std::string> settings{variable + std::string("=1"), "OMP_NUM_THREADS=1"};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (std::strncmp(*entry, "OMP_NUM_THREADS=", 16) != 0) {
        settings.emplace_back(*entry);
      }
    }
    std::vector<char*> pointers;
    for (std::string& setting : settings) {
      pointers.push_back(setting.data());
    }
    pointers.push_back(nullptr);
    std::string name = "ranks";
    std::array<char*, 2> words{name.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], served);
    pid_t process = -1;
    errno =
        ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, words.data(), pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (errno != 0) {
      fail("posix_spawn");
    }
    return ends[0];
  }();
  return connection;
}

}  // namespace

void tutti_test::serve_ranks(RunCases run) {
  if (std::getenv(variable) == nullptr) {
    return;
  }
  ::unsetenv(variable);
  ::fcntl(served, F_SETFD, FD_CLOEXEC);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  const int signals = ::signalfd(-1, &child, SFD_CLOEXEC);
  std::map<pid_t, int> running;
  for (bool more = true; more;) {
    std::array<pollfd, 2> waiting{{{served, POLLIN, 0}, {signals, POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0) {
      continue;
    }
    if (waiting[1].revents != 0) {
      signalfd_siginfo which{};
      (void)!::read(signals, &which, sizeof which);
      report(running);
    }
    if (waiting[0].revents != 0) {
      more = serve(running, signals, run);
    }
  }
  for (const auto& [process, reports] : running) {
    ::kill(process, SIGKILL);
  }
  std::_Exit(0);
}

tutti_test::ForkedRank::ForkedRank(const std::string& test_case,
                                   const std::vector<std::string>& environment, std::FILE* output) {
  std::string request = std::filesystem::current_path().string() + '\0' + test_case + '\0';
  for (const std::string& setting : environment) {
    request += setting + '\0';
  }
  if (request.size() > longest) {
    throw std::runtime_error("the environment of a rank has more than 100,000 bytes");
  }
  std::array<int, 2> reports{};
  if (::pipe2(reports.data(), O_CLOEXEC) != 0) {
    fail("pipe2");
  }
  reports_ = reports[0];
  const std::array<int, 2> sent{::fileno(output), reports[1]};
  iovec text{request.data(), request.size()};
  Files files{};
  msghdr header = message(text, files);
  cmsghdr* const first = CMSG_FIRSTHDR(&header);
  first->cmsg_level = SOL_SOCKET;
  first->cmsg_type = SCM_RIGHTS;
  first->cmsg_len = CMSG_LEN(sizeof sent);
  std::memcpy(CMSG_DATA(first), sent.data(), sizeof sent);
  const bool lost = ::sendmsg(server(), &header, MSG_NOSIGNAL) < 0;
  ::close(reports[1]);
  if (lost || ::read(reports_, &process_, sizeof process_) != sizeof process_ || process_ < 0) {
    ::close(reports_);
    throw std::runtime_error("the process that ranks are forked from has ended or cannot fork");
  }
}

tutti_test::ForkedRank::~ForkedRank() {
  kill_now();
  ::close(reports_);
}

bool tutti_test::ForkedRank::is_done() {
  pollfd waiting{reports_, POLLIN, 0};
  if (!done_ && ::poll(&waiting, 1, 0) > 0) {
    wait();
  }
  return done_;
}

void tutti_test::ForkedRank::kill_now() {
  if (!is_done()) {
    ::kill(process_, SIGKILL);
    wait();
  }
}

void tutti_test::ForkedRank::wait() {
  if (::read(reports_, &status_, sizeof status_) != sizeof status_) {
    status_ = -1;  // the server has ended before it
  }
  done_ = true;
}
