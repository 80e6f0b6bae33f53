#include "device/check.hpp"
#include "together/vision.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

// EMA and GyroDropout, which go with none of SWA and SelectiveBackprop, are in the recipe for text.
using Pack = together::Pack<AugMix, BlurPool, ChannelsLast, ColOut, CutMix, CutOut, Factorize,
                            GhostBatchNorm, GradientClipping, LabelSmoothing, LayerFreezing,
                            LowPrecisionGroupNorm, LowPrecisionLayerNorm, MixUp,
                            ProgressiveResizing, RandAugment, SAM, SelectiveBackprop, SqueezeExcite,
                            StochasticDepth, SWA, WeightStandardization>;

}  // namespace

TEST_CASE("algorithms for images train on a device as on the host", "[device]") {
  device_tests::check_same_as_host<Pack>(together::vision_for<Pack>,
                                         together::vision_options(2, 3, 0));
}

TEST_CASE("algorithms for images train on a device under autocast", "[device]") {
  device_tests::check_amp<Pack>(together::vision_for<Pack>, together::vision_options(1, 3, 4));
}

TEST_CASE("algorithms for images resume on a device bit for bit", "[device][resume]") {
  together::check_resume<Pack>(together::vision_for<Pack>,
                               device_tests::on_device(together::vision_options(2, 3, 0)),
                               "ep1-ba4");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
