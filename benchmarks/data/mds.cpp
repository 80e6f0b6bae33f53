// Claims: token samples of MDS shards are read five times as fast as by MosaicML Streaming in
// Python, and shards that zstd compressed, decoded beside training, cost a step 2 % at most. CPU.
//
// Usage: benchmark_mds write FOLDER SAMPLES zstd|none SHARD_BYTES  samples of 1024 tokens
//        benchmark_mds read FOLDER shuffle|in_order   two epochs of them in batches of 32
//        benchmark_mds train RAW ZSTD SCRATCH ROUNDS  an epoch on raw shards, one on zstd's, in
//        turn
//
// Prints one line of JSON. `read` gives the CPU seconds of the second epoch and a number that
// depends on the order of the samples. `train` gives, for each epoch, what its steps took: CPU time
// of the loop's thread, and time on the wall where it waits for a batch.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/data/mds_writer.hpp>
#include <tutti/data/streaming_dataset.hpp>

namespace {

constexpr std::int64_t length = 1024;  // tokens of a sample
constexpr std::int64_t vocabulary = 4096;

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Tokens with the frequencies of words, Zipf's. The first is the sample's number.
int write(const std::string& folder, std::int64_t samples, const std::string& compression,
          std::int64_t shard_bytes) {
  at::manual_seed(1);
  tutti::data::MDSWriter out(folder,
                             {.columns = {{"tokens", "ndarray:int32:" + std::to_string(length)}},
                              .compression = compression == "none" ? "" : compression,
                              .size_limit = shard_bytes});
  for (std::int64_t i = 0; i < samples; ++i) {
    at::Tensor tokens = at::rand({length}).mul_(std::log(vocabulary)).exp_().sub_(1).to(at::kInt);
    tokens[0] = i;
    out.write({{"tokens", tokens}});
  }
  out.finish();
  std::printf("{\"samples\": %lld}\n", static_cast<long long>(samples));
  return 0;
}

int read(const std::string& folder, bool shuffle) {
  tutti::data::StreamingDataLoader loader{
      tutti::data::StreamingDataset{{{.local = folder}}, {.batch_size = 32, .shuffle = shuffle}}};
  std::uint64_t order = 0;
  std::int64_t samples = 0;
  loader.start(0);
  while (const auto batch = loader.next()) {
    const at::Tensor numbers = batch->at("tokens").select(1, 0).contiguous();
    for (std::int64_t i = 0; i < numbers.size(0); ++i) {
      order = order * 1'000'003 + static_cast<std::uint64_t>(numbers.data_ptr<int>()[i]);
    }
  }
  const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  loader.start(1);
  while (const auto batch = loader.next()) {
    samples += batch->at("tokens").size(0);
  }
  std::printf("{\"seconds\": %.6f, \"samples\": %lld, \"order\": %llu, \"torch\": \"%s\"}\n",
              seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin, static_cast<long long>(samples),
              static_cast<unsigned long long>(order), TORCH_VERSION);
  return 0;
}

// A small language model on the shards of a stream: embedding, one hidden layer, loss of the next
// token modulo 64. The order jumps within two shards or so.
class Run {
 public:
  explicit Run(const tutti::data::Stream& stream)
      : loader_(tutti::data::StreamingDataset{
            {stream}, {.batch_size = 8, .shuffle = true, .shuffle_block_size = 1024}}) {
    at::manual_seed(2);
    weights_ = {at::randn({vocabulary, 16}), at::randn({16, 64}), at::randn({64, 64})};
    for (at::Tensor& weight : weights_) {
      weight.mul_(0.1).requires_grad_(true);
    }
    optimizer_ = std::make_unique<torch::optim::SGD>(weights_, 0.01);
    loader_.start(0);
  }

  // So many steps, or as many as there are. Seconds are added up and divided at the end.
  void steps(std::int64_t count) {
    double step = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      const double asked = seconds_of(CLOCK_MONOTONIC);
      const auto batch = loader_.next();
      const double got = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      waited += seconds_of(CLOCK_MONOTONIC) - asked;
      next += got - begin;
      TORCH_CHECK(batch, "the epoch is over");
      train(batch->at("tokens").remainder(vocabulary));  // [8, length]
      step += seconds_of(CLOCK_THREAD_CPUTIME_ID) - got;
    }
    done += count;
    blocks.push_back(step / static_cast<double>(count));
  }

  std::vector<double> blocks{};  // seconds of CPU time of this thread for a step, in each block
  double next = 0;               // the same for all batches together
  double waited = 0;             // on the wall
  std::int64_t done = 0;
  double loss = 0;

 private:
  void train(const at::Tensor& tokens) {
    const at::Tensor inputs = tokens.slice(1, 0, length - 1).reshape({-1});
    const at::Tensor targets = tokens.slice(1, 1).reshape({-1}).remainder(64).to(at::kLong);
    optimizer_->zero_grad();
    const at::Tensor hidden = at::embedding(weights_[0], inputs).mm(weights_[1]).relu();
    const at::Tensor out = at::cross_entropy_loss(hidden.mm(weights_[2]), targets);
    out.backward();
    optimizer_->step();
    loss = out.item<double>();
  }

  tutti::data::StreamingDataLoader loader_;
  std::vector<at::Tensor> weights_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

// Raw shards are on this machine already; zstd's are fetched into an empty folder and decoded.
int train(const std::string& raw, const std::string& zstd, const std::string& scratch, int blocks) {
  constexpr std::int64_t block = 32;  // steps
  Run runs[] = {Run({.local = raw}),
                Run({.remote = tutti::LocalObjectStore{zstd}, .local = scratch})};
  for (int i = 0; i < 2 * blocks; ++i) {
    runs[i / 2 % 2 == 0 ? i % 2 : 1 - i % 2].steps(block);
  }
  TORCH_CHECK(runs[0].loss == runs[1].loss, "the runs had other batches");
  std::printf("{\"torch\": \"%s\"", TORCH_VERSION);
  for (int way = 0; way < 2; ++way) {
    const Run& run = runs[way];
    const auto done = static_cast<double>(run.done);
    std::printf(", \"%s\": {\"next\": %.9f, \"waited\": %.9f, \"steps\": [",
                way == 0 ? "raw" : "zstd", run.next / done, run.waited / done);
    for (std::size_t i = 0; i < run.blocks.size(); ++i) {
      std::printf("%s%.9f", i == 0 ? "" : ", ", run.blocks[i]);
    }
    std::printf("]}");
  }
  std::printf("}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  at::set_num_threads(1);
  if (words.size() == 5 && words[0] == "write") {
    return write(words[1], std::atoll(words[2].c_str()), words[3], std::atoll(words[4].c_str()));
  }
  if (words.size() == 3 && words[0] == "read") {
    return read(words[1], words[2] == "shuffle");
  }
  if (words.size() == 5 && words[0] == "train") {
    return train(words[1], words[2], words[3], std::atoi(words[4].c_str()));
  }
  std::fprintf(stderr, "usage: benchmark_mds write|read|train ..., as its first lines say\n");
  return 2;
}
