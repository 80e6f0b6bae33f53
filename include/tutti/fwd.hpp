// SPDX-License-Identifier: Apache-2.0
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

struct Hyperparameter;
struct LoggedImages;
struct LoggedMetric;
struct LoggedResult;
struct LoggedTable;
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

// Policies that rules of others name, and the layers that rules are about.
struct ALiBi;
struct AugMix;
struct BackboneFinetuning;
struct BlurPool;
struct ChannelsLast;
struct ColOut;
struct CutMix;
struct CutOut;
struct DiLoCo;
struct EMA;
struct Factorize;
struct GatedLinearUnits;
struct GhostBatchNorm;
struct GradientClipping;
struct GyroDropout;
struct LabelSmoothing;
struct LayerFreezing;
struct LocalSGD;
struct LoRA;
struct LowPrecisionGroupNorm;
struct LowPrecisionLayerNorm;
struct MixUp;
struct ProgressiveResizing;
struct RandAugment;
struct Recompute;
struct SAM;
struct SelectiveBackprop;
struct SeqLengthWarmup;
struct SkipSpikes;
struct SqueezeExcite;
struct SpectralNorm;
struct StochasticDepth;
struct SWA;
struct SyncBatchNorm;
struct Unfreeze;
struct WeightNorm;
struct WeightStandardization;

namespace nn {
class BatchNorm1d;
class BatchNorm2d;
class Conv2d;
class Dropout;
class Embedding;
class GroupNorm;
class LayerNorm;
class Linear;
class RMSNorm;
class TransposedLinear;
}  // namespace nn

namespace data {
class Transforms;
}

namespace dist {
class Communicator;
class Sharding;
class SpreadModel;
}  // namespace dist

namespace fused {
struct Frame;
}

namespace optim {
struct FusedStep;
}

}  // namespace tutti
