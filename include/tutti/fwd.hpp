#pragma once

#include <tutti/config.hpp>

/// Forward declarations: enough to declare a policy's hooks without paying for LibTorch.

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// A list of types; how a policy names other policies, tags and events.
template <class... Ts>
struct types {
  static constexpr unsigned size = sizeof...(Ts);
};

struct State;
class Archive;
class Batch;
class Logger;
class Metric;
class Rng;
class Time;
struct Timestamp;

template <class... Policies>
struct Recipe;
template <class... Policies>
class Engine;
template <class... Policies>
class Trainer;

namespace dist {
class Communicator;
}

}  // namespace tutti
