// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/one_thread.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/collate.hpp>
#include <tutti/data/detail/item_rng.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/mds.hpp>
#include <tutti/data/streaming_order.hpp>

namespace tutti::data {

/// Shards of one origin, and how much of an epoch they are.
struct Stream {
  AnyObjectStore remote{};  ///< where they are fetched from, such as LocalObjectStore{"/mnt/set"};
                            ///< none: they are in `local`
  std::string local;        ///< folder of this machine that they are kept in; shared by its ranks
  std::string split{};      ///< subfolder of both, such as "train"
  std::optional<double> proportion{};    ///< of the samples of an epoch, relative to others; >= 0
  std::optional<double> repeat{};        ///< how often in an epoch; >= 0
  std::optional<std::int64_t> choose{};  ///< samples in an epoch; >= 0
  std::int64_t download_retry = 2;       ///< how often a download that fails is tried again; >= 0
  bool validate_hash = true;             ///< compare the hashes that the index has
  bool keep_zip = false;                 ///< keep compressed files beside the decompressed ones

  /// The folder of the shards on this machine, and their names in `remote`.
  [[nodiscard]] std::string folder() const { return split.empty() ? local : local + "/" + split; }
  [[nodiscard]] std::string remote_name(const std::string& file) const {
    return split.empty() ? file : split + "/" + file;
  }
};

/// Options of StreamingDataset, by the names of MosaicML Streaming's.
struct StreamingDatasetOptions {
  std::int64_t batch_size = 1;                ///< of a rank
  std::optional<std::int64_t> predownload{};  ///< samples whose shards are fetched ahead of a
                                              ///< rank; default: 8 batches
  std::optional<std::int64_t> cache_limit{};  ///< bytes that fetched shards may take; at least
                                              ///< four times the largest; none: all are kept
  std::string partition_algo = "relaxed";     ///< this and the rest as StreamingOrderOptions
  std::optional<std::int64_t> num_canonical_nodes{};  ///< default: nodes; give it in runs that go
                                                      ///< on with another number of nodes
  bool shuffle = false;
  std::string shuffle_algo = "py1e";
  std::uint64_t shuffle_seed = 9176;
  std::optional<std::int64_t> shuffle_block_size{};
  std::string sampling_method = "balanced";
  std::int64_t sampling_granularity = 1;
  std::string batching_method = "random";
  std::optional<std::int64_t> epoch_size{};
  std::int64_t replication = 1;
  std::function<Batch(const MDSSample& sample)> transform{};  ///< empty: MDSSample::batch

  /// What the order of samples depends on.
  [[nodiscard]] StreamingOrderOptions order() const {
    return {.batch_size = batch_size,
            .num_canonical_nodes = num_canonical_nodes,
            .shuffle = shuffle,
            .shuffle_algo = shuffle_algo,
            .shuffle_seed = shuffle_seed,
            .shuffle_block_size = shuffle_block_size,
            .sampling_method = sampling_method,
            .sampling_granularity = sampling_granularity,
            .batching_method = batching_method,
            .epoch_size = epoch_size,
            .replication = replication,
            .partition_algo = partition_algo};
  }
};

}  // namespace tutti::data

#include <tutti/data/detail/shard_cache.hpp>
#include <tutti/data/detail/streaming_shuffle.hpp>

namespace tutti::data {

/// Samples of MDS shards that are fetched when they are needed.
///
///     tutti::data::StreamingDataset set{
///         {{.remote = tutti::LocalObjectStore{"/mnt/c4"}, .local = "/tmp/c4", .split = "train"}},
///         {.batch_size = 8, .shuffle = true}};
///     tutti::data::StreamingDataLoader train{set, {.num_workers = 2}};
///
/// Of the ranks of a machine one fetches a shard, the others wait for it. It is compared with its
/// size and hashes, decompressed, and gets its name last, so that what is in `local` is whole even
/// where the process was killed. A download that is damaged is tried again. Copies share all.
/// Source: mosaicml-streaming 0.13, `streaming.StreamingDataset`.
class StreamingDataset {
 public:
  /// Reads the indexes, fetching them first.
  /// Throws c10::ValueError for an option out of range, c10::Error when an index cannot be had.
  explicit StreamingDataset(std::vector<Stream> streams, StreamingDatasetOptions options = {})
      : shared_(std::make_shared<Shared>(std::move(streams), std::move(options))) {}

  /// Samples of all streams, each counted once; an epoch may have fewer or more.
  [[nodiscard]] std::int64_t size() const { return shared_->starts.back(); }

  /// Sample `index`, 0 .. size() - 1, counted through the streams, fetching its shard first.
  /// Throws c10::IndexError for another, c10::Error when the shard cannot be had.
  [[nodiscard]] MDSSample sample(std::int64_t index) const {
    const std::size_t shard = shard_of(index);
    return MDSSample(shared_->cache.open(shard), index - shared_->starts[shard]);
  }

  /// The sample as `transform` makes it, or MDSSample::batch.
  [[nodiscard]] Batch get(std::int64_t index) const {
    const MDSSample one = sample(index);
    return shared_->options.transform ? shared_->options.transform(one) : one.batch();
  }

  /// The number of the shard, counted through the streams, that has sample `index`.
  [[nodiscard]] std::size_t shard_of(std::int64_t index) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "StreamingDataset: index is ", index,
                      ", expected 0 to ", size() - 1);
    const auto& starts = shared_->starts;
    const auto above = std::upper_bound(starts.begin(), starts.end(), index);
    return static_cast<std::size_t>(above - starts.begin() - 1);
  }

  /// Fetches a shard unless it is in `local`, and opens it.
  void prepare_shard(std::size_t shard) const { (void)shared_->cache.open(shard); }

  /// Whether this process has a shard open.
  [[nodiscard]] bool is_open(std::size_t shard) const { return shared_->cache.is_open(shard); }

  /// How many samples the shards of each stream have, and how often they are taken.
  [[nodiscard]] const std::vector<StreamSizes>& sizes() const { return shared_->sizes; }

  [[nodiscard]] const StreamingDatasetOptions& options() const { return shared_->options; }

 private:
  // Refuses what does not fit together, before anything is fetched.
  static StreamingDatasetOptions checked(const std::vector<Stream>& streams,
                                         StreamingDatasetOptions options) {
    const auto expect = [](bool ok, const char* name, std::int64_t value, int least) {
      TUTTI_CHECK_VALUE(ok, "StreamingDataset: ", name, " is ", value, ", expected ", least,
                        " or more");
    };
    const std::int64_t predownload = options.predownload.value_or(0);
    expect(predownload >= 0, "predownload", predownload, 0);
    expect(options.replication >= 1, "replication", options.replication, 1);
    std::vector<StreamSizes> sizes;
    for (const Stream& stream : streams) {
      expect(stream.download_retry >= 0, "download_retry", stream.download_retry, 0);
      TUTTI_CHECK_VALUE(!stream.local.empty(), "StreamingDataset: stream ", sizes.size(),
                        " has no `local`, expected the folder that its shards are kept in");
      for (std::size_t other = 0; other < sizes.size(); ++other) {
        TUTTI_CHECK_VALUE(stream.folder() != streams[other].folder(), "StreamingDataset: streams ",
                          other, " and ", sizes.size(), " have the same folder '", stream.folder(),
                          "', expected one for each");
      }
      sizes.push_back({{1}, stream.proportion, stream.repeat, stream.choose});
    }
    detail::check_streaming(sizes, {.ranks_per_node = options.replication}, options.order(), 0, {});
    return options;
  }

  struct Shared {
    Shared(std::vector<Stream> streams, StreamingDatasetOptions given)
        : options(checked(streams, std::move(given))),
          cache(std::move(streams), options.cache_limit) {
      for (const Stream& stream : cache.streams()) {
        sizes.push_back({{}, stream.proportion, stream.repeat, stream.choose});
      }
      for (std::size_t k = 0; k < cache.size(); ++k) {
        starts.push_back(starts.back() + cache.shard(k).samples);
        sizes[cache.stream_of(k)].shards.push_back(cache.shard(k).samples);
      }
      detail::check_streams(sizes);
    }

    StreamingDatasetOptions options;
    detail::ShardCache cache;
    std::vector<StreamSizes> sizes{};
    std::vector<std::int64_t> starts{0};  // of each shard, and the end
  };

  std::shared_ptr<Shared> shared_;
};

/// Options of StreamingDataLoader.
struct StreamingDataLoaderOptions {
  std::int64_t num_workers = 0;      ///< threads that prepare batches; 0: next() does it; >= 0
  std::int64_t prefetch_factor = 2;  ///< batches that are prepared ahead for each thread; >= 1
  bool pin_memory = false;           ///< as DataLoaderOptions::pin_memory
  bool drop_last = false;            ///< leave out the last batch when it is not full
  std::optional<std::int64_t> ranks_per_node{};  ///< such as dist::local_world_size(), for runs on
                                                 ///< several machines; none: all are on one
  std::optional<std::uint64_t> seed{};  ///< of what `transform` draws; not set: the Trainer's
  std::function<Batch(Batch example, Rng& rng)> transform{};    ///< of every example
  std::function<Batch(std::vector<Batch> examples)> collate{};  ///< empty: stacks every tensor
};

/// Batches of a StreamingDataset in the order of streaming_order(), dealt to the ranks of a run.
///
///     tutti::data::StreamingDataLoader train{
///         tutti::data::StreamingDataset{{{.local = "tokens"}}, {.batch_size = 8}},
///         {.num_workers = 2}};
///
/// Batches do not depend on the number of threads. A run resumes inside an epoch at any batch, bit
/// for bit, and opens only the shards from there on. It may go on with another number of ranks:
/// where batch_size times ranks (by replication) stays the same, each global batch has the samples
/// that it would have had, but for repeated ones in the last. Across machines this takes
/// num_canonical_nodes, the same in both runs.
///
/// Shards are fetched `predownload` samples ahead by a thread of its own. All ranks have equally
/// many batches: the epoch ends before a batch in which one would have nothing, which can be the
/// last with batching_method device_per_stream and where num_canonical_nodes does not fit the
/// nodes. Source: mosaicml-streaming 0.13, `streaming.StreamingDataLoader`.
class StreamingDataLoader {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit StreamingDataLoader(StreamingDataset dataset, StreamingDataLoaderOptions options = {})
      : dataset_(std::move(dataset)),
        options_(std::make_shared<const StreamingDataLoaderOptions>(std::move(options))),
        seed_(options_->seed.value_or(0)) {
    const auto expect = [](bool ok, const char* name, std::int64_t value, int least) {
      TUTTI_CHECK_VALUE(ok, "StreamingDataLoader: ", name, " is ", value, ", expected ", least,
                        " or more");
    };
    const std::int64_t ranks = options_->ranks_per_node.value_or(1);
    expect(options_->num_workers >= 0, "num_workers", options_->num_workers, 0);
    expect(options_->prefetch_factor >= 1, "prefetch_factor", options_->prefetch_factor, 1);
    expect(ranks >= 1, "ranks_per_node", ranks, 1);
  }

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  /// Throws c10::ValueError when the number of ranks does not fit replication, ranks_per_node or
  /// num_canonical_nodes.
  void start(std::int64_t epoch, std::int64_t first_batch = 0) {
    TUTTI_CHECK_VALUE(epoch >= 0 && first_batch >= 0, "StreamingDataLoader: epoch is ", epoch,
                      " and first_batch ", first_batch, ", expected 0 or more");
    ahead_.clear();
    fetching_.clear();
    asked_.clear();
    position_ = first_batch;
    fetched_ = 0;
    started_ = true;
    if (!plan_ || plan_->epoch != epoch) {
      plan_ = make_plan(epoch);
    }
  }

  /// The next batch, or nothing when the epoch is over.
  /// Throws c10::Error, with the exception that caused it nested inside, when a sample cannot be
  /// had; the next call goes on with the batch after it.
  std::optional<Batch> next() {
    if (!started_ || position_ >= size()) {
      return std::nullopt;
    }
    const std::int64_t number = position_++;
    fetch_ahead(number);
    repeated_ = number == plan_->batches(batch_size()) - 1 ? plan_->repeated : 0;
    const std::int64_t workers = options_->num_workers;
    if (workers == 0) {
      return work(number)();
    }
    const std::int64_t end = std::min(size(), number + workers * options_->prefetch_factor);
    while (number + ahead_.size() < end) {
      ahead_.submit(workers, work(number + ahead_.size()));
    }
    return ahead_.take();
  }

  /// Batches per epoch on this rank.
  [[nodiscard]] std::int64_t size() const {
    if (!plan_) {
      plan_ = make_plan(0);
    }
    return options_->drop_last ? std::ssize(plan_->ids) / batch_size()
                               : plan_->batches(batch_size());
  }

  /// Samples in a full batch of a rank.
  [[nodiscard]] std::int64_t batch_size() const {
    return batch_size_.value_or(dataset_.options().batch_size);
  }

  /// Makes batches of another size than the data set's options say, from the next start() on.
  /// Throws c10::ValueError below 1.
  void set_batch_size(std::int64_t batch_size) {
    TUTTI_CHECK_VALUE(batch_size >= 1, "StreamingDataLoader: batch_size is ", batch_size,
                      ", expected 1 or more");
    batch_size_ = batch_size;
    plan_.reset();
    started_ = false;
  }

  /// Samples that an epoch takes, of all ranks.
  [[nodiscard]] std::int64_t dataset_size() const {
    std::int64_t out = 0;
    for (const std::int64_t one : samples_per_stream(dataset_.sizes(), order_options())) {
      out += one;
    }
    return out;
  }

  /// Samples at the end of the batch given last that are there only to make ranks equally long;
  /// 0 where streams are repeated.
  [[nodiscard]] std::int64_t repeated() const { return repeated_; }

  /// Deals the samples to ranks, from the next start() on.
  void shard(std::int64_t rank, std::int64_t world_size) {
    TUTTI_CHECK_VALUE(rank >= 0 && rank < world_size, "StreamingDataLoader: rank is ", rank, " of ",
                      world_size, ", expected 0 to ", world_size - 1);
    rank_ = rank;
    world_size_ = world_size;
    plan_.reset();
    started_ = false;
  }

  /// Takes the run's seed for `transform` unless the options have one, from the next start() on.
  /// The order has shuffle_seed.
  void follow_seed(std::uint64_t seed) { seed_ = options_->seed.value_or(seed); }

  [[nodiscard]] const StreamingDataset& dataset() const { return dataset_; }
  [[nodiscard]] const StreamingDataLoaderOptions& options() const { return *options_; }

 private:
  // This rank's part of an epoch.
  struct Plan {
    std::int64_t epoch;
    std::vector<std::int64_t> ids{};  // every batch is full but the last
    std::int64_t repeated = 0;        // at their end

    [[nodiscard]] std::int64_t batches(std::int64_t size) const {
      return (std::ssize(ids) + size - 1) / size;
    }
  };

  // One batch's preparation, on any thread.
  struct Work {
    StreamingDataset dataset;
    std::shared_ptr<const StreamingDataLoaderOptions> options;
    std::vector<std::int64_t> ids;
    std::uint64_t seed;  // of the epoch
    std::int64_t number;

    Batch operator()() const {
      const tutti::detail::OneThread one_thread;
      const c10::NoGradGuard no_grad;
      std::vector<Batch> examples;
      examples.reserve(ids.size());
      for (const std::int64_t id : ids) {
        examples.push_back(example(id));
      }
      Batch batch =
          options->collate ? options->collate(std::move(examples)) : detail::collate(examples, ids);
      return options->pin_memory ? detail::pinned(std::move(batch)) : std::move(batch);
    }

    Batch example(std::int64_t id) const {
      constexpr std::uint64_t of_transform = 14;
      try {
        Batch out = dataset.get(id);
        if (options->transform) {  // the same draws whatever rank has the sample
          const std::uint64_t use = detail::mix(static_cast<std::uint64_t>(number), odd(id));
          Rng rng = detail::item_rng(seed, of_transform, use);
          out = options->transform(std::move(out), rng);
        }
        return out;
      } catch (...) {
        detail::throw_over("StreamingDataLoader: sample " + std::to_string(id) +
                           " cannot be had: ");
      }
    }
  };

  // A shard that the thread which fetches was asked for, and the place that needs it.
  struct Asked {
    std::int64_t place;
    std::size_t shard;
  };

  // mix() takes 2k and 2k + 1 for the same.
  static constexpr std::uint64_t odd(std::int64_t number) {
    return 2 * static_cast<std::uint64_t>(number) + 1;
  }

  [[nodiscard]] StreamingOrderOptions order_options() const {
    StreamingOrderOptions out = dataset_.options().order();
    out.batch_size = batch_size();
    return out;
  }

  [[nodiscard]] StreamingOrder order(std::int64_t epoch) const {
    const std::int64_t ranks = options_->ranks_per_node.value_or(world_size_);
    TUTTI_CHECK_VALUE(world_size_ % ranks == 0, "StreamingDataLoader: ranks_per_node is ", ranks,
                      ", and there are ", world_size_, " ranks, expected a multiple");
    const StreamingWorld world{.nodes = world_size_ / ranks, .ranks_per_node = ranks};
    const StreamingDatasetOptions& options = dataset_.options();
    std::optional<StreamingState> state;
    if (options.num_canonical_nodes) {  // as if one node had begun, from which all others follow
      state = StreamingState{.epoch = epoch,
                             .num_canonical_nodes = *options.num_canonical_nodes,
                             .shuffle_seed = options.shuffle_seed};
    }
    return streaming_order(dataset_.sizes(), world, order_options(), epoch, state);
  }

  // Sample `place` of a batch of one rank; -1: none.
  static std::int64_t id_of(const StreamingOrder& all, std::int64_t row, std::int64_t batch,
                            std::int64_t place) {
    return all.ids[static_cast<std::size_t>((row * all.shape[3] + batch) * all.shape[4] + place)];
  }

  // Batches before the first one in which a rank has nothing.
  static std::int64_t batches_of_all(const StreamingOrder& all) {
    for (std::int64_t batch = 0; batch < all.shape[3]; ++batch) {
      for (std::int64_t row = 0; row < all.shape[0] * all.shape[1]; ++row) {
        if (id_of(all, row, batch, 0) < 0) {
          return batch;
        }
      }
    }
    return all.shape[3];
  }

  // The whole epoch, wherever it is resumed: an order that skips has another last batch.
  [[nodiscard]] std::shared_ptr<const Plan> make_plan(std::int64_t epoch) const {
    const StreamingOrder all = order(epoch);
    const std::int64_t rows = all.shape[0] * all.shape[1];
    const std::int64_t count = batches_of_all(all);
    const bool once = each_once();
    std::vector<bool> seen(once ? static_cast<std::size_t>(dataset_.size()) : 0);
    auto plan = std::make_shared<Plan>(Plan{.epoch = epoch});
    const std::int64_t mine = rank_ / dataset_.options().replication;
    for (std::int64_t batch = 0; batch < count; ++batch) {
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t place = 0; place < batch_size(); ++place) {
          const std::int64_t id = id_of(all, row, batch, place);
          if (id < 0) {
            break;
          }
          const bool again = once && seen[static_cast<std::size_t>(id)];
          if (once) {
            seen[static_cast<std::size_t>(id)] = true;
          }
          if (row == mine) {
            plan->ids.push_back(id);
            plan->repeated = again && batch == count - 1 ? plan->repeated + 1 : 0;
          }
        }
      }
    }
    return plan;
  }

  // No sample is in an epoch twice but to make ranks equally long.
  [[nodiscard]] bool each_once() const {
    const auto taken = samples_per_stream(dataset_.sizes(), order_options());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      std::int64_t left = taken[i];
      for (const std::int64_t samples : dataset_.sizes()[i].shards) {
        left -= samples;
      }
      if (left > 0) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] Work work(std::int64_t number) const {
    const auto from = plan_->ids.begin() + number * batch_size();
    const auto to = from + std::min(batch_size(), plan_->ids.end() - from);
    return {dataset_, options_, std::vector<std::int64_t>(from, to),
            detail::mix(seed_, odd(plan_->epoch)), number};
  }

  // Asks for the shards of what comes after batch `number`.
  void fetch_ahead(std::int64_t number) {
    const std::int64_t ahead = dataset_.options().predownload.value_or(8 * batch_size());
    if (ahead == 0) {
      return;
    }
    const std::int64_t now = number * batch_size();
    while (!asked_.empty() && (fetching_.size() == 0 || asked_.front().place < now)) {
      if (fetching_.size() > 0) {
        (void)fetching_.take();
      }
      asked_.pop_front();
    }
    const std::int64_t here = options_->num_workers == 0 ? batch_size() : 0;
    const std::int64_t end = std::min(std::ssize(plan_->ids), now + batch_size() + ahead);
    for (fetched_ = std::max(fetched_, now + here); fetched_ < end; ++fetched_) {
      const std::size_t shard = dataset_.shard_of(plan_->ids[static_cast<std::size_t>(fetched_)]);
      if (!dataset_.is_open(shard) &&
          std::none_of(asked_.begin(), asked_.end(),
                       [shard](const Asked& one) { return one.shard == shard; })) {
        asked_.push_back({fetched_, shard});
        fetching_.submit(1, [dataset = dataset_, shard] {
          try {
            dataset.prepare_shard(shard);
          } catch (...) {  // the batch that needs it tries again, and says what is wrong
            return false;
          }
          return true;
        });
      }
    }
  }

  StreamingDataset dataset_;
  std::shared_ptr<const StreamingDataLoaderOptions> options_;
  std::uint64_t seed_;  // what is used
  std::optional<std::int64_t> batch_size_{};
  std::int64_t rank_ = 0;
  std::int64_t world_size_ = 1;
  mutable std::shared_ptr<const Plan> plan_;
  bool started_ = false;
  std::int64_t position_ = 0;  // the batch that next() gives
  std::int64_t fetched_ = 0;   // the sample up to which shards were asked for
  std::int64_t repeated_ = 0;
  std::deque<Asked> asked_;
  detail::Ahead<bool> fetching_;
  detail::Ahead<Batch> ahead_;
};

}  // namespace tutti::data
