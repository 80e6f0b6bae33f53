#include <tutti/train/cpu_memory.hpp>

#include "support/catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

#include "support/out_of_memory.hpp"
#include "support/tiny.hpp"

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

// LibTorch's own allocator again, as a program starts with, here and when the test is over.
struct Fresh {
  Fresh() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
  ~Fresh() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
};

bool caches() {
  return c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator();
}

// Memory is not cached in this program, whatever is done, and the test says so.
bool cannot() {
  if (!cpu::cache_memory()) {
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

constexpr std::size_t mib = 1 << 20;

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
  at::Tensor cached = at::ones({mib});
  old.reset();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  CHECK(cpu::memory_allocated() == before + 4 * mib);
  std::thread([&] { cached.reset(); }).join();
  CHECK(cpu::memory_allocated() == before);
}

TEST_CASE("memory without a tensor is given and taken back, small and large", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
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
  CHECK_THROWS_WITH(at::empty({std::int64_t{1} << 50}), ContainsSubstring("can't allocate memory"));
}

TEST_CASE("an allocator that the program has set is left alone", "[cpu_memory]") {
  const Fresh fresh;
  OwnAllocator own;
  c10::SetCPUAllocator(&own);
  CHECK_FALSE(cpu::cache_memory());
  CHECK(c10::GetCPUAllocator() == &own);
}

TEST_CASE("empty_cache() gives back what no tensor uses", "[cpu_memory]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  at::Tensor x = at::ones({8 * mib}, at::kByte);
  const void* memory = x.const_data_ptr();
  cpu::empty_cache();
  CHECK(resident(memory));
  CHECK(x.eq(1).all().item<bool>());
  x.reset();
  CHECK(resident(memory));
  { const cpu::Cache until_here; }
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
      at::empty({1 << 16});
    }
  });
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);
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

TEST_CASE("a trainer on a CPU caches unless it is told not to", "[cpu_memory][trainer]") {
  const Fresh fresh;
  const bool can = cpu::cache_memory();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  const auto make = [](bool cache) {
    Trainer<> trainer(tiny::net(), {.train = tiny::batches(1),
                                    .max_duration = "1ep",
                                    .optimizer = SGD{.lr = 0.1},
                                    .device = "cpu",
                                    .cache_cpu_memory = cache,
                                    .progress_bar = false});
  };
  make(false);
  CHECK_FALSE(caches());
  make(true);
  CHECK(caches() == can);
}

TEST_CASE("what a trainer alone held goes back to the system with it", "[cpu_memory][trainer]") {
  const Fresh fresh;
  if (cannot()) {
    return;
  }
  const void* data = nullptr;
  const void* weight = nullptr;
  const auto make = [&] {
    const at::Tensor x = at::randn({8, 1 << 18});
    const torch::nn::Linear net(1 << 18, 10);
    data = x.const_data_ptr();
    weight = net->weight.const_data_ptr();
    return std::make_unique<Trainer<>>(
        Classifier{net, {.num_classes = 10}},
        TrainerOptions{.train = TensorLoader{x, at::randint(10, {8}), {.batch_size = 8}},
                       .max_duration = "1ba",
                       .optimizer = SGD{.lr = 0.1},
                       .device = "cpu",
                       .progress_bar = false});
  };
  auto trainer = make();
  trainer->fit();
  CHECK(resident(data));
  trainer.reset();
  CHECK_FALSE(resident(data));
  CHECK_FALSE(resident(weight));
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
  CHECK(used > 0);
  trainer.fit({.duration = "12ba"});
  CHECK(cpu::detail::arena().held() == held);
  CHECK(cpu::memory_allocated() == used);
}
