// What an algorithm adds to a training step: microseconds per step with it, and without.
//
//     benchmark_algorithms NAME KIND [NAME KIND]...
//
// NAME is an algorithm or "none", and KIND what is trained, see models.hpp; they are measured one
// after the other. Claim: every algorithm adds at most half of what it adds in Composer. CPU time,
// one thread, fp32; n = 6 blocks of 10 steps after 16 steps of warm-up, and their median. run.py
// takes differences, runs this and Composer alternately, and prints the table.

#include <tutti/optim/sgd.hpp>
#include <tutti/tutti.hpp>

#include "algorithms/models.hpp"

namespace {

using namespace tutti;
using bench::algorithms::Kind;
using bench::algorithms::Source;

/// Trains with those of the algorithms that are called `name`; false when it is none of them.
template <class... As>
bool train(std::string_view name, const Kind& kind, const std::shared_ptr<Source>& data,
           const As&... algorithms) {
  if (name != "none" && ((name != name_of<As>()) && ...)) {
    return false;
  }
  Trainer<Switch<As>...> trainer(bench::algorithms::make_model(kind),
                                 {.train = data,
                                  .max_duration = Time::batches(bench::algorithms::steps),
                                  .optimizer = SGD{.lr = bench::lr, .momentum = bench::momentum},
                                  .allow_idle_policies = true,
                                  .device = "cpu",
                                  .seed = 1,
                                  .progress_bar = false},
                                 Switch<As>(algorithms, name == name_of<As>())...);
  trainer.fit();
  return true;
}

bool train_language(std::string_view name, const Kind& kind, const std::shared_ptr<Source>& data) {
  return train(
      name, kind, data, ALiBi{.max_sequence_length = 32, .train_sequence_length_scaling = 0.5},
      GatedLinearUnits{},
      SeqLengthWarmup{.duration = 1, .min_seq_length = 16, .max_seq_length = 32, .step_size = 16});
}

// With the options of composer_side.py.
bool train_vision(std::string_view name, const Kind& kind, const std::shared_ptr<Source>& data) {
  return train(
             name, kind, data, BlurPool{}, ChannelsLast{}, ColOut{}, CutMix{}, CutOut{},
             EMA{.half_life = "100ba"},
             Factorize{.min_channels = 16,
                       .latent_channels = 0.25,
                       .min_features = 32,
                       .latent_features = 0.25},
             GhostBatchNorm{.ghost_batch_size = 4},
             GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1},
             LabelSmoothing{.smoothing = 0.1}, LayerFreezing{.freeze_start = 0, .freeze_level = 0},
             LowPrecisionGroupNorm{}, LowPrecisionLayerNorm{}, MixUp{.alpha = 0.2},
             ProgressiveResizing{.initial_scale = 0.5, .finetune_fraction = 0, .delay_fraction = 1},
             SAM{}, SelectiveBackprop{.start = 0, .end = 1, .keep = 0.5, .interrupt = 0},
             SqueezeExcite{.latent_channels = 0.5, .min_channels = 16},
             StochasticDepth{.target_layer_name = "ResNetBottleneck",
                             .stochastic_method = DropMethod::sample,
                             .drop_rate = 0.2},
             WeightStandardization{}) ||
         // What conflicts with some of those.
         train(name, kind, data, GyroDropout{.p = 0.5, .sigma = 16, .tau = 4},
               SWA{.swa_start = "0.01dur", .swa_end = "0.99dur", .update_interval = "1ba"});
}

/// Microseconds for 16 images of 32 x 32, one after the other as in a loader's worker.
template <class Change>
std::vector<double> images(Change&& change) {
  using namespace bench::algorithms;
  torch::manual_seed(1);
  const at::Tensor data = torch::randint(256, {16, 3, 32, 32}, torch::kByte);
  Rng rng(1);
  std::vector<double> out;
  for (std::int64_t i = 0; i <= blocks; ++i) {
    const double start = cpu_microseconds();
    for (std::int64_t batch = 0; batch < block; ++batch) {
      for (const at::Tensor& image : data.unbind()) {
        change(image, rng);
      }
    }
    out.push_back((cpu_microseconds() - start) / static_cast<double>(block));
  }
  out.erase(out.begin());  // warm-up
  return out;
}

/// Nothing for a name or a kind that there is not.
std::vector<double> measure(std::string_view name, std::string_view kind_name) {
  if (kind_name == "image") {
    return name == "AugMix"        ? images([](const at::Tensor& image, Rng& rng) {
      return functional::augmix_image(image, rng);
    })
           : name == "RandAugment" ? images([](const at::Tensor& image, Rng& rng) {
               return functional::randaugment_image(image, rng);
             })
                                   : std::vector<double>{};
  }
  const auto kind = bench::algorithms::kind_of(kind_name);
  if (!kind) {
    return {};
  }
  const auto data = std::make_shared<Source>(*kind);
  const bool language = kind->net == Kind::Net::bert;
  const bool known = language ? train_language(name, *kind, data) : train_vision(name, *kind, data);
  return known ? data->microseconds() : std::vector<double>{};
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  std::string medians;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::vector<double> us = measure(argv[i], argv[i + 1]);
    if (static_cast<std::int64_t>(us.size()) != bench::algorithms::blocks) {
      std::fprintf(stderr, "%s %s: there is no such algorithm or kind\n", argv[i], argv[i + 1]);
      return 2;
    }
    medians += (i == 1 ? "" : ", ") + std::to_string(bench::median(us));
  }
  if (medians.empty() || argc % 2 == 0) {
    std::fprintf(stderr, "usage: %s NAME KIND [NAME KIND]...\n", argv[0]);
    return 2;
  }
  std::printf("{\"us\": [%s], \"versions\": {\"torch\": \"%s\"}}\n", medians.c_str(),
              TORCH_VERSION);
}
