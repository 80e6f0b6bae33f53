#include <tutti/algorithms/factorize.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/algorithms/weight_standardization.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "nn/golden_model.hpp"
#include "support/hyperparameters.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;
using torch::nn::Conv2dOptions;
using torch::nn::LinearOptions;
using tutti::Factorize;
using tutti::functional::apply_factorization;
using tutti::functional::refactorize;

static_assert(tutti::Algorithm<Factorize>);
static_assert(sizeof(tutti::With<Factorize{.latent_channels = 64, .refactorize_interval = "1ep"}>) >
              0);
static_assert(std::is_same_v<tutti::Recipe<tutti::WeightStandardization, tutti::BlurPool, Factorize,
                                           tutti::SqueezeExcite>::order<tutti::Init>,
                             tutti::types<tutti::SqueezeExcite, Factorize, tutti::BlurPool,
                                          tutti::WeightStandardization>>);

// Two linear layers of 16 features; the first can be factored.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::uint64_t seed = 1) {
    at::manual_seed(seed);
    for (const at::Tensor& parameter : parameters()) {
      torch::NoGradGuard no_grad;
      at::Tensor(parameter).normal_(0, 0.3);
    }
  }
  tutti::Outputs forward(const tutti::Batch& batch) { return out(wide(batch.inputs()).tanh()); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  nn::Linear wide = register_module("wide", nn::Linear(16, 16));
  nn::Linear out = register_module("out", nn::Linear(16, 2));
};

std::vector<tutti::Batch> data(int count) {
  at::manual_seed(9);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({8, 16}), at::randn({8, 2}));
  }
  return out;
}

constexpr tutti::functional::FactorizationOptions small{
    .min_channels = 4, .latent_channels = 0.25, .min_features = 8, .latent_features = 4};

at::Tensor product_of(const torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters();
  return parameters[name + ".module1.weight"].flatten(1).matmul(
      parameters[name + ".module0.weight"].flatten(1));
}

}  // namespace

TEST_CASE("the factors are the best approximation of the trained weight", "[surgery][factorize]") {
  NetImpl net;
  const at::Tensor weight = net.wide->weight.detach().clone();
  const at::Tensor bias = net.wide->bias.detach().clone();
  const auto report = apply_factorization(net, small);
  CHECK(report.linears.replaced == std::vector<std::string>{"wide"});
  const auto [u, s, vh] = at::linalg_svd(weight, false);
  const at::Tensor best = u.narrow(1, 0, 4).mul(s.narrow(0, 0, 4)).matmul(vh.narrow(0, 0, 4));
  CHECK(product_of(net, "wide").allclose(best, 1e-4, 1e-5));
  CHECK(net.named_parameters()["wide.module1.bias"].equal(bias));
  CHECK(net.forward(data(1)[0]).tensor().sizes() == at::IntArrayRef{8, 2});
}

TEST_CASE("layers that are narrow, gain nothing, have groups or are factored stay",
          "[surgery][factorize][law]") {
  nn::Sequential net(nn::Conv2d(Conv2dOptions(8, 8, 3).padding(1)),
                     nn::Conv2d(Conv2dOptions(8, 8, 3).padding(1).groups(2)),
                     torch::nn::Conv2d(Conv2dOptions(8, 8, 1)), nn::Conv2d(8, 2, 1),
                     torch::nn::Flatten(), nn::Linear(8, 64), nn::Linear(64, 64));
  auto options = small;
  options.latent_channels = 4;  // a 1x1 convolution from 8 to 8 saves work up to 3
  options.latent_features = 40;
  const auto report = apply_factorization(*net, options);
  CHECK(report.convs.replaced == std::vector<std::string>{"0"});
  CHECK(report.linears.count() == 0);
  options.latent_features = 0.25;
  CHECK(apply_factorization(*net, options).linears.replaced == std::vector<std::string>{"5", "6"});
  const auto keys = golden::state_keys(*net);
  options.min_features = 1;
  options.min_channels = 1;
  options.latent_channels = 1;
  options.factorize_convs = false;
  CHECK(apply_factorization(*net, options).linears.count() == 0);
  CHECK(golden::state_keys(*net) == keys);
}

TEST_CASE("optimizers keep their groups, momentum, and the state of the bias",
          "[surgery][factorize]") {
  NetImpl net;
  using Group = torch::optim::OptimizerParamGroup;
  auto with = [](double decay) {
    return std::make_unique<torch::optim::SGDOptions>(
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(decay));
  };
  torch::optim::SGD optimizer(
      std::vector<Group>{Group({net.wide->bias, net.out->bias}, with(0)),
                         Group({net.wide->weight, net.out->weight}, with(0.1))},
      torch::optim::SGDOptions(0.1));
  net.loss(net.forward(data(1)[0]), data(1)[0]).total().backward();
  optimizer.step();
  const auto momentum = [&](const at::Tensor& parameter) {
    return static_cast<torch::optim::SGDParamState&>(
               *optimizer.state().at(parameter.unsafeGetTensorImpl()))
        .momentum_buffer()
        .clone();
  };
  const at::Tensor of_weight = momentum(net.wide->weight);
  const at::Tensor of_bias = momentum(net.wide->bias);
  apply_factorization(net, small, optimizer);

  auto parameters = net.named_parameters();
  const at::Tensor a = parameters["wide.module0.weight"];
  const at::Tensor b = parameters["wide.module1.weight"];
  CHECK(optimizer.param_groups()[0].params().size() == 2);
  CHECK(optimizer.param_groups()[1].params().size() == 3);
  CHECK(momentum(a).allclose(b.detach().t().matmul(of_weight), 1e-4, 1e-6));
  CHECK(momentum(b).allclose(of_weight.matmul(a.detach().t()), 1e-4, 1e-6));
  CHECK(momentum(parameters["wide.module1.bias"]).equal(of_bias));
  CHECK(optimizer.state().size() == 5);
  optimizer.step();

  CHECK(refactorize(net, 0.5, optimizer) == 1);
  parameters = net.named_parameters();
  const at::Tensor less_a = parameters["wide.module0.weight"].detach();
  const at::Tensor less_b = parameters["wide.module1.weight"].detach();
  CHECK(less_a.size(0) < 4);
  CHECK(momentum(parameters["wide.module0.weight"])
            .allclose(less_b.t().matmul(of_weight), 1e-3, 1e-5));
  CHECK(momentum(parameters["wide.module1.weight"])
            .allclose(of_weight.matmul(less_a.t()), 1e-3, 1e-5));
  CHECK(optimizer.state().size() == 5);
  net.loss(net.forward(data(1)[0]), data(1)[0]).total().backward();
  optimizer.step();
}

TEST_CASE("second moments follow the factors and stay above zero", "[surgery][factorize]") {
  NetImpl net;
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(0.01).amsgrad(true));
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    net.loss(net.forward(data(1)[0]), data(1)[0]).total().backward();
    optimizer.step();
  }
  apply_factorization(net, small, optimizer);
  for (const char* name : {"wide.module0.weight", "wide.module1.weight"}) {
    const at::Tensor parameter = net.named_parameters()[name];
    const auto& state = static_cast<torch::optim::AdamParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    CHECK(state.step() == 2);
    CHECK(state.exp_avg().sizes() == parameter.sizes());
    CHECK(state.exp_avg_sq().min().item<double>() > 0);
  }
}

TEST_CASE("refactorize lowers ranks as far as the weights allow", "[surgery][factorize][law]") {
  NetImpl net;
  {
    const torch::NoGradGuard no_grad;
    net.wide->weight.copy_(torch::randn({16, 2}).matmul(torch::randn({2, 16})));
  }
  apply_factorization(net, small);
  const at::Tensor before = product_of(net, "wide");
  CHECK(refactorize(net, 1 - 1e-6) == 1);
  CHECK(net.named_parameters()["wide.module0.weight"].size(0) == 2);
  CHECK(product_of(net, "wide").allclose(before, 1e-3, 1e-3));
  CHECK(refactorize(net, 1 - 1e-6) == 0);
  CHECK_THROWS_AS(refactorize(net, 0), c10::ValueError);

  NetImpl zero;
  {
    const torch::NoGradGuard no_grad;
    zero.wide->weight.zero_();
  }
  apply_factorization(zero, small);
  CHECK(refactorize(zero, 0.5) == 0);  // else all of it would be zero, and stay so
  CHECK(zero.named_parameters()["wide.module0.weight"].any().item<bool>());
}

TEST_CASE("a run whose ranks are lowered on the way resumes bit for bit", "[factorize][resume]") {
  const TemporaryFolder folder;
  const Factorize policy{.min_features = 8,
                         .latent_features = 7,
                         .refactorize_interval = "1ep",
                         .refactorize_energy = 0.9};
  const auto options = [&] {
    return tutti::TrainerOptions{.train = data(3),
                                 .max_duration = "4ep",
                                 .optimizer = tutti::DecoupledAdamW{.lr = 0.01},
                                 .device = "cpu",
                                 .seed = 3,
                                 .progress_bar = false};
  };
  auto whole = std::make_shared<NetImpl>();
  auto first = options();
  first.save_folder = folder.path().string();
  first.save_interval = "1ep";
  tutti::Trainer run(whole, first, policy);
  run.fit();
  CHECK(run.get<Factorize>().run.ranks->at(0) < 7);

  auto resumed = std::make_shared<NetImpl>(2);
  auto second = options();
  second.load_path = folder.path().string() + "/ep2-ba6";
  tutti::Trainer rest(resumed, second, policy);
  rest.fit();
  CHECK(tiny::flat(*resumed).equal(tiny::flat(*whole)));
}

TEST_CASE("Factorize: ranks are lowered when the interval is due, in whatever unit it is",
          "[factorize]") {
  tutti::State state;
  state.max_duration = "10ep";
  state.previous_timestamp = {.epoch = 1, .batch = 5};
  state.timestamp = {.epoch = 2, .batch = 6};
  state.timestamp.iteration = 1;
  const auto due = [&](tutti::Time interval) {
    const Factorize policy{.refactorize_interval = interval};
    return std::tuple(policy.match(tutti::BatchEnd{}, state),
                      policy.match(tutti::EpochEnd{}, state),
                      policy.match(tutti::IterationEnd{}, state));
  };
  CHECK(due({}) == std::tuple(false, false, false));
  CHECK(due("3ba") == std::tuple(true, false, false));
  CHECK(due("4ba") == std::tuple(false, false, false));
  CHECK(due("2ep") == std::tuple(false, true, false));
  CHECK(due("1iter") == std::tuple(false, false, true));

  tutti::Trainer trainer(std::make_shared<NetImpl>(),
                         tutti::TrainerOptions{.train = data(2),
                                               .max_duration = "2ep",
                                               .iteration_length = "2ep",
                                               .optimizer = tutti::DecoupledAdamW{.lr = 0.01},
                                               .device = "cpu",
                                               .seed = 3,
                                               .progress_bar = false},
                         Factorize{.min_features = 8,
                                   .latent_features = 7,
                                   .refactorize_interval = "1iter",
                                   .refactorize_energy = 0.5});
  trainer.fit();
  CHECK(trainer.get<Factorize>().run.ranks->at(0) < 7);
  CHECK_FALSE(trainer.state().parameters_replaced);  // the loop has followed
}

TEST_CASE("Factorize has the policy's defaults, logs what it did, and wants something to do",
          "[factorize]") {
  CHECK(tutti::functional::FactorizationOptions{}.min_channels == 512);
  CHECK(Factorize{}.min_channels == 256);
  CHECK(Factorize{}.latent_features == 128);
  tutti::State state;
  nn::Sequential net(nn::Conv2d(8, 8, 3), nn::Linear(300, 300));
  state.model = net.ptr();
  Hyperparameters seen(state);
  Factorize{.min_channels = 8}.apply(tutti::Init{}, state);
  CHECK(seen.counts == Hyperparameters::Counts{{"factorize/num_conv2d_replacements", 1},
                                               {"factorize/num_linear_replacements", 1}});
  CHECK_THROWS_WITH(Factorize{}.apply(tutti::Init{}, state),
                    ContainsSubstring("Factorize: no Conv2d or Linear was replaced: it passed over "
                                      "0.module0, 0.module1, 1.module0, 1.module1 (factored "
                                      "already)."));
  nn::Sequential narrow(nn::Conv2d(8, 8, 3), nn::Linear(4, 4));
  CHECK_THROWS_WITH(
      apply_factorization(*narrow, {.if_none = tutti::surgery::IfNone::error}),
      ContainsSubstring("0 (channels in or out below min_channels, which is 512); 1 (features in "
                        "or out below min_features, which is 512)."));
  CHECK_THROWS_AS((Factorize{.factorize_convs = false, .factorize_linears = false}.validate()),
                  c10::ValueError);
  for (const Factorize& options :
       {Factorize{.latent_channels = 0}, Factorize{.latent_features = 0},
        Factorize{.min_channels = 0}, Factorize{.min_features = 0},
        Factorize{.refactorize_energy = 1.5}, Factorize{.refactorize_energy = 0}}) {
    CHECK_THROWS_AS(options.validate(), c10::ValueError);
  }
  Factorize{.factorize_convs = false, .min_features = 1, .refactorize_energy = 1}.validate();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
