#include <tutti/algorithms/colout.hpp>

#include "support/catch.hpp"

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/cutout.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/trainer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::ColOut;
using tutti::CutOut;
using tutti::ResizeTarget;
using tutti::Rng;
using tutti::functional::colout_batch;

static_assert(tutti::Algorithm<ColOut>);
static_assert(sizeof(tutti::With<tutti::ColOut{.p_row = 0.25}>) > 0);
static_assert(std::is_same_v<tutti::Recipe<CutOut, ColOut>::order<tutti::AfterDataloader>,
                             tutti::types<ColOut, CutOut>>);

struct Tokens {
  using model_features = tutti::types<tutti::takes_tokens>;
};
struct FixedSize {
  using model_features = tutti::types<tutti::takes_images, tutti::fixed_input_size>;
};
struct AnyImages {
  using model_features = tutti::types<tutti::takes_images>;
};
static_assert(!tutti::Supports<ColOut, Tokens> && !tutti::Supports<ColOut, FixedSize>);
static_assert(tutti::Supports<ColOut, AnyImages>);

at::Tensor numbered(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape)).view(shape);
}

// A network for images of any size, and the sizes that it has seen.
struct AnySize : torch::nn::Module {
  AnySize() { head = register_module("head", torch::nn::Linear(3, 2)); }
  tutti::Outputs forward(const tutti::Batch& batch) {
    seen.push_back(batch.inputs().sizes().vec());
    sums.push_back(batch.inputs().sum().item<double>());
    return head->forward(batch.inputs().to(at::kFloat).mean({2, 3}));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return outputs.tensor().log_softmax(1).gather(1, batch.targets().unsqueeze(1)).mean().neg();
  }
  torch::nn::Linear head{nullptr};
  std::vector<std::vector<std::int64_t>> seen;
  std::vector<double> sums;
};

tutti::ImageLoader images(std::int64_t n = 12) {
  return tutti::ImageLoader(numbered({n, 3, 20, 10}).remainder(251).to(at::kByte),
                            at::arange(n).remainder(2), {.batch_size = 4, .shuffle = true});
}

}  // namespace

TEST_CASE("ColOut: the part that stays is rounded down, but not for what doubles cannot express",
          "[functional][colout][law]") {
  Rng rng(1);
  const auto sides = [&](std::int64_t side, double p) {
    const at::Tensor out =
        colout_batch(at::ones({1, 2, side, side}), rng, {.p_row = p, .p_col = 0});
    CHECK(out.size(-1) == side);
    return out.size(-2);
  };
  CHECK(sides(32, 0.15) == 27);
  CHECK(sides(224, 0.15) == 190);
  CHECK(sides(10, 0.9) == 1);
  CHECK(sides(10, 0.8) == 2);
  CHECK(sides(90, 0.3) == 63);
}

TEST_CASE("ColOut: rows and columns that stay keep their order and are the same for all images",
          "[functional][colout][law]") {
  for (const auto type : {at::kByte, at::kHalf, at::kFloat, at::kLong}) {
    Rng rng(4);
    const at::Tensor x = numbered({2, 3, 10, 4}).to(type);
    const at::Tensor out = colout_batch(x, rng, {.p_row = 0.4, .p_col = 0.5});
    CHECK(out.sizes() == at::IntArrayRef{2, 3, 6, 2});
    CHECK(out.scalar_type() == type);
    const at::Tensor plane = out[0][0].to(at::kLong);
    CHECK(plane.diff(1, 0).gt(0).all().item<bool>());
    CHECK(plane.diff(1, 1).gt(0).all().item<bool>());
    CHECK(out.to(at::kLong).equal(x.to(at::kLong)
                                      .index_select(2, plane.select(1, 0).div(4, "floor"))
                                      .index_select(3, plane[0].remainder(4))));
  }
}

TEST_CASE("ColOut: channels-last images stay so and have the same pixels", "[functional][colout]") {
  const at::Tensor x = at::randn({2, 3, 9, 7});
  Rng a(4);
  Rng b(4);
  const at::Tensor last = colout_batch(x.contiguous(at::MemoryFormat::ChannelsLast), a);
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(last.equal(colout_batch(x, b)));
  Rng c(4);
  CHECK(colout_batch(x.transpose(2, 3), c)
            .equal(colout_batch(x.transpose(2, 3).contiguous(), *std::make_unique<Rng>(4))));
}

TEST_CASE("ColOut: images that need a gradient, and single ones, lose what others lose",
          "[functional][colout]") {
  const at::Tensor x = at::randn({3, 6, 5});
  Rng a(4);
  Rng b(4);
  const at::Tensor plain = colout_batch(x, a, {.p_row = 0.5, .p_col = 0.4});
  CHECK(plain.sizes() == at::IntArrayRef{3, 3, 3});
  const at::Tensor learns = x.clone().requires_grad_();
  const at::Tensor y = colout_batch(learns, b, {.p_row = 0.5, .p_col = 0.4});
  CHECK(y.equal(plain));
  y.mul(y.detach()).sum().backward();
  CHECK(learns.grad().abs().sum().item<float>() == Approx(plain.abs().sum().item<float>()));
  CHECK(learns.grad().eq(x).logical_or(learns.grad().eq(0)).all().item<bool>());
  Rng c(4);
  CHECK(colout_batch(at::_neg_view(x), c, {.p_row = 0.5, .p_col = 0.4}).equal(plain.neg()));
  const at::Tensor zeros = at::_efficientzerotensor({3, 6, 5}, at::kFloat);
  CHECK(colout_batch(zeros, c, {.p_row = 0.5}).eq(0).all().item<bool>());
}

TEST_CASE("ColOut: nothing to delete changes nothing, and deleting all is refused",
          "[functional][colout]") {
  Rng rng;
  const at::Tensor x = at::randn({1, 3, 4, 4});
  CHECK(colout_batch(x, rng, {.p_row = 0, .p_col = 0}).equal(x));
  CHECK_THROWS_WITH(colout_batch(x, rng, {.p_row = 1}),
                    ContainsSubstring("p_row is 1, which leaves nothing of 4"));
  CHECK_THROWS_WITH(colout_batch(x, rng, {.p_col = 1.5}),
                    ContainsSubstring("p_col is 1.5, expected a number from 0 to 1"));
  CHECK_THROWS_WITH(ColOut{.p_row = 1}.validate(), ContainsSubstring("p_row is 1"));
  CHECK_THROWS_WITH((ColOut{.batch = false, .resize_target = ResizeTarget::always}.validate()),
                    ContainsSubstring("set batch"));
}

TEST_CASE("ColOut: targets of pixels are cut as their images, others stay the same tensor",
          "[functional][colout]") {
  const at::Tensor x = numbered({2, 1, 8, 6}).to(at::kFloat);
  const at::Tensor pixels = numbered({2, 8, 6});
  const at::Tensor classes = at::arange(2);
  Rng rng(9);
  const auto cut = colout_batch(x, pixels, rng, {});
  CHECK(cut.target.to(at::kFloat).equal(cut.input.squeeze(1)));
  CHECK(colout_batch(x, classes, rng).target.is_same(classes));
  CHECK(
      colout_batch(x, pixels, rng, {.resize_target = ResizeTarget::never}).target.is_same(pixels));
  const at::Tensor mask = numbered({8, 6});  // of all images
  const auto both = colout_batch(x[0], mask, rng, {.resize_target = ResizeTarget::always});
  CHECK(both.target.to(at::kFloat).equal(both.input[0]));
  CHECK(colout_batch(x[0], mask, rng).target.is_same(mask));
  CHECK_THROWS_WITH(colout_batch(x, classes, rng, {.resize_target = ResizeTarget::always}),
                    ContainsSubstring("the target is [2], expected [..., 8, 6]"));
}

TEST_CASE("ColOut: the policy cuts the batch, also one without targets", "[colout]") {
  tutti::State state;
  state.batch = tutti::Batch(at::randn({2, 3, 20, 20}));
  ColOut policy{.rng = Rng(2)};
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.inputs().sizes() == at::IntArrayRef{2, 3, 17, 17});
  state.batch = {{"image", at::randn({2, 3, 20, 20})}, {"mask", at::zeros({2, 20, 20})}};
  policy.input_key = "image";
  policy.target_key = "mask";
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.at("mask").sizes() == at::IntArrayRef{2, 17, 17});
  state.batch = tutti::Batch(at::randn({2, 3, 20, 20}), at::zeros({2, 20, 20}));
  ColOut never{.resize_target = ResizeTarget::never, .rng = Rng(2)};
  never.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.inputs().sizes() == at::IntArrayRef{2, 3, 17, 17});
  CHECK(state.batch.targets().sizes() == at::IntArrayRef{2, 20, 20});
  ColOut always{.resize_target = ResizeTarget::always, .rng = Rng(2)};
  CHECK_THROWS_WITH(always.apply(tutti::AfterDataloader{}, state),
                    ContainsSubstring("the target is [2, 20, 20], expected [..., 17, 17]"));
}

TEST_CASE("ColOut: without batch every image loses its own rows, also in a second fit",
          "[colout]") {
  const auto loader = std::make_shared<tutti::ImageLoader>(images());
  const auto model = std::make_shared<AnySize>();
  tutti::Trainer<ColOut> trainer{
      model,
      {.train = loader, .max_duration = "1ep", .device = "cpu", .seed = 3, .progress_bar = false},
      ColOut{.p_row = 0.5, .p_col = 0.5, .batch = false}};
  trainer.fit();
  trainer.fit({.duration = "1ep"});
  CHECK(model->seen.size() == 6);
  for (const auto& size : model->seen) {
    CHECK(size == std::vector<std::int64_t>{4, 3, 10, 5});
  }
  CHECK(loader->transforms().entries().size() == 1);
  trainer.close();
  CHECK(loader->transforms().empty());
}

TEST_CASE("ColOut: without batch another kind of loader is refused with what to do", "[colout]") {
  const auto model = std::make_shared<AnySize>();
  std::vector<tutti::Batch> batches{{at::ones({4, 3, 8, 8}), at::zeros({4}, at::kLong)}};
  tutti::Trainer<ColOut> trainer{
      model,
      {.train = batches, .max_duration = "1ep", .device = "cpu", .seed = 3, .progress_bar = false},
      ColOut{.batch = false}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("ColOut changes every image on its own") &&
                                       ContainsSubstring("train from tutti::ImageLoader"));
}

TEST_CASE("ColOut and CutOut: inputs that are no images are refused, not cut by examples",
          "[colout][cutout]") {
  tutti::State state;
  state.batch = tutti::Batch(at::ones({8, 4}), at::zeros({8}, at::kLong));
  ColOut colout;
  CHECK_THROWS_WITH(colout.apply(tutti::AfterDataloader{}, state),
                    ContainsSubstring("ColOut: the input is [8, 4], expected a batch of images"));
  CutOut cutout;
  CHECK_THROWS_WITH(cutout.apply(tutti::AfterDataloader{}, state),
                    ContainsSubstring("CutOut: the input is [8, 4], expected a batch of images"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
