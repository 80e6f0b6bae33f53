// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/streaming_order.hpp>

// Which place of an epoch is trained by whom: MosaicML Streaming's partitions `orig` and `relaxed`.

namespace tutti::data::detail {

struct Dealing {
  std::int64_t nodes;
  std::int64_t ranks;
  std::int64_t workers;
  std::int64_t batch;
};

inline bool divides(std::int64_t a, std::int64_t b) {
  return a >= b ? a % b == 0 : b % a == 0;
}

// Samples in the order of training, given to batches.
inline StreamingOrder dealt(const std::vector<std::int64_t>& flat, const Dealing& to) {
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
inline std::vector<std::int64_t> canonical_rows(std::int64_t samples, std::int64_t canonical,
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
      const std::int64_t from = per + pad - 2 * pad - ratio + 1;
      for (std::int64_t k = 0; k < pad; ++k) {
        const std::int64_t source = from + k < 0 ? from + k + per + pad : from + k;
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
inline StreamingOrder partition_evenly(std::int64_t samples, std::int64_t canonical,
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
inline StreamingOrder partition(std::int64_t samples, std::int64_t canonical, const Dealing& to,
                                std::int64_t skip, std::optional<std::int64_t> initial) {
  if (divides(canonical, to.nodes)) {
    return partition_evenly(samples, canonical, to, skip);
  }
  TUTTI_CHECK_VALUE(initial, "streaming: there are ", canonical, " canonical nodes and ", to.nodes,
                    " nodes, expected that one divides the other; set num_canonical_nodes");
  const std::int64_t all = to.nodes * to.ranks * to.batch;
  TUTTI_CHECK_VALUE(all % (*initial * to.ranks) == 0, "streaming: a run of ", *initial,
                    " nodes cannot go on with ", to.nodes, ": a global batch of ", all,
                    " samples is not divided by ", *initial * to.ranks, " ranks");
  const Dealing before{*initial, to.ranks, to.workers, all / (*initial * to.ranks)};
  return dealt(partition_evenly(samples, canonical, before, skip).walk(), to);
}

}  // namespace tutti::data::detail
