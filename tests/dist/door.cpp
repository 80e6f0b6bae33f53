#include <tutti/dist/detail/door_store.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <tutti/dist/launch.hpp>
#include <tutti/dist/process_group.hpp>

#include <ATen/ops/arange.h>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace tutti::dist::detail;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Clock = std::chrono::steady_clock;

namespace {

const std::string token(64, 'a');

std::string digits(const std::string& bytes) {
  return ::tutti::detail::hexadecimal(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                      bytes.size());
}

// What a client begins a message with.
Packed call_of(KeyCall call) {
  return Packed().number(static_cast<std::int64_t>(call));
}

// A server on a port of loopback.
struct Served {
  explicit Served(const std::string& secret = token) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const int listening = listen_at(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    REQUIRE(listening >= 0);
    keys = std::make_shared<ServedKeys>(listening, secret);
  }
  c10::intrusive_ptr<DoorStore> store(std::chrono::milliseconds timeout = 20s) const {
    return c10::make_intrusive<DoorStore>("127.0.0.1", port, token, timeout);
  }

  int port = tutti_test::free_port();
  std::shared_ptr<ServedKeys> keys;
};

// A connection of somebody who speaks as he likes, from another address of the machine.
class Stranger {
 public:
  explicit Stranger(int port, std::uint32_t from = 0x7F000002)  // 127.0.0.2
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(from);
    ::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connected = ::connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address),
                          sizeof address) == 0;
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_.number(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void send(const std::string& bytes) const {
    ::send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // So many bytes, or fewer when the other side closes.
  std::string receive(std::size_t count) const {
    std::string bytes(count, '\0');
    std::size_t done = 0;
    for (ssize_t got = 1; done < count && got > 0; done += static_cast<std::size_t>(got)) {
      got = std::max<ssize_t>(0, ::recv(socket_.number(), bytes.data() + done, count - done, 0));
    }
    bytes.resize(done);
    return bytes;
  }
  bool is_thrown_out() const {
    char byte = 0;
    return ::recv(socket_.number(), &byte, 1, 0) <= 0 && errno != EAGAIN;
  }

  bool connected = false;

 private:
  Descriptor socket_;
};

// Random bytes to these ports in turn, so many times in all; an address has ports for some 28,000
// connections a minute. Returns how many came through.
int flood(const std::vector<int>& ports, int times) {
  std::mt19937 random(7);
  int connected = 0;
  for (int i = 0; i < times; ++i) {
    const Stranger one(ports[static_cast<std::size_t>(i) % ports.size()],
                       0x7F000002 + static_cast<std::uint32_t>(i / 1000 % 250));
    std::string bytes(random() % 4097, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    one.send(bytes);
    connected += one.connected ? 1 : 0;
  }
  return connected;
}

// The ports at which a process listens.
std::vector<int> listening_ports(const std::string& pid) {
  std::set<std::string> inodes;
  for (const auto& file : std::filesystem::directory_iterator("/proc/" + pid + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(file, gone).string();
    if (target.starts_with("socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<int> ports;
  for (const char* const table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream in("/proc/" + pid + table);
    std::string line;
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::array<std::string, 10> word;
      for (std::string& one : word) {
        words >> one;
      }
      if (word[3] == "0A" && inodes.contains(word[9])) {
        ports.insert(std::stoi(word[1].substr(word[1].find(':') + 1), nullptr, 16));
      }
    }
  }
  return {ports.begin(), ports.end()};
}

}  // namespace

TEST_CASE("HMAC-SHA256 is that of RFC 4231", "[dist][door]") {
  CHECK(digits(hmac(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(digits(hmac("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(digits(hmac(std::string(131, '\xaa'),
                    "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(same_secret("abc", "abc"));
  CHECK_FALSE(same_secret("abc", "abd"));
  CHECK_FALSE(same_secret("abc", "ab"));
  CHECK(new_token().size() == 64);
  CHECK(new_token() != new_token());
}

TEST_CASE("the store behind the door does what c10d's stores do", "[dist][door]") {
  const Served served;
  const auto store = served.store();
  store->set("a", "1\0 2");
  CHECK(store->get_to_str("a") == "1");
  store->set("a", std::vector<std::uint8_t>{0, 255, 7});
  CHECK(store->get("a") == std::vector<std::uint8_t>{0, 255, 7});
  CHECK(store->add("n", 5) == 5);
  CHECK(store->add("n", -7) == -2);
  CHECK(store->get_to_str("n") == "-2");
  CHECK(store->check({"a", "n"}));
  CHECK_FALSE(store->check({"a", "b"}));
  CHECK(store->getNumKeys() == 2);
  CHECK(store->listKeys() == std::vector<std::string>{"a", "n"});
  CHECK(store->compareSet("c", "", "first") == "first");
  CHECK(store->compareSet("c", "other", "second") == "first");
  CHECK(store->compareSet("c", "first", "second") == "second");
  CHECK(store->compareSet("d", "some", "more") == "some");  // not there, and not made
  CHECK_FALSE(store->check({"d"}));
  store->append("c", {'!'});
  CHECK(store->get_to_str("c") == "second!");
  store->multiSet({"x", "y"}, {{1}, {2}});
  CHECK(store->multiGet({"y", "x"}) == std::vector<std::vector<std::uint8_t>>{{2}, {1}});
  CHECK(store->deleteKey("x"));
  CHECK_FALSE(store->deleteKey("x"));
  const std::string large(3U << 20U, 'l');
  store->set("large", large);
  CHECK(store->get_to_str("large") == large);
}

TEST_CASE("a client waits for a key that another one sets", "[dist][door]") {
  const Served served;
  const auto store = served.store();
  const auto other = store->clone();
  std::thread setter([&] {
    std::this_thread::sleep_for(200ms);
    other->set("late", "here");
  });
  CHECK(store->get_to_str("late") == "here");
  setter.join();
  store->wait({"late"});
  CHECK_THROWS_AS(store->wait({"late", "never"}, 100ms), c10::DistStoreError);
  store->setTimeout(100ms);
  CHECK_THROWS_WITH(store->get("never"), ContainsSubstring("wait timeout after 100ms, key: never"));
  CHECK(store->get_to_str("late") == "here");  // and goes on
}

TEST_CASE("whoever has another token is refused, and the run goes on", "[dist][door]") {
  const Served served(std::string(64, 'b'));
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(served.store(), ContainsSubstring("refuses this process; it has not the token "
                                                      "of the run (TUTTI_TOKEN)"));
  CHECK(Clock::now() - begin < 10s);
  const auto right =
      c10::make_intrusive<DoorStore>("127.0.0.1", served.port, std::string(64, 'b'), 20s);
  CHECK(right->add("n", 1) == 1);
  CHECK_THROWS_WITH(DoorStore("127.0.0.1", tutti_test::free_port(), token, 300ms),
                    ContainsSubstring("nobody who knows this run answers at 127.0.0.1:") &&
                        EndsWith(": Connection refused"));
  CHECK_THROWS_WITH(DoorStore("nosuchhost.invalid", 1, token, 300ms),
                    ContainsSubstring("the name 'nosuchhost.invalid' does not resolve: "));
}

TEST_CASE("a proof of another connection, and a message that was changed, are refused",
          "[dist][door]") {
  const Served served;
  const auto store = served.store();
  store->set("key", "mine");
  {
    const Stranger replays(served.port);
    const std::string nonce = replays.receive(40).substr(8);
    const std::string mine(32, 'n');
    replays.send(mine + hmac(token, "c" + std::string(32, 'o') + mine));  // of an older nonce
    CHECK(replays.is_thrown_out());
  }
  const Stranger changes(served.port);
  const std::string nonce = changes.receive(40).substr(8);
  REQUIRE(nonce.size() == 32);
  const std::string mine(32, 'n');
  changes.send(mine + hmac(token, "c" + nonce + mine));
  CHECK(changes.receive(32) == hmac(token, "s" + mine + nonce));
  Seal seal(hmac(token, "k" + nonce + mine), 'c');
  std::string message = seal.closed(call_of(KeyCall::set).text("key").text("his").bytes());
  std::string again = message;
  message[14] = static_cast<char>(message[14] ^ 1);
  changes.send(message);
  CHECK(changes.is_thrown_out());
  CHECK(store->get_to_str("key") == "mine");
  // The same message twice: the second has the wrong number.
  const Stranger repeats(served.port);
  const std::string other = repeats.receive(40).substr(8);
  repeats.send(mine + hmac(token, "c" + other + mine));
  repeats.receive(32);
  Seal once(hmac(token, "k" + other + mine), 'c');
  again = once.closed(call_of(KeyCall::add).text("n").number(1).bytes());
  repeats.send(again);
  repeats.receive(4 + 8 + 16);
  repeats.send(again);
  CHECK(repeats.is_thrown_out());
  CHECK(store->add("n", 0) == 1);
}

TEST_CASE("strangers who say nothing, too much or nonsense stay outside", "[dist][door]") {
  const Served served;
  const auto store = served.store();
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(std::make_unique<Stranger>(served.port));
  }
  flood({served.port}, 500);
  const auto begin = Clock::now();
  const auto late = served.store();  // comes in all the same
  CHECK(late->add("n", 1) == 1);
  CHECK(store->add("n", 1) == 2);
  CHECK(Clock::now() - begin < 10s);
  silent.front()->receive(40);
  CHECK(silent.front()->is_thrown_out());  // one of too many
}

TEST_CASE("a token is read from a file that only its owner can read", "[dist][door]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "token").string();
  CHECK_THROWS_WITH(token_of_file(path), ContainsSubstring("cannot be read; make it by"));
  std::ofstream(path) << token << "\n";
  ::chmod(path.c_str(), 0644);
  CHECK_THROWS_WITH(token_of_file(path), ContainsSubstring("run chmod 600 on it"));
  ::chmod(path.c_str(), 0600);
  CHECK(token_of_file(path) == token);
  std::ofstream(path) << "short";
  CHECK_THROWS_WITH(token_of_file(path), ContainsSubstring("expected 32 to 1024 characters"));
}

TEST_CASE("door rank: goes on", "[.rank]") {
  const auto group = dist::initialize(at::kCPU, 60s);
  if (group->rank() == 1) {
    const int port = group->environment().master_port;
    const Stranger stranger(port);
    CHECK(stranger.connected);
    CHECK(stranger.receive(8) == door_magic);
    // c10d's own client: validates, and sets a key.
    const std::string key = "tutti/attempt_0/group_0/gloo/0";
    stranger.send(std::string("\x09\x2b\x85\xc9\x3c", 5) + std::string(1, '\0') + key);
    CHECK(stranger.receive(200).size() <= 32);
    flood({port}, 300);
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.waitWorkers = false;
    options.timeout = 1s;
    CHECK_THROWS([&] {
      c10d::TCPStore store("127.0.0.1", options);
      store.add("key", 1);
    }());
  }
  CHECK(group->all_reduce_value(1) == 2);
  const auto again = group->subgroup({0, 1});  // meets through the store
  CHECK(again->all_reduce_value(group->rank() + 1) == 3);
}

TEST_CASE("door rank: adds until it is told to end", "[.rank]") {
  if (const char* const files = std::getenv("TUTTI_TEST_FILES")) {
    const rlimit few{.rlim_cur = std::stoul(files), .rlim_max = std::stoul(files)};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  const auto group = dist::initialize(at::kCPU, 60s);
  const std::filesystem::path folder = std::getenv("TUTTI_TEST_FOLDER");
  const std::string rank = std::to_string(group->rank());
  std::ofstream(folder / (rank + ".part")) << ::getpid() << ' ' << group->environment().master_port;
  std::filesystem::rename(folder / (rank + ".part"), folder / rank);
  int wrong = 0;
  bool ends = false;
  for (int i = 0; !ends; ++i) {
    const at::Tensor values = at::arange(1000).mul(group->rank() + 1).add(i);
    group->all_reduce(values);
    wrong += values.equal(at::arange(1000).mul(6).add(3 * i)) ? 0 : 1;
    ends = group->all_reduce_value(std::filesystem::exists(folder / "end") ? 1 : 0) > 0;
  }
  CHECK(wrong == 0);
  const auto again = group->subgroup({0, 1, 2});  // meets through the store
  CHECK(again->all_reduce_value(1) == 3);
}

namespace {

// Three ranks that add until end() is called.
class AddingRun {
 public:
  AddingRun() {
    launcher_ = ::fork();  // which has one thread
    if (launcher_ == 0) {
      ::_exit(
          dist::launch({.nproc = 3,
                        .stdout_file = (folder_ / "out").string(),
                        .stderr_file = (folder_ / "err").string(),
                        .command = {"/proc/self/exe", "door rank: adds until it is told to end"}}));
    }
    for (const char* const rank : {"0", "1", "2"}) {
      for (int i = 0; i < 6000 && !std::filesystem::exists(folder_ / rank); ++i) {
        std::this_thread::sleep_for(10ms);
      }
      std::ifstream said(folder_ / rank);
      std::string pid;
      REQUIRE(said >> pid >> store);
      for (const int port : listening_ports(pid)) {
        if (port != store) {
          gloo.push_back(port);
        }
      }
    }
  }
  // Its status.
  int end() {
    std::ofstream(folder_ / "end") << "now";
    int status = 0;
    REQUIRE(::waitpid(launcher_, &status, 0) == launcher_);
    return WEXITSTATUS(status);
  }
  std::string said() const { return read_bytes(folder_ / "out") + read_bytes(folder_ / "err"); }

  int store = 0;
  std::vector<int> gloo{};

 private:
  TemporaryFolder folder_;
  EnvironmentVariable place_{"TUTTI_TEST_FOLDER", folder_.path().c_str()};
  pid_t launcher_ = 0;
};

}  // namespace

// TUTTI_SOAK_CONNECTIONS: how many, in place of the few that a test suite has time for.
TEST_CASE("strangers who flood every port of a run change nothing", "[dist][door]") {
  const char* const wanted = std::getenv("TUTTI_SOAK_CONNECTIONS");
  const int count = wanted == nullptr ? 600 : std::stoi(wanted);
  AddingRun run;
  REQUIRE(run.gloo.size() >= 3);
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  // Gloo keeps a file for each that says something, the store for none.
  const auto most = static_cast<int>(files.rlim_cur / 2 * run.gloo.size());
  const int to_gloo = std::min(count / 4 * 3, most);
  CHECK(flood(run.gloo, to_gloo) == to_gloo);
  CHECK(flood({run.store}, count - to_gloo) == count - to_gloo);
  const int status = run.end();
  INFO(run.said());
  CHECK(status == 0);
}

TEST_CASE("a rank of which strangers take all files ends the run with an error", "[dist][door]") {
  const EnvironmentVariable files("TUTTI_TEST_FILES", "100");
  AddingRun run;
  flood({run.gloo.back()}, 300);  // of rank 2, whose words are in a file
  const int status = run.end();
  INFO(run.said());
  CHECK(status != 0);
  CHECK_THAT(run.said(), ContainsSubstring("Too many open files"));
}

TEST_CASE("a stranger at a run's port changes nothing", "[dist][door]") {
  const TemporaryFolder folder;
  CHECK(dist::launch({.nproc = 2,
                      .stdout_file = (folder / "out").string(),
                      .stderr_file = (folder / "err").string(),
                      .command = {"/proc/self/exe", "door rank: goes on"}}) == 0);
  CHECK_THAT(read_bytes(folder / "out"), ContainsSubstring("All tests passed"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
