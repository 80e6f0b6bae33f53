// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/memory_plan.hpp>

namespace tutti::dist {

namespace detail {

// Bytes of a unit as it lies in memory and in messages.
struct UnitBytes {
  std::int64_t whole = 0;      // parameters, in the type of computation
  std::int64_t shard = 0;      // this rank's part of them, in their own type
  std::int64_t gradient = 0;   // of all parameters that train, in the type of computation
  std::int64_t stays = 0;      // of these what stays until they are averaged
  std::int64_t part = 0;       // of a rank, in messages of parameters
  std::int64_t message = 0;    // of all ranks, beside the whole while it is gathered
  std::int64_t packed = 0;     // of the rank's part in the type of computation, until it has gone
  std::int64_t ahead = 0;      // what a gather on its way has
  std::int64_t reduced = 0;    // of a rank, in a message of gradients
  std::int64_t kept_mean = 0;  // a rank's mean gradient, in the parameters' own type
  std::int64_t kept = 0;       // of the whole, from the forward to the backward pass
  std::int64_t unpacked = 0;   // beside the whole, while it is gathered for the gradients
  bool paged = false;          // operators bring it; of these the last two stay for a while
  bool stays_whole = false;    // from the forward to the backward pass

  // What a gather for the gradients on its way has.
  [[nodiscard]] std::int64_t ahead_again() const {
    return kept == 0 ? ahead : unpacked > 0 ? unpacked : whole;
  }
};

// What a step has at one moment more than at its begin, and the most of it.
class Moments {
 public:
  void take(std::int64_t bytes) {
    now_ += bytes;
    most_ = std::max(most_, now_);
  }
  void give(std::int64_t bytes) { now_ -= bytes; }
  [[nodiscard]] std::int64_t most() const { return most_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t most_ = 0;
};

// As FlatUnit does it: gradients move into a message, or are sent from where they are, and a part
// comes back.
TUTTI_INLINE void start_reduce(Moments& moments, const UnitBytes& unit, std::int64_t ranks) {
  moments.take(unit.reduced);          // out
  moments.take(unit.reduced * ranks);  // in
  moments.give(unit.gradient - unit.stays);
}
TUTTI_INLINE void end_reduce(Moments& moments, const UnitBytes& unit, std::int64_t ranks) {
  moments.give(unit.stays + unit.reduced * ranks);
  if (unit.kept_mean != unit.reduced) {
    moments.take(unit.kept_mean);
    moments.give(unit.reduced);
  }
}

// The most that a step has beside parameters, optimizer and buffers. units: the root first.
TUTTI_INLINE std::int64_t step_peak(const std::vector<UnitBytes>& units, ShardStage stage,
                                    std::int64_t ranks, bool overlaps) {
  const UnitBytes& root = units.front();
  Moments moments;
  const UnitBytes* reducing = nullptr;
  const auto reduce = [&](const UnitBytes* unit) {
    if (reducing != nullptr) {
      end_reduce(moments, *reducing, ranks);
    }
    if (unit != nullptr) {
      start_reduce(moments, *unit, ranks);
    }
    reducing = unit;
    if (unit != nullptr && !overlaps) {
      end_reduce(moments, *std::exchange(reducing, nullptr), ranks);
    }
  };
  if (stage == ShardStage::parameters) {
    for (std::size_t i = 1; i < units.size(); ++i) {  // forward: a unit, and the next on its way
      const bool leaves = units[i - 1].paged && !units[i - 1].stays_whole;
      const std::int64_t before = leaves ? units[i - 1].whole : 0;
      moments.take(before + units[i].message + units[i].packed + units[i].whole);
      moments.give(units[i].message + units[i].packed);
      const std::int64_t next = i + 1 < units.size() ? units[i + 1].ahead : 0;
      moments.take(next + units[i].kept);
      moments.give(before + next + (units[i].stays_whole ? 0 : units[i].whole));
    }
  }
  moments.take(root.gradient);
  for (std::size_t i = units.size(); i-- > 1;) {
    const bool gathers = stage == ShardStage::parameters && i > 1 && !units[i - 1].stays_whole;
    const std::int64_t next = gathers ? units[i - 1].ahead_again() : 0;
    const std::int64_t whole = stage == ShardStage::parameters ? units[i].whole : 0;
    if (whole > 0 && !units[i].stays_whole) {
      const std::int64_t messages =
          units[i].kept > 0 ? units[i].unpacked : units[i].message + units[i].packed;
      moments.take(whole + messages);
      moments.give(messages + units[i].kept);
    }
    moments.take(next + units[i].gradient);
    moments.give(whole);
    if (stage >= ShardStage::gradients) {
      reduce(&units[i]);
    }
    moments.give(next);
  }
  if (stage == ShardStage::optimizer) {
    for (std::size_t i = units.size(); i-- > 1;) {
      reduce(&units[i]);
    }
  }
  reduce(nullptr);
  if (stage != ShardStage::none) {
    start_reduce(moments, root, ranks);
    end_reduce(moments, root, ranks);
    for (const UnitBytes& unit : units) {  // after the step: what stays whole is gathered
      if (stage != ShardStage::parameters || &unit == &root) {
        const std::int64_t packed = unit.packed > 0 ? unit.packed : unit.message / ranks;
        moments.take(unit.message + packed);
        moments.give(unit.message + packed);
      }
    }
  }
  return moments.most();
}

}  // namespace detail

TUTTI_INLINE MemoryPlan memory_plan(const torch::nn::Module& module,
                                    const MemoryPlanOptions& options) {
  const ShardingOptions& sharding = options.sharding;
  const int world = options.world_size;
  TUTTI_CHECK_VALUE(world >= 1 && options.rank >= 0 && options.rank < world, "memory_plan: rank ",
                    options.rank, " of ", world,
                    " ranks, expected at least one rank, and a rank from 0 to world_size - 1");
  TUTTI_CHECK_VALUE(sharding.shard_degree >= 0 &&
                        (sharding.shard_degree == 0 || world % sharding.shard_degree == 0),
                    "memory_plan: shard_degree is ", sharding.shard_degree, " in a run of ", world,
                    " ranks, expected 0 (all of them) or a number that divides theirs");
  TUTTI_CHECK_VALUE(options.optimizer_bytes >= 0, "memory_plan: optimizer_bytes is ",
                    options.optimizer_bytes, ", expected 0 or more");
  const bool shards = sharding.stage != ShardStage::none;
  const int ranks = !shards ? 1 : sharding.shard_degree == 0 ? world : sharding.shard_degree;
  const int copies = world / ranks;
  const int among = detail::kept_among(sharding, ranks);
  MemoryPlan plan{.world_size = world, .stage = sharding.stage, .shard_degree = ranks};
  std::vector<detail::UnitBytes> units(1);
  std::vector<std::int64_t> elements(1);  // of each
  std::unordered_map<const torch::nn::Module*, std::size_t> places{{nullptr, 0}};
  bool overlaps = false;
  std::int64_t trained = 0;  // elements of this rank's part, or of all, that the optimizer has
  const std::vector<detail::UnitModule> modules = detail::unit_modules(module, sharding.units);
  std::unordered_set<const torch::nn::Module*> paged;
  for (const detail::UnitModule& one : modules) {
    if (one.slot == nullptr) {
      paged.insert(one.module);
    }
  }
  std::vector<detail::UnitParameter> uses = detail::unit_parameters(module, modules);
  if (shards) {
    for (const detail::UnitParameter& one : detail::take_ignored(uses, sharding.ignored)) {
      plan.elements += one.parameter.numel();
      plan.parameters +=
          one.parameter.numel() * static_cast<std::int64_t>(one.parameter.itemsize());
    }
  }
  for (const detail::UnitParameter& use : uses) {
    const auto [place, is_new] = places.try_emplace(use.unit, units.size());
    if (is_new) {
      units.emplace_back();
      elements.push_back(0);
    }
    detail::UnitBytes& unit = units[place->second];
    const detail::FlatParameter one(use.name, use.parameter, ranks, options.rank % ranks);
    const at::ScalarType own = use.parameter.scalar_type();
    const at::ScalarType compute = shards ? sharding.param_dtype.value_or(own) : own;
    const auto size = static_cast<std::int64_t>(c10::elementSize(own));
    const auto wide = static_cast<std::int64_t>(c10::elementSize(compute));
    const auto sent = static_cast<std::int64_t>(
        c10::elementSize(shards ? sharding.reduce_dtype.value_or(compute) : own));
    plan.elements += one.numel();
    elements[place->second] += one.numel();
    plan.shard += one.mine * one.row;
    plan.padding += ranks * one.chunk_numel() - one.numel();
    unit.whole += one.numel() * wide;
    unit.paged = paged.contains(use.unit);
    unit.shard += one.chunk_numel() * size;
    unit.part += one.chunk_numel() * wide;
    const bool on_cpu =
        options.device.value_or(use.parameter.device().type()) == c10::DeviceType::CPU;
    overlaps = sharding.overlap_reduce.value_or(!on_cpu);
    const bool alone = one.alone() && (ranks == 1 || on_cpu);
    unit.message += alone ? 0 : ranks * one.chunk_numel() * wide;
    const bool copied = compute != own || (sharding.cpu_offload && !on_cpu);
    const std::int64_t packed = copied ? one.chunk_numel() * wide : 0;
    unit.packed += packed;
    unit.ahead += (alone ? one.numel() : ranks * one.chunk_numel()) * wide + packed;
    if (one.trains()) {
      unit.gradient += one.numel() * wide;
      unit.stays += alone && ranks > 1 && sent == wide ? one.numel() * wide : 0;
      unit.reduced += (one.chunk_numel() + 1) * sent;  // and a flag
      unit.kept_mean += (one.chunk_numel() + (size == sent ? 1 : 0)) * size;
      trained += one.mine * one.row;
    }
  }
  plan.root = elements.front();
  elements.front() = 0;
  plan.largest_unit = *std::max_element(elements.begin(), elements.end());
  for (const at::Tensor& buffer : module.buffers()) {
    plan.buffers += static_cast<std::int64_t>(buffer.nbytes());
  }
  const bool offloads = shards && sharding.cpu_offload;
  (offloads ? plan.host : plan.optimizer) =
      static_cast<std::int64_t>(static_cast<double>(trained) * options.optimizer_bytes);
  const auto ring = [](std::int64_t bytes, int size) { return bytes * (size - 1) / size; };
  for (std::size_t i = 0; i < units.size(); ++i) {
    detail::UnitBytes& unit = units[i];
    const bool whole = sharding.stage != ShardStage::parameters || i == 0;
    unit.stays_whole = i > 0 && (among == 1 || (unit.paged && i + 2 >= units.size()));
    if (!whole && !unit.stays_whole && among > 1) {
      unit.kept = (unit.whole + among - 1) / among;
      unit.unpacked = unit.whole % among == 0 ? 0 : unit.kept * among;
    }
    plan.parameters += whole ? unit.whole : 0;
    const bool apart = shards && (!whole || sharding.param_dtype || sharding.cpu_offload);
    (offloads ? plan.host : plan.parameters) += apart ? unit.shard : 0;
    if (!shards) {
      plan.gradients += unit.gradient;
      plan.gradients +=
          world > 1 && !options.gradient_as_bucket_view ? unit.gradient : 0;  // the buckets
      plan.sent += 2 * ring(unit.gradient, world);
    } else {
      (offloads ? plan.host : plan.gradients) += unit.kept_mean;
      plan.sent += ring(unit.reduced * ranks, ranks) + 2 * ring(unit.reduced, copies) +
                   ring(unit.part * ranks, ranks) +
                   (whole || unit.stays_whole ? 0
                    : unit.kept > 0           ? ring(unit.kept * among, among)
                                              : ring(unit.part * ranks, ranks));
      unit.kept_mean = offloads ? 0 : unit.kept_mean;  // behind the message
    }
  }
  plan.peak = plan.parameters + plan.optimizer + plan.buffers +
              (shards ? detail::step_peak(units, sharding.stage, ranks, overlaps) : plan.gradients);
  return plan;
}

TUTTI_INLINE std::string to_table(const std::vector<MemoryPlan>& plans) {
  const auto text = [](std::int64_t bytes) {
    const double mb = static_cast<double>(bytes) / 1e6;
    const auto tenths = static_cast<std::int64_t>(mb * 10 + 0.5);
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
  };
  std::vector<std::vector<std::string>> rows{{"stage", "ranks", "copies", "parameters", "gradients",
                                              "optimizer", "between steps", "peak", "sent a step"}};
  for (const MemoryPlan& plan : plans) {
    rows.push_back(
        {std::string(to_string(plan.stage)), std::to_string(plan.world_size),
         std::to_string(plan.stage == ShardStage::none ? plan.world_size
                                                       : plan.world_size / plan.shard_degree),
         text(plan.parameters), text(plan.gradients), text(plan.optimizer),
         text(plan.between_steps()), text(plan.peak), text(plan.sent)});
  }
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - row[i].size(), ' ');
      out += i == 0 ? row[i] + gap : "  " + gap + row[i];
    }
    out += '\n';
  }
  return out;
}

}  // namespace tutti::dist
