// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/one_thread.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/collate.hpp>
#include <tutti/data/detail/item_rng.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/detail/to_batch.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/data/transforms.hpp>
#include <tutti/data/weighted_sampling.hpp>

namespace tutti {

/// `D` is a data set with numbered examples: `d.size()` is how many, `d.get(i)` or `d.get(i, rng)`
/// gives number i, 0 .. size() - 1, as a Batch without the dimension that counts examples, a pair
/// of tensors or a struct with `data` and `target`. Both are const: several threads call get().
template <class D>
concept Dataset = requires(const D& data) {
  { data.size() } -> std::convertible_to<std::int64_t>;
}
&&(
    requires(const D& data, std::int64_t index) {
      { data.get(index) } -> detail::BatchLike;
    } ||
    requires(const D& data, std::int64_t index, Rng& rng) {
      { data.get(index, rng) } -> detail::BatchLike;
    });

/// What a DataLoader does about an example that cannot be had.
enum class OnError {
  raise,  ///< throws, saying which example and why
  skip,   ///< leaves it out of its batch, and warns the first time
};

/// Options of DataLoader.
struct DataLoaderOptions {
  std::int64_t batch_size = 32;                      ///< examples per batch of this rank; >= 1
  bool shuffle = false;                              ///< a new order every epoch; else 0, 1, 2, ...
  std::optional<data::WeightedSampling> weighted{};  ///< draws examples by weights every epoch
  bool drop_last = false;  ///< leave out the last batch of an epoch when it is not full
  std::optional<std::uint64_t> seed{};  ///< of order and random numbers, the same on every rank;
                                        ///< not set: the Trainer's, 0 without one
  std::int64_t num_workers = 0;         ///< threads that prepare batches; 0: next() does it; >= 0
  std::int64_t prefetch_factor = 2;     ///< batches that are prepared ahead for each thread; >= 1
  bool pin_memory = false;              ///< in page-locked memory, where there is a CUDA device
  OnError on_error = OnError::raise;    ///< an example cannot be had
  std::int64_t max_skipped = 100;       ///< in one epoch; more throws; >= 0
  data::Transforms transforms{};  ///< what is done to each example's image, a uint8 [C, H, W];
                                  ///< policies add theirs at the end
  std::function<Batch(Batch example, Rng& rng)> transform{};    ///< of every example, after those
  std::function<Batch(std::vector<Batch> examples)> collate{};  ///< empty: stacks every tensor
  /// Of each example of the data set: batches are put together of similar ones, so that little is
  /// padded, see data::order_by_length(). Empty: lengths do not matter.
  std::vector<std::int64_t> lengths{};
};

namespace detail {

template <class D>
inline constexpr bool is_dataset = Dataset<D>;

}  // namespace detail

/// Refuses what a DataLoader cannot ask for examples.
template <class D>
struct DatasetCheck {
  static_assert(detail::is_dataset<D>,
                "tutti: this is no data set with numbered examples; give it std::int64_t size() "
                "const and Example get(std::int64_t index) const, or get(index, tutti::Rng&) const "
                "(an Example is a tutti::Batch, a pair of tensors, or has data and target).");
};

/// Batches out of a data set with numbered examples, prepared by threads ahead of time.
///
///     struct Photos {
///       std::int64_t size() const;
///       std::pair<at::Tensor, at::Tensor> get(std::int64_t index) const;
///     };
///     tutti::DataLoader train{Photos{...}, {.batch_size = 64, .shuffle = true, .num_workers = 4}};
///
/// Batches do not depend on the number of threads: their order is that of the seed and the epoch,
/// and the random numbers of an example those of seed, epoch and index. A run resumes inside an
/// epoch without reading what came before. Copies share the data set.
/// Source: PyTorch, `torch.utils.data.DataLoader`.
template <class D>
class DataLoader {
  static_assert(sizeof(DatasetCheck<D>) > 0);

 public:
  /// Throws c10::Error (ValueError) when an option is out of range.
  explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : dataset_(std::make_shared<const D>(std::move(dataset))),
        options_(std::make_shared<const DataLoaderOptions>(std::move(options))),
        transforms_(options_->transforms),
        seed_(options_->seed.value_or(0)),
        weighted_(options_->weighted
                      ? std::make_shared<const data::WeightedSampling>(*options_->weighted)
                      : nullptr),
        sampler_(static_cast<std::int64_t>(dataset_->size()), sampler_options(0, 1)) {
    const auto expect = [](bool ok, const char* name, std::int64_t value, int least) {
      TUTTI_CHECK_VALUE(ok, "DataLoader: ", name, " is ", value, ", expected ", least, " or more");
    };
    check_batch_size(options_->batch_size);
    expect(options_->num_workers >= 0, "num_workers", options_->num_workers, 0);
    expect(options_->prefetch_factor >= 1, "prefetch_factor", options_->prefetch_factor, 1);
    expect(options_->max_skipped >= 0, "max_skipped", options_->max_skipped, 0);
  }

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  void start(std::int64_t epoch, std::int64_t first_batch = 0) {
    TUTTI_CHECK_VALUE(first_batch >= 0, "DataLoader: first_batch is ", first_batch,
                      ", expected 0 or more");
    ahead_.clear();
    sampler_.set_epoch(epoch);
    position_ = first_batch;
    skipped_now_ = 0;
  }

  /// The next batch, or nothing when the epoch is over. With on_error = skip it may have fewer
  /// examples than a full one.
  /// Throws c10::Error, with the exception that caused it nested inside, when an example cannot be
  /// had or a batch not be put together; the next call goes on with the batch after it.
  std::optional<Batch> next() {
    if (position_ >= size()) {
      return std::nullopt;
    }
    const std::int64_t number = position_++;
    const std::int64_t workers = options_->num_workers;
    if (workers == 0) {
      return hand_over(number, work(number)());
    }
    const std::int64_t end = std::min(size(), number + workers * options_->prefetch_factor);
    while (number + ahead_.size() < end) {
      ahead_.submit(workers, work(number + ahead_.size()));
    }
    return hand_over(number, ahead_.take());
  }

  /// Batches per epoch on this rank.
  [[nodiscard]] std::int64_t size() const {
    const std::int64_t short_of_full = options_->drop_last ? 0 : options_->batch_size - 1;
    return (sampler_.size() + short_of_full) / options_->batch_size;
  }

  /// Examples in a full batch.
  [[nodiscard]] std::int64_t batch_size() const { return options_->batch_size; }

  /// Examples of all ranks in an epoch: all of the data set, or what is drawn by weights.
  [[nodiscard]] std::int64_t dataset_size() const { return sampler_.epoch_size(); }

  /// 1 when the last example of the batch given last is there only to make ranks equally long.
  [[nodiscard]] std::int64_t repeated() const { return repeated_; }

  /// Examples that were left out so far.
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }

  /// Deals the examples to ranks.
  void shard(std::int64_t rank, std::int64_t world_size) {
    renew_sampler(rank, world_size);
    if (global_batch_size_ > 0) {
      set_global_batch_size(global_batch_size_);
    }
  }

  /// Takes the run's seed unless the options have one, from the next start() on.
  void follow_seed(std::uint64_t seed) {
    if (!options_->seed && seed != seed_) {
      seed_ = seed;
      renew_sampler(sampler_.options().rank, sampler_.options().world_size);
    }
  }

  /// Makes batches of another size, from the next start() on. Throws c10::ValueError below 1.
  void set_batch_size(std::int64_t batch_size) {
    check_batch_size(batch_size);
    auto options = std::make_shared<DataLoaderOptions>(*options_);
    options->batch_size = batch_size;
    options_ = std::move(options);
    global_batch_size_ = 0;
    renew_sampler(sampler_.options().rank, sampler_.options().world_size);
  }

  /// Makes batches of so many examples of all ranks together, from the next start() on, of which
  /// this rank has data::rank_batch_size(). Throws c10::ValueError below one for each rank.
  void set_global_batch_size(std::int64_t global_batch_size) {
    const SamplerOptions& dealt = sampler_.options();
    set_batch_size(data::rank_batch_size(global_batch_size, dealt.rank, dealt.world_size));
    global_batch_size_ = global_batch_size;
    renew_sampler(dealt.rank, dealt.world_size);
  }

  /// Examples of all ranks in a full batch.
  [[nodiscard]] std::int64_t global_batch_size() const {
    return global_batch_size_ > 0 ? global_batch_size_
                                  : options_->batch_size * sampler_.options().world_size;
  }

  /// What is done to each image from the next start() on.
  [[nodiscard]] data::Transforms& transforms() { return transforms_; }

  [[nodiscard]] const D& dataset() const { return *dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return *options_; }

 private:
  struct Skipped {
    std::int64_t index;
    std::string reason;
  };

  static void check_batch_size(std::int64_t batch_size) {
    TUTTI_CHECK_VALUE(batch_size >= 1, "DataLoader: batch_size is ", batch_size,
                      ", expected 1 or more");
  }

  struct Prepared {
    Batch batch;
    std::vector<Skipped> skipped;
    bool has_last;  // the last example was not skipped
  };

  // One batch's preparation. It runs on any thread, possibly when the loader is gone already.
  struct Work {
    std::shared_ptr<const D> dataset;
    std::shared_ptr<const DataLoaderOptions> options;
    data::Transforms transforms;
    std::vector<std::int64_t> index;  // of the examples
    std::int64_t before;              // examples of the epochs before
    std::uint64_t seed;
    std::vector<std::int64_t> turns;  // of draws by weights, which may give an example twice

    Prepared operator()() const {
      const ::tutti::detail::OneThread one_thread;
      const c10::NoGradGuard no_grad;
      std::vector<Batch> examples;
      std::vector<std::int64_t> there;
      std::vector<Skipped> skipped;
      examples.reserve(index.size());
      for (std::size_t k = 0; k < index.size(); ++k) {
        const std::int64_t i = index[k];
        try {
          examples.push_back(example(i, before + (turns.empty() ? i : turns[k])));
          there.push_back(i);
        } catch (...) {
          if (options->on_error == OnError::raise) {
            data::detail::throw_over("DataLoader: example " + std::to_string(i) +
                                     " of the data set cannot be had: ");
          }
          skipped.push_back({i, data::detail::thrown()});
        }
      }
      const bool has_last = !there.empty() && there.back() == index.back();
      return {examples.empty() ? Batch() : join(std::move(examples), there), std::move(skipped),
              has_last};
    }

    // Its random numbers are those of `use`.
    Batch example(std::int64_t i, std::int64_t use) const {
      constexpr std::uint64_t of_dataset = 1;
      constexpr std::uint64_t of_transform = 2;
      const auto number = static_cast<std::uint64_t>(use);
      Batch out;
      if constexpr (requires(Rng& rng) { dataset->get(i, rng); }) {
        Rng rng = data::detail::item_rng(seed, of_dataset, number);
        out = detail::to_batch(dataset->get(i, rng));
      } else {
        out = detail::to_batch(dataset->get(i));
      }
      if (!transforms.empty()) {
        transform_image(out, number);
      }
      if (options->transform) {
        Rng rng = data::detail::item_rng(seed, of_transform, number);
        out = options->transform(std::move(out), rng);
      }
      return out;
    }

    void transform_image(Batch& example, std::uint64_t number) const {
      at::Tensor& image = example.inputs();
      TUTTI_CHECK(image.scalar_type() == at::kByte && image.dim() == 3,
                  "transforms take 8-bit images [C, H, W], and its inputs are ",
                  image.scalar_type(), image.sizes(),
                  "; make floats of them in DataLoaderOptions::transform, which comes later");
      image = transforms(image, number, seed);
    }

    Batch join(std::vector<Batch> examples, const std::vector<std::int64_t>& there) const {
      Batch batch = options->collate ? options->collate(std::move(examples))
                                     : data::detail::collate(examples, there);
      return options->pin_memory ? data::detail::pinned(std::move(batch)) : std::move(batch);
    }
  };

  [[nodiscard]] SamplerOptions sampler_options(std::int64_t rank, std::int64_t world_size) const {
    return {.shuffle = options_->shuffle,
            .drop_last = options_->drop_last,
            .rank = rank,
            .world_size = world_size,
            .seed = seed_,
            .lengths = {options_, &options_->lengths},
            .batch_size = options_->batch_size,
            .global_batch_size = global_batch_size_,
            .weighted = weighted_};
  }

  void renew_sampler(std::int64_t rank, std::int64_t world_size) {
    const std::int64_t epoch = sampler_.epoch();
    ahead_.clear();
    sampler_ = DistributedSampler(sampler_.dataset_size(), sampler_options(rank, world_size));
    sampler_.set_epoch(epoch);
  }

  [[nodiscard]] Work work(std::int64_t number) const {
    const std::int64_t from = number * options_->batch_size;
    const std::int64_t to = std::min(from + options_->batch_size, sampler_.size());
    std::vector<std::int64_t> index(static_cast<std::size_t>(to - from));
    std::vector<std::int64_t> turns;
    for (std::int64_t i = from; i < to; ++i) {
      index[static_cast<std::size_t>(i - from)] = sampler_[i];
      if (weighted_) {
        turns.push_back(sampler_.turn_of(i) % sampler_.epoch_size());
      }
    }
    return {dataset_,
            options_,
            transforms_,
            std::move(index),
            sampler_.epoch() * sampler_.epoch_size(),
            seed_,
            std::move(turns)};
  }

  // Counts here, on the caller's thread and in the order of batches, what was skipped.
  Batch hand_over(std::int64_t number, Prepared prepared) {
    for (const Skipped& one : prepared.skipped) {
      if (skipped_++ == 0) {
        TORCH_WARN("DataLoader: example ", one.index, " of the data set is left out: ", one.reason,
                   "; more of them are only counted, see skipped()");
      }
      TUTTI_CHECK(++skipped_now_ <= options_->max_skipped, "DataLoader: ", skipped_now_,
                  " examples of this epoch cannot be had, expected at most max_skipped = ",
                  options_->max_skipped, "; the last is example ", one.index, ": ", one.reason);
    }
    TUTTI_CHECK(!prepared.batch.empty() || !prepared.skipped.empty(),
                "DataLoader: collate made an empty batch of the examples of batch ", number,
                ", expected one with a tensor");
    TUTTI_CHECK(!prepared.batch.empty(), "DataLoader: no example of batch ", number,
                " can be had; the first is example ", prepared.skipped.front().index, ": ",
                prepared.skipped.front().reason);
    const std::int64_t last = std::min((number + 1) * options_->batch_size, sampler_.size()) - 1;
    repeated_ = prepared.has_last && sampler_.is_repeated(last) ? 1 : 0;
    return std::move(prepared.batch);
  }

  std::shared_ptr<const D> dataset_;
  std::shared_ptr<const DataLoaderOptions> options_;
  data::Transforms transforms_;
  std::uint64_t seed_;  // what is used
  std::shared_ptr<const data::WeightedSampling> weighted_;
  std::int64_t global_batch_size_ = 0;  // that was set; 0: batches have one size on all ranks
  DistributedSampler sampler_;
  data::detail::Ahead<Prepared> ahead_;
  std::int64_t position_ = 0;  // the batch that next() gives
  std::int64_t repeated_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_now_ = 0;  // in this epoch
};

}  // namespace tutti
