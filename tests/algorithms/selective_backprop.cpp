#include <tutti/algorithms/selective_backprop.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <tutti/algorithms/cutout.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Rng;
using tutti::SelectiveBackprop;
using tutti::functional::draw_by_loss;
using tutti::functional::select_using_loss;
using tutti::functional::should_selective_backprop;

static_assert(tutti::Algorithm<SelectiveBackprop>);
static_assert(sizeof(tutti::With<tutti::SelectiveBackprop{.keep = 0.25}>) > 0);
static_assert(
    std::is_same_v<tutti::Recipe<tutti::CutOut, SelectiveBackprop>::order<tutti::AfterDataloader>,
                   tutti::types<SelectiveBackprop, tutti::CutOut>>);

static_assert(should_selective_backprop(0.5, 0));
static_assert(!should_selective_backprop(0.5, 1));
static_assert(!should_selective_backprop(0.9, 0) && !should_selective_backprop(0.49, 0));
static_assert(should_selective_backprop(0.6, 3, 0.5, 0.9, 3) &&
              !should_selective_backprop(0.6, 2, 0.5, 0.9, 3));
static_assert(should_selective_backprop(0.6, 1, 0.5, 0.9, 0));
static_assert(!should_selective_backprop(0.6, 0, 0.5, 0.9, 1));

// A linear network with batch norm that notes what it is given, with losses of examples.
struct Watched : torch::nn::Module {
  Watched() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    sizes.push_back(batch.inputs().size(0));
    with_gradients.push_back(c10::GradMode::is_enabled());
    low.push_back(at::autocast::is_autocast_enabled(at::kCPU));
    return head->forward(norm->forward(batch.inputs()));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return tutti::functional::soft_cross_entropy(outputs.tensor(), batch.targets());
  }
  at::Tensor sample_losses(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return tutti::functional::soft_cross_entropy(outputs.tensor(), batch.targets(), {}, -100,
                                                 tutti::Reduction::none);
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};
  std::vector<std::int64_t> sizes;
  std::vector<bool> with_gradients;
  std::vector<bool> low;
};

tutti::State ready(const std::shared_ptr<Watched>& model, std::int64_t n = 16) {
  tutti::State state;
  state.model = model;
  state.task = model;
  state.max_duration = tutti::Time::parse("1ep");
  state.batch = tutti::Batch(at::randn({n, 4}), at::arange(n).remainder(3));
  state.batch["row"] = at::arange(n);
  state.batch["shared"] = at::scalar_tensor(3);
  return state;
}

tutti::TrainerOptions options(const std::vector<tutti::Batch>& train) {
  return {.train = train,
          .max_duration = "2ep",
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device = "cpu",
          .seed = 5,
          .progress_bar = false};
}

std::vector<tutti::Batch> batches() {
  at::manual_seed(3);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < 10; ++i) {
    out.emplace_back(at::randn({8, 4}), at::randint(3, {8}, at::kLong));
  }
  return out;
}

}  // namespace

TEST_CASE("draw_by_loss draws by rank: of four examples 1, 3, 5 and 7 sixteenths",
          "[functional][selective_backprop][law]") {
  const at::Tensor losses = at::tensor({0.3, -1.0, 9.0, 2.0});
  Rng rng(2);
  at::Tensor counts = at::zeros({4}, at::kDouble);
  const int draws = 40000;
  for (int i = 0; i < draws; ++i) {
    counts[draw_by_loss(losses, rng, 0.5)[0].item<std::int64_t>()] += 1;
  }
  const at::Tensor expected = at::tensor({3.0, 1.0, 7.0, 5.0}, at::kDouble).div(16);
  CHECK(counts.div(draws).sub(expected).abs().max().item<double>() < 0.01);
}

TEST_CASE("draw_by_loss keeps a part without repetition, one example at least",
          "[functional][selective_backprop]") {
  Rng rng(4);
  const at::Tensor losses = at::randn({16});
  const at::Tensor chosen = draw_by_loss(losses, rng, 0.5);
  CHECK(chosen.numel() == 8);
  CHECK(std::get<0>(chosen.sort()).diff().gt(0).all().item<bool>());
  CHECK(draw_by_loss(losses, rng, 0.01).numel() == 1);
  CHECK(draw_by_loss(at::ones({100}), rng, 0.29).numel() == 29);
  CHECK(draw_by_loss(losses, rng, 1).numel() == 16);
  CHECK(draw_by_loss(at::randn({6, 5, 5}), rng, 0.5).numel() == 3);
  CHECK_THROWS_WITH(draw_by_loss(losses, rng, 0), ContainsSubstring("keep is 0"));
  CHECK_THROWS_WITH(draw_by_loss(losses, rng, 1.5), ContainsSubstring("keep is 1.5"));
  CHECK_THROWS_WITH(draw_by_loss(at::empty({0}), rng), ContainsSubstring("losses"));
  CHECK_THROWS_WITH(draw_by_loss(at::scalar_tensor(1), rng), ContainsSubstring("losses"));
}

TEST_CASE("select_using_loss gives rows with their targets, chosen without gradients",
          "[functional][selective_backprop]") {
  Rng rng(6);
  const at::Tensor x = at::randn({16, 5}).requires_grad_();
  const at::Tensor y = at::arange(16);
  bool recorded = true;
  const auto model = [&](const at::Tensor& input) {
    recorded = input.mul(2).requires_grad();
    return input;
  };
  const auto loss = [](const at::Tensor& out, const at::Tensor&) { return out.sum(1); };
  const auto some = select_using_loss(x, y, model, loss, rng);
  CHECK_FALSE(recorded);
  CHECK(some.target.equal(some.indices));
  CHECK(some.input.equal(x.index_select(0, some.indices)));
  CHECK_THROWS_WITH(select_using_loss(x, y, model, loss, rng, 0.5, 0.5),
                    ContainsSubstring("the input [16, 5], expected [N, C, ...]"));
  CHECK_THROWS_WITH(select_using_loss(x, y, model, loss, rng, 0.5, 2),
                    ContainsSubstring("scale_factor is 2"));
  CHECK_THROWS_WITH(select_using_loss(x, y, model, loss, rng, 0.5, 0),
                    ContainsSubstring("scale_factor is 0"));
  const auto reduced = [](const at::Tensor& out, const at::Tensor&) { return out.sum(); };
  CHECK_THROWS_WITH(select_using_loss(x, y, model, reduced, rng),
                    ContainsSubstring("let the loss not reduce"));
}

TEST_CASE("select_using_loss shows the model smaller inputs and keeps full ones",
          "[functional][selective_backprop]") {
  Rng rng(6);
  for (const auto& shape : {std::vector<std::int64_t>{4, 2, 8}, {4, 2, 8, 8}, {4, 2, 8, 8, 8}}) {
    const at::Tensor x = at::randn(shape);
    at::Tensor halves = x;  // half as long, a linear interpolation is a mean of neighbours
    for (std::int64_t side = 2; side < x.dim(); ++side) {
      halves = halves.unfold(side, 2, 2).mean(-1);
    }
    const auto model = [&](const at::Tensor& input) {
      REQUIRE(input.sizes() == halves.sizes());
      CHECK(input.allclose(halves, 1e-5, 1e-6));
      return input.flatten(1);
    };
    const auto loss = [](const at::Tensor& out, const at::Tensor&) { return out.sum(1); };
    CHECK(select_using_loss(x, at::arange(4), model, loss, rng, 0.5, 0.5).input.size(2) == 8);
  }
}

TEST_CASE("SelectiveBackprop: the policy keeps the same examples in all tensors of the batch",
          "[selective_backprop]") {
  const auto model = std::make_shared<Watched>();
  tutti::State state = ready(model);
  const at::Tensor x = state.batch.inputs();
  SelectiveBackprop policy{.rng = Rng(3)};
  policy.apply(tutti::AfterDataloader{}, state);
  const at::Tensor row = state.batch.at("row");
  CHECK(row.numel() == 8);
  CHECK(state.batch.inputs().equal(x.index_select(0, row)));
  CHECK(state.batch.targets().equal(row.remainder(3)));
  CHECK(state.batch.at("shared").dim() == 0);
  CHECK(model->with_gradients == std::vector<bool>{false});
}

TEST_CASE("SelectiveBackprop: choosing leaves running statistics alone unless told otherwise",
          "[selective_backprop]") {
  const auto model = std::make_shared<Watched>();
  tutti::State state = ready(model);
  SelectiveBackprop policy;
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 0);
  CHECK(model->norm->running_mean.eq(0).all().item<bool>());
  policy.freeze_statistics = false;
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("SelectiveBackprop: choosing goes by microbatches and in the precision of the run",
          "[selective_backprop]") {
  const auto model = std::make_shared<Watched>();
  tutti::State state = ready(model);
  state.device_train_microbatch_size = 6;
  state.precision = tutti::Precision::amp_bf16;
  SelectiveBackprop policy;
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(model->sizes == std::vector<std::int64_t>{6, 6, 4});
  CHECK(model->low == std::vector<bool>(3, true));
  CHECK(state.batch.num_samples() == 8);
}

TEST_CASE("SelectiveBackprop: choosing passes the whole batch at once where asked to",
          "[selective_backprop]") {
  const auto model = std::make_shared<Watched>();
  tutti::State state = ready(model);
  state.device_train_microbatch_size = 6;
  SelectiveBackprop policy{.whole_batch = true};
  policy.apply(tutti::AfterDataloader{}, state);
  CHECK(model->sizes == std::vector<std::int64_t>{16});
  CHECK(state.batch.num_samples() == 8);
}

TEST_CASE("SelectiveBackprop: it acts between start and end, but for every interrupt-th batch",
          "[selective_backprop]") {
  tutti::State state = ready(std::make_shared<Watched>());
  state.train_dataloader_len = 10;
  const auto acts = [&](const SelectiveBackprop& policy, std::int64_t batch) {
    state.timestamp.batch = state.timestamp.batch_in_epoch = batch;
    return policy.match(tutti::AfterDataloader{}, state);
  };
  const SelectiveBackprop policy{.interrupt = 3};
  std::vector<std::int64_t> acting;
  for (std::int64_t batch = 0; batch < 10; ++batch) {
    if (acts(policy, batch)) {
      acting.push_back(batch);
    }
  }
  CHECK(acting == std::vector<std::int64_t>{6, 7});
  CHECK_FALSE(acts({.whole_units = true}, 6));
  CHECK_FALSE(acts({.keep = 1}, 6));
}

TEST_CASE("SelectiveBackprop: a run trains on fewer examples, and in two fits as in one",
          "[selective_backprop]") {
  const auto train = [](int fits) {
    at::manual_seed(1);
    const auto model = std::make_shared<Watched>();
    tutti::Trainer<SelectiveBackprop> trainer{
        model, options(batches()), SelectiveBackprop{.start = 0, .end = 1, .interrupt = 2}};
    if (fits == 1) {
      trainer.fit();
    } else {
      trainer.fit({.duration = "1ep"});
      trainer.fit({.duration = "1ep"});
    }
    return std::pair(tiny::flat(*model), model->sizes);
  };
  const auto [weights, sizes] = train(1);
  CHECK(std::count(sizes.begin(), sizes.end(), 4) == 10);
  CHECK(sizes.size() == 30);
  CHECK(weights.isfinite().all().item<bool>());
  CHECK(train(2).first.equal(weights));
}

TEST_CASE("SelectiveBackprop: a model that gives no losses of examples is refused at Init",
          "[selective_backprop]") {
  const std::vector<tutti::Batch> data = tiny::batches(2);
  const auto make = [&](tutti::AnyModel model) {
    tutti::Trainer<SelectiveBackprop> trainer{std::move(model), options(data), SelectiveBackprop{}};
  };
  CHECK_THROWS_WITH(make(tiny::net()),
                    ContainsSubstring("add at::Tensor sample_losses(const tutti::Outputs&"));
  const auto net = std::make_shared<torch::nn::LinearImpl>(4, 2);
  const auto own = [](const at::Tensor& out, const at::Tensor&) { return out.sum(); };
  CHECK_THROWS_WITH(make(tutti::Classifier(net, {.loss = own})),
                    ContainsSubstring("set ClassifierOptions::sample_losses"));
  make(tutti::Classifier(net, {.loss = own, .sample_losses = own}));
  make(tutti::Classifier(net));
}

TEST_CASE("SelectiveBackprop: options out of range are refused", "[selective_backprop]") {
  CHECK_THROWS_WITH((SelectiveBackprop{.start = 0.8, .end = 0.5}.validate()),
                    ContainsSubstring("start is 0.8, expected 0 or more, up to end"));
  CHECK_THROWS_WITH(SelectiveBackprop{.keep = 0}.validate(), ContainsSubstring("keep is 0"));
  CHECK_THROWS_WITH(SelectiveBackprop{.scale_factor = 1.5}.validate(),
                    ContainsSubstring("scale_factor is 1.5"));
  CHECK_THROWS_WITH(SelectiveBackprop{.interrupt = 1}.validate(),
                    ContainsSubstring("interrupt is 1, expected 0, or 2 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
