// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>

/// Logging from anywhere in a forward pass or a loss.
namespace tutti {

namespace detail {

// What log() has been told in one training step: of each name the weighted sum and the weights.
// Numbers of a device stay there until take().
class LoggedValues {
 public:
  struct Sum {
    double sum = 0;
    double weight = 0;
  };
  using Sums = std::map<std::string, Sum, std::less<>>;

  // weight: of a microbatch's values among those of the batch.
  void set_weight(double weight) { weight_ = weight; }

  void add(std::string_view name, double value);
  // Throws c10::Error for more or less than one number.
  void add(std::string_view name, const at::Tensor& value);

  [[nodiscard]] bool empty() const { return sums_.empty() && on_device_.empty(); }
  void clear() {
    sums_.clear();
    on_device_.clear();
  }

  // The sums, and nothing is left here. Waits for the device, once for all.
  Sums take();

 private:
  struct OnDevice {
    at::Tensor sum;
    double weight = 0;
  };

  Sums sums_;
  std::map<std::string, OnDevice, std::less<>> on_device_;
  double weight_ = 1;
};

// Who listens on this thread; null: nobody.
inline constinit thread_local LoggedValues* log_listener = nullptr;

// `listener` listens while this lives.
class Listening {
 public:
  explicit Listening(LoggedValues* listener) : was_(std::exchange(log_listener, listener)) {}
  ~Listening() { log_listener = was_; }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  LoggedValues* was_;
};

}  // namespace detail

/// Somebody would see what log() is given here: ask before computing what costs something.
[[nodiscard]] inline bool is_logging() {
  return detail::log_listener != nullptr;
}

/// Logs a number by `name` from a model's forward() or loss(), in training.
///
///     tutti::log("gate", gate.detach().mean());
///     tutti::log("gate_entropy", [&] { return entropy(gate); });   // computed where it is seen
///
/// The loggers get it once for each batch: the mean over its microbatches, weighted as their
/// losses, over calls with the same name, and over all ranks. value: any number; a tensor with one
/// number, detached here, which stays on its device until the batch is done; or a function that
/// returns one of these. Outside of a Trainer's training step, on other threads than that which
/// calls forward(), with CUDA graphs, and where no logger is in the recipe, nothing happens, for
/// the price of a comparison. Throws c10::Error for a tensor with more or less than one number.
template <class T>
  requires(std::is_arithmetic_v<T> || std::same_as<T, at::Tensor> || std::invocable<const T&>)
void log(std::string_view name, const T& value) {
  if (detail::log_listener == nullptr) {
    return;
  }
  if constexpr (std::is_arithmetic_v<T>) {
    detail::log_listener->add(name, static_cast<double>(value));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    detail::log_listener->add(name, value);
  } else {
    log(name, value());
  }
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/core/log.inl.hpp>
#endif
