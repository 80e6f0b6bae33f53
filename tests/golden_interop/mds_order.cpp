// Kind mds_order: orders of samples, and NumPy's generator that they are drawn with, exactly.

#include "golden_interop/runner.hpp"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/data/detail/numpy_random.hpp>
#include <tutti/data/streaming_order.hpp>

namespace golden_interop {

namespace {

using tutti::data::StreamingOrderOptions;
using tutti::data::StreamingState;
using tutti::data::StreamSizes;
using tutti::data::detail::NumpyRandom;

StreamSizes stream_of(const Json& json) {
  StreamSizes out{.shards = integers(json["shards"])};
  for (const auto& [name, value] : json.object()) {
    if (name == "proportion") {
      out.proportion = value.number();
    } else if (name == "repeat") {
      out.repeat = value.number();
    } else if (name == "choose") {
      out.choose = value.integer();
    } else if (name != "shards") {
      throw Unmapped("a stream has \"" + name + "\"");
    }
  }
  return out;
}

StreamingOrderOptions options_of(const Json& json) {
  StreamingOrderOptions out{.batch_size = json["batch_size"].integer()};
  if (const Json* replication = json.find("replication");
      replication != nullptr && !replication->is_null()) {
    out.replication = replication->integer();
  }
  const Json* args = json.find("args");
  if (args == nullptr) {
    return out;
  }
  for (const auto& [name, value] : args->object()) {
    if (name == "shuffle") {
      out.shuffle = value.boolean();
    } else if (name == "shuffle_algo") {
      out.shuffle_algo = value.string();
    } else if (name == "shuffle_seed") {
      out.shuffle_seed = static_cast<std::uint64_t>(value.integer());
    } else if (name == "shuffle_block_size") {
      out.shuffle_block_size = value.integer();
    } else if (name == "num_canonical_nodes") {
      out.num_canonical_nodes = value.integer();
    } else if (name == "partition_algo") {
      out.partition_algo = value.string();
    } else if (name == "epoch_size") {
      out.epoch_size = value.integer();
    } else if (name == "sampling_method") {
      out.sampling_method = value.string();
    } else if (name == "sampling_granularity") {
      out.sampling_granularity = value.integer();
    } else if (name == "batching_method") {
      out.batching_method = value.string();
    } else {
      throw Unmapped("the argument \"" + name + "\"");
    }
  }
  return out;
}

void run_order(const Case& c, const Json& json, const std::string& name) {
  std::vector<StreamSizes> streams;
  for (const Json& stream : json["streams"].array()) {
    streams.push_back(stream_of(stream));
  }
  std::optional<StreamingState> state;
  if (const Json* s = json.find("state")) {
    state = StreamingState{s->at("epoch").integer(), s->at("sample_in_epoch").integer(),
                           s->at("num_canonical_nodes").integer(),
                           static_cast<std::uint64_t>(s->at("shuffle_seed").integer()),
                           s->at("initial_physical_nodes").integer()};
  }
  const Json& world = json["world"];
  const auto order = tutti::data::streaming_order(
      streams, {world[0].integer(), world[1].integer(), world[2].integer()}, options_of(json),
      json.contains("epoch") ? json["epoch"].integer() : 0, state);
  const std::vector<std::int64_t> shape(order.shape.begin(), order.shape.end());
  c.check(shape == integers(json["shape"]), "shape of " + name);
  c.check(order.ids == integers(json["ids"]), "ids of " + name);
}

// A number of any length as 32-bit words, the lowest first.
std::vector<std::uint32_t> words_of(std::string digits) {
  std::vector<std::uint32_t> out;
  while (digits.find_first_not_of('0') != std::string::npos) {
    std::uint64_t rest = 0;
    for (char& digit : digits) {
      rest = rest * 10 + static_cast<std::uint64_t>(digit - '0');
      digit = static_cast<char>('0' + (rest >> 32));
      rest &= 0xFFFFFFFF;
    }
    out.push_back(static_cast<std::uint32_t>(rest));
  }
  return out;
}

void run_generator(const Case& c, const Json& file, const Json& json) {
  const std::vector<std::uint32_t> seed = words_of(json["seed"].string());
  const std::string of = " of seed " + json["seed"].string();
  NumpyRandom raw{std::span<const std::uint32_t>(seed)};
  for (const Json& value : json["raw64"].array()) {
    c.check(std::to_string(raw.u64()) == value.string(), "a 64-bit number" + of);
  }
  for (const std::int64_t n : {1, 10, 100}) {
    NumpyRandom random{std::span<const std::uint32_t>(seed)};
    const std::string name = "permutation_" + std::to_string(n);
    c.check(random.permutation(n) == integers(json[name]), name + of);
  }
  NumpyRandom bounded{std::span<const std::uint32_t>(seed)};
  for (std::size_t i = 0; i < file["ranges"].size(); ++i) {
    const Json& range = file["ranges"][i];
    c.check(
        bounded.integers(range[0].integer(), range[1].integer()) == json["integers"][i].integer(),
        "an integer" + of);
  }
  NumpyRandom choosing{std::span<const std::uint32_t>(seed)};
  for (std::size_t i = 0; i < file["choices"].size(); ++i) {
    const Json& choice = file["choices"][i];
    c.check(
        choosing.choice(choice[0].integer(), choice[1].integer()) == integers(json["choice"][i]),
        "a choice" + of);
  }
  NumpyRandom real{std::span<const std::uint32_t>(seed)};
  for (const Json& value : json["uniform"].array()) {
    c.check(real.uniform(-3.5, 10.25) == std::strtod(value.string().c_str(), nullptr),
            "a real number" + of);
  }
}

void run_mds_order(const Case& c) {
  const Json orders = c.read("orders.json");
  const Json generator = c.read("numpy_rng.json");
  for (std::size_t i = 0; i < orders["cases"].size(); ++i) {
    run_order(c, orders["cases"][i], "order " + std::to_string(i));
  }
  for (const Json& one : generator["cases"].array()) {
    run_generator(c, generator, one);
  }
}

const bool mds_order_registered = register_kind("mds_order", run_mds_order);

}  // namespace

}  // namespace golden_interop
