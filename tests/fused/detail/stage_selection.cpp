#include <tutti/fused/detail/stage_selection.hpp>

#include "support/catch.hpp"

#include <string_view>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/fused/stages.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using fused::Frame;
using fused::Normalize;
using fused::RandomCrop;
using fused::RandomErasing;
using fused::RandomFlip;
namespace lineup = tutti::fused::detail;

template <class... Ps>
using StagesOf =
    typename lineup::StageSelection<typename Recipe<Ps...>::template order<AfterDataloader>,
                                    typename Recipe<Ps...>::template order<BeforeForward>>::type;
template <class A, class B>
constexpr bool is = std::is_same_v<A, B>;

struct Reads final {
  void apply(AfterDataloader, State&) {}
};
struct LooksAway final {
  static constexpr About about{.reads_batch = false};
  void apply(AfterDataloader, State&) {}
};
struct Before final {  // a stage that stands before Normalize
  static constexpr std::string_view name = "Before";
  static constexpr Rules rules{
      .runs_before = {{id<Normalize>}},
      .runs_first = {id<AfterDataloader>},
  };
  [[nodiscard]] fused::Holes pixels(const Frame&) const { return {}; }
  void apply(AfterDataloader, State&) {}
};
struct BeforeReads final {
  static constexpr Rules rules{
      .runs_before = {{id<Normalize>}},
      .runs_after = {{id<Before>}},
      .runs_first = {id<AfterDataloader>},
  };
  void apply(AfterDataloader, State&) {}
};
struct MixesWholeBatches final {
  static constexpr std::string_view name = "MixesWholeBatches";
  [[nodiscard]] fused::Mix pixels(const Frame&) const { return {}; }
  void apply(AfterDataloader, State&) {}
};
struct SecondMixUp final {
  static constexpr std::string_view name = "SecondMixUp";
  [[nodiscard]] fused::Mix pixels(const Frame&) const { return {}; }
  void apply(BeforeForward, State&) {}
};
struct ActsTwice final {
  static constexpr std::string_view name = "ActsTwice";
  [[nodiscard]] fused::Holes pixels(const Frame&) const { return {}; }
  void apply(AfterDataloader, State&) {}
  void apply(BeforeForward, State&) {}
};

// In the order in which they run, whatever the order listed.
static_assert(is<StagesOf<MixUp, CutOut, RandomFlip, Normalize, RandomCrop, ColOut>,
                 types<RandomFlip, RandomCrop, Normalize, ColOut, CutOut, MixUp>>);
static_assert(is<StagesOf<CutMix, Normalize, MixUp>, types<Normalize, MixUp, CutMix>>);
static_assert(
    is<StagesOf<RandomErasing, MixUp, Normalize>, types<Normalize, RandomErasing, MixUp>>);
static_assert(is<StagesOf<Normalize, Switch<MixUp>, Switch<ColOut>>,
                 types<Normalize, Switch<ColOut>, Switch<MixUp>>>);

// Only with a Normalize.
static_assert(is<StagesOf<ColOut, CutOut, MixUp>, types<>>);

// What cannot be fused stays outside, and the rest is fused.
static_assert(is<StagesOf<Normalize, Reads, CutOut>, types<Normalize, CutOut>>);
static_assert(is<StagesOf<Normalize, MixesWholeBatches, CutOut>, types<Normalize, CutOut>>);
static_assert(is<StagesOf<Normalize, MixUp, SecondMixUp, CutMix>, types<Normalize, MixUp, CutMix>>);
static_assert(is<StagesOf<Normalize, ActsTwice>, types<Normalize>>);

// Before Normalize there is no end to a pass, which gives floats.
static_assert(is<StagesOf<Normalize, Before>, types<Before, Normalize>>);
static_assert(is<StagesOf<Normalize, RandomFlip, Before>, types<RandomFlip, Before, Normalize>>);
static_assert(is<StagesOf<Normalize, Before, RandomFlip>, types<Normalize>>);
static_assert(is<StagesOf<Normalize, Before, BeforeReads>, types<Normalize>>);
static_assert(is<StagesOf<reference_order, Normalize, CutOut, MixUp>, types<Normalize, MixUp>>);
static_assert(
    is<StagesOf<reference_order, CutOut, Normalize, MixUp>, types<Normalize, CutOut, MixUp>>);

static_assert(lineup::MayRead<Reads> && !lineup::MayRead<LooksAway>);
static_assert(!lineup::MayRead<Switch<LooksAway>>);
static_assert(lineup::MayDecline<MixUp> && !lineup::MayDecline<Normalize>);
static_assert(lineup::Mixer<MixUp> && lineup::Mixer<Switch<CutMix>> && !lineup::Mixer<CutOut>);
static_assert(lineup::Smoother<LabelSmoothing> && lineup::Smoother<Switch<LabelSmoothing>>);
static_assert(!lineup::Smoother<MixUp>);
static_assert(lineup::targets_can_follow(types<Normalize, MixUp>{}, types<MixUp>{}));
static_assert(!lineup::targets_can_follow(types<Normalize>{}, types<LabelSmoothing>{}));
static_assert(lineup::nobody_reads_targets<types<MixUp>>(types<MixUp, LabelSmoothing>{}));
static_assert(!lineup::nobody_reads_targets<types<CutMix>>(types<MixUp>{}));

}  // namespace

TEST_CASE("rows of what was drawn for a batch are those of a microbatch", "[fused]") {
  using lineup::rows_of;
  const fused::Box a{1, 1, 2, 2};
  const fused::Box b{3, 3, 4, 4};
  const fused::Holes each = rows_of(fused::Holes{{{a}, {b}, {a, b}}}, 1, 2);
  CHECK((each.boxes == std::vector<std::vector<fused::Box>>{{b}, {a, b}}));
  CHECK((rows_of(fused::Holes{{{a}}}, 1, 2).boxes == std::vector<std::vector<fused::Box>>{{a}}));
  CHECK(rows_of(fused::Holes{}, 1, 2).boxes.empty());
  CHECK(rows_of(fused::Flips{{true, false, true}}, 2, 1).flipped == std::vector<bool>{true});
  const fused::Crops crops = rows_of(fused::Crops{4, 5, {{1, 2}, {3, 4}}}, 1, 1);
  CHECK(crops.height == 4);
  CHECK(crops.corners.size() == 1);
  CHECK(crops.corners[0].row == 3);
  CHECK(rows_of(fused::Take{{1, 2}, {3}}, 1, 1).rows.size() == 2);
}

TEST_CASE("a pixel expression without values changes nothing", "[fused]") {
  const Frame frame{.images = 3, .channels = 2, .height = 7, .width = 9};
  const at::Tensor x = at::randint(0, 256, {3, 2, 7, 9}, at::kByte);
  const fused::Plan plan(frame, fused::Flips{{true, false, true}}, fused::Crops{}, fused::Scale{},
                         fused::Take{}, fused::Holes{}, fused::Mix{}, fused::Paste{});
  const at::Tensor out = plan(x);
  CHECK(out[1].equal(x[1].to(at::kFloat).div(255)));
  CHECK(out[0].equal(x[0].flip({2}).to(at::kFloat).div(255)));
  const fused::Plan other(frame, fused::Crops{5, 5, {{1, 1}, {0, 2}, {2, 3}}}, fused::Flips{},
                          fused::Scale{});
  CHECK(other(x)[2].equal(x[2].slice(1, 2, 7).slice(2, 3, 8).to(at::kFloat).div(255)));
  const auto [rows, weights] = plan.targets();
  CHECK(rows.equal(at::arange(3).unsqueeze(1)));
  CHECK(weights == std::vector<double>{1});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
