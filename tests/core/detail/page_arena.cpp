#include <tutti/core/detail/page_arena.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::detail::PageArena;

constexpr std::size_t page = PageArena::page;
constexpr std::size_t mib = 1 << 20;

// Pages of the block that are memory now.
std::size_t resident(void* block, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / page);
  REQUIRE(::mincore(block, bytes, pages.data()) == 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

}  // namespace

TEST_CASE("blocks are whole pages and counted", "[page_arena]") {
  PageArena arena(64 * mib);
  REQUIRE(arena.usable());
  CHECK(arena.held() == 0);
  void* block = arena.take(5000);
  CHECK(reinterpret_cast<std::uintptr_t>(block) % page == 0);
  CHECK(arena.in_use() == 2 * page);
  CHECK(arena.held() == PageArena::step);
  CHECK(arena.has(block));
  CHECK(arena.has(static_cast<char*>(block) + 4999));
  int outside = 0;
  CHECK_FALSE(arena.has(&outside));
  CHECK_FALSE(arena.has(nullptr));
  arena.give(block);
  CHECK(arena.in_use() == 0);
  CHECK(arena.held() == PageArena::step);
}

TEST_CASE("the smallest free run that is large enough is taken", "[page_arena]") {
  PageArena arena(64 * mib);
  void* large = arena.take(10 * page);
  void* wall = arena.take(page);
  void* small = arena.take(4 * page);
  void* end = arena.take(page);
  arena.give(large);
  arena.give(small);
  CHECK(arena.take(3 * page) == small);
  CHECK(arena.take(10 * page) == large);
  arena.give(wall);
  arena.give(end);
}

TEST_CASE("free neighbours become one, whichever is freed first", "[page_arena]") {
  std::vector<int> order{0, 1, 2, 3};
  do {
    PageArena arena(PageArena::step);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(arena.take(PageArena::step / 4));
    }
    CHECK(arena.take(page) == nullptr);
    for (const int i : order) {
      arena.give(blocks[static_cast<std::size_t>(i)]);
    }
    CHECK(arena.take(PageArena::step) == blocks.front());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("the range grows with what is asked for, its free end counted", "[page_arena]") {
  PageArena arena(256 * mib);
  void* first = arena.take(20 * mib);
  CHECK(arena.held() == 32 * mib);
  void* second = arena.take(40 * mib);
  CHECK(arena.held() == 64 * mib);  // 12 were left
  CHECK(static_cast<char*>(second) == static_cast<char*>(first) + 20 * mib);
  std::memset(second, 1, 40 * mib);
  CHECK(arena.take(100 * mib) != nullptr);
  CHECK(arena.held() == 160 * mib);  // 4 were left
}

TEST_CASE("without room there is no block, and nothing is lost", "[page_arena]") {
  PageArena arena(40 * mib);
  CHECK(arena.take(0) == nullptr);
  CHECK(arena.take(41 * mib) == nullptr);
  CHECK(arena.take(std::size_t(-1)) == nullptr);
  void* all = arena.take(40 * mib);
  REQUIRE(all != nullptr);
  CHECK(arena.take(1) == nullptr);
  arena.give(all);
  CHECK(arena.take(40 * mib) == all);
}

TEST_CASE("an arena without addresses gives nothing", "[page_arena]") {
  PageArena none(0);
  CHECK_FALSE(none.usable());
  CHECK_FALSE(none.has(nullptr));
  CHECK(none.take(1) == nullptr);
  PageArena too_many(std::size_t{1} << 60);
  CHECK_FALSE(too_many.usable());
  CHECK(too_many.take(1) == nullptr);
}

TEST_CASE("a program whose memory is limited gets no addresses", "[page_arena][native]") {
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{.rlim_cur = std::size_t{1} << 50, .rlim_max = RLIM_INFINITY};
      ::setrlimit(resource, &limit);
      ::_exit(PageArena::default_capacity() == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE("release() gives back what is free and leaves what is used", "[page_arena]") {
  PageArena arena(64 * mib);
  void* used = arena.take(4 * mib);
  void* freed = arena.take(8 * mib);
  std::memset(used, 7, 4 * mib);
  std::memset(freed, 7, 8 * mib);
  arena.give(freed);
  CHECK(resident(freed, 8 * mib) == 8 * mib / page);
  arena.release();
  CHECK(resident(freed, 8 * mib) == 0);
  CHECK(resident(used, 4 * mib) == 4 * mib / page);
  CHECK(static_cast<unsigned char*>(used)[4 * mib - 1] == 7);
  CHECK(arena.take(8 * mib) == freed);
  std::memset(freed, 1, 8 * mib);
}

TEST_CASE("blocks never overlap, whatever is taken and given, by several threads",
          "[page_arena][law]") {
  PageArena arena(512 * mib);
  std::vector<int> damaged(4);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, &damaged, t] {
      std::mt19937 random(t);
      std::vector<std::pair<unsigned char*, std::size_t>> blocks;
      for (int i = 0; i < 4000; ++i) {
        if (blocks.size() < 40 && random() % 2 == 0) {
          const std::size_t bytes = 1 + random() % (16 * page);
          auto* block = static_cast<unsigned char*>(arena.take(bytes));
          if (block == nullptr) {
            ++damaged[t];
            continue;
          }
          block[0] = block[bytes - 1] = static_cast<unsigned char>(t);
          blocks.emplace_back(block, bytes);
        } else if (!blocks.empty()) {
          std::swap(blocks[random() % blocks.size()], blocks.back());
          const auto [block, bytes] = blocks.back();
          damaged[t] += block[0] != t || block[bytes - 1] != t;
          arena.give(block);
          blocks.pop_back();
        }
      }
      for (const auto& [block, bytes] : blocks) {
        arena.give(block);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(damaged == std::vector<int>(4));
  CHECK(arena.in_use() == 0);
  CHECK(arena.take(arena.held()) != nullptr);  // all of it is one run again
}

}  // namespace UNITY_BUILD_UNIQUE_ID
