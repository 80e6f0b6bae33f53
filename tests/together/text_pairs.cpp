#include "together/text.hpp"

#include <tutti/dist/ddp.hpp>

#include "dist/ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;

using Pack = together::Pack<ALiBi, EMA, Factorize, GatedLinearUnits, GradientClipping, GyroDropout,
                            LayerFreezing, LowPrecisionLayerNorm, SAM, SeqLengthWarmup>;

auto model(std::size_t) {
  return together::bert();
}

}  // namespace

TEST_CASE("pairs of algorithms for text have the same gradients in microbatches",
          "[together][law]") {
  together::check_pairs<Pack>(8, 2, [](std::size_t i, std::size_t j, std::int64_t microbatch) {
    return Pack::gradient(together::bert(at::kDouble), together::text_options(1, 1, microbatch), i,
                          j);
  });
}

TEST_CASE("saving changes nothing and resuming goes on bit for bit with pairs for text",
          "[together][resume][pairs]") {
  together::check_resume_pairs<Pack>(
      [] { return together::bert(at::kFloat, 0.2, 1); },
      [](std::int64_t size) { return together::text_options(2, 2, size); }, 4);
}

TEST_CASE("algorithms for text train in microbatches under autocast", "[together]") {
  together::check_amp<Pack>(model, together::text_options(1, 2, 4));
}

TEST_CASE("algorithms for text go on in a second fit", "[together]") {
  together::check_second_fit<Pack>(model, together::text_options(2, 2, 0));
}

TEST_CASE("rank body: algorithms for text", "[.rank]") {
  together::check_ranks<Pack>(model, together::text_options(2, 4, 4));
}
TEST_CASE("algorithms for text train on two ranks", "[together][dist]") {
  CHECK(tutti_test::run_ranks("rank body: algorithms for text") == tutti_test::all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
