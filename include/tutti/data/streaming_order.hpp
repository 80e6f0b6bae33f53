// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
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

/// In which order samples of streamed shards are trained, on any number of machines.
namespace tutti::data {

/// What one stream has, and how much of it an epoch takes: all streams say `proportion`, or each
/// says `repeat`, `choose` or nothing (once).
struct StreamSizes {
  std::vector<std::int64_t> shards;      ///< samples of each shard; >= 1
  std::optional<double> proportion{};    ///< of the samples of an epoch, relative to others; >= 0
  std::optional<double> repeat{};        ///< how often in an epoch; >= 0
  std::optional<std::int64_t> choose{};  ///< samples in an epoch; >= 0
};

/// Options by the names of MosaicML Streaming's StreamingDataset.
struct StreamingOrderOptions {
  std::int64_t batch_size = 1;                        ///< of a rank
  std::optional<std::int64_t> num_canonical_nodes{};  ///< default: nodes, 64 times with py1s, py2s
  bool shuffle = false;
  std::string shuffle_algo = "py1e";  ///< naive, py1s, py2s, py1br or py1e
  std::uint64_t shuffle_seed = 9176;
  std::optional<std::int64_t> shuffle_block_size{};  ///< default: max(4000000 / nodes, 2^18)
  std::string sampling_method = "balanced";          ///< or fixed: the same samples in every epoch
  std::int64_t sampling_granularity = 1;             ///< samples that are chosen together
  std::string batching_method = "random";    ///< stratified, per_stream or device_per_stream
  std::optional<std::int64_t> epoch_size{};  ///< samples; not with repeat or choose
  std::int64_t replication = 1;              ///< so many ranks in turn get the same samples
  std::string partition_algo = "relaxed";  ///< or orig: a run does not go on with a number of nodes
                                           ///< that num_canonical_nodes does not fit
};

/// Who trains.
struct StreamingWorld {
  std::int64_t nodes = 1;
  std::int64_t ranks_per_node = 1;
  std::int64_t workers_per_rank = 1;
};

/// Where a run is, as Streaming writes it into checkpoints.
struct StreamingState {
  std::int64_t epoch = 0;
  std::int64_t sample_in_epoch = 0;
  std::int64_t num_canonical_nodes = 1;
  std::uint64_t shuffle_seed = 9176;
  std::int64_t initial_physical_nodes = 1;
};

/// The samples of an epoch: `ids` is row-major of [nodes, ranks, workers, batches, batch size];
/// sample numbers count through the streams, -1 is nothing.
struct StreamingOrder {
  std::array<std::int64_t, 5> shape{};
  std::vector<std::int64_t> ids;

  /// All samples in the order of training: batch of a worker, worker, node, rank, place.
  [[nodiscard]] std::vector<std::int64_t> walk() const;
};

/// The order of an epoch, the same as in MosaicML Streaming 0.13.
///
/// epoch: counts from 0; state: where to go on, then its epoch, seed and canonical nodes count;
/// one of an epoch before `epoch` is ignored.
/// An order depends only on the arguments: each rank can compute it alone. Where the number of
/// samples in a global batch stays the same, a run that goes on with other numbers of nodes has the
/// same samples in each global batch.
/// Throws c10::ValueError naming an option that is out of range or does not fit the others.
/// Source: mosaicml-streaming 0.13, base/{partition,shuffle,batching,sampling}.
StreamingOrder streaming_order(std::span<const StreamSizes> streams, const StreamingWorld& world,
                               const StreamingOrderOptions& options, std::int64_t epoch = 0,
                               const std::optional<StreamingState>& state = std::nullopt);

/// How many samples of each stream an epoch takes.
/// Throws c10::ValueError for an epoch_size beside a stream's repeat or choose.
std::vector<std::int64_t> samples_per_stream(std::span<const StreamSizes> streams,
                                             const StreamingOrderOptions& options);

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/streaming_order.inl.hpp>
#endif
