#include "golden/slots.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "golden/algorithms.hpp"
#include "golden/images.hpp"
#include "golden/run_algorithms.hpp"
#include "golden/surgery.hpp"

namespace golden {
namespace {

template <class A>
std::shared_ptr<AnyAlgorithm> held(A algorithm) {
  return std::make_shared<detail::Held<A>>(std::move(algorithm));
}

template <class A>
std::shared_ptr<AnyAlgorithm> drawing(A algorithm, const std::shared_ptr<tutti::Tape>& tape) {
  algorithm.rng.replay(tape);
  return held(std::move(algorithm));
}

// Policies that change a model's layers; their models need not have any.
std::shared_ptr<AnyAlgorithm> make_surgery(const std::string& name, const Json& args) {
  const auto lenient = [](auto policy) {
    policy.if_none = tutti::surgery::IfNone::ignore;
    return held(std::move(policy));
  };
  if (name == "ChannelsLast") {
    Arguments(args, name).done();
    return lenient(tutti::ChannelsLast{});
  }
  if (name == "Factorize") {
    return lenient(make_factorize<tutti::Factorize>(args));
  }
  if (name == "GhostBatchNorm") {
    return lenient(make_ghost_batchnorm(args));
  }
  if (name == "LowPrecisionGroupNorm") {
    return lenient(make_low_precision<tutti::LowPrecisionGroupNorm>(args));
  }
  if (name == "LowPrecisionLayerNorm") {
    return lenient(make_low_precision<tutti::LowPrecisionLayerNorm>(args));
  }
  if (name == "SqueezeExcite") {
    return lenient(make_squeeze_excite(args));
  }
  if (name == "StochasticDepth") {
    return lenient(make_stochastic_depth(args));
  }
  if (name == "WeightStandardization") {
    return lenient(make_weight_standardization(args));
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<AnyAlgorithm> make_algorithm(const std::string& name, const Json& args,
                                             const std::shared_ptr<tutti::Tape>& tape) {
  if (name == "MixUp") {
    return drawing(make_mixup(args), tape);
  }
  if (name == "CutMix") {
    return drawing(make_cutmix(args), tape);
  }
  if (name == "LabelSmoothing") {
    return held(make_label_smoothing(args));
  }
  if (name == "BlurPool") {
    return held(make_blurpool(args));
  }
  if (name == "CutOut") {
    return drawing(make_cutout(args), tape);
  }
  if (name == "ColOut") {
    return drawing(make_colout(args), tape);
  }
  if (name == "ProgressiveResizing") {
    return drawing(FactorResizing{.policy = make_progressive_resizing(args)}, tape);
  }
  if (name == "SelectiveBackprop") {
    return drawing(make_selective_backprop(args), tape);
  }
  if (name == "RandAugment") {
    return held(make_randaugment(args));
  }
  if (name == "AugMix") {
    return held(make_augmix(args));
  }
  if (name == "EMA") {
    return held(Epochwise<tutti::EMA>{.policy = make_ema(args)});
  }
  if (name == "GradientClipping") {
    return held(make_gradient_clipping(args));
  }
  if (name == "SAM") {
    return held(make_sam(args));
  }
  if (name == "SWA") {
    return held(Epochwise<tutti::SWA>{.policy = make_swa(args)});
  }
  if (name == "LayerFreezing") {
    return held(make_layer_freezing(args));
  }
  if (name == "GyroDropout") {
    return held(make_gyro_dropout(args));
  }
  if (name == "SeqLengthWarmup") {
    return held(make_seq_length_warmup(args));
  }
  if (name == "Alibi") {
    return held(make_alibi(args));
  }
  if (name == "GatedLinearUnits") {
    return held(make_gated_linear_units(args));
  }
  return make_surgery(name, args);
}

void need_algorithms(const Json& list) {
  std::set<std::string> lacking;
  for (const Json& entry : list.array()) {
    if (!make_algorithm(entry[0].string(), entry[1], nullptr)) {
      lacking.insert(entry[0].string());
    }
  }
  std::string text;
  for (const std::string& name : lacking) {
    text += (text.empty() ? "needs " : ", ") + name;
  }
  if (!text.empty()) {
    throw Skipped(text);
  }
  if (list.size() > slot_count) {
    throw Skipped("more than " + std::to_string(slot_count) + " algorithms");
  }
}

Algorithms make_algorithms(const Json& list, const std::shared_ptr<tutti::Tape>& tape) {
  Algorithms all;
  for (const Json& entry : list.array()) {
    all.push_back(make_algorithm(entry[0].string(), entry[1], tape));
    all.back()->place = all.size() - 1;
  }
  std::stable_partition(all.begin(), all.end(), [](const auto& algorithm) {
    return algorithm->name() == "SelectiveBackprop";
  });
  std::stable_partition(all.begin(), all.end(), [](const auto& algorithm) {
    return algorithm->name() != "LowPrecisionLayerNorm";
  });
  return all;
}

}  // namespace golden
