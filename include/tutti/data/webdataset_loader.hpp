// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
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
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/ahead.hpp>
#include <tutti/data/detail/collate.hpp>
#include <tutti/data/detail/item_rng.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/detail/web_shard.hpp>
#include <tutti/data/web_sample.hpp>
#include <tutti/data/webdataset.hpp>

namespace tutti::data {

/// Options of WebDatasetLoader.
struct WebDatasetLoaderOptions {
  std::int64_t batch_size = 32;     ///< examples per batch of this rank; >= 1
  bool shuffle = false;             ///< a new order of the tar files every epoch
  std::int64_t shuffle_buffer = 0;  ///< samples among which the next one is drawn; 0: as they come
  bool drop_last = false;           ///< leave out the last batch when it is not full
  std::optional<std::uint64_t> seed{};  ///< of the order, the same on every rank; not set: the
                                        ///< Trainer's, 0 without one
  std::int64_t with_epoch = 0;   ///< batches of an epoch of each rank; the tar files are gone
                                 ///< through again, in a new order, where they have fewer; 0: once
                                 ///< through them, in one process alone
  std::int64_t num_workers = 0;  ///< threads that read and decode batches ahead; >= 0
  std::int64_t prefetch_factor = 2;  ///< batches that are prepared ahead for each thread; >= 1
  bool pin_memory = false;           ///< as DataLoaderOptions::pin_memory
  std::vector<std::pair<std::string, std::string>> fields{};    ///< as WebDecoding's
  std::function<Batch(const WebSample& sample)> decode{};       ///< likewise
  std::function<Batch(Batch example, Rng& rng)> transform{};    ///< of every example
  std::function<Batch(std::vector<Batch> examples)> collate{};  ///< empty: stacks every tensor
};

/// Batches out of tar files in the order in which they are read, as Python's webdataset has it: the
/// tar files are shuffled and dealt to ranks, and samples are drawn from a buffer.
///
///     tutti::data::WebDatasetLoader train{
///         "train-{000..146}.tar",
///         {.batch_size = 64, .shuffle = true, .shuffle_buffer = 5000, .with_epoch = 1000,
///          .fields = {{"inputs", "jpg;png"}, {"targets", "cls"}}}};
///
/// Tar file i of an epoch's order goes to rank i % world_size. A tar file's headers are read when
/// its turn comes, and the buffer holds places, not samples, so that it may be large. Batches do
/// not depend on the number of threads; a run resumes inside an epoch by the headers of the tar
/// files before. With several ranks `with_epoch` says how many batches each has, since ranks whose
/// tar files have different numbers of samples would wait for one another for ever.
class WebDatasetLoader {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit WebDatasetLoader(const std::string& urls, WebDatasetLoaderOptions options = {})
      : WebDatasetLoader(shard_paths(urls), std::move(options)) {}

  explicit WebDatasetLoader(std::vector<std::string> shards, WebDatasetLoaderOptions options = {})
      : shared_(std::make_shared<Shared>()),
        options_(std::make_shared<const WebDatasetLoaderOptions>(std::move(options))),
        seed_(options_->seed.value_or(0)) {
    shared_->paths = std::move(shards);
    shared_->decoding = {options_->fields, options_->decode};
    shared_->decoding.check("WebDatasetLoader");
    TUTTI_CHECK_VALUE(!shared_->paths.empty(), "WebDatasetLoader: there is no tar file");
    const auto expect = [](bool ok, const char* name, std::int64_t value, int least) {
      TUTTI_CHECK_VALUE(ok, "WebDatasetLoader: ", name, " is ", value, ", expected ", least,
                        " or more");
    };
    expect(options_->batch_size >= 1, "batch_size", options_->batch_size, 1);
    expect(options_->shuffle_buffer >= 0, "shuffle_buffer", options_->shuffle_buffer, 0);
    expect(options_->with_epoch >= 0, "with_epoch", options_->with_epoch, 0);
    expect(options_->num_workers >= 0, "num_workers", options_->num_workers, 0);
    expect(options_->prefetch_factor >= 1, "prefetch_factor", options_->prefetch_factor, 1);
  }

  /// Begins an epoch at one of its batches. epoch, first_batch: >= 0.
  /// Throws c10::Error when a tar file on the way there is damaged.
  void start(std::int64_t epoch, std::int64_t first_batch = 0) {
    TUTTI_CHECK_VALUE(epoch >= 0 && first_batch >= 0, "WebDatasetLoader: epoch is ", epoch,
                      " and first_batch ", first_batch, ", expected 0 or more");
    TUTTI_CHECK_VALUE(world_size_ == 1 || options_->with_epoch > 0, "WebDatasetLoader: there are ",
                      world_size_,
                      " ranks; set with_epoch, the number of batches that each has in an epoch");
    ahead_.clear();
    failed_ = nullptr;
    epoch_ = epoch;
    planned_ = 0;
    pass_ = -1;
    begin_pass();
    rng_ = detail::item_rng(seed_, of_buffer, static_cast<std::uint64_t>(epoch));
    for (; planned_ < first_batch && !plan().empty(); ++planned_) {
    }
  }

  /// The next batch, or nothing when the epoch is over.
  /// Throws c10::Error that names the tar file, the sample and the field when one cannot be read,
  /// behind the batches that come before it. A next call goes on behind it.
  std::optional<Batch> next() {
    const std::int64_t workers = options_->num_workers;
    const std::int64_t wanted = std::max<std::int64_t>(workers * options_->prefetch_factor, 1);
    while (ahead_.size() < wanted && failed_ == nullptr) {
      std::vector<Place> places;
      try {
        places = plan();
      } catch (...) {
        failed_ = std::current_exception();
        break;
      }
      if (places.empty()) {
        break;
      }
      Work work{shared_, options_, std::move(places), seed_, epoch_, planned_++};
      if (workers == 0) {
        return work();
      }
      ahead_.submit(workers, std::move(work));
    }
    if (ahead_.size() == 0 && failed_ != nullptr) {
      std::rethrow_exception(std::exchange(failed_, nullptr));
    }
    return ahead_.size() > 0 ? std::optional(ahead_.take()) : std::nullopt;
  }

  /// Batches per epoch on this rank; -1: unknown, without with_epoch.
  [[nodiscard]] std::int64_t size() const {
    return options_->with_epoch > 0 ? options_->with_epoch : -1;
  }

  /// Examples in a full batch.
  [[nodiscard]] std::int64_t batch_size() const { return options_->batch_size; }

  /// Deals the tar files to ranks, from the next start() on.
  /// Throws c10::ValueError when there are fewer of them than ranks.
  void shard(std::int64_t rank, std::int64_t world_size) {
    const std::int64_t count = std::ssize(shared_->paths);
    TUTTI_CHECK_VALUE(rank >= 0 && rank < world_size && world_size <= count,
                      "WebDatasetLoader: ", count, " tar files cannot be dealt to rank ", rank,
                      " of ", world_size, "; expected at least as many as ranks");
    rank_ = rank;
    world_size_ = world_size;
  }

  /// Takes the run's seed unless the options have one, from the next start() on.
  void follow_seed(std::uint64_t seed) { seed_ = options_->seed.value_or(seed); }

  /// The paths of the tar files.
  [[nodiscard]] const std::vector<std::string>& shards() const { return shared_->paths; }
  [[nodiscard]] const WebDatasetLoaderOptions& options() const { return *options_; }

 private:
  static constexpr std::uint64_t of_order = 11;
  static constexpr std::uint64_t of_buffer = 12;
  static constexpr std::uint64_t of_transform = 13;

  // mix() takes 2k and 2k + 1 for the same.
  static constexpr std::uint64_t odd(std::uint64_t number) { return 2 * number + 1; }
  static constexpr std::uint64_t of_epoch(std::uint64_t seed, std::int64_t epoch) {
    return detail::mix(seed, odd(static_cast<std::uint64_t>(epoch)));
  }

  struct Shared {
    std::vector<std::string> paths{};
    WebDecoding decoding{};
    detail::OpenFiles files{};
  };

  // Where a sample lies.
  struct Place {
    std::size_t shard = 0;
    detail::WebRange range{};
  };

  // One batch's preparation, on any thread.
  struct Work {
    std::shared_ptr<Shared> shared;
    std::shared_ptr<const WebDatasetLoaderOptions> options;
    std::vector<Place> places;
    std::uint64_t seed;
    std::int64_t epoch;
    std::int64_t number;  // of the batch

    Batch operator()() const {
      const tutti::detail::OneThread one_thread;
      const c10::NoGradGuard no_grad;
      std::vector<Batch> examples;
      std::vector<std::int64_t> index;
      examples.reserve(places.size());
      for (std::size_t i = 0; i < places.size(); ++i) {
        index.push_back(number * options->batch_size + static_cast<std::int64_t>(i));
        examples.push_back(example(places[i], index.back()));
      }
      Batch batch = options->collate ? options->collate(std::move(examples))
                                     : detail::collate(examples, index);
      return options->pin_memory ? detail::pinned(std::move(batch)) : std::move(batch);
    }

    Batch example(const Place& place, std::int64_t position) const {
      const auto file = shared->files.get(shared->paths[place.shard]);
      const std::uint64_t bytes = place.range.end - place.range.begin;
      Batch out = shared->decoding(WebSample(file->path(), file->read(place.range.begin, bytes)));
      if (options->transform) {
        const std::uint64_t sample = detail::mix(detail::mix(place.range.begin, odd(place.shard)),
                                                 odd(static_cast<std::uint64_t>(position)));
        Rng rng = detail::item_rng(of_epoch(seed, epoch), of_transform, sample);
        out = options->transform(std::move(out), rng);
      }
      return out;
    }
  };

  // The tar files of the next way through all of them that are this rank's.
  void begin_pass() {
    ++pass_;
    std::vector<std::size_t> order(shared_->paths.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    if (options_->shuffle) {
      Rng rng =
          detail::item_rng(of_epoch(seed_, epoch_), of_order, static_cast<std::uint64_t>(pass_));
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1],
                  order[static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(i)))]);
      }
    }
    mine_ = detail::dealt(order, rank_, world_size_);
    turn_ = 0;
    samples_.clear();
    at_ = 0;
    found_ = pass_ > 0 && found_;
    if (pass_ == 0) {
      buffer_.clear();
    }
  }

  // The next sample as it is read; nothing at the end of the epoch.
  std::optional<Place> read_on() {
    while (at_ == samples_.size()) {
      if (turn_ == mine_.size()) {
        if (options_->with_epoch == 0) {
          return std::nullopt;
        }
        TUTTI_CHECK(found_, "WebDatasetLoader: the ", mine_.size(),
                    " tar files of this rank have no sample");
        begin_pass();
      }
      samples_ = detail::web_samples(shared_->paths[mine_[turn_++]]);
      at_ = 0;
      found_ = found_ || !samples_.empty();
    }
    return Place{mine_[turn_ - 1], samples_[at_++]};
  }

  std::optional<Place> draw() {
    if (options_->shuffle_buffer == 0) {
      return read_on();
    }
    while (std::ssize(buffer_) < options_->shuffle_buffer) {
      const auto next = read_on();
      if (!next) {
        break;
      }
      buffer_.push_back(*next);
    }
    if (buffer_.empty()) {
      return std::nullopt;
    }
    std::swap(buffer_[static_cast<std::size_t>(rng_.integer(0, std::ssize(buffer_)))],
              buffer_.back());
    const Place out = buffer_.back();
    buffer_.pop_back();
    return out;
  }

  // The samples of batch number planned_; none when the epoch is over.
  std::vector<Place> plan() {
    std::vector<Place> out;
    if (options_->with_epoch > 0 && planned_ >= options_->with_epoch) {
      return out;
    }
    while (std::ssize(out) < options_->batch_size) {
      const auto next = draw();
      if (!next) {
        break;
      }
      out.push_back(*next);
    }
    if (options_->drop_last && std::ssize(out) < options_->batch_size) {
      out.clear();
    }
    return out;
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<const WebDatasetLoaderOptions> options_;
  std::uint64_t seed_;  // what is used
  std::int64_t rank_ = 0;
  std::int64_t world_size_ = 1;
  std::int64_t epoch_ = 0;
  std::int64_t pass_ = -1;                 // ways through the tar files in this epoch, from 0
  std::int64_t planned_ = 0;               // batches of this epoch whose samples are chosen
  std::vector<std::size_t> mine_;          // this rank's tar files in this pass
  std::size_t turn_ = 0;                   // the next of them
  std::vector<detail::WebRange> samples_;  // of the tar file that is read
  std::size_t at_ = 0;                     // the next of them
  bool found_ = false;                     // some tar file of this epoch has a sample
  std::vector<Place> buffer_;
  Rng rng_;
  detail::Ahead<Batch> ahead_;
  std::exception_ptr failed_;  // what ended the planning; comes behind what is ahead
};

}  // namespace tutti::data
