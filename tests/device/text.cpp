#include "together/text.hpp"

#include "device/check.hpp"

namespace {

using namespace tutti;

using Pack = together::Pack<ALiBi, EMA, Factorize, GatedLinearUnits, GradientClipping, GyroDropout,
                            LayerFreezing, LowPrecisionLayerNorm, SAM, SeqLengthWarmup>;

auto model(std::size_t /*algorithm*/) {
  return together::bert();
}

}  // namespace

TEST_CASE("algorithms for text train on a device as on the host", "[device]") {
  device_tests::check_same_as_host<Pack>(model, together::text_options(2, 3, 0));
}

TEST_CASE("algorithms for text train on a device under autocast", "[device]") {
  device_tests::check_amp<Pack>(model, together::text_options(1, 3, 4));
}

TEST_CASE("algorithms for text resume on a device bit for bit", "[device][resume]") {
  together::check_resume<Pack>(model, device_tests::on_device(together::text_options(2, 3, 0)),
                               "ep1-ba4");
}
