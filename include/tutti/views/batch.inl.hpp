// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/views/batch.hpp>

namespace tutti::views {

TUTTI_INLINE Batches::Batches(detail::Open<Batch, true> indexed, detail::Open<Batch, false> stream,
                              BatchOptions options)
    : indexed_(std::move(indexed)),
      stream_(std::move(stream)),
      options_(std::make_shared<const BatchOptions>(std::move(options))) {}

TUTTI_INLINE std::shared_ptr<Batches::Epoch> Batches::open(std::int64_t number) const {
  auto epoch = std::make_shared<Epoch>();
  epoch->number = number;
  detail::Pass pass = pass_;
  pass.epoch = number;
  const detail::Pass before = pass;
  if (indexed_) {
    epoch->indexed = indexed_(pass);
    const std::int64_t n = epoch->indexed->size();
    epoch->share = DistributedSampler(n, {.drop_last = options_->drop_last,
                                          .rank = pass.dealt ? 0 : pass.rank,
                                          .world_size = pass.dealt ? 1 : pass.world_size});
    epoch->own = epoch->share.size();
    epoch->all = pass.dealt ? n * pass.world_size : n;
    return epoch;
  }
  epoch->stream = stream_(pass);
  const std::int64_t n = epoch->stream->size();
  epoch->all = pass.dealt && n >= 0 ? n * pass.world_size : n;
  if (!pass.dealt && pass.world_size > 1) {
    epoch->ends = std::make_shared<detail::DealtStream<Batch>>(stream_, before, epoch->stream,
                                                               options_->drop_last);
    epoch->stream = epoch->ends;
  }
  epoch->own = epoch->stream->size();
  return epoch;
}

TUTTI_INLINE const Batches::Epoch& Batches::sizes() const {
  if (!sizes_) {
    sizes_ = open(0);
  }
  return *sizes_;
}

TUTTI_INLINE std::int64_t Batches::batches_of(std::int64_t examples) const {
  const std::int64_t short_of_full = options_->drop_last ? 0 : options_->size - 1;
  return examples < 0 ? -1 : (examples + short_of_full) / options_->size;
}

TUTTI_INLINE std::int64_t Batches::size() const {
  return batches_of(sizes().own);
}

TUTTI_INLINE std::int64_t Batches::dataset_size() const {
  return sizes().all;
}

TUTTI_INLINE void Batches::shard(std::int64_t rank, std::int64_t world_size) {
  ahead_.clear();
  epoch_.reset();
  sizes_.reset();
  pass_.rank = rank;
  pass_.world_size = world_size;
  (void)sizes();
}

TUTTI_INLINE Batches Batches::prefetched(std::int64_t batches, std::int64_t threads) const {
  Batches out(*this);
  out.ahead_batches_ = batches;
  out.threads_ = indexed_ ? threads : 1;  // one reads a stream
  return out;
}

TUTTI_INLINE void Batches::start(std::int64_t epoch, std::int64_t first_batch) {
  TUTTI_CHECK_VALUE(epoch >= 0 && first_batch >= 0, "views::batch: epoch is ", epoch,
                    " and first_batch ", first_batch, ", expected 0 or more");
  ahead_.clear();
  epoch_ = open(epoch);
  position_ = first_batch;
  repeated_ = 0;
  reads_again_ = 0;
  if (epoch_->stream && first_batch > 0) {
    epoch_->read = epoch_->stream->skip(first_batch * options_->size);
    reads_again_ = epoch_->stream->reads();
    if (reads_again_ > 0) {
      TORCH_WARN("views::", epoch_->stream->reader(), " reads ", reads_again_,
                 " examples again to go on at batch ", first_batch, " of epoch ", epoch,
                 "; what has numbers up to views::batch goes on at once");
    }
  }
}

TUTTI_INLINE Batches::Prepared Batches::prepare(Epoch& epoch, const BatchOptions& options,
                                                std::int64_t number) {
  const ::tutti::detail::OneThread one_thread;
  const c10::NoGradGuard no_grad;
  std::vector<Batch> examples;
  std::vector<std::int64_t> places;
  examples.reserve(static_cast<std::size_t>(options.size));
  places.reserve(static_cast<std::size_t>(options.size));
  const detail::Indexed<Batch>* const indexed = epoch.indexed.get();
  const std::int64_t share = indexed != nullptr ? epoch.share.size() : 0;
  const bool is_whole = epoch.share.options().world_size == 1;
  bool over = false;
  for (std::int64_t count = 0; count < options.size && !over; ++count) {
    const std::int64_t i = indexed != nullptr ? number * options.size + count : epoch.read;
    if (indexed != nullptr && i >= share) {
      break;
    }
    try {
      if (indexed != nullptr) {
        examples.push_back(indexed->at(is_whole ? i : epoch.share[i]));
      } else {
        ++epoch.read;
        std::optional<Batch> example = epoch.stream->next();
        over = !example;
        if (over) {
          break;
        }
        examples.push_back(std::move(*example));
      }
    } catch (...) {
      data::detail::throw_over("views::batch: example " + std::to_string(i) + " of epoch " +
                               std::to_string(epoch.number) + " cannot be had: ");
    }
    places.push_back(i);
  }
  if (examples.empty() || (options.drop_last && std::ssize(examples) < options.size)) {
    return {};
  }
  const bool repeats =
      epoch.indexed ? epoch.share.is_repeated(places.back()) : epoch.ends && epoch.ends->repeats();
  Batch batch = options.collate ? options.collate(std::move(examples))
                                : data::detail::collate(examples, places, "views::batch");
  return {options.pin_memory ? data::detail::pinned(std::move(batch)) : std::move(batch),
          repeats ? 1 : 0};
}

TUTTI_INLINE std::function<Batches::Prepared()> Batches::work(std::int64_t number) const {
  return [epoch = epoch_, options = options_, number] { return prepare(*epoch, *options, number); };
}

TUTTI_INLINE std::optional<Batch> Batches::next() {
  const std::int64_t size = epoch_ ? batches_of(epoch_->own) : 0;
  if (!epoch_ || (size >= 0 && position_ >= size)) {
    return std::nullopt;
  }
  const std::int64_t number = position_++;
  Prepared prepared;
  if (ahead_batches_ == 0) {
    prepared = prepare(*epoch_, *options_, number);
  } else {
    const std::int64_t wanted = number + ahead_batches_;
    const std::int64_t end = size < 0 ? wanted : std::min(size, wanted);
    while (number + ahead_.size() < end) {
      ahead_.submit(threads_, work(number + ahead_.size()));
    }
    prepared = ahead_.take();
  }
  if (prepared.batch.empty()) {
    epoch_.reset();
    ahead_.clear();
    return std::nullopt;
  }
  repeated_ = prepared.repeated;
  return std::move(prepared.batch);
}

}  // namespace tutti::views
