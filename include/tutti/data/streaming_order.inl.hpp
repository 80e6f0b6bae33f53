// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/streaming_order.hpp>

#include <tutti/data/detail/streaming_shuffle.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

// Which place of an epoch is trained by whom: MosaicML Streaming's partitions `orig` and `relaxed`.

namespace tutti::data::detail {

struct Dealing {
  std::int64_t nodes;
  std::int64_t ranks;
  std::int64_t workers;
  std::int64_t batch;
};

TUTTI_INLINE bool divides(std::int64_t a, std::int64_t b) {
  return a >= b ? a % b == 0 : b % a == 0;
}

// Samples in the order of training, given to batches.
TUTTI_INLINE StreamingOrder dealt(const std::vector<std::int64_t>& flat, const Dealing& to) {
  const std::int64_t step = to.nodes * to.ranks * to.workers * to.batch;
  const std::int64_t batches = static_cast<std::int64_t>(flat.size()) / step;
  StreamingOrder out{{to.nodes, to.ranks, to.workers, batches, to.batch}, {}};
  out.ids.resize(flat.size());
  auto from = flat.begin();
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t w = 0; w < to.workers; ++w) {
      for (std::int64_t n = 0; n < to.nodes; ++n) {
        for (std::int64_t r = 0; r < to.ranks; ++r, from += to.batch) {
          const std::int64_t at = (((n * to.ranks + r) * to.workers + w) * batches + b) * to.batch;
          std::copy(from, from + to.batch, out.ids.begin() + at);
        }
      }
    }
  }
  return out;
}

// Each canonical node's places, row by row.
TUTTI_INLINE std::vector<std::int64_t> canonical_rows(std::int64_t samples, std::int64_t canonical,
                                                      std::int64_t nodes, std::int64_t& per) {
  const std::int64_t ratio = canonical < nodes ? nodes / canonical : 0;
  per = (samples + canonical - 1) / canonical;
  const std::int64_t pad = ratio == 0 ? 0 : (ratio - per % ratio) % ratio;
  std::vector<std::int64_t> rows;
  if (samples > canonical || (samples == canonical && canonical >= nodes)) {
    for (std::int64_t c = 0; c < canonical; ++c) {
      const std::int64_t low = c * samples / canonical;
      const std::int64_t high = (c + 1) * samples / canonical;
      std::vector<std::int64_t> row(static_cast<std::size_t>(per + pad));
      std::iota(row.begin(), row.begin() + per, low);
      if (high - low < per) {
        --row[static_cast<std::size_t>(per - 1)];
      }
      const std::int64_t from = per - pad - ratio + 1;
      for (std::int64_t k = 0; k < pad; ++k) {  // a row shorter than that repeats from its start
        const std::int64_t source = from < 0 ? k % per : from + k;
        row[static_cast<std::size_t>(per + k)] = row[static_cast<std::size_t>(source)];
      }
      rows.insert(rows.end(), row.begin(), row.end());
    }
  } else {
    for (std::int64_t k = 0; k < canonical * (per + pad); ++k) {
      rows.push_back(k % samples);
    }
  }
  per += pad;
  return rows;
}

// Where the canonical nodes and the nodes divide one another.
TUTTI_INLINE StreamingOrder partition_evenly(std::int64_t samples, std::int64_t canonical,
                                             const Dealing& to, std::int64_t skip) {
  skip -= skip % to.nodes;
  std::int64_t per = 0;
  const std::vector<std::int64_t> rows = canonical_rows(samples, canonical, to.nodes, per);
  std::vector<std::vector<std::int64_t>> of_node(static_cast<std::size_t>(to.nodes));
  std::int64_t t = 0;
  for (std::int64_t k = 0; k < per; ++k) {  // column by column
    for (std::int64_t c = 0; c < canonical; ++c) {
      if (skip > 0) {
        --skip;
        continue;
      }
      of_node[static_cast<std::size_t>(t++ % to.nodes)].push_back(
          rows[static_cast<std::size_t>(c * per + k)]);
    }
  }
  const auto length = static_cast<std::int64_t>(of_node[0].size());
  const std::int64_t under = (to.ranks - length % to.ranks) % to.ranks;
  const std::int64_t each = (length + under) / to.ranks;
  const std::int64_t round = to.workers * to.batch;
  const std::int64_t full = (each + round - 1) / round * round;
  StreamingOrder out{{to.nodes, to.ranks, to.workers, full / round, to.batch}, {}};
  out.ids.assign(static_cast<std::size_t>(to.nodes * to.ranks * full), -1);
  for (std::int64_t n = 0; n < to.nodes; ++n) {
    std::vector<std::int64_t>& ids = of_node[static_cast<std::size_t>(n)];
    for (std::int64_t k = 0; k < under; ++k) {
      const bool enough = to.ranks + under - 1 <= length;
      ids.push_back(
          ids[static_cast<std::size_t>(enough ? length - to.ranks - under + 1 + k : k % length)]);
    }
    for (std::int64_t i = 0; i < length + under; ++i) {
      const std::int64_t place = i / to.ranks;  // of the rank
      const std::int64_t batch = place / to.batch;
      const std::int64_t line = (n * to.ranks + i % to.ranks) * to.workers + batch % to.workers;
      const std::int64_t row = line * (full / round) + batch / to.workers;
      out.ids[static_cast<std::size_t>(row * to.batch + place % to.batch)] =
          ids[static_cast<std::size_t>(i)];
    }
  }
  return out;
}

// initial: nodes of the run that began, when this one goes on.
TUTTI_INLINE StreamingOrder partition(std::int64_t samples, std::int64_t canonical,
                                      const Dealing& to, std::int64_t skip,
                                      std::optional<std::int64_t> initial) {
  if (divides(canonical, to.nodes)) {
    return partition_evenly(samples, canonical, to, skip);
  }
  TUTTI_CHECK_VALUE(initial, "streaming: there are ", canonical, " canonical nodes and ", to.nodes,
                    " nodes, expected that one divides the other; set num_canonical_nodes");
  TUTTI_CHECK_VALUE(divides(canonical, *initial), "streaming: the state has ", canonical,
                    " canonical nodes and ", *initial,
                    " initial nodes, expected that one divides the other");
  const std::int64_t all = to.nodes * to.ranks * to.batch;
  TUTTI_CHECK_VALUE(all % (*initial * to.ranks) == 0, "streaming: a run of ", *initial,
                    " nodes cannot go on with ", to.nodes, ": a global batch of ", all,
                    " samples is not divided by ", *initial * to.ranks, " ranks");
  const Dealing before{*initial, to.ranks, to.workers, all / (*initial * to.ranks)};
  return dealt(partition_evenly(samples, canonical, before, skip).walk(), to);
}

}  // namespace tutti::data::detail

namespace tutti::data {

namespace detail {

// Everything that the four ways of batching share.
class OrderMaker {
 public:
  using Ids = std::vector<std::int64_t>;

  OrderMaker(std::span<const StreamSizes> streams, const StreamingWorld& world,
             const StreamingOrderOptions& options, std::int64_t epoch,
             const std::optional<StreamingState>& state);

  StreamingOrder make() const;

 private:
  struct Sampled {
    Ids units;  // sizes that are shuffled as shards
    Ids ids;
  };

  Sampled sample(std::size_t stream) const;
  Sampled sample_all() const;
  void sample_into(std::size_t stream, NumpyRandom& random, Sampled& out) const;
  void place(StreamingOrder& order, const Sampled& sampled, double share) const;
  StreamingOrder part(std::int64_t samples, std::int64_t nodes, std::int64_t batch,
                      std::int64_t skip) const;

  StreamingOrder random() const;
  std::vector<Ids> stratified() const;
  std::vector<Ids> per_stream() const;
  std::vector<Ids> device_per_stream() const;
  StreamingOrder rest(std::vector<Ids> batches) const;

  std::int64_t global_batch() const { return nodes_ * ranks_ * options_.batch_size; }
  std::uint64_t epoch_seed() const {
    const bool balanced = options_.sampling_method != "fixed";
    return seed_ + (options_.shuffle && balanced ? static_cast<std::uint64_t>(epoch_) : 0);
  }

  std::span<const StreamSizes> streams_;
  StreamingOrderOptions options_;
  std::int64_t nodes_;
  std::int64_t ranks_;
  std::int64_t workers_;
  std::int64_t epoch_;
  std::int64_t skip_ = 0;
  std::uint64_t seed_;
  std::int64_t canonical_ = 0;
  std::optional<std::int64_t> initial_{};
  std::int64_t block_ = 0;
  std::vector<std::int64_t> choose_;
  std::vector<double> shares_;
  std::vector<std::int64_t> offsets_;
};

TUTTI_INLINE std::vector<std::vector<std::int64_t>> cut(const std::vector<std::int64_t>& ids,
                                                        std::int64_t size) {
  std::vector<std::vector<std::int64_t>> out;
  for (auto at = ids.begin(); at != ids.end();) {
    const auto end = at + std::min<std::ptrdiff_t>(size, ids.end() - at);
    out.emplace_back(at, end);
    at = end;
  }
  return out;
}

// How many of the batches are whole, without -1.
TUTTI_INLINE std::int64_t whole(const std::vector<std::vector<std::int64_t>>& batches) {
  return std::count_if(batches.begin(), batches.end(), [](const auto& batch) {
    return *std::min_element(batch.begin(), batch.end()) >= 0;
  });
}

TUTTI_INLINE OrderMaker::OrderMaker(std::span<const StreamSizes> streams,
                                    const StreamingWorld& world,
                                    const StreamingOrderOptions& options, std::int64_t epoch,
                                    const std::optional<StreamingState>& state)
    : streams_(streams),
      options_(options),
      nodes_(world.nodes),
      ranks_(world.ranks_per_node),
      workers_(world.workers_per_rank),
      epoch_(epoch),
      seed_(options.shuffle_seed) {
  if (options.replication > 1) {
    const std::int64_t groups = nodes_ * ranks_ / options.replication;
    nodes_ = groups % ranks_ == 0 ? groups / ranks_ : 1;
    ranks_ = groups / nodes_;
  }
  std::int64_t offset = 0;
  for (const StreamSizes& stream : streams) {
    offsets_.push_back(offset);
    offset += std::accumulate(stream.shards.begin(), stream.shards.end(), std::int64_t{0});
  }
  std::tie(choose_, shares_) = weights_of(streams, options);
  if (state && state->epoch >= epoch) {  // else of an epoch that is over
    epoch_ = state->epoch;
    skip_ = state->sample_in_epoch;
    canonical_ = state->num_canonical_nodes;
    seed_ = state->shuffle_seed;
    if (options.partition_algo == "relaxed") {
      initial_ = state->initial_physical_nodes;
    }
  } else {
    const bool many = options.shuffle_algo == "py1s" || options.shuffle_algo == "py2s";
    canonical_ = options.num_canonical_nodes.value_or(many ? 64 * nodes_ : nodes_);
  }
  TUTTI_CHECK_VALUE(options.batching_method != "device_per_stream" || canonical_ % nodes_ == 0,
                    "streaming: there are ", canonical_, " canonical nodes and ", nodes_,
                    " nodes; device_per_stream needs a multiple");
  block_ = options.shuffle_block_size.value_or(
      std::max<std::int64_t>(4'000'000 / canonical_, std::int64_t{1} << 18));
}

TUTTI_INLINE void OrderMaker::sample_into(std::size_t stream, NumpyRandom& random,
                                          Sampled& out) const {
  const std::vector<std::int64_t>& sizes = streams_[stream].shards;
  const std::vector<std::int64_t> wanted =
      samples_per_shard(sizes, choose_[stream], options_.sampling_granularity, epoch_seed());
  std::int64_t base = offsets_[stream];
  for (std::size_t shard = 0; shard < sizes.size(); ++shard) {
    const std::int64_t size = sizes[shard];
    for (std::int64_t k = 0; k < wanted[shard] / size; ++k) {
      out.units.push_back(size);
      for (std::int64_t i = 0; i < size; ++i) {
        out.ids.push_back(base + i);
      }
    }
    if (const std::int64_t left = wanted[shard] % size; left != 0) {
      out.units.push_back(left);
      std::vector<std::int64_t> chosen = random.choice(size, left);
      std::sort(chosen.begin(), chosen.end());
      for (const std::int64_t i : chosen) {
        out.ids.push_back(base + i);
      }
    }
    base += size;
  }
}

TUTTI_INLINE OrderMaker::Sampled OrderMaker::sample(std::size_t stream) const {
  const bool fixed = options_.sampling_method == "fixed";
  NumpyRandom random(seed_ + (fixed ? 0 : static_cast<std::uint64_t>(epoch_)));
  Sampled out;
  sample_into(stream, random, out);
  return out;
}

TUTTI_INLINE OrderMaker::Sampled OrderMaker::sample_all() const {
  const bool fixed = options_.sampling_method == "fixed";
  NumpyRandom random(seed_ + (fixed ? 0 : static_cast<std::uint64_t>(epoch_)));
  Sampled out;
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    sample_into(stream, random, out);
  }
  return out;
}

// Places in the epoch become sample numbers.
TUTTI_INLINE void OrderMaker::place(StreamingOrder& order, const Sampled& sampled,
                                    double share) const {
  std::vector<std::int64_t> shuffled;
  if (options_.shuffle) {
    const auto block = static_cast<std::int64_t>(static_cast<double>(block_) * share);
    check_block_size(options_.shuffle_algo, block);
    shuffled = shuffled_order(options_.shuffle_algo, sampled.units, canonical_, seed_,
                              static_cast<std::uint64_t>(epoch_), block);
  }
  for (std::int64_t& id : order.ids) {
    if (id >= 0) {
      const auto at = static_cast<std::size_t>(id);
      id = sampled.ids[shuffled.empty() ? at : static_cast<std::size_t>(shuffled[at])];
    }
  }
}

TUTTI_INLINE StreamingOrder OrderMaker::part(std::int64_t samples, std::int64_t nodes,
                                             std::int64_t batch, std::int64_t skip) const {
  return partition(samples, canonical_, {nodes, ranks_, workers_, batch}, skip, initial_);
}

TUTTI_INLINE StreamingOrder OrderMaker::random() const {
  const std::int64_t samples = std::accumulate(choose_.begin(), choose_.end(), std::int64_t{0});
  StreamingOrder order = part(samples, nodes_, options_.batch_size, skip_);
  place(order, sample_all(), 1.0);
  return order;
}

// Every global batch has the same number of samples of each stream.
TUTTI_INLINE std::vector<std::vector<std::int64_t>> OrderMaker::stratified() const {
  std::vector<std::int64_t> portions;
  std::vector<double> left;
  for (const double share : shares_) {
    portions.push_back(static_cast<std::int64_t>(share * static_cast<double>(global_batch())));
    left.push_back(static_cast<double>(global_batch()) * share -
                   static_cast<double>(portions.back()));
  }
  std::vector<std::size_t> by_rest(left.size());
  std::iota(by_rest.begin(), by_rest.end(), std::size_t{0});
  std::stable_sort(by_rest.begin(), by_rest.end(),
                   [&](std::size_t a, std::size_t b) { return left[a] < left[b]; });
  const std::int64_t given = std::accumulate(portions.begin(), portions.end(), std::int64_t{0});
  for (std::int64_t k = 0; k < global_batch() - given; ++k) {
    ++portions[by_rest[by_rest.size() - 1 - static_cast<std::size_t>(k)]];
  }
  std::vector<std::vector<Ids>> parts;
  std::int64_t count = -1;
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    TUTTI_CHECK_VALUE(portions[stream] > 0, "streaming: stream ", stream,
                      " has no sample in a stratified global batch of ", global_batch(),
                      "; make the batch larger or its proportion");
    const Sampled sampled = sample(stream);
    StreamingOrder order = part(static_cast<std::int64_t>(sampled.ids.size()), 1, 1, 0);
    place(order, sampled, shares_[stream]);
    Ids walked = order.walk();
    while (static_cast<std::int64_t>(walked.size()) % portions[stream] != 0) {
      walked.push_back(-1);
    }
    parts.push_back(cut(walked, portions[stream]));
    count = count < 0 ? whole(parts.back()) : std::min(count, whole(parts.back()));
  }
  std::vector<Ids> batches(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for (std::size_t k = 0; k < batches.size(); ++k) {
    for (const std::vector<Ids>& one : parts) {
      batches[k].insert(batches[k].end(), one[k].begin(), one[k].end());
    }
  }
  return batches;
}

// The batches of several lists, each in turn, in the order that the shuffled origins say.
TUTTI_INLINE std::vector<std::vector<std::int64_t>> interleaved(
    const std::vector<std::vector<std::vector<std::int64_t>>>& lists, NumpyRandom& random) {
  std::vector<std::size_t> origins;
  for (std::size_t list = 0; list < lists.size(); ++list) {
    origins.insert(origins.end(), lists[list].size(), list);
  }
  random.shuffle(std::span(origins));
  std::vector<std::size_t> next(lists.size());
  std::vector<std::vector<std::int64_t>> out;
  out.reserve(origins.size());
  for (const std::size_t list : origins) {
    out.push_back(lists[list][next[list]++]);
  }
  return out;
}

TUTTI_INLINE std::vector<std::vector<std::int64_t>> OrderMaker::per_stream() const {
  std::vector<std::vector<Ids>> lists;
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    const Sampled sampled = sample(stream);
    if (sampled.ids.empty()) {
      continue;
    }
    StreamingOrder order =
        part(static_cast<std::int64_t>(sampled.ids.size()), nodes_, options_.batch_size, 0);
    place(order, sampled, shares_[stream]);
    lists.push_back(cut(order.walk(), global_batch()));
    lists.back().resize(static_cast<std::size_t>(whole(lists.back())));
  }
  NumpyRandom random(epoch_seed());
  return interleaved(lists, random);
}

TUTTI_INLINE std::vector<std::vector<std::int64_t>> OrderMaker::device_per_stream() const {
  const std::int64_t batch = options_.batch_size;
  const std::int64_t share = canonical_ / nodes_;
  std::vector<std::vector<std::vector<Ids>>> of_node(static_cast<std::size_t>(nodes_));
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    const Sampled sampled = sample(stream);
    if (sampled.ids.empty()) {
      continue;
    }
    StreamingOrder order = part(static_cast<std::int64_t>(sampled.ids.size()), canonical_, 1, 0);
    place(order, sampled, shares_[stream]);
    const std::int64_t size = static_cast<std::int64_t>(order.ids.size()) / canonical_ * share;
    for (std::int64_t node = 0; node < nodes_; ++node) {
      const auto begin = order.ids.begin() + node * size;
      const Ids walked = StreamingOrder{
          {share, order.shape[1], order.shape[2], order.shape[3], 1},
          {begin,
           begin + size}}.walk();
      Ids padded = walked;
      padded.insert(
          padded.end(),
          static_cast<std::size_t>(batch - static_cast<std::int64_t>(walked.size()) % batch), -1);
      std::vector<Ids> batches = cut(padded, batch);
      batches.resize(static_cast<std::size_t>(whole(batches)));
      of_node[static_cast<std::size_t>(node)].push_back(std::move(batches));
    }
  }
  NumpyRandom random(epoch_seed());
  std::vector<std::vector<Ids>> lines;
  std::int64_t most = 0;
  for (const auto& lists : of_node) {
    lines.push_back(interleaved(lists, random));
    most = std::max(most, static_cast<std::int64_t>(lines.back().size()));
  }
  most += nodes_ * ranks_ - most % (nodes_ * ranks_);
  Ids flat;
  for (std::int64_t k = 0; k < most; ++k) {
    for (const std::vector<Ids>& line : lines) {
      const bool there = k < static_cast<std::int64_t>(line.size());
      const Ids& ids =
          there ? line[static_cast<std::size_t>(k)] : Ids(static_cast<std::size_t>(batch), -1);
      flat.insert(flat.end(), ids.begin(), ids.end());
    }
  }
  return cut(flat, global_batch());
}

// Global batches that are left of an epoch, dealt out.
TUTTI_INLINE StreamingOrder OrderMaker::rest(std::vector<Ids> batches) const {
  const auto done = std::min(static_cast<std::size_t>(skip_ / global_batch()), batches.size());
  Ids flat;
  std::size_t count = 0;
  for (std::size_t k = done; k < batches.size(); ++k, ++count) {
    flat.insert(flat.end(), batches[k].begin(), batches[k].end());
  }
  for (; count % static_cast<std::size_t>(workers_) != 0; ++count) {
    flat.insert(flat.end(), static_cast<std::size_t>(global_batch()), -1);
  }
  return dealt(flat, {nodes_, ranks_, workers_, options_.batch_size});
}

TUTTI_INLINE StreamingOrder OrderMaker::make() const {
  if (options_.batching_method == "random") {
    return random();
  }
  return rest(options_.batching_method == "stratified"   ? stratified()
              : options_.batching_method == "per_stream" ? per_stream()
                                                         : device_per_stream());
}

}  // namespace detail

TUTTI_INLINE std::vector<std::int64_t> StreamingOrder::walk() const {
  const auto [nodes, ranks, workers, batches, size] = shape;
  std::vector<std::int64_t> out;
  out.reserve(ids.size());
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t w = 0; w < workers; ++w) {
      for (std::int64_t n = 0; n < nodes; ++n) {
        for (std::int64_t r = 0; r < ranks; ++r) {
          const std::int64_t at = (((n * ranks + r) * workers + w) * batches + b) * size;
          out.insert(out.end(), ids.begin() + at, ids.begin() + at + size);
        }
      }
    }
  }
  return out;
}

TUTTI_INLINE std::vector<std::int64_t> samples_per_stream(std::span<const StreamSizes> streams,
                                                          const StreamingOrderOptions& options) {
  detail::check_epoch_size(streams, options);
  return detail::weights_of(streams, options).first;
}

TUTTI_INLINE StreamingOrder streaming_order(std::span<const StreamSizes> streams,
                                            const StreamingWorld& world,
                                            const StreamingOrderOptions& options,
                                            std::int64_t epoch,
                                            const std::optional<StreamingState>& state) {
  detail::check_streaming(streams, world, options, epoch, state);
  return detail::OrderMaker(streams, world, options, epoch, state).make();
}

}  // namespace tutti::data
