#include "together/vision.hpp"

#include <tutti/dist/ddp.hpp>

#include "dist/ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

using Pack = together::Pack<AugMix, BlurPool, ChannelsLast, ColOut, CutMix, CutOut, EMA, Factorize,
                            GhostBatchNorm, GradientClipping, LabelSmoothing, LayerFreezing,
                            LowPrecisionGroupNorm, LowPrecisionLayerNorm, MixUp,
                            ProgressiveResizing, RandAugment, SAM, SelectiveBackprop, SqueezeExcite,
                            StochasticDepth, WeightStandardization>;

}  // namespace

TEST_CASE("pairs of algorithms for images have the same gradients in microbatches",
          "[together][law]") {
  together::check_vision_pairs<Pack>();
}

TEST_CASE("saving changes nothing and resuming goes on bit for bit with pairs for images",
          "[together][resume][pairs]") {
  together::check_vision_resumes<Pack>();
}

TEST_CASE("algorithms for images train in microbatches under autocast", "[together]") {
  together::check_amp<Pack>(together::vision_for<Pack>, together::vision_options(1, 2, 4));
}

TEST_CASE("algorithms for images go on in a second fit", "[together]") {
  together::check_second_fit<Pack>(together::vision_for<Pack>, together::vision_options(2, 2, 0));
}

TEST_CASE("rank body: algorithms for images", "[.rank]") {
  together::check_ranks<Pack>(together::vision_for<Pack>, together::vision_options(2, 4, 4));
}
TEST_CASE("algorithms for images train on two ranks", "[together][dist]") {
  CHECK(tutti_test::run_ranks("rank body: algorithms for images") == tutti_test::all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
