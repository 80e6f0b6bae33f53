#include <tutti/dist/process_group.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/warnings.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using dist::ReduceOp;
using std::chrono::milliseconds;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

dist::Environment place(int rank, int world, int port) {
  dist::Environment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = world;
  environment.master_addr = "127.0.0.1";
  environment.master_port = port;
  return environment;
}

// "address:port" of each socket at which this process listens, in the kernel's hexadecimal numbers.
std::set<std::string> listens_at() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string link = std::filesystem::read_symlink(entry.path(), gone).string();
    if (link.starts_with("socket:[")) {
      inodes.insert(link.substr(8, link.size() - 9));
    }
  }
  std::set<std::string> out;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> column(10);
      for (std::string& word : column) {
        words >> word;
      }
      if (column[3] == "0A" && inodes.contains(column[9])) {
        out.insert(column[1]);
      }
    }
  }
  return out;
}

std::string hexadecimal(int port) {
  char text[8];
  std::snprintf(text, sizeof text, "%04X", static_cast<unsigned>(port));
  return text;
}

// An IPv4 address of this machine that others may reach; empty when it has none.
std::string outside_address() {
  ifaddrs* all = nullptr;
  std::string out;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
          (one->ifa_flags & IFF_LOOPBACK) == 0) {
        char text[INET_ADDRSTRLEN];
        const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
        out = inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
      }
    }
    freeifaddrs(all);
  }
  return out;
}

// Where the store of rank 0 of that place would listen.
std::string store_listens_at(const dist::Environment& environment) {
  const std::set<std::string> before = listens_at();
  const auto socket = dist::detail::listen_for_store(environment);
  for (const std::string& one : listens_at()) {
    if (!before.contains(one)) {
      return one.substr(0, one.find(':'));
    }
  }
  return "nowhere";
}

}  // namespace

TEST_CASE("rank body: listens on loopback", "[.rank]") {
  const auto group = dist::initialize();
  const std::set<std::string> all = listens_at();
  CHECK(!all.empty());  // Gloo's own
  for (const std::string& one : all) {
    CHECK(one.starts_with("0100007F:"));
  }
  const std::string port = hexadecimal(group->environment().master_port);
  CHECK(all.contains("0100007F:" + port) == group->is_rank_zero());
  group->barrier();
}

TEST_CASE("ranks of one machine listen on loopback alone, whatever the machine is called",
          "[dist][group]") {
  CHECK(run_ranks("rank body: listens on loopback") == all_passed);
  dist::Environment named = place(0, 2, tutti_test::free_port());
  named.master_addr = "a-name-that-nobody-knows";
  CHECK(dist::detail::store_host(named) == "127.0.0.1");
  CHECK(store_listens_at(named) == "0100007F");
  named.agent_store = true;
  CHECK(dist::detail::store_host(named) == "a-name-that-nobody-knows");
}

TEST_CASE("with several machines the store listens at MASTER_ADDR's address alone",
          "[dist][group]") {
  const std::string address = outside_address();
  if (address.empty()) {
    return tutti_test::skip("this machine has no address but loopback");
  }
  dist::Environment first = place(0, 2, tutti_test::free_port());
  first.local_world_size = 1;
  first.master_addr = address;
  in_addr number{};
  REQUIRE(inet_pton(AF_INET, address.c_str(), &number) == 1);
  char expected[16];
  std::snprintf(expected, sizeof expected, "%08X", number.s_addr);
  CHECK(store_listens_at(first) == expected);
  // A name that is loopback here is something else to the others.
  first.master_addr = "127.0.1.1";
  CHECK(store_listens_at(first) == std::string(32, '0'));
  // So is an address that another machine forwards: 192.0.2.0/24 is nobody's.
  first.master_addr = "192.0.2.1";
  CHECK(store_listens_at(first) == std::string(32, '0'));
  const EnvironmentVariable chosen("TUTTI_STORE_ADDRESS", address.c_str());
  CHECK(store_listens_at(first) == expected);
}

TEST_CASE("rank body: an open store", "[.rank]") {
  const EnvironmentVariable none(dist::detail::token_variable, nullptr);
  const EnvironmentVariable everywhere("TUTTI_STORE_ADDRESS", "0.0.0.0");
  const Warnings warnings;
  const auto group = dist::initialize();
  const auto subgroup = group->subgroup({0, 1});
  if (!group->is_rank_zero()) {
    CHECK(warnings.texts.empty());
  } else {
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0],
               ContainsSubstring("the store listens at 0.0.0.0 port " +
                                 std::to_string(group->environment().master_port) +
                                 " without a token, so whoever reaches that port can") &&
                   ContainsSubstring("TUTTI_TOKEN"));
  }
  group->barrier();
}

TEST_CASE("a store without a token that others reach is warned of, once, where it listens",
          "[dist][group]") {
  CHECK(run_ranks("rank body: an open store") == all_passed);
  const Warnings warnings;
  const auto at_loopback = dist::detail::listen_for_store(place(0, 2, tutti_test::free_port()));
  dist::detail::warn_of_open_store(at_loopback.descriptor());
  CHECK(warnings.texts.empty());
}

TEST_CASE("a port in use and an unknown name are said", "[dist][group]") {
  dist::Environment first = place(0, 2, tutti_test::free_port());
  const auto taken = dist::detail::listen_for_store(first);
  CHECK_THAT(error_of([&] { dist::detail::listen_for_store(first); }),
             ContainsSubstring("cannot listen at 127.0.0.1:" + std::to_string(first.master_port) +
                               ": Address already in use"));
  first.local_world_size = 1;
  first.master_addr = "no such name";
  CHECK_THAT(error_of([&] { dist::detail::listen_for_store(first); }),
             ContainsSubstring("MASTER_ADDR is 'no such name', which is no address"));
}

TEST_CASE("rank body: reductions", "[.rank]") {
  const auto group = dist::initialize();
  const auto rank = static_cast<double>(group->rank());
  const auto reduced = [&](ReduceOp op) {
    const at::Tensor tensor = at::full({2, 3}, rank + 2);  // 2 on rank 0, 3 on rank 1
    group->all_reduce(tensor, op);
    CHECK(tensor.min().item<double>() == tensor.max().item<double>());
    return tensor[1][2].item<double>();
  };
  CHECK(group->backend() == "gloo");
  CHECK(reduced(ReduceOp::sum) == 5);
  CHECK(reduced(ReduceOp::mean) == 2.5);
  CHECK(reduced(ReduceOp::product) == 6);
  CHECK(reduced(ReduceOp::minimum) == 2);
  CHECK(reduced(ReduceOp::maximum) == 3);

  const std::int64_t bits = group->rank() == 0 ? 0b0110 : 0b0011;
  CHECK(group->all_reduce_value(bits, ReduceOp::bit_and) == 0b0010);
  CHECK(group->all_reduce_value(bits, ReduceOp::bit_or) == 0b0111);
  CHECK(group->all_reduce_value(bits, ReduceOp::bit_xor) == 0b0101);
  CHECK(group->all_reduce_value(rank + 0.25) == 1.5);
  CHECK(group->all_reduce_value(rank == 1, ReduceOp::maximum));
  CHECK_FALSE(group->all_reduce_value(rank == 1, ReduceOp::minimum));

  const at::Tensor whole = at::zeros({3, 2});
  const at::Tensor column = whole.select(1, 1);  // strided
  column.fill_(rank + 1);
  group->all_reduce(column);
  CHECK(column.sum().item<double>() == 9);
  CHECK(whole.sum().item<double>() == 9);

  const at::Tensor recorded = at::full({2}, rank + 1).requires_grad_(true);
  group->all_reduce(recorded);
  CHECK(recorded.sum().item<double>() == 6);
  CHECK_THAT(error_of([&] { group->all_reduce(at::arange(3), ReduceOp::mean); }),
             ContainsSubstring("convert it to a floating type or reduce by sum"));
}

TEST_CASE("rank body: exchanges", "[.rank]") {
  const auto group = dist::initialize();
  const int rank = group->rank();
  at::Tensor tensor = at::arange(4).add(10 * rank).to(at::kDouble);
  group->broadcast(tensor, 1);
  CHECK(tensor.sum().item<double>() == 46);
  std::vector<at::Tensor> several{at::full({2}, rank), at::full({3}, rank + 5.0).to(at::kDouble),
                                  at::full({2, 2}, rank).to(at::kLong).t()};
  group->broadcast(several, 1);
  CHECK(several[0].sum().item<double>() == 2);
  CHECK(several[1].sum().item<double>() == 18);
  CHECK(several[2].sum().item<double>() == 4);
  group->broadcast(std::vector<at::Tensor>{}, 0);

  const auto parts = group->all_gather(at::full({2}, rank + 1));
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].sum().item<double>() == 2);
  CHECK(parts[1].sum().item<double>() == 4);

  using namespace std::string_literals;
  CHECK(group->broadcast_bytes(rank == 1 ? "run\0name"s : "ignored, longer"s, 1) == "run\0name"s);
  CHECK(group->broadcast_bytes(rank == 0 ? "" : "x").empty());
  CHECK(group->all_gather_bytes(rank == 0 ? "" : "only one") ==
        std::vector<std::string>{"", "only one"});
  CHECK(group->all_gather_bytes("") == std::vector<std::string>{"", ""});
  CHECK_THAT(error_of([&] { group->broadcast(tensor, 2); }),
             ContainsSubstring("source is rank 2, expected 0 to 1"));
}

TEST_CASE("rank body: parts", "[.rank]") {
  const auto group = dist::initialize();
  const int rank = group->rank();
  const int size = group->size();
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto options = at::TensorOptions(type);
    const at::Tensor whole = at::zeros({size, 2, 3}, options);
    group->all_gather_into(whole, at::full({6}, rank + 1, options));
    const at::Tensor part = at::zeros({3}, options);
    // Row j of rank r is 10 * r + j.
    group->reduce_scatter_into(
        part,
        at::arange(size, options).add(10 * rank).view({size, 1}).expand({size, 3}).contiguous());
    for (int r = 0; r < size; ++r) {
      CHECK(whole[r].eq(r + 1).all().item<bool>());
    }
    const at::Tensor given =
        at::arange(size, options).add(10 * rank).view({size, 1}).repeat({1, 2});
    const at::Tensor received = at::zeros({size, 2}, options);
    group->all_to_all_into(received, given);
    const at::Tensor of_all = at::zeros({size, 2}, options);
    group->dist::Communicator::all_to_all_into(of_all, given);  // where a backend has no such call
    for (int r = 0; r < size; ++r) {
      CHECK(received[r].eq(10 * r + rank).all().item<bool>());
    }
    CHECK(of_all.equal(received));
    CHECK(part.eq(10 * (size * (size - 1) / 2) + size * rank).all().item<bool>());
  }
  const at::Tensor first = at::zeros({2 * size});
  const at::Tensor second = at::zeros({size});
  const auto wait_first = group->start_all_gather_into(first, at::full({2}, double(rank)));
  const auto wait_second = group->start_all_gather_into(second, at::full({1}, -double(rank)));
  wait_second();
  wait_first();
  CHECK(first.sum().item<double>() == size * (size - 1));
  CHECK(second.sum().item<double>() == -size * (size - 1) / 2);

  CHECK_THAT(error_of([&] { group->all_gather_into(at::zeros({size + 1}), at::zeros({1})); }),
             ContainsSubstring("the whole has") && ContainsSubstring("parts of one size and type"));
  CHECK_THAT(
      error_of([&] { group->reduce_scatter_into(at::zeros({2, 2}).t(), at::zeros({size, 4})); }),
      ContainsSubstring("not contiguous"));
  CHECK_THAT(error_of([&] { group->all_to_all_into(at::zeros({size + 1}), at::zeros({size})); }),
             ContainsSubstring("parts of one size and type in each"));
}

TEST_CASE("rank body: groups of some ranks", "[.rank]") {
  const auto group = dist::initialize();
  const int rank = group->rank();
  const std::vector<int> mine = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  for (int i = 0; i < 2; ++i) {  // a second group of the same ranks is another
    const auto half = group->subgroup(mine);
    CHECK(half->size() == 2);
    CHECK(half->rank() == rank % 2);
    CHECK(half->all_reduce_value(rank) == (rank < 2 ? 1 : 5));
    const at::Tensor whole = at::zeros({2});
    half->all_gather_into(whole, at::full({1}, double(rank)));
    CHECK(whole[1].item<int>() == mine[1]);
  }
  CHECK(group->subgroup({rank})->backend() == "none");
  CHECK_THAT(error_of([&] { (void)group->subgroup({(rank + 1) % 4}); }),
             ContainsSubstring("is not among the ranks"));
  CHECK_THAT(error_of([&] { (void)group->subgroup({1, 0}); }), ContainsSubstring("ascending"));
  CHECK(group->all_reduce_value(1) == 4);
}

TEST_CASE("rank body: one default group", "[.rank]") {
  CHECK_FALSE(dist::is_initialized());
  CHECK(dist::world_size() == 2);
  CHECK_THAT(error_of([] { dist::default_group(); }),
             ContainsSubstring("but no process group exists; call tutti::dist::initialize"));
  const auto group = dist::initialize();
  CHECK(dist::initialize() == group);
  CHECK(dist::default_group() == group);
  CHECK(dist::rank() == group->rank());
  CHECK(dist::local_world_size() == 2);
  CHECK_THAT(
      error_of([&] { dist::initialize(c10::DeviceType::CPU, milliseconds(1), place(0, 3, 1)); }),
      ContainsSubstring("environment says"));
  CHECK_THAT(error_of([&] { dist::initialize(c10::DeviceType::CUDA); }),
             ContainsSubstring("uses gloo, but a model on cuda needs nccl"));
  group->barrier();
}

TEST_CASE("rank body: a second group", "[.rank]") {
  for (int i = 0; i < 3; ++i) {
    const auto group = dist::initialize();
    CHECK(group->all_reduce_value(group->rank() + i) == 1 + 2 * i);
    dist::shutdown();
    CHECK_FALSE(dist::is_initialized());
  }
}

TEST_CASE("rank body: a rank that stays away", "[.rank]") {
  const auto group = dist::initialize(c10::DeviceType::CPU, milliseconds(1500));
  if (group->rank() == 0) {
    CHECK_THAT(error_of([&] { group->barrier(); }),
               ContainsSubstring("tutti::dist::barrier: rank 0 of 2 (local rank 0 of 2, node 0) "
                                 "failed (timeout 1.5 s)") &&
                   ContainsSubstring("Another rank failed, left, or did not make the same call"));
  } else {
    std::this_thread::sleep_for(milliseconds(3000));
    CHECK(true);
  }
}

TEST_CASE("rank body: a rank that dies", "[.rank]") {
  const auto group = dist::initialize();
  if (group->rank() == 1) {
    _exit(3);
  }
  CHECK_THAT(error_of([&] { group->barrier(); }),
             ContainsSubstring("tutti::dist::barrier: rank 0 of 2") &&
                 ContainsSubstring("look for its own error first"));
}

TEST_CASE("all ranks reduce and exchange values", "[dist][group]") {
  CHECK(run_ranks("rank body: reductions") == all_passed);
  CHECK(run_ranks("rank body: exchanges") == all_passed);
}

TEST_CASE("all ranks gather into one tensor and each gets its part of a sum", "[dist][group]") {
  CHECK(run_ranks("rank body: parts") == all_passed);
  CHECK(run_ranks("rank body: parts", 3) == all_passed);
}

TEST_CASE("some ranks of a group make one of their own", "[dist][group]") {
  CHECK(run_ranks("rank body: groups of some ranks", 4) == all_passed);
}

TEST_CASE("the default group is made once", "[dist][group]") {
  CHECK(run_ranks("rank body: one default group") == all_passed);
}

TEST_CASE("a group can be shut down and started again", "[dist][group]") {
  CHECK(run_ranks("rank body: a second group") == all_passed);
}

TEST_CASE("a rank that stays away is reported after the timeout", "[dist][group]") {
  CHECK(run_ranks("rank body: a rank that stays away") == all_passed);
}

TEST_CASE("a rank that dies ends the others at once", "[dist][group]") {
  const auto begin = std::chrono::steady_clock::now();
  const std::string report = run_ranks("rank body: a rank that dies");
  CHECK_THAT(report, ContainsSubstring("--- rank 1 failed"));
  CHECK_THAT(report, !ContainsSubstring("--- rank 0"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(40));
}

TEST_CASE("rank body: nobody else was started", "[.rank]") {
  const int port = tutti_test::free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const auto start = [&](int rank) {
    return error_of([&] { dist::Group(place(rank, 2, port), at::kCPU, milliseconds(700)); });
  };
  CHECK_THAT(start(0), ContainsSubstring("This rank serves the others at " + address) &&
                           ContainsSubstring("all 2 ranks were started"));
  CHECK_THAT(start(1), ContainsSubstring("Rank 0 was looked for at " + address));
}

TEST_CASE("ranks that were never started are reported with the place", "[dist][group]") {
  CHECK(run_ranks("rank body: nobody else was started", 1) == all_passed);
}

TEST_CASE("a group for an unsupported device or timeout is refused", "[dist][group]") {
  const auto start = [](c10::DeviceType device, milliseconds timeout) {
    return error_of([&] { dist::Group(place(0, 2, 1), device, timeout); });
  };
  CHECK_THAT(start(at::kCPU, milliseconds(0)),
             ContainsSubstring("timeout is 0 ms, expected more than 0"));
  CHECK_THAT(start(at::kMPS, milliseconds(1)), ContainsSubstring("cpu and cuda are supported"));
#if !TUTTI_WITH_CUDA
  CHECK_THAT(start(at::kCUDA, milliseconds(1)), ContainsSubstring("-DTUTTI_WITH_CUDA=ON"));
#endif
}

}  // namespace UNITY_BUILD_UNIQUE_ID
