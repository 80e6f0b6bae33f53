#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Context.h>

#include <tutti/core/engine.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>

// For steps of several passes over one batch: who asks for them, and how their draws are alike.
namespace tutti::train::detail {

template <class P>
concept TakesStep = requires(P& policy, State& state, bool (&closure)(bool), void (&update)()) {
  policy.step(state, closure, update);
};

template <class Policies>
inline constexpr int step_takers = 0;
template <class... Ps>
inline constexpr int step_takers<types<Ps...>> = (0 + ... + int{TakesStep<Ps>});

template <class Policies>
inline constexpr bool one_takes_step = step_takers<Policies> <= 1;

// The name of the policy that takes the step into its own hands; empty when none does.
template <class... Ps>
constexpr std::string_view step_taker(types<Ps...>) {
  std::string_view name;
  ((name = TakesStep<Ps> ? name_of<Ps>() : name), ...);
  return name;
}

// The positions of all random streams that a forward pass draws from, to run it again alike.
template <class Engine>
class Replay {
 public:
  Replay(Engine& engine, at::Device device) : engine_(engine) {
    engine.for_each([this](auto& policy) {
      if (Rng* rng = rng_of(policy)) {
        positions_.push_back(rng->position());
      }
    });
    remember(at::Device(at::kCPU));
    if (!device.is_cpu()) {
      remember(device);
    }
  }

  void rewind() {
    std::size_t i = 0;
    engine_.for_each([this, &i](auto& policy) {
      if (Rng* rng = rng_of(policy)) {
        rng->restore(rng->seed(), rng->stream(), positions_[i++]);
      }
    });
    for (auto& [generator, saved] : generators_) {
      generator.set_state(saved);
    }
  }

 private:
  void remember(at::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    generators_.emplace_back(generator, generator.get_state());
  }

  Engine& engine_;
  std::vector<std::uint64_t> positions_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // LibTorch's own
};

}  // namespace tutti::train::detail
