// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/numpy_random.hpp>
#include <tutti/data/streaming_order.hpp>

// Which samples of its streams an epoch takes, and how they are shuffled: MosaicML Streaming's
// samplings and shuffles, draw for draw.

namespace tutti::data::detail {

using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;  // half-open
using Lists = std::vector<std::vector<std::int64_t>>;

inline Spans spans_of(const std::vector<std::int64_t>& units) {
  Spans out;
  std::int64_t at = 0;
  for (const std::int64_t unit : units) {
    out.emplace_back(at, at + unit);
    at += unit;
  }
  return out;
}

// The spans of each canonical node; the one on a border is cut there.
inline std::vector<Spans> divided(const Spans& spans, std::int64_t total, std::int64_t nodes) {
  std::vector<Spans> out(static_cast<std::size_t>(nodes));
  std::size_t i = 0;
  std::int64_t cut = 0;  // of span i
  std::int64_t done = 0;
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::int64_t end = total * (node + 1) / nodes;
    while (i < spans.size()) {
      const std::int64_t begin = spans[i].first + cut;
      const std::int64_t size = spans[i].second - begin;
      if (end < done + size) {
        if (done < end) {
          out[static_cast<std::size_t>(node)].emplace_back(begin, begin + end - done);
          cut += end - done;
          done = end;
        }
        break;
      }
      out[static_cast<std::size_t>(node)].emplace_back(begin, spans[i].second);
      done += size;
      cut = 0;
      ++i;
    }
  }
  return out;
}

inline std::vector<std::int64_t> numbers(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

inline void append(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

inline std::vector<std::int64_t> shuffled_py2s(const std::vector<std::int64_t>& units,
                                               std::int64_t nodes, std::uint64_t seed,
                                               std::uint64_t epoch) {
  Lists shards;
  std::int64_t total = 0;
  for (const auto& [begin, end] : spans_of(units)) {
    shards.push_back(numbers(begin, end));
    total = end;
  }
  NumpyRandom first(seed);
  first.shuffle(std::span(shards));
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> all;
  for (std::vector<std::int64_t>& shard : shards) {
    first.shuffle(std::span(shard));
    sizes.push_back(static_cast<std::int64_t>(shard.size()));
    append(all, shard);
  }
  NumpyRandom random(seed + epoch);
  std::vector<std::int64_t> out;
  for (const Spans& part : divided(spans_of(sizes), total, nodes)) {
    Lists pieces;
    for (const auto& [begin, end] : part) {
      pieces.emplace_back(all.begin() + begin, all.begin() + end);
    }
    random.shuffle(std::span(pieces));
    for (std::vector<std::int64_t>& piece : pieces) {
      random.shuffle(std::span(piece));
      append(out, piece);
    }
  }
  return out;
}

// Blocks have from the first of these up to one less than the second samples.
inline std::pair<std::int64_t, std::int64_t> block_sizes(std::int64_t block) {
  return {static_cast<std::int64_t>(0.75 * static_cast<double>(block)),
          static_cast<std::int64_t>(1.25 * static_cast<double>(block))};
}

inline void check_block_size(const std::string& algorithm, std::int64_t block) {
  const std::int64_t least = algorithm == "py1br" ? 2 : algorithm == "py1e" ? 1 : block;
  TUTTI_CHECK_VALUE(block >= least, "streaming: shuffle_block_size is ", block, " for ", algorithm,
                    ", expected at least ", least,
                    "; batches stratified by streams give each its proportion of it");
}

// Samples in blocks of about `block`, whose borders every node shifts by its own amount.
inline std::vector<std::int64_t> shuffled_py1br(const std::vector<Spans>& parts,
                                                NumpyRandom& random, std::int64_t block) {
  const auto [least, most] = block_sizes(block);
  std::vector<std::int64_t> stagger;
  for (std::size_t node = 0; node < parts.size(); ++node) {
    stagger.push_back(random.integers(0, least));
  }
  std::vector<std::int64_t> out;
  for (std::size_t node = 0; node < parts.size(); ++node) {
    const auto start = static_cast<std::int64_t>(out.size());
    for (const auto& [begin, end] : parts[node]) {
      append(out, numbers(begin, end));
    }
    const auto stop = static_cast<std::int64_t>(out.size());
    Spans blocks;
    for (std::int64_t end = start; end < stop;) {
      const std::int64_t size = random.integers(least, most);
      const std::int64_t low = std::max(end - stagger[node], start);
      const std::int64_t high = std::min(end + size - stagger[node], stop);
      blocks.emplace_back(low, high);
      end += high - low;
    }
    for (const auto& [low, high] : blocks) {
      random.shuffle(
          std::span(out).subspan(static_cast<std::size_t>(low),
                                 static_cast<std::size_t>(std::max(high - low, std::int64_t{0}))));
    }
  }
  return out;
}

// Samples spread over about `block` places around their shard.
inline std::vector<std::int64_t> shuffled_py1e(const std::vector<Spans>& parts, NumpyRandom& random,
                                               std::int64_t block) {
  const auto [least, most] = block_sizes(block);
  std::vector<std::int64_t> out;
  for (const Spans& part : parts) {
    std::vector<std::int64_t> ids;
    for (const auto& [begin, end] : part) {
      std::vector<std::int64_t> span = numbers(begin, end);
      random.shuffle(std::span(span));
      append(ids, span);
    }
    const auto all = static_cast<double>(ids.size());
    std::vector<double> places;
    double at = 0;
    for (const auto& [begin, end] : part) {
      const auto size = static_cast<double>(end - begin);
      const auto drawn = static_cast<double>(random.integers(least, most));
      const double reach = std::max((drawn - size) / 2, 0.0);
      const double low = std::max(-reach, -at);
      const double high = std::min(reach, all - at - size);
      for (std::int64_t k = 0; k < end - begin; ++k) {
        places.push_back(at + static_cast<double>(k) + random.uniform(low, high));
      }
      at += size;
    }
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return places[a] < places[b]; });
    for (const std::size_t i : order) {
      out.push_back(ids[i]);
    }
  }
  return out;
}

// A permutation of 0 .. sum(units) - 1. units: sizes of what is kept together as a shard.
inline std::vector<std::int64_t> shuffled_order(const std::string& algorithm,
                                                const std::vector<std::int64_t>& units,
                                                std::int64_t nodes, std::uint64_t seed,
                                                std::uint64_t epoch, std::int64_t block) {
  const std::int64_t total = std::accumulate(units.begin(), units.end(), std::int64_t{0});
  if (algorithm == "naive") {
    return NumpyRandom(seed + epoch).permutation(total);
  }
  if (algorithm == "py2s") {
    return shuffled_py2s(units, nodes, seed, epoch);
  }
  Spans spans = spans_of(units);
  NumpyRandom(seed).shuffle(std::span(spans));
  std::vector<Spans> parts = divided(spans, total, nodes);
  NumpyRandom random(seed + epoch);
  for (Spans& part : parts) {
    random.shuffle(std::span(part));
  }
  if (algorithm == "py1br") {
    return shuffled_py1br(parts, random, block);
  }
  if (algorithm == "py1e") {
    return shuffled_py1e(parts, random, block);
  }
  std::vector<std::int64_t> out;  // py1s
  for (const Spans& part : parts) {
    for (const auto& [begin, end] : part) {
      std::vector<std::int64_t> span = numbers(begin, end);
      random.shuffle(std::span(span));
      append(out, span);
    }
  }
  return out;
}

// The sum as NumPy forms it: eight sums side by side.
inline double numpy_sum(const std::vector<double>& values) {
  if (values.size() < 8) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  }
  if (values.size() > 128) {
    const std::size_t half = values.size() / 2 - values.size() / 2 % 8;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(half);
    return numpy_sum({values.begin(), middle}) + numpy_sum({middle, values.end()});
  }
  double r[8] = {};
  std::copy_n(values.begin(), 8, r);
  std::size_t i = 8;
  for (; i + 8 <= values.size(); i += 8) {
    for (std::size_t k = 0; k < 8; ++k) {
      r[k] += values[i + k];
    }
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < values.size(); ++i) {
    sum += values[i];
  }
  return sum;
}

// How many samples of each stream an epoch takes, and their shares of a batch.
inline std::pair<std::vector<std::int64_t>, std::vector<double>> weights_of(
    std::span<const StreamSizes> streams, const StreamingOrderOptions& options) {
  const char* const no_samples =
      "streaming: an epoch takes no sample of any stream; give one a proportion, repeat or choose "
      "above 0";
  std::vector<std::int64_t> sizes;
  bool relative = false;
  bool plain = true;
  for (const StreamSizes& stream : streams) {
    sizes.push_back(std::accumulate(stream.shards.begin(), stream.shards.end(), std::int64_t{0}));
    relative = relative || stream.proportion;
    plain = plain && !stream.proportion && !stream.repeat && !stream.choose;
  }
  std::vector<std::int64_t> choose;
  std::vector<double> shares;
  if (relative || (plain && options.epoch_size)) {
    const std::int64_t wanted =
        options.epoch_size.value_or(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
    for (std::size_t i = 0; i < streams.size(); ++i) {
      shares.push_back(relative ? streams[i].proportion.value_or(0)
                                : static_cast<double>(sizes[i]));
    }
    const double sum = numpy_sum(shares);
    TUTTI_CHECK_VALUE(sum > 0, no_samples);
    std::int64_t given = 0;
    for (double& share : shares) {
      share /= sum;
      choose.push_back(static_cast<std::int64_t>(static_cast<double>(wanted) * share));
      given += choose.back();
    }
    for (const std::int64_t i :
         NumpyRandom(options.shuffle_seed)
             .choice(static_cast<std::int64_t>(streams.size()), wanted - given)) {
      ++choose[static_cast<std::size_t>(i)];
    }
    return {choose, shares};
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const StreamSizes& stream = streams[i];
    choose.push_back(stream.repeat
                         ? static_cast<std::int64_t>(*stream.repeat * static_cast<double>(sizes[i]))
                         : stream.choose.value_or(sizes[i]));
  }
  const auto all =
      static_cast<double>(std::accumulate(choose.begin(), choose.end(), std::int64_t{0}));
  TUTTI_CHECK_VALUE(all > 0, no_samples);
  for (const std::int64_t samples : choose) {
    shares.push_back(static_cast<double>(samples) / all);
  }
  return {choose, shares};
}

// How many samples of each shard are taken, together `choose`.
inline std::vector<std::int64_t> samples_per_shard(const std::vector<std::int64_t>& shards,
                                                   std::int64_t choose, std::int64_t granularity,
                                                   std::uint64_t seed) {
  const std::int64_t total = std::accumulate(shards.begin(), shards.end(), std::int64_t{0});
  std::vector<std::int64_t> out;
  std::vector<std::pair<std::size_t, std::int64_t>> picks;  // shard and samples
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    out.push_back(shards[shard] * (choose / total));
    for (std::int64_t at = 0; at < shards[shard]; at += granularity) {
      picks.emplace_back(shard, std::min(granularity, shards[shard] - at));
    }
  }
  std::int64_t left = choose % total;
  if (left == 0) {
    return out;
  }
  for (const std::int64_t pick :
       NumpyRandom(seed).permutation(static_cast<std::int64_t>(picks.size()))) {
    const auto [shard, samples] = picks[static_cast<std::size_t>(pick)];
    const std::int64_t taken = std::min(left, samples);
    out[shard] += taken;
    left -= taken;
    if (left == 0) {
      break;
    }
  }
  return out;
}

inline void check_one_of(const char* option, const std::string& value,
                         std::initializer_list<const char*> known) {
  std::string all;
  for (const char* one : known) {
    if (value == one) {
      return;
    }
    all += (all.empty() ? "" : ", ") + std::string(one);
  }
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__},
      "streaming: " + std::string(option) + " is \"" + value + "\", expected one of " + all);
}

inline void check_streams(std::span<const StreamSizes> streams) {
  TUTTI_CHECK_VALUE(!streams.empty(), "streaming: there is no stream");
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const StreamSizes& stream = streams[i];
    TUTTI_CHECK_VALUE(!stream.shards.empty(), "streaming: stream ", i, " has no shard");
    for (const std::int64_t size : stream.shards) {
      TUTTI_CHECK_VALUE(size > 0, "streaming: a shard of stream ", i, " has ", size,
                        " samples, expected at least 1");
    }
    const int said =
        (stream.proportion ? 1 : 0) + (stream.repeat ? 1 : 0) + (stream.choose ? 1 : 0);
    TUTTI_CHECK_VALUE(said <= 1, "streaming: stream ", i,
                      " has more than one of proportion, repeat and choose");
    TUTTI_CHECK_VALUE(stream.proportion.has_value() == streams[0].proportion.has_value(),
                      "streaming: stream ", stream.proportion ? std::size_t{0} : i,
                      " has no proportion, but others have; give all one or none");
    TUTTI_CHECK_VALUE(
        !(stream.proportion && !(*stream.proportion >= 0 && std::isfinite(*stream.proportion))) &&
            !(stream.repeat && !(*stream.repeat >= 0 && std::isfinite(*stream.repeat))) &&
            !(stream.choose && *stream.choose < 0),
        "streaming: stream ", i,
        " has a proportion, repeat or choose below 0, or one that is no number");
  }
}

// epoch_size is shared out by proportions or sizes; repeat and choose say themselves how much.
inline void check_epoch_size(std::span<const StreamSizes> streams,
                             const StreamingOrderOptions& options) {
  for (std::size_t i = 0; options.epoch_size && i < streams.size(); ++i) {
    TUTTI_CHECK_VALUE(!streams[i].repeat && !streams[i].choose, "streaming: epoch_size is ",
                      *options.epoch_size, ", but stream ", i, " has ",
                      streams[i].repeat ? "repeat" : "choose",
                      ", which says how many samples an epoch takes; give proportion or leave out "
                      "epoch_size");
  }
}

inline void check_streaming(std::span<const StreamSizes> streams, const StreamingWorld& world,
                            const StreamingOrderOptions& options, std::int64_t epoch,
                            const std::optional<StreamingState>& state) {
  check_streams(streams);
  check_epoch_size(streams, options);
  check_one_of("shuffle_algo", options.shuffle_algo, {"naive", "py1s", "py2s", "py1br", "py1e"});
  check_one_of("sampling_method", options.sampling_method, {"balanced", "fixed"});
  check_one_of("batching_method", options.batching_method,
               {"random", "stratified", "per_stream", "device_per_stream"});
  check_one_of("partition_algo", options.partition_algo, {"relaxed", "orig"});
  const auto above_zero = [](const char* name, std::int64_t value) {
    TUTTI_CHECK_VALUE(value > 0, "streaming: ", name, " is ", value, ", expected at least 1");
  };
  above_zero("nodes", world.nodes);
  above_zero("ranks_per_node", world.ranks_per_node);
  above_zero("workers_per_rank", world.workers_per_rank);
  above_zero("batch_size", options.batch_size);
  above_zero("num_canonical_nodes", options.num_canonical_nodes.value_or(1));
  above_zero("sampling_granularity", options.sampling_granularity);
  above_zero("epoch_size", options.epoch_size.value_or(1));
  above_zero("replication", options.replication);
  if (options.shuffle) {
    check_block_size(options.shuffle_algo, options.shuffle_block_size.value_or(2));
  }
  TUTTI_CHECK_VALUE(epoch >= 0, "streaming: epoch is ", epoch, ", expected at least 0");
  TUTTI_CHECK_VALUE(world.nodes * world.ranks_per_node % options.replication == 0,
                    "streaming: replication is ", options.replication, ", but there are ",
                    world.nodes * world.ranks_per_node, " ranks");
  if (state) {
    TUTTI_CHECK_VALUE(state->epoch >= 0 && state->sample_in_epoch >= 0,
                      "streaming: the state is in epoch ", state->epoch, " at sample ",
                      state->sample_in_epoch, ", expected none below 0");
    above_zero("the state's num_canonical_nodes", state->num_canonical_nodes);
    above_zero("the state's initial_physical_nodes", state->initial_physical_nodes);
  }
}

}  // namespace tutti::data::detail
