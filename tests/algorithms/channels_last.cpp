#include <tutti/algorithms/channels_last.hpp>

#include "support/catch.hpp"

#include <memory>
#include <type_traits>
#include <vector>

#include <torch/optim/sgd.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

#include "nn/golden_model.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using tutti::ChannelsLast;
using tutti::functional::apply_channels_last;

static_assert(tutti::Algorithm<ChannelsLast>);
static_assert(sizeof(tutti::With<ChannelsLast{.convert_inputs = false}>) > 0);

template <class E, class... Ps>
using Order = typename tutti::Recipe<Ps...>::template order<E>;
static_assert(std::is_same_v<Order<tutti::Init, ChannelsLast, tutti::EMA, tutti::BlurPool>,
                             tutti::types<tutti::BlurPool, ChannelsLast, tutti::EMA>>);
static_assert(std::is_same_v<Order<tutti::BeforeForward, ChannelsLast, tutti::MixUp>,
                             tutti::types<tutti::MixUp, ChannelsLast>>);

constexpr auto last = at::MemoryFormat::ChannelsLast;

nn::Sequential net() {
  return nn::Sequential(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8), torch::nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(8, 4, 1));
}

}  // namespace

TEST_CASE("weights and activations lie in memory pixel by pixel", "[channels_last]") {
  auto model = net();
  model->eval();
  const auto before = model->parameters();
  const auto values = golden::state_of(*model);
  std::vector<at::Tensor> old;
  for (const auto& [name, tensor] : values) {
    old.push_back(tensor.clone());
  }
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const at::Tensor expected = model->forward(x);
  torch::optim::SGD optimizer(before, torch::optim::SGDOptions(0.1));

  CHECK(apply_channels_last(*model) == 2);
  std::size_t i = 0;
  for (const auto& [name, tensor] : golden::state_of(*model)) {
    CHECK(tensor.equal(old[i++]));
    CHECK((tensor.dim() != 4 || tensor.is_contiguous(last)));
  }
  CHECK(model->parameters()[0].strides() == at::IntArrayRef{27, 1, 9, 3});
  CHECK(model->parameters()[4].strides() == at::IntArrayRef{8, 1, 8, 8});  // a 1x1 kernel
  for (i = 0; i < before.size(); ++i) {
    CHECK(model->parameters()[i].is_same(before[i]));
    CHECK(optimizer.param_groups()[0].params()[i].is_same(before[i]));
  }
  const at::Tensor y = model->forward(tutti::functional::channels_last(x));
  CHECK(y.is_contiguous(last));
  CHECK_FALSE(y.is_contiguous());
  CHECK(y.allclose(expected, 1e-5, 1e-5));
}

TEST_CASE("a second application leaves every tensor's memory where it is", "[channels_last][law]") {
  auto model = net();
  apply_channels_last(*model);
  for (const std::size_t kernel : {0U, 4U}) {  // the second is a 1x1 kernel
    const void* where = model->parameters()[kernel].data_ptr();
    apply_channels_last(*model);
    CHECK(model->parameters()[kernel].data_ptr() == where);
  }
  const at::Tensor x = tutti::functional::channels_last(torch::randn({1, 3, 4, 4}));
  CHECK(tutti::functional::channels_last(x).is_same(x));
}

TEST_CASE("volumes get the channels last too, vectors and matrices stay", "[channels_last]") {
  nn::Sequential volumes(nn::Conv3d(2, 4, 2));
  CHECK(apply_channels_last(*volumes) == 1);
  CHECK(volumes->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast3d));
  CHECK(volumes->forward(torch::randn({1, 2, 3, 3, 3})).sizes() == at::IntArrayRef{1, 4, 2, 2, 2});
  nn::Sequential flat(nn::Linear(3, 2));
  CHECK(apply_channels_last(*flat) == 0);
  const at::Tensor tokens = torch::ones({2, 3});
  CHECK(tutti::functional::channels_last(tokens).is_same(tokens));
}

TEST_CASE("ChannelsLast converts inputs as well, and weights again after a load",
          "[channels_last]") {
  tutti::State state;
  auto model = net();
  state.model = model.ptr();
  const ChannelsLast policy;
  policy.apply(tutti::Init{}, state);
  CHECK(model->parameters()[0].is_contiguous(last));
  at::Tensor weight = model->parameters()[0];
  weight.set_data(weight.detach().contiguous());
  policy.apply(tutti::AfterLoad{}, state);
  CHECK(weight.is_contiguous(last));

  const at::Tensor x = torch::randn({2, 3, 4, 4});
  state.batch = tutti::Batch(x, torch::zeros({2}));
  policy.apply(tutti::BeforeForward{}, state);
  CHECK(state.batch.inputs().is_contiguous(last));
  CHECK(state.batch.inputs().equal(x));
  CHECK(x.is_contiguous());

  const ChannelsLast of_photo{.input_key = "photo"};
  const auto converts = [&](auto event) {
    state.batch = {{"tokens", torch::ones({2, 3})}, {"photo", x}};
    of_photo.apply(event, state);
    CHECK(of_photo.match(event, state));
    CHECK_FALSE(ChannelsLast{.convert_inputs = false}.match(event, state));
    return state.batch.at("photo").is_contiguous(last) && state.batch.at("tokens").dim() == 2;
  };
  CHECK(converts(tutti::BeforeForward{}));
  CHECK(converts(tutti::EvalBeforeForward{}));
  CHECK(converts(tutti::PredictBeforeForward{}));
}

TEST_CASE("ChannelsLast on a model without images is an error unless told otherwise",
          "[channels_last]") {
  tutti::State state;
  state.model = nn::Sequential(nn::Linear(3, 2)).ptr();
  CHECK_THROWS_WITH(ChannelsLast{}.apply(tutti::Init{}, state),
                    ContainsSubstring("ChannelsLast: no parameter of 4 or 5 dimensions"));
  ChannelsLast{.if_none = tutti::surgery::IfNone::ignore}.apply(tutti::Init{}, state);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
