#include "together/vision.hpp"

#include <tutti/dist/ddp.hpp>

#include "dist/ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

// What conflicts with EMA and SelectiveBackprop of the other pack, beside all the rest.
struct Pack
    : together::Pack<SWA, GyroDropout, AugMix, BlurPool, ChannelsLast, ColOut, CutMix, CutOut,
                     Factorize, GhostBatchNorm, GradientClipping, LabelSmoothing, LayerFreezing,
                     LowPrecisionGroupNorm, LowPrecisionLayerNorm, MixUp, ProgressiveResizing,
                     RandAugment, SAM, SqueezeExcite, StochasticDepth, WeightStandardization> {
  static constexpr std::size_t fresh = 2;
};

}  // namespace

TEST_CASE("SWA and GyroDropout beside others have the same gradients in microbatches",
          "[together][law]") {
  together::check_vision_pairs<Pack>();
}

TEST_CASE("saving changes nothing and resuming goes on bit for bit with SWA and GyroDropout",
          "[together][resume][pairs]") {
  together::check_vision_resumes<Pack>();
}

TEST_CASE("SWA and GyroDropout train in microbatches under autocast", "[together]") {
  together::check_amp<Pack>(together::vision_for<Pack>, together::vision_options(1, 2, 4));
}

TEST_CASE("SWA and GyroDropout go on in a second fit", "[together]") {
  together::check_second_fit<Pack>(together::vision_for<Pack>, together::vision_options(2, 2, 0));
}

TEST_CASE("rank body: SWA and GyroDropout", "[.rank]") {
  together::check_ranks<Pack>(together::vision_for<Pack>, together::vision_options(2, 4, 4));
}
TEST_CASE("SWA and GyroDropout train on two ranks", "[together][dist]") {
  CHECK(tutti_test::run_ranks("rank body: SWA and GyroDropout") == tutti_test::all_passed);
}

TEST_CASE("the pairs that neither pack holds have the same gradients in microbatches",
          "[together][law]") {
  together::check_vision_pairs<together::Pack<SWA, SelectiveBackprop>>();
  together::check_vision_pairs<together::Pack<EMA, GyroDropout>>();
}

TEST_CASE("saving changes nothing with the pairs that neither pack holds",
          "[together][resume][pairs]") {
  together::check_vision_resumes<together::Pack<SWA, SelectiveBackprop>>();
  together::check_vision_resumes<together::Pack<EMA, GyroDropout>>();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
