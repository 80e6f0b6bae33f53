// How long training waits for a checkpoint: written at once, and in the background.
//
//     benchmark_checkpoint [MiB of weights] [saves] [folder]
//
// Claim: in the background training waits at most 1.1 times one memcpy of what is saved, once the
// memory for the copy has been reserved by the first save. An MLP with SGD and momentum (weights
// and momentum are saved, about as many bytes each), one thread, fp32, CPU. Three runs: saves at
// once; saves in the background; memcpys of as many bytes between two places that have been touched
// before, after the same pauses. Prints one line of JSON; run.py prints the table.

#include <cstring>
#include <memory>
#include <thread>

#include <time.h>

#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/trainer.hpp>

#include "support.hpp"

namespace {

namespace checkpoint = tutti::checkpoint;

// Time on the wall, and time that this thread was running: on a busy machine only the second says
// what the work was.
struct Moment {
  double wall = read(CLOCK_MONOTONIC);
  double running = read(CLOCK_THREAD_CPUTIME_ID);

  static double read(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
  }
};
struct Waits {
  std::vector<double> wall;
  std::vector<double> running;
  void add(const Moment& begin) {
    const Moment end;
    wall.push_back(end.wall - begin.wall);
    running.push_back(end.running - begin.running);
  }
};

// Blocks of 1024 x 1024, as many as were asked for.
struct Blocks : torch::nn::Module {
  torch::nn::Sequential layers;
  explicit Blocks(std::int64_t mebibytes) {
    for (std::int64_t i = 0; i < mebibytes / 4; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024)));
    }
    layers->push_back(torch::nn::Linear(1024, 10));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
};

// Saves as the trainer does, after every batch, and takes the time that training waits.
struct Measure final {
  static constexpr std::string_view name = "Measure";
  std::shared_ptr<Waits> waited = std::make_shared<Waits>();
  Moment begin{};

  void apply(tutti::BatchCheckpoint, const tutti::State&) { begin = Moment(); }
  void apply(tutti::BeforeDataloader, const tutti::State& state) {
    if (state.timestamp.batch > 0) {
      waited->add(begin);
    }
  }
};

// Training that is short beside a save: the loader waits until nothing is being written, so that
// what is measured is the wait for the copy and not for the disk.
struct Patient {
  std::int64_t batches;
  double pause;
  std::int64_t next_ = 0;
  void start(std::int64_t, std::int64_t first) { next_ = first; }
  std::optional<tutti::Batch> next() {
    if (next_ == batches) {
      return std::nullopt;
    }
    if (next_++ > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause));
    }
    return tutti::Batch(torch::randn({2, 1024}), torch::randint(10, {2}, torch::kLong));
  }
  std::int64_t size() const { return batches; }
};

Waits run(std::int64_t mebibytes, std::int64_t saves, const std::string& folder, bool background,
          double pause) {
  torch::manual_seed(0);
  Measure measure;
  tutti::Trainer trainer(tutti::Classifier(std::make_shared<Blocks>(mebibytes)),
                         {.train = std::make_shared<Patient>(Patient{saves, pause}),
                          .max_duration = tutti::Time::batches(saves),
                          .optimizer = tutti::SGD{.lr = 1e-3, .momentum = 0.9},
                          .device = "cpu",
                          .seed = 1,
                          .progress_bar = false,
                          .save_folder = folder + (background ? "/background" : "/at_once"),
                          .save_interval = "1ba",
                          .save_overwrite = true,
                          .save_num_checkpoints_to_keep = 1,
                          .save_async = background,
                          .on_signal = tutti::OnSignal::ignore},
                         measure);
  trainer.fit();
  return *measure.waited;
}

// One memcpy after each pause, as each save comes after one.
Waits copies(std::size_t bytes, std::int64_t times, double pause) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  Waits out;
  for (std::int64_t i = 0; i < times; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause));
    const Moment begin;
    std::memcpy(to.data(), from.data(), bytes);
    out.add(begin);
    from[static_cast<std::size_t>(i)] = to[bytes - 1];
  }
  return out;
}

void print(const char* name, const char* clock, const std::vector<double>& values) {
  std::printf("\"%s_%s\": [", name, clock);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.3f", i == 0 ? "" : ", ", values[i]);
  }
  std::printf("], ");
}

void print(const char* name, const Waits& waits) {
  print(name, "wall", waits.wall);
  print(name, "running", waits.running);
}

}  // namespace

int main(int count, char** words) {
  const std::int64_t mebibytes = count > 1 ? std::atoll(words[1]) : 128;
  const std::int64_t saves = count > 2 ? std::atoll(words[2]) : 12;
  const std::string folder = count > 3 ? words[3] : "/tmp/tutti_benchmark_checkpoint";
  bench::one_thread();
  std::printf("{");
  const Waits at_once = run(mebibytes, saves, folder, false, 0);
  const double pause = 1.5 * bench::median(at_once.wall);
  const Waits background = run(mebibytes, saves, folder, true, pause);
  const auto saved = static_cast<std::size_t>(2 * mebibytes) << 20;
  print("at_once", at_once);
  print("background", background);
  print("memcpy", copies(saved, saves, pause));
  std::printf("\"mebibytes\": %lld, \"torch\": \"%s\"}\n", static_cast<long long>(2 * mebibytes),
              TORCH_VERSION);
  checkpoint::detail::remove_tree(folder);
}
