#include <tutti/models/classifier.hpp>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Classifier;

namespace {

struct KnownImpl : torch::nn::Module {
  std::int64_t num_classes = 3;
  torch::nn::Linear fc{4, 3};
  KnownImpl() { register_module("fc", fc); }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
};
TORCH_MODULE(Known);

const tutti::AccuracyOptions& options_of(const tutti::Metrics& metrics, std::size_t i) {
  return dynamic_cast<const tutti::MulticlassAccuracy&>(*metrics.at(i)).options();
}

}  // namespace

static_assert(tutti::Model<Classifier<KnownImpl>>);
static_assert(tutti::Model<Classifier<torch::nn::SequentialImpl>>);

TEST_CASE("a classifier is made of a holder, a shared_ptr or a Sequential", "[models][law]") {
  const Batch batch(at::randn({5, 4}), at::randint(0, 3, {5}, at::kLong));
  Known net;
  const Classifier holder{net};
  const Classifier shared{std::make_shared<KnownImpl>()};
  const Classifier sequential{torch::nn::Sequential(torch::nn::Linear(4, 3)), {.num_classes = 3}};
  CHECK(holder.forward(batch).tensor().equal(net->forward(batch.inputs())));
  CHECK(shared.forward(batch).tensor().size(1) == 3);
  CHECK(sequential.forward(batch).tensor().size(1) == 3);
  CHECK(holder.module() == net.ptr());
  CHECK(holder.loss(holder.forward(batch), batch)
            .total()
            .equal(at::cross_entropy_loss(net->forward(batch.inputs()), batch.targets())));
}

TEST_CASE("the default metrics know the classes of the network", "[models][law]") {
  const Classifier own{Known()};
  CHECK(own.num_classes() == 3);
  REQUIRE(own.metrics(true).size() == 1);
  REQUIRE(own.metrics(false).size() == 2);
  CHECK(own.metrics(false)[0]->name() == "CrossEntropy");
  CHECK(options_of(own.metrics(true), 0).num_classes == 3);
  CHECK(options_of(own.metrics(false), 1).num_classes == 3);
  const Classifier overruled{Known(), {.num_classes = 7}};
  CHECK(overruled.num_classes() == 3);
  const Classifier unknown{torch::nn::Sequential(torch::nn::Linear(4, 3))};
  CHECK(unknown.num_classes() == 0);
  CHECK(options_of(unknown.metrics(true), 0).average == tutti::Average::micro);
}

TEST_CASE("loss and metrics can be given, also none", "[models][law]") {
  const Classifier model{Known(),
                         {.train_metrics = tutti::Metrics{},
                          .eval_metrics = tutti::make_metrics(tutti::MulticlassAccuracy{
                              {.num_classes = 3, .average = tutti::Average::macro}}),
                          .loss = tutti::SoftCrossEntropy{.reduction = tutti::Reduction::sum}}};
  CHECK(model.metrics(true).empty());
  REQUIRE(model.metrics(false).size() == 1);
  CHECK(options_of(model.metrics(false), 0).average == tutti::Average::macro);
  const Batch batch(at::randn({5, 4}), at::randint(0, 3, {5}, at::kLong));
  const auto outputs = model.forward(batch);
  CHECK(model.loss(outputs, batch)
            .total()
            .allclose(at::cross_entropy_loss(outputs.tensor(), batch.targets()) * 5));
}

TEST_CASE("there is a loss for each example beside the default one, or one's own",
          "[models][law]") {
  const Batch batch(at::randn({5, 4}), at::randint(0, 3, {5}, at::kLong));
  const Classifier plain{Known()};
  CHECK(plain.has_cross_entropy());
  CHECK(plain.has_sample_losses());
  const auto outputs = plain.forward(batch);
  const at::Tensor logs = outputs.tensor().log_softmax(1);
  CHECK(plain.sample_losses(outputs, batch)
            .allclose(-logs.gather(1, batch.targets().unsqueeze(1)).squeeze(1)));

  const auto loss = [](const at::Tensor& y, const at::Tensor&) { return y.sum(); };
  const Classifier without{Known(), {.loss = loss}};
  CHECK_FALSE(without.has_cross_entropy());
  CHECK_FALSE(without.has_sample_losses());
  CHECK_THROWS_WITH(without.sample_losses(outputs, batch),
                    ContainsSubstring("set ClassifierOptions::sample_losses"));
  const Classifier with{Known(),
                        {.loss = loss, .sample_losses = [](const at::Tensor& y, const at::Tensor&) {
                           return y.sum(1);
                         }}};
  CHECK_FALSE(with.has_cross_entropy());
  CHECK(with.has_sample_losses());
  CHECK(with.sample_losses(outputs, batch).equal(outputs.tensor().sum(1)));
  CHECK(with.loss(outputs, batch).total().equal(outputs.tensor().sum()));
}

TEST_CASE("a classifier is trained on behind AnyModel", "[models][law]") {
  Known net;
  const tutti::AnyModel model = Classifier{net};
  CHECK(model.module() == net.ptr());
  CHECK(model.metrics(false).size() == 2);
}

TEST_CASE("a classifier without a network is refused", "[models]") {
  CHECK_THROWS_WITH(Classifier{std::shared_ptr<KnownImpl>()},
                    ContainsSubstring("the network is empty"));
  CHECK_THROWS_WITH(Classifier{Known(nullptr)}, ContainsSubstring("the network is empty"));
  CHECK_THROWS_WITH((Classifier{torch::nn::Sequential(), {.num_classes = -1}}),
                    ContainsSubstring("num_classes is -1, expected 1 or more"));
}

TEST_CASE("a loss of one's own that takes no dense targets says who made them", "[models]") {
  const auto nll = [](const at::Tensor& y, const at::Tensor& t) {
    return at::nll_loss(y.log_softmax(1), t);
  };
  const Classifier model{Known(), {.loss = nll}};
  const at::Tensor x = at::randn({5, 4});
  const tutti::Outputs y = model.forward(Batch(x, at::zeros({5}, at::kLong)));
  CHECK(model.loss(y, Batch(x, at::zeros({5}, at::kLong))).total().dim() == 0);
  CHECK_THROWS_WITH(model.loss(y, Batch(x, at::full({5, 3}, 1.0 / 3))),
                    ContainsSubstring("class probabilities [5, 3]") &&
                        ContainsSubstring("LabelSmoothing") && ContainsSubstring("It said: "));
  CHECK_THROWS_WITH(model.loss(y, Batch(x, at::zeros({4}, at::kLong))),
                    !ContainsSubstring("LabelSmoothing"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
