#include <tutti/fused/normalize.hpp>

#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/core/recipe.hpp>
#include <tutti/fused/pass.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::State;
using tutti::fused::Frame;
using tutti::fused::Normalize;

static_assert(tutti::Recipe<Normalize>::valid);
static_assert(tutti::fused::Fusible<Normalize>);

namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

// [2, 3, 5, 7], every byte in it somewhere.
at::Tensor bytes() {
  return at::arange(210).mul(37).remainder(256).to(at::kByte).view({2, 3, 5, 7});
}

State holding(const at::Tensor& inputs) {
  State state;
  state.dataloader_label = "train";
  state.batch = tutti::Batch(inputs, at::zeros({inputs.size(0)}, at::kLong));
  return state;
}

at::Tensor applied(const Normalize& policy, const at::Tensor& inputs) {
  State state = holding(inputs);
  policy.apply(tutti::AfterDataloader{}, state);
  return state.batch.inputs();
}

at::Tensor row(const std::vector<double>& values) {
  return at::tensor(values, at::kFloat).view({-1, 1, 1});
}

}  // namespace

TEST_CASE("bytes become floats, less the mean, divided by the deviation",
          "[fused][normalize][law]") {
  const std::vector<double> mean{0.485, 0.456, 0.406};
  const std::vector<double> std{0.229, 0.224, 0.225};
  const at::Tensor x = bytes();
  const at::Tensor unit = x.to(at::kFloat) / 255;
  CHECK(applied({}, x).equal(unit));
  CHECK(applied({.divisor = 1}, x).equal(x.to(at::kFloat)));
  CHECK(applied({.mean = mean}, x).equal(unit - row(mean)));
  CHECK(applied({.std = std}, x).equal(unit / row(std)));
  CHECK(applied({.mean = mean, .std = std}, x).equal((unit - row(mean)) / row(std)));
  CHECK(x.equal(bytes()));  // the loader's own are left alone
}

TEST_CASE("bytes become floats in training, evaluation and prediction, and targets stay",
          "[fused][normalize]") {
  const auto check = [](auto event) {
    State state = holding(bytes());
    const at::Tensor targets = state.batch.targets();
    Normalize{}.apply(event, state);
    CHECK(state.batch.inputs().equal(bytes().to(at::kFloat) / 255));
    CHECK(state.batch.targets().is_same(targets));
  };
  check(tutti::AfterDataloader{});
  check(tutti::EvalBeforeForward{});
  check(tutti::PredictBeforeForward{});
}

TEST_CASE("images keep their order in memory, whatever it is, and may be none",
          "[fused][normalize]") {
  const Normalize policy{.mean = {0.1, 0.2, 0.3}};
  const at::Tensor want = applied(policy, bytes());
  CHECK(want.is_contiguous());
  const at::Tensor last = applied(policy, bytes().contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(last.equal(want));
  CHECK(applied(policy, bytes().slice(3, 1, 7, 2)).equal(want.slice(3, 1, 7, 2)));
  CHECK(applied(policy, bytes().slice(3, 1, 6)).equal(want.slice(3, 1, 6)));
  CHECK(applied(policy, bytes().slice(0, 0, 0)).sizes() == at::IntArrayRef({0, 3, 5, 7}));
  CHECK(applied({.mean = {0.5}}, bytes().slice(1, 0, 1)).sizes() == at::IntArrayRef({2, 1, 5, 7}));
}

TEST_CASE("where a device has no pass, floats come step by step", "[fused][normalize]") {
  const at::Tensor x = bytes().to(at::kMeta);
  const at::Tensor out = applied({.mean = {0.1, 0.2, 0.3}, .std = {1, 2, 3}}, x);
  CHECK(out.is_meta());
  CHECK(out.scalar_type() == at::kFloat);
  CHECK(out.sizes() == x.sizes());
  for (const Normalize& policy : {Normalize{}, Normalize{.mean = {0.1, 0.2, 0.3}},
                                  Normalize{.mean = {0.1, 0.2, 0.3}, .std = {1, 2, 3}}}) {
    const auto scale = policy.pixels({2, 3, 5, 7});
    CHECK(tutti::fused::detail::scale_in_steps(bytes(), scale).equal(applied(policy, bytes())));
  }
}

TEST_CASE("inputs that are no images of bytes are refused with their loader",
          "[fused][normalize]") {
  const auto refused = [](const at::Tensor& inputs, const std::string& got) {
    CHECK_THROWS_WITH(applied({}, inputs),
                      ContainsSubstring("Normalize: the inputs from \"train\" are " + got +
                                        ", expected bytes, uint8 [N, C, H, W]; let the loader") &&
                          ContainsSubstring("to_float = false"));
    CHECK_THROWS_AS(applied({}, inputs), c10::ValueError);
  };
  refused(bytes().to(at::kFloat), "Float[2, 3, 5, 7]");
  refused(bytes().to(at::kChar), "Char[2, 3, 5, 7]");
  refused(bytes()[0], "Byte[3, 5, 7]");
  refused(bytes().unsqueeze(0), "Byte[1, 2, 3, 5, 7]");
}

TEST_CASE("mean and deviation have one value for each channel or none", "[fused][normalize]") {
  const Frame frame{.images = 2, .channels = 3, .height = 5, .width = 7};
  const auto scale = Normalize{.mean = {1, 2, 3}, .std = {4, 5, 6}, .divisor = 7}.pixels(frame);
  CHECK(scale.mean == std::vector<double>{1, 2, 3});
  CHECK(scale.std == std::vector<double>{4, 5, 6});
  CHECK(scale.divisor == 7);
  CHECK(Normalize{}.pixels(frame).mean.empty());
  CHECK_THROWS_WITH(applied({.mean = {1, 2}}, bytes()),
                    ContainsSubstring("Normalize: mean has 2 values and std 0, expected none or "
                                      "one for each of 3 channels"));
  CHECK_THROWS_WITH((Normalize{.mean = {1, 2, 3}, .std = {1, 2, 3, 4}}.pixels(frame)),
                    ContainsSubstring("mean has 3 values and std 4"));
}

TEST_CASE("a divisor or deviation that is not above 0 is refused", "[fused][normalize]") {
  CHECK_NOTHROW(Normalize{}.validate());
  CHECK_NOTHROW((Normalize{.mean = {-1, 0, 2}, .std = {1e-42}, .divisor = 1}.validate()));
  for (const double divisor : {0.0, -1.0, no_number}) {
    CHECK_THROWS_WITH(
        (Normalize{.divisor = divisor}.validate()),
        ContainsSubstring("Normalize: divisor is ") && ContainsSubstring("expected more than 0"));
  }
  for (const double value : {0.0, -0.5, no_number}) {
    CHECK_THROWS_WITH((Normalize{.std = {1, value, 1}}.validate()),
                      ContainsSubstring("Normalize: a value of std is ") &&
                          ContainsSubstring("expected more than 0"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
