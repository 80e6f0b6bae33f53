// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <tutti/algorithms/factorize.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

// All pairs of a pack of algorithms through one recipe: each is a Switch, and two of them are on.
namespace together {

/// Keeps the gradients from which the first step is made.
struct Grab final {
  static constexpr tutti::Role role = tutti::Role::callback;
  at::Tensor gradient{};
  void apply(tutti::AfterTrainBatch, const tutti::State& state) {
    if (gradient.defined() || state.is_ascent) {
      return;
    }
    std::vector<at::Tensor> parts;
    for (const auto& parameter : state.model->parameters()) {
      parts.push_back(parameter.grad().defined()
                          ? parameter.grad().flatten().to(at::kDouble)
                          : at::zeros({parameter.numel()}, parameter.options().dtype(at::kDouble)));
    }
    gradient = at::cat(parts);
  }
};

/// A run on `loader` that is the same every time.
template <class Loader>
tutti::TrainerOptions run_options(Loader loader, std::int64_t epochs, std::int64_t microbatch) {
  return {.train = std::move(loader),
          .max_duration = tutti::Time::epochs(epochs),
          .optimizer = tutti::SGD{.lr = 0.05, .momentum = 0.9},
          .device_train_microbatch_size = microbatch,
          .allow_idle_policies = true,
          .device = tutti_test::device_name(),
          .seed = 9,
          .run_name = "together",
          .progress_bar = false};
}

/// `A` with options with which it acts on the small models of these tests.
template <class A>
A small() {
  return A{};
}
template <>
inline tutti::Factorize small<tutti::Factorize>() {
  return {.min_channels = 16, .latent_channels = 0.25, .min_features = 16, .latent_features = 0.25};
}
template <>
inline tutti::GradientClipping small<tutti::GradientClipping>() {
  return {.clipping_type = tutti::ClippingType::norm, .clipping_threshold = 0.5};
}
template <>
inline tutti::GyroDropout small<tutti::GyroDropout>() {
  return {.p = 0.5, .sigma = 1, .tau = 2};
}
template <>
inline tutti::LayerFreezing small<tutti::LayerFreezing>() {
  return {.freeze_start = 0.0};
}

/// Why gradients depend on the microbatches with `A`, by the algorithm's own definition; empty:
/// they must not.
template <class A>
constexpr std::string_view per_microbatch = "";
template <>
inline constexpr std::string_view per_microbatch<tutti::GyroDropout> =
    "GyroDropout deals its masks to the examples of a microbatch";

template <class... As>
class Pack {
 public:
  using Trainer = tutti::Trainer<tutti::Switch<As>..., Grab>;
  static constexpr std::size_t size = sizeof...(As);
  static constexpr std::size_t fresh = size;  ///< the first ones, that no other pack tests
  static constexpr std::array<std::string_view, size> names{tutti::name_of<As>()...};
  static constexpr std::array<std::string_view, size> reasons{per_microbatch<As>...};

  /// A trainer with algorithms i and j on.
  template <class Model>
  static std::unique_ptr<Trainer> make(const Model& model, const tutti::TrainerOptions& options,
                                       std::size_t i, std::size_t j) {
    std::size_t k = 0;
    const auto on = [&] {
      const std::size_t at = k++;
      return at == i || at == j;
    };
    return std::unique_ptr<Trainer>(
        new Trainer{model, options, tutti::Switch<As>(small<As>(), on())..., Grab{}});
  }

  /// The gradients of the first step with algorithms i and j on.
  template <class Model>
  static at::Tensor gradient(const Model& model, const tutti::TrainerOptions& options,
                             std::size_t i, std::size_t j) {
    const auto trainer = make(model, options, i, j);
    trainer->fit();
    return trainer->template get<Grab>().gradient;
  }

  /// Parameters and buffers after training with algorithm i.
  template <class Model>
  static at::Tensor weights(const Model& model, const tutti::TrainerOptions& options,
                            std::size_t i) {
    const auto trainer = make(model, options, i, i);
    trainer->fit();
    return tiny::flat(*trainer->state().model);
  }
};

/// Compares the gradients with `parts` microbatches with those of the whole batch, for every pair
/// of the pack; a pair of an algorithm with itself is the algorithm alone. Every pair that is left
/// out is printed with the reason.
///
/// run: (i, j, microbatch size) -> gradients.
template <class P, class Run>
void check_pairs(std::int64_t batch_size, std::int64_t parts, Run&& run) {
  std::size_t compared = 0;
  std::map<std::string, int> left_out;
  for (std::size_t i = 0; i < P::fresh; ++i) {
    for (std::size_t j = i; j < P::size; ++j) {
      const std::string_view reason = P::reasons[i].empty() ? P::reasons[j] : P::reasons[i];
      INFO(P::names[i] << " and " << P::names[j]);
      const at::Tensor whole = run(i, j, std::int64_t{0});
      const at::Tensor split = run(i, j, batch_size / parts);
      REQUIRE(whole.defined());
      REQUIRE(whole.isfinite().all().template item<bool>());
      REQUIRE(split.isfinite().all().template item<bool>());
      if (!reason.empty()) {
        ++left_out[std::string(reason)];
        continue;
      }
      ++compared;
      const double scale = std::max(1.0, whole.abs().max().template item<double>());
      const double off = (whole - split).abs().max().template item<double>();
      CHECK(off <= 1e-9 * scale);
    }
  }
  for (const auto& [reason, count] : left_out) {
    std::printf("%d pairs run, and are not compared: %s\n", count, reason.c_str());
  }
  std::printf("%zu pairs have the gradients of the whole batch in %d microbatches\n", compared,
              static_cast<int>(parts));
}

/// What a run has, bit for bit, by name: the model, the optimizer, what policies keep and how far
/// their random streams are.
using Bits = std::map<std::string, std::string>;

template <class Trainer>
Bits bits_of(const Trainer& trainer) {
  tutti::Archive archive;
  const tutti::State& state = trainer.state();
  tutti::checkpoint::save_module(*state.model, archive.child("model"));
  tutti::checkpoint::save_optimizer(*state.optimizers.front(), archive.child("optimizer"),
                                    state.model.get());
  trainer.for_each_policy([&]<class S>(const S& policy) {
    const std::string name(tutti::name_of<S>());
    if constexpr (requires { policy.save(archive); }) {
      policy.save(archive.child(name));
    }
    if constexpr (requires { policy.policy.rng.position(); }) {
      archive.put(name + "/drawn", static_cast<std::int64_t>(policy.policy.rng.position()));
    }
  });
  Bits out;
  archive.each_leaf([&](const std::string& path, const tutti::ArchiveLeaf& leaf) {
    if (const at::Tensor* tensor = leaf.tensor()) {
      const at::Tensor host = tensor->detach().cpu().contiguous();
      out[path] = {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
    } else {
      out[path] = leaf.visit([](const auto& value) { return c10::str(value); });
    }
  });
  return out;
}

/// The first name under which the two have something else; empty: there is none.
inline std::string first_difference(const Bits& got, const Bits& want) {
  const auto [a, b] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
  return a != got.end() ? a->first : b != want.end() ? b->first : "";
}

/// Every pair of the pack, and every algorithm alone, in whole batches and in microbatches: a run
/// that saves is the run that never does, however often it saves, and what is resumed inside or at
/// the end of an epoch ends as the run that nothing stopped, bit for bit.
///
/// make: () -> model. options: (microbatch size) -> those of a run of 2 epochs of 2 batches.
template <class P, class Make, class Options>
void check_resume_pairs(Make&& make, Options&& options, std::int64_t microbatch) {
  for (std::size_t i = 0; i < P::fresh; ++i) {
    for (std::size_t j = i; j < P::size; ++j) {
      for (const std::int64_t size : {std::int64_t{0}, microbatch}) {
        INFO(P::names[i] << " and " << P::names[j] << " in microbatches of " << size);
        const tutti::TrainerOptions plain = options(size);
        const auto run = [&](const tutti::TrainerOptions& how) {
          const auto trainer = P::make(make(), how, i, j);
          trainer->fit();
          return bits_of(*trainer);
        };
        const Bits never = run(plain);
        const TemporaryFolder folder;
        for (const char* interval : {"1ba", "3ba", "1ep"}) {
          INFO("saving every " << interval);
          tutti::TrainerOptions saving = plain;
          saving.save_folder = (folder / interval).string();
          saving.save_interval = tutti::Time::parse(interval);
          CHECK(first_difference(run(saving), never) == "");
        }
        // The end of an epoch is saved before it has ended, too.
        for (const char* from : {"1ba/ep1-ba3", size > 0 ? "1ba/ep0-ba2" : "1ep/ep1-ba2"}) {
          INFO("resumed from " << from);
          tutti::TrainerOptions resuming = plain;
          resuming.load_path = (folder / from).string();
          CHECK(first_difference(run(resuming), never) == "");
        }
      }
    }
  }
}

/// Every algorithm of the pack alone: what is resumed inside an epoch ends as the run that nothing
/// stopped, bit for bit.
///
/// make: (i) -> model. options: of a run of several epochs. after: the checkpoint to resume from,
/// such as "ep1-ba4".
template <class P, class Make>
void check_resume(Make&& make, tutti::TrainerOptions options, const std::string& after) {
  for (std::size_t i = 0; i < P::fresh; ++i) {
    INFO(P::names[i]);
    const TemporaryFolder folder;
    tutti::TrainerOptions saving = options;
    saving.save_folder = (folder.path() / "run").string();
    saving.save_interval = "1ba";
    const at::Tensor whole = P::weights(make(i), saving, i);
    tutti::TrainerOptions resuming = options;
    resuming.load_path = (folder.path() / "run" / after).string();
    const at::Tensor resumed = P::weights(make(i), resuming, i);
    CHECK(whole.isfinite().all().template item<bool>());
    CHECK(resumed.equal(whole));
  }
}

/// Every algorithm of the pack alone: trains in microbatches under bfloat16 autocast.
template <class P, class Make>
void check_amp(Make&& make, tutti::TrainerOptions options) {
  options.precision = tutti::Precision::amp_bf16;
  for (std::size_t i = 0; i < P::fresh; ++i) {
    INFO(P::names[i]);
    CHECK(P::weights(make(i), options, i).isfinite().all().template item<bool>());
  }
}

/// Every algorithm of the pack alone: a second fit goes on.
template <class P, class Make>
void check_second_fit(Make&& make, const tutti::TrainerOptions& options) {
  for (std::size_t i = 0; i < P::fresh; ++i) {
    INFO(P::names[i]);
    const auto trainer = P::make(make(i), options, i, i);
    trainer->fit();
    const at::Tensor first = tiny::flat(*trainer->state().model);
    const std::int64_t batches = trainer->state().timestamp.batch;
    trainer->fit({.duration = "2ep"});
    CHECK(trainer->state().timestamp.batch > batches);
    const at::Tensor second = tiny::flat(*trainer->state().model);
    CHECK(second.isfinite().all().template item<bool>());
    CHECK((first.numel() != second.numel() || !second.equal(first)));
  }
}

/// Every algorithm of the pack alone: the ranks of this run have equal parameters at the end.
template <class P, class Make>
void check_ranks(Make&& make, const tutti::TrainerOptions& options) {
  for (std::size_t i = 0; i < P::fresh; ++i) {
    INFO(P::names[i]);
    const auto trainer = P::make(make(i), options, i, i);
    trainer->fit();
    std::vector<at::Tensor> parts;
    for (const auto& parameter : trainer->state().model->parameters()) {
      parts.push_back(parameter.detach().flatten());
    }
    const auto ranks = trainer->state().communicator->all_gather(at::cat(parts));
    CHECK(ranks.front().isfinite().all().template item<bool>());
    CHECK(ranks.front().equal(ranks.back()));
  }
}

}  // namespace together
