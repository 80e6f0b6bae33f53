#include <tutti/train/cpu_memory.hpp>

#include "support/catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

#include "support/out_of_memory.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

constexpr std::int64_t mib = 1 << 20;

// LibTorch's own allocator again, as a program starts with, here and when the test is over.
struct Fresh {
  Fresh() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
  ~Fresh() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
};

bool is_libtorchs() {
  return c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
}

// The memory of the last tensor of 1 MiB that this thread made is kept, or would be.
bool keeps() {
  const at::Tensor x = at::empty({mib}, at::kByte);
  return cpu::detail::arena().has(x.const_data_ptr());
}

bool another_thread_keeps() {
  bool result = false;
  std::thread([&] { result = keeps(); }).join();
  return result;
}

// Memory is not cached in this program, whatever is done, and the test says so.
bool cannot() {
  if (!cpu::Cache().on()) {
    tutti_test::skip("built with AddressSanitizer, or run where addresses are limited");
    return true;
  }
  return false;
}

class OwnAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// The first whole 2 MiB of a block of 4 MiB or more are memory now, as seen by their first page.
bool resident(const void* block) {
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(block) + 2 * mib - 1) / (2 * mib) * (2 * mib);
  unsigned char there = 0;
  REQUIRE(::mincore(reinterpret_cast<void*>(begin), 4096, &there) == 0);
  return (there & 1) != 0;
}

// Memory for four examples. Notes whether what was freed is still kept when they are tried.
struct RoomForFour final {
  const void* freed = nullptr;
  bool kept = true;
  void apply(AfterForward, State& state) {
    if (state.batch.num_samples() > 4) {
      freed = at::ones({8 * mib}, at::kByte).const_data_ptr();
      tutti_test::out_of_memory();
    }
    kept = kept && resident(freed);
  }
};

// Whether this thread and another keep memory, at one event of each of the trainer's calls.
struct Looks final {
  std::vector<bool> seen{};
  void apply(Init, State&) { look(); }
  void apply(FitStart, State&) { look(); }
  void apply(EvalStandaloneStart, State&) { look(); }
  void apply(PredictStart, State&) { look(); }
  void look() { seen = {keeps(), another_thread_keeps()}; }
};

// Four examples that are made of large tensors. Counts those whose memory is kept.
struct Wide {
  std::shared_ptr<std::atomic<int>> kept;
  [[nodiscard]] std::int64_t size() const { return 4; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(std::int64_t) const {
    *kept += keeps() ? 1 : 0;
    return {at::ones({4}), at::ones({2})};
  }
};

// Trains another model at the start of each batch. Counts the batches that it sees with memory
// kept.
struct Inner final {
  int kept = 0;
  void apply(BatchStart, State&) {
    Trainer<> trainer(tiny::net(), {.train = tiny::batches(1),
                                    .max_duration = "1ba",
                                    .optimizer = SGD{.lr = 0.1},
                                    .device = "cpu",
                                    .progress_bar = false});
    trainer.fit();
    kept += keeps() ? 1 : 0;
  }
};

struct Holds final {
  at::Tensor tensor{};
  at::Tensor other{};
  void apply(BatchStart, State&) {
    tensor = at::ones({8 * mib}, at::kByte);
    other = at::ones({8 * mib}, at::kByte);
  }
};

TrainerOptions options(int batches, bool cache) {
  at::manual_seed(5);
  return {
      .train = TensorLoader{at::randn({64, 3, 32, 32}), at::randint(10, {64}), {.batch_size = 32}},
      .max_duration = Time(batches, TimeUnit::batch),
      .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
      .device = "cpu",
      .cache_cpu_memory = cache,
      .seed = 3,
      .progress_bar = false};
}

std::shared_ptr<models::ResNetImpl> net() {
  at::manual_seed(4);
  return models::cifar_resnet({.blocks = {1, 1}, .widths = {16, 32}}).ptr();
}

}  // namespace

TEST_CASE("a large tensor gets the memory of the one before it", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const cpu::Cache cache;
  const std::size_t before = cpu::memory_allocated();
  at::Tensor x = at::ones({1 << 18});
  const void* memory = x.const_data_ptr();
  CHECK(cpu::memory_allocated() == before + mib);
  at::Tensor view = x.slice(0, 5);
  x.reset();
  CHECK(cpu::memory_allocated() == before + mib);
  CHECK(view.sum().item<double>() == (1 << 18) - 5);
  view.reset();
  CHECK(cpu::memory_allocated() == before);
  CHECK(at::zeros({1 << 18}).const_data_ptr() == memory);
}

TEST_CASE("small tensors are LibTorch's as ever", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const cpu::Cache cache;
  const std::size_t before = cpu::memory_allocated();
  const at::Tensor small = at::empty({(1 << 16) - 1}, at::kByte);
  CHECK(cpu::memory_allocated() == before);
  const at::Tensor large = at::empty({1 << 16}, at::kByte);
  CHECK(cpu::memory_allocated() == before + (1 << 16));
  CHECK(at::empty({0}).numel() == 0);
}

TEST_CASE("tensors may be freed under another allocator than they were made with", "[cpu_memory]") {
  const Fresh fresh;
  at::Tensor old = at::ones({mib});
  if (cannot()) {
    return;
  }
  const std::size_t before = cpu::memory_allocated();
  at::Tensor cached;
  {
    const cpu::Cache cache;
    cached = at::ones({mib});
    old.reset();
  }
  CHECK(cpu::memory_allocated() == before + 4 * mib);
  std::thread([&] { cached.reset(); }).join();
  CHECK(cpu::memory_allocated() == before);
}

TEST_CASE("a tensor that outlives the scope can still grow", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const std::size_t before = cpu::memory_allocated();
  at::Tensor x;
  {
    const cpu::Cache cache;
    x = at::ones({1 << 18});
  }
  x.resize_({1 << 20});  // by the allocator that it remembers
  CHECK(x.slice(0, 0, 1 << 18).eq(1).all().item<bool>());
  CHECK(cpu::memory_allocated() == before);
}

TEST_CASE("LibTorch has its own allocator again after the last scope", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  CHECK(is_libtorchs());
  {
    const cpu::Cache outer;
    {
      const cpu::Cache inner;
      const cpu::Cache nothing(false);
      CHECK(keeps());
    }
    CHECK(keeps());
  }
  CHECK(is_libtorchs());
  CHECK_FALSE(keeps());
}

TEST_CASE("other threads keep the program's allocator", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const cpu::Cache cache;
  CHECK(keeps());
  CHECK_FALSE(another_thread_keeps());
  bool own_keeps = false;
  std::thread([&] {
    const cpu::Cache own;
    own_keeps = keeps();
  }).join();
  CHECK(own_keeps);
  CHECK(keeps());
}

TEST_CASE("memory without a tensor is given and taken back, small and large", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const cpu::Cache cache;
  const std::size_t before = cpu::memory_allocated();
  void* small = c10::GetCPUAllocator()->raw_allocate(100);
  void* large = c10::GetCPUAllocator()->raw_allocate(mib);
  CHECK(cpu::memory_allocated() == before + mib);
  c10::GetCPUAllocator()->raw_deallocate(large);
  c10::GetCPUAllocator()->raw_deallocate(small);
  CHECK(cpu::memory_allocated() == before);
  at::Tensor x = at::ones({1 << 15});
  x.resize_({1 << 20});  // copies into a larger block
  CHECK(x.slice(0, 0, 1 << 15).eq(1).all().item<bool>());
}

TEST_CASE("what does not fit is refused in LibTorch's words", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;  // AddressSanitizer ends the program
  }
  const cpu::Cache cache;
  CHECK_THROWS_WITH(at::empty({std::int64_t{1} << 50}), ContainsSubstring("can't allocate memory"));
}

TEST_CASE("an allocator that the program has set is left alone", "[cpu_memory]") {
  const Fresh fresh;
  OwnAllocator own;
  c10::SetCPUAllocator(&own);
  {
    const cpu::Cache cache;
    CHECK_FALSE(cache.on());
    CHECK(c10::GetCPUAllocator() == &own);
  }
  CHECK(c10::GetCPUAllocator() == &own);
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  {
    const cpu::Cache cache;
    c10::SetCPUAllocator(&own);  // in between
  }
  CHECK(c10::GetCPUAllocator() == &own);
}

TEST_CASE("empty_cache() gives back what no tensor uses", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const cpu::Cache cache;
  at::Tensor x = at::ones({8 * mib}, at::kByte);
  const void* memory = x.const_data_ptr();
  cpu::empty_cache();
  CHECK(resident(memory));
  CHECK(x.eq(1).all().item<bool>());
  x.reset();
  CHECK(resident(memory));
  cpu::empty_cache();
  CHECK_FALSE(resident(memory));
}

TEST_CASE("a forked process has memory, whatever its parent's threads were doing", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      const cpu::Cache cache;
      at::empty({1 << 16});
    }
  });
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);
      const cpu::Cache cache;
      at::empty({1 << 16});
      ::_exit(0);
    }
    int status = 0;
    failed += ::waitpid(child, &status, 0) != child || status != 0;
  }
  over = true;
  other.join();
  CHECK(failed == 0);
}

TEST_CASE("a trainer on a CPU caches in its calls, for itself, unless it is told not to",
          "[cpu_memory][trainer]") {
  const Fresh fresh;
  const bool can = cpu::Cache().on();
  for (const bool cache : {false, true}) {
    Trainer trainer{tiny::net(),
                    {.train = tiny::batches(1),
                     .eval = {{"test", tiny::batches(1)}},
                     .max_duration = "1ep",
                     .optimizer = SGD{.lr = 0.1},
                     .device = "cpu",
                     .cache_cpu_memory = cache,
                     .progress_bar = false},
                    Looks{}};
    const std::vector<bool> expected{can && cache, false};
    const auto seen = [&] { return std::exchange(trainer.template get<Looks>().seen, {}); };
    CHECK(seen() == expected);  // Init
    CHECK(is_libtorchs());
    trainer.fit();
    CHECK(seen() == expected);
    CHECK(is_libtorchs());
    trainer.eval();
    CHECK(seen() == expected);
    trainer.predict(tiny::batches(1));
    CHECK(seen() == expected);
    CHECK(is_libtorchs());
  }
}

TEST_CASE("threads that prepare batches for a trainer keep memory for it", "[cpu_memory][data]") {
  const Fresh fresh;
  const bool can = cpu::Cache().on();
  const auto kept = std::make_shared<std::atomic<int>>(0);
  DataLoader loader(Wide{kept}, {.batch_size = 2, .num_workers = 2});
  Trainer<> trainer(tiny::net(), {.train = loader,
                                  .max_duration = "1ep",
                                  .optimizer = SGD{.lr = 0.1},
                                  .device = "cpu",
                                  .progress_bar = false});
  trainer.fit();
  CHECK(*kept == (can ? 4 : 0));
  loader.start(0);
  while (loader.next()) {
  }
  CHECK(*kept == (can ? 4 : 0));  // nobody's call
}

TEST_CASE("trainers inside of one another and beside one another cache for each",
          "[cpu_memory][trainer]") {
  const Fresh fresh;
  const bool can = cpu::Cache().on();
  const auto run = [](Inner inner) {
    Trainer trainer{tiny::net(),
                    {.train = tiny::batches(20),
                     .max_duration = "1ep",
                     .optimizer = SGD{.lr = 0.1},
                     .device = "cpu",
                     .progress_bar = false},
                    std::move(inner)};
    trainer.fit();
    return trainer.template get<Inner>().kept;
  };
  std::vector<std::thread> threads;
  std::vector<int> kept(3);
  for (int& number : kept) {
    threads.emplace_back([&] { number = run(Inner{}); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(kept == std::vector<int>(3, can ? 20 : 0));
  CHECK(is_libtorchs());
}

TEST_CASE("what a trainer alone held goes back to the system with it", "[cpu_memory][trainer]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  auto trainer =
      std::make_unique<Trainer<Holds>>(tiny::net(), TrainerOptions{.train = tiny::batches(1),
                                                                   .max_duration = "1ba",
                                                                   .optimizer = SGD{.lr = 0.1},
                                                                   .device = "cpu",
                                                                   .progress_bar = false});
  trainer->fit();
  const void* held = trainer->get<Holds>().tensor.const_data_ptr();
  CHECK(cpu::detail::arena().has(held));
  const at::Tensor outlives = trainer->get<Holds>().other;
  CHECK(resident(held));
  trainer.reset();
  CHECK_FALSE(resident(held));
  CHECK(outlives.eq(1).all().item<bool>());
}

TEST_CASE("what is kept goes back before a smaller microbatch is tried", "[cpu_memory][trainer]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  Trainer trainer{tiny::net(),
                  {.train = tiny::batches(1, 8),
                   .max_duration = "1ba",
                   .optimizer = SGD{.lr = 0.1},
                   .device_train_microbatch_size = "auto",
                   .device = "cpu",
                   .progress_bar = false},
                  RoomForFour{}};
  trainer.fit();
  CHECK(trainer.get<RoomForFour>().freed != nullptr);
  CHECK_FALSE(trainer.get<RoomForFour>().kept);
}

TEST_CASE("a run is the same with cached memory and without", "[cpu_memory][trainer]") {
  const Fresh fresh;
  std::vector<at::Tensor> weights;
  for (const bool cache : {false, true}) {
    auto model = net();
    Trainer<> trainer(Classifier{model, {.num_classes = 10}}, options(4, cache));
    trainer.fit();
    weights.push_back(tiny::flat(*model));
  }
  CHECK(weights[0].equal(weights[1]));
}

TEST_CASE("later steps need no more memory than the first ones", "[cpu_memory][trainer]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  Trainer<> trainer(Classifier{net(), {.num_classes = 10}}, options(3, true));
  trainer.fit();
  const std::size_t held = cpu::detail::arena().held();
  const std::size_t used = cpu::memory_allocated();
  CHECK(held > 0);
  trainer.fit({.duration = "12ba"});
  CHECK(cpu::detail::arena().held() == held);
  CHECK(cpu::memory_allocated() == used);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
