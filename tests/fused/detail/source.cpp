#include <tutti/fused/detail/source.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

#include "fused/host_kernels.hpp"
#include "fused/subsets.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using fused_subsets::bytes;
using fused_subsets::chosen;
using fused_subsets::normalize;
using fused_subsets::sizes;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::MixUp;
using tutti::ProgressiveResizing;
using tutti::Rng;
using tutti::fused::Normalize;
using tutti::fused::Pass;
using tutti::fused::RandomCrop;
using tutti::fused::RandomFlip;

namespace fused = tutti::fused;
namespace detail = tutti::fused::detail;

// The sources hold what their stages need and nothing else, in the order of the stages.
constexpr std::string_view plain = detail::source<fused::Scale>;
static_assert(plain.find("struct Scale") != plain.npos);
static_assert(plain.find("struct Mix") == plain.npos);
static_assert(plain.find("struct Window") == plain.npos);
static_assert(plain.find("struct Take") == plain.npos);
static_assert(plain.find("typedef Scale<2, Raw> Pass;") != plain.npos);
constexpr std::string_view most =
    detail::source<fused::Crops, fused::Flips, fused::Holes, fused::Scale, fused::Take,
                   fused::Paste, fused::Mix, fused::Take, fused::Holes>;
static_assert(most.find("typedef Holes<10, Mix<8, Paste<7, Scale<5, Holes<4, Take<1, Window<0, "
                        "Raw>>>>>>> Pass;") != most.npos);
static_assert(most.data()[most.size()] == '\0');
static_assert(most.find('\0') == most.npos);

// Kernels on the host beside the passes of the CPU: first all sources are collected, then they are
// built at once, then all is run.
class Kernels {
 public:
  template <class... Stages>
  void visit(const at::Tensor& x, double elapsed, Stages... stages) {
    std::uint64_t seed = 0;
    ((tutti::rng_of(stages) != nullptr
          ? void(*tutti::rng_of(stages) = Rng(++seed, static_cast<std::uint64_t>(x.numel())))
          : void()),
     ...);
    Pass pass{std::move(stages)...};
    compare(pass.plan(x, elapsed), x);
  }

  template <class... Nodes>
  void compare(const fused::Plan<Nodes...>& plan, const at::Tensor& x) {
    const std::size_t source = library_.add(plan.cuda_source());
    if (!built_) {
      return;
    }
    for (const auto& variant : host_kernels::variants) {
      INFO(variant.out << (variant.last ? ", channels last" : "") << ", from strides "
                       << x.strides());
      CHECK(agrees(plan, x, source, variant));
    }
  }

  void build() {
    const std::string error = library_.build();
    INFO(error);
    REQUIRE(error.empty());
    built_ = true;
  }

  [[nodiscard]] std::size_t compared() const { return compared_; }

 private:
  template <class Plan>
  bool agrees(const Plan& plan, const at::Tensor& x, std::size_t source,
              const host_kernels::Variant& variant) {
    const auto format =
        variant.last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    const at::Tensor want = plan(x, format, variant.type);
    const at::Tensor stored = variant.last ? want.permute({0, 2, 3, 1}) : want;
    const detail::Tables tables = plan.tables();
    detail::KernelBatch batch(x, plan.frame());
    batch.data = tables.numbers().data();
    detail::Launch launch(plan.frame(), variant.last);
    bool same = true;
    for (const bool few : {false, true}) {  // few blocks: threads go on
      if (few) {
        launch.grid[1] = launch.grid[2] = 1;
      }
      constexpr std::int64_t guard = 64;
      const at::Tensor room = at::full({want.numel() + 2 * guard}, 77, variant.type);
      auto* out = static_cast<char*>(room.data_ptr()) + guard * room.element_size();
      library_.kernel(source, variant)(&batch, out, launch.block.data(), launch.grid.data());
      const at::Tensor got = room.narrow(0, guard, want.numel());
      same = same && same_bits(got, stored.reshape({-1})) &&
             room.narrow(0, 0, guard).eq(77).all().item<bool>() &&
             room.narrow(0, guard + want.numel(), guard).eq(77).all().item<bool>();
      ++compared_;
    }
    return same;
  }

  static bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
  }

  host_kernels::Library library_;
  bool built_ = false;
  std::size_t compared_ = 0;
};

void run(const std::function<void(Kernels&)>& visits) {
  Kernels kernels;
  visits(kernels);
  kernels.build();
  visits(kernels);
  CHECK(kernels.compared() > 0);
}

}  // namespace

TEST_CASE("the kernel of every subset of the batch transforms computes what the CPU does",
          "[fused][cuda][law]") {
  const auto check = [](Kernels& kernels, auto subset) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      for (const auto& size : sizes) {
        const at::Tensor x = bytes(size, seed);
        const auto stages = chosen<subset.value>(std::tuple{
            ColOut{.p_row = 0.2, .p_col = 0.3}, ProgressiveResizing{.size_increment = 1},
            CutOut{.num_holes = 2, .uniform_sampling = seed % 2 == 0, .per_image = seed % 3 == 2},
            MixUp{.alpha = 1}, CutMix{.uniform_sampling = seed % 2 == 1}});
        INFO("subset " << subset.value << ", seed " << seed << ", size " << x.sizes());
        std::apply(
            [&](const auto&... stage) { kernels.visit(x, 0.6, normalize(size[1]), stage...); },
            stages);
      }
    }
  };
  run([&](Kernels& kernels) {
    [&]<unsigned... S>(std::integer_sequence<unsigned, S...>) {
      (check(kernels, std::integral_constant<unsigned, S>{}), ...);
    }(std::make_integer_sequence<unsigned, 32>{});
  });
}

TEST_CASE("the kernel does stages in any order, crops and flips, from images of any strides",
          "[fused][cuda][law]") {
  run([](Kernels& kernels) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      for (const auto& size : sizes) {
        const at::Tensor x = bytes(size, seed);
        const bool each = seed % 2 == 1;
        const Normalize scale = normalize(size[1]);
        const CutOut holes{.num_holes = 3, .length = 0.6, .per_image = each};
        const MixUp mixup{.alpha = 1};
        const CutMix cutmix{.alpha = 0.5};
        const ColOut colout{.p_row = 0.4};
        const RandomFlip flip{.p = 0.5};
        const RandomCrop smaller{.height = (size[2] + 1) / 2, .width = (size[3] + 2) / 3};
        INFO("seed " << seed << ", size " << x.sizes());
        kernels.visit(x, 0.5, cutmix, scale, mixup, holes);
        kernels.visit(x, 0.5, holes, scale, mixup, cutmix, holes, colout);
        kernels.visit(x, 0, flip, scale);
        kernels.visit(x, 0, RandomCrop{.padding = 4}, flip, scale, CutOut{}, mixup);
        kernels.visit(x, 0, flip, smaller, scale, cutmix);
        kernels.visit(x, 0, RandomCrop{.padding = 9}, flip, ColOut{.p_col = 0.5}, scale,
                      CutOut{.per_image = true}, mixup, cutmix);
        kernels.visit(x.contiguous(at::MemoryFormat::ChannelsLast), 0, scale, mixup);
        kernels.visit(x.slice(3, 1).slice(2, 0, size[2], 2), 0, scale, mixup);
        kernels.visit(x, 0, scale, MixUp{.alpha = 0});  // nothing to mix
        kernels.visit(x, 0, Normalize{.divisor = 1}, CutOut{.num_holes = 0});
        kernels.visit(
            x, 0, Normalize{.std = std::vector<double>(static_cast<std::size_t>(size[1]), 1e-42)});
      }
    }
    // Stages that have drawn nothing, as in a recipe where they are switched off.
    const at::Tensor x = bytes({2, 3, 5, 6}, 1);
    kernels.compare(
        fused::Plan<fused::Crops, fused::Flips, fused::Scale, fused::Take, fused::Holes, fused::Mix,
                    fused::Paste>({.images = 2, .channels = 3, .height = 5, .width = 6}, {}, {}, {},
                                  {}, {}, {}, {}),
        x);
    kernels.visit(bytes({3, 2, 1, 1}, 1), 0, RandomCrop{.padding = 1}, RandomFlip{}, normalize(2),
                  CutOut{}, MixUp{.alpha = 1}, CutMix{});
  });
}

}  // namespace UNITY_BUILD_UNIQUE_ID
