#include <tutti/fused/engine.hpp>

#include "support/catch.hpp"

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/core/switch.hpp>

#include "fused/runs.hpp"

using namespace fused_runs;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::LabelSmoothing;
using tutti::MixUp;
using tutti::ProgressiveResizing;
using tutti::Switch;

TEST_CASE("a recipe that fuses trains as the same policies one after the other",
          "[fused][engine][law]") {
  for (unsigned subset = 0; subset < 64; ++subset) {
    const auto has = [&](unsigned bit) { return (subset >> bit & 1U) != 0; };
    const auto run = [&](bool raw, bool fuse, bool dense) {
      const auto rest = [&](auto... first) {
        return train(
            options(raw), dense, std::move(first)..., Switch(ColOut{.p_row = 0.2}, has(0)),
            Switch(ProgressiveResizing{.delay_fraction = 0.2, .size_increment = 1}, has(1)),
            Switch(CutOut{.num_holes = 2, .per_image = subset % 3 == 0}, has(2)),
            Switch(MixUp{.alpha = 1}, has(3)), Switch(CutMix{}, has(4)),
            Switch(LabelSmoothing{.smoothing = 0.2}, has(5)));
      };
      return raw ? rest(normalize(fuse)) : rest();
    };
    INFO("subset " << subset);
    const Outcome separate = run(false, false, true);
    check_same(run(true, true, true), separate);
    check_same(run(true, false, true), separate);
    check_close(run(true, true, false), run(false, false, false));
  }
}
