#include "together/text.hpp"

#include "device/check.hpp"
#include "device/stand_in.hpp"

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

TEST_CASE("a warm-up of lengths reserves memory for as many examples as fit", "[device]") {
  const auto fit = [](const CountOrAuto& microbatch) {
    TrainerOptions options = device_tests::on_device(together::text_options(1, 2, 0));
    options.device_train_microbatch_size = microbatch;
    const auto net = together::bert();
    Trainer trainer{net, options, SeqLengthWarmup{.min_seq_length = 8, .max_seq_length = 16}};
    const stand_in::MemoryLimit limit(stand_in::memory_in_use() + (std::size_t{3} << 17));
    trainer.fit();
    CHECK(trainer.state().timestamp.batch == 2);
    CHECK(net->is_training());
    return trainer.state().device_train_microbatch_size;
  };
  CHECK_THROWS_AS(fit(8), c10::OutOfMemoryError);
  CHECK(fit("auto") < 8);
}
