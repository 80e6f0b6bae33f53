#include <tutti/checkpoint/optimizer_state.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Archive;
using tutti::checkpoint::load_optimizer;
using tutti::checkpoint::save_optimizer;
namespace to = torch::optim;

namespace {

torch::nn::Sequential small_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Linear(6, 2));
}

void train(torch::nn::Sequential& net, to::Optimizer& optimizer, int steps) {
  torch::manual_seed(11);
  for (int i = 0; i < steps; ++i) {
    const auto x = torch::randn({8, 4});
    const auto y = torch::randn({8, 2});
    optimizer.step([&] {
      const torch::AutoGradMode grad(true);
      optimizer.zero_grad();
      auto loss = torch::nn::functional::mse_loss(net->forward(x), y);
      loss.backward();
      return loss;
    });
  }
}

using Make = std::function<std::unique_ptr<to::Optimizer>(std::vector<to::OptimizerParamGroup>)>;

template <class Optimizer, class Options>
Make make(Options options) {
  return [options](std::vector<to::OptimizerParamGroup> groups) {
    return std::make_unique<Optimizer>(std::move(groups), options);
  };
}

std::vector<to::OptimizerParamGroup> one_group(const torch::nn::Sequential& net) {
  return {to::OptimizerParamGroup(net->parameters())};
}

struct Custom final : to::Optimizer, tutti::Stateful {
  struct Options final : to::OptimizerCloneableOptions<Options> {};
  explicit Custom(std::vector<at::Tensor> parameters)
      : to::Optimizer({to::OptimizerParamGroup(std::move(parameters))},
                      std::make_unique<Options>()) {}
  at::Tensor step(LossClosure) override { return {}; }
  void save(Archive& archive) const override { archive.put("steps", steps); }
  void load(const Archive& archive) override { steps = archive.get<int>("steps"); }
  using to::Optimizer::load;
  using to::Optimizer::save;
  int steps = 0;
};

struct Mine final : to::SGD {
  using to::SGD::SGD;
};

}  // namespace

TEST_CASE("a restored LibTorch optimizer takes bit-equal next steps",
          "[checkpoint][optimizer][law]") {
  const std::pair<std::string, Make> optimizers[] = {
      {"torch::optim::SGD", make<to::SGD>(to::SGDOptions(0.1))},
      {"torch::optim::SGD",
       make<to::SGD>(to::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4).nesterov(true))},
      {"torch::optim::SGD", make<to::SGD>(to::SGDOptions(0.1).momentum(0.9).dampening(0.5))},
      {"torch::optim::Adam", make<to::Adam>(to::AdamOptions(1e-2).betas({0.8, 0.9}).eps(1e-6))},
      {"torch::optim::Adam", make<to::Adam>(to::AdamOptions(1e-2).amsgrad(true))},
      {"torch::optim::AdamW",
       make<to::AdamW>(to::AdamWOptions(1e-2).weight_decay(0.1).amsgrad(true))},
      {"torch::optim::RMSprop",
       make<to::RMSprop>(to::RMSpropOptions(1e-2).momentum(0.9).centered(true).alpha(0.9))},
      {"torch::optim::Adagrad", make<to::Adagrad>(to::AdagradOptions(1e-2).lr_decay(1e-3))},
      {"torch::optim::LBFGS", make<to::LBFGS>(to::LBFGSOptions(0.5).max_iter(3).history_size(4))},
      {"torch::optim::LBFGS",
       make<to::LBFGS>(to::LBFGSOptions(1).max_iter(2).line_search_fn("strong_wolfe"))},
  };
  for (const auto& [name, build] : optimizers) {
    INFO(name);
    auto net = small_net();
    auto optimizer = build(one_group(net));
    train(net, *optimizer, 3);
    optimizer->param_groups()[0].options().set_lr(0.0125);  // as a schedule does
    Archive archive;
    save_optimizer(*optimizer, archive, net.get());
    CHECK(archive.get<std::string>("class") == name);

    auto other = small_net();
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        other->parameters()[i].copy_(net->parameters()[i]);
      }
    }
    auto restored = build(one_group(other));
    train(net, *build(one_group(small_net())), 0);
    load_optimizer(*restored, archive, other.get());
    CHECK(restored->param_groups()[0].options().get_lr() == 0.0125);
    train(net, *optimizer, 3);
    train(other, *restored, 3);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      CHECK(other->parameters()[i].equal(net->parameters()[i]));
    }
  }
}

TEST_CASE("loaded optimizer state shares no memory with the archive", "[checkpoint][optimizer]") {
  auto net = small_net();
  to::SGD optimizer(net->parameters(), to::SGDOptions(0.1).momentum(0.9));
  train(net, optimizer, 1);
  Archive archive;
  save_optimizer(optimizer, archive);
  const auto before = archive.tensor("state/0/momentum_buffer").clone();
  to::SGD other(net->parameters(), to::SGDOptions(0.1).momentum(0.9));
  load_optimizer(other, archive);
  train(net, other, 1);
  CHECK(archive.tensor("state/0/momentum_buffer").equal(before));
}

TEST_CASE("parameters without state stay without it", "[checkpoint][optimizer]") {
  auto net = small_net();
  to::Adam optimizer(net->parameters(), to::AdamOptions(1e-2));
  Archive archive;
  save_optimizer(optimizer, archive);
  CHECK(archive.child("state").empty());
  train(net, optimizer, 1);
  CHECK(optimizer.state().size() == 4);
  load_optimizer(optimizer, archive);
  CHECK(optimizer.state().empty());
}

TEST_CASE("each parameter group gets its own options back", "[checkpoint][optimizer]") {
  auto net = small_net();
  const auto groups = [&](double lr) {
    std::vector<to::OptimizerParamGroup> out;
    out.emplace_back(std::vector<at::Tensor>{net->parameters()[0]},
                     std::make_unique<to::SGDOptions>(lr));
    out.emplace_back(std::vector<at::Tensor>{net->parameters()[1], net->parameters()[2]},
                     std::make_unique<to::SGDOptions>(lr * 2));
    return out;
  };
  to::SGD optimizer(groups(0.5), to::SGDOptions(1));
  Archive archive;
  save_optimizer(optimizer, archive);
  to::SGD other(groups(0.25), to::SGDOptions(1));
  load_optimizer(other, archive);
  CHECK(other.param_groups()[0].options().get_lr() == 0.5);
  CHECK(other.param_groups()[1].options().get_lr() == 1.0);

  to::SGD fewer(net->parameters(), to::SGDOptions(1));
  CHECK_THROWS_WITH(load_optimizer(fewer, archive),
                    ContainsSubstring("sizes [1, 2] in the file, [4] in this run"));
}

TEST_CASE("state follows the parameter's name when the order changed", "[checkpoint][optimizer]") {
  auto net = small_net();
  to::SGD optimizer(net->parameters(), to::SGDOptions(0.1).momentum(0.9));
  train(net, optimizer, 1);
  Archive archive;
  save_optimizer(optimizer, archive, net.get());
  CHECK(archive.get<std::vector<std::string>>("parameters") ==
        std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"});
  auto reversed = net->parameters();
  std::reverse(reversed.begin(), reversed.end());
  to::SGD other(reversed, to::SGDOptions(0.1).momentum(0.9));
  load_optimizer(other, archive, net.get());
  const auto& state = *other.state().at(net->parameters()[0].unsafeGetTensorImpl());
  CHECK(static_cast<const to::SGDParamState&>(state).momentum_buffer().equal(
      archive.tensor("state/0/momentum_buffer")));
  CHECK_THROWS_WITH(load_optimizer(other, archive),
                    ContainsSubstring("parameter 0 is [6, 4] in the file, [2] in this run"));
}

TEST_CASE("a checkpoint of another optimizer or model is refused with what differs",
          "[checkpoint][optimizer]") {
  auto net = small_net();
  to::SGD sgd(net->parameters(), to::SGDOptions(0.1).momentum(0.9));
  train(net, sgd, 1);
  Archive archive;
  save_optimizer(sgd, archive, net.get());

  to::Adam adam(net->parameters(), to::AdamOptions(0.1));
  CHECK_THROWS_WITH(
      load_optimizer(adam, archive),
      ContainsSubstring("torch::optim::SGD in the file, torch::optim::Adam in this run"));

  torch::nn::Sequential renamed;
  renamed->push_back("body", torch::nn::Linear(4, 6));
  renamed->push_back("head", torch::nn::Linear(6, 2));
  to::SGD other(renamed->parameters(), to::SGDOptions(0.1));
  CHECK_THROWS_WITH(
      load_optimizer(other, archive, renamed.get()),
      ContainsSubstring("'body.weight' in this run, for which the file has no state"));

  Archive damaged = archive;
  damaged.child("state/1").erase("momentum_buffer");
  damaged.put("state/1/momentum_buffer", torch::zeros({99}));
  CHECK_THROWS_WITH(load_optimizer(sgd, damaged, net.get()),
                    ContainsSubstring("'state/1/momentum_buffer' is [99], the parameter [6]"));
  CHECK(sgd.state().size() == 4);  // unchanged
}

TEST_CASE("an optimizer of the user's own saves itself", "[checkpoint][optimizer]") {
  auto net = small_net();
  Custom custom(net->parameters());
  custom.steps = 7;
  Archive archive;
  save_optimizer(custom, archive, net.get());
  Custom other(net->parameters());
  load_optimizer(other, archive, net.get());
  CHECK(other.steps == 7);

  auto reversed = net->parameters();
  std::swap(reversed[1], reversed[3]);
  Custom moved(reversed);
  CHECK_THROWS_WITH(load_optimizer(moved, archive, net.get()),
                    ContainsSubstring("another order in the file: parameter 1 is '0.bias' there, "
                                      "'1.bias' in this run"));
}

TEST_CASE("LBFGS, whose state is one for all parameters, needs them in the saved order",
          "[checkpoint][optimizer]") {
  auto net = small_net();
  to::LBFGS optimizer(net->parameters(), to::LBFGSOptions(0.5).max_iter(3));
  train(net, optimizer, 2);
  Archive archive;
  save_optimizer(optimizer, archive, net.get());
  auto moved = net->parameters();
  std::swap(moved[2], moved[3]);
  to::LBFGS other(moved, to::LBFGSOptions(0.5));
  CHECK_THROWS_WITH(load_optimizer(other, archive, net.get()),
                    ContainsSubstring("LBFGS has its parameters in another order"));
  CHECK(other.state().empty());
}

TEST_CASE("an optimizer that cannot be saved is refused by name", "[checkpoint][optimizer]") {
  auto net = small_net();
  Mine mine(net->parameters(), to::SGDOptions(0.1));  // may hold more than SGD does
  Archive archive;
  CHECK_THROWS_WITH(save_optimizer(mine, archive),
                    ContainsSubstring("Mine cannot be saved; derive it from tutti::Stateful"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
