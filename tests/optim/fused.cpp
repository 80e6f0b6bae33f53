#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/cuda.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace UNITY_BUILD_UNIQUE_ID {

// What all optimizers share: skipping, groups, surgery, layouts, checkpoints.

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using torch::optim::OptimizerParamGroup;

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor parameter(std::vector<std::int64_t> shape, std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn(shape).requires_grad_();
}

void set_gradients(const Tensors& parameters, int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  for (const auto& p : parameters) {
    p.mutable_grad() = torch::randn(p.sizes(), p.options().requires_grad(false));
  }
}

Tensors copy(const Tensors& parameters) {
  Tensors out;
  for (const auto& p : parameters) {
    out.push_back(p.detach().clone().requires_grad_(p.requires_grad()));
  }
  return out;
}

constexpr SGD sgd{.lr = 0.1, .momentum = 0.9};
constexpr DecoupledAdamW adamw{.lr = 0.01, .weight_decay = 1e-4};

}  // namespace

TEST_CASE("a parameter without a gradient is left alone, decay included", "[optim][law]") {
  const Tensors all{parameter({3}), parameter({3}, 2)};
  const at::Tensor before = all[1].detach().clone();
  const auto check = [&](const auto& optimizer) {
    all[0].mutable_grad() = torch::ones({3});
    all[1].mutable_grad().reset();
    optimizer->step();
    CHECK(all[1].equal(before));
    CHECK(optimizer->state_of(all[1]) == nullptr);
    CHECK(optimizer->state_of(all[0]) != nullptr);
  };
  check(DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.0005}.build(all));
  check(SGD{.lr = 0.1, .weight_decay = 0.5}.build(all));
  check(adamw.build(all));
}

TEST_CASE("gradients that come and go give the momentum of each parameter's own steps",
          "[optim][law]") {
  const Tensors together{parameter({4}), parameter({5}), parameter({6})};
  const Tensors apart = copy(together);
  const auto one = sgd.build(together);
  std::vector<std::shared_ptr<optim::Fused<SGD>>> three;
  for (const auto& p : apart) {
    three.push_back(sgd.build(Tensors{p}));
  }
  for (int step = 0; step < 12; ++step) {
    set_gradients(together, 50 + step);
    set_gradients(apart, 50 + step);
    for (std::size_t i = 0; i < 3; ++i) {
      if ((step + static_cast<int>(i)) % 3 == 0) {
        together[i].mutable_grad().reset();
        apart[i].mutable_grad().reset();
      }
      three[i]->step();
    }
    one->step();
  }
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(together[i].equal(apart[i]));
  }
}

TEST_CASE("a step lets go of the gradients", "[optim][law]") {
  const Tensors all{parameter({4})};
  const auto optimizer = sgd.build(all);
  for (int step = 0; step < 3; ++step) {
    set_gradients(all, 1);
    const at::Tensor gradient = all[0].grad();
    const auto uses = gradient.use_count();
    optimizer->step();
    CHECK(gradient.use_count() == uses);
  }
}

TEST_CASE("each group has its own learning rate and options", "[optim][law]") {
  const at::Tensor a = torch::zeros({2}).requires_grad_();
  const at::Tensor b = torch::zeros({2}).requires_grad_();
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{a});
  groups.push_back(optim::group({b}, SGD{.lr = 1.0}));
  const auto optimizer = SGD{.lr = 0.1}.build(groups);
  a.mutable_grad() = b.mutable_grad() = torch::ones({2});
  optimizer->step();
  CHECK(torch::allclose(a, torch::full({2}, -0.1)));
  CHECK(torch::allclose(b, torch::full({2}, -1.0)));
  optimizer->param_groups()[0].options().set_lr(0.0);
  optimizer->step();
  CHECK(torch::allclose(a, torch::full({2}, -0.1)));
  CHECK(torch::allclose(b, torch::full({2}, -2.0)));
  CHECK(optimizer->param_groups()[1].options().get_lr() == 1.0);
}

TEST_CASE("a group keeps options that are the type's own defaults, and all of them",
          "[optim][law]") {
  std::vector<OptimizerParamGroup> groups;
  groups.push_back(optim::group({parameter({2})}, Adam{}));
  groups.push_back(optim::group({parameter({2})}, Adam{.lr = 0.5, .weight_decay = 0.25}));
  const auto optimizer = Adam{.lr = 0.1, .weight_decay = 0.125, .amsgrad = true}.build(groups);
  optimizer->add_param_group(optim::group({parameter({2})}, Adam{.lr = 0.25, .amsgrad = true}));
  optimizer->add_param_group(Tensors{parameter({2})});
  const auto options = [&](std::size_t g) {
    return dynamic_cast<optim::GroupOptions<Adam>&>(optimizer->param_groups().at(g).options());
  };
  const Adam defaults{};
  CHECK(options(0).hyper.lr == defaults.lr);
  CHECK(options(0).hyper.weight_decay == defaults.weight_decay);
  CHECK(options(0).hyper.amsgrad == defaults.amsgrad);
  CHECK(options(1).hyper.lr == 0.5);
  CHECK(options(1).hyper.weight_decay == 0.25);
  CHECK(options(2).hyper.lr == 0.25);
  CHECK(options(2).initial_lr == 0.25);
  CHECK(options(2).hyper.amsgrad);
  CHECK(options(3).hyper.lr == 0.1);
  CHECK(options(3).hyper.weight_decay == 0.125);
  CHECK(options(3).initial_lr == 0.1);
  CHECK(optimizer->defaults().get_lr() == 0.1);
}

TEST_CASE("a group added through LibTorch's own class keeps its options or is refused",
          "[optim][error]") {
  const auto optimizer = SGD{.lr = 0.1}.build(Tensors{parameter({2})});
  torch::optim::Optimizer& base = *optimizer;
  try {
    base.add_param_group(optim::group({parameter({2})}, SGD{.lr = 0.5}));
    CHECK(optimizer->param_groups().at(1).options().get_lr() == 0.5);
  } catch (const c10::Error& error) {
    CHECK_THAT(error.what_without_backtrace(), ContainsSubstring("append the group"));
    CHECK(optimizer->param_groups().size() == 1);
  }
  CHECK_THROWS_WITH(base.add_param_group(Tensors{parameter({2})}),
                    ContainsSubstring("SGD: torch::optim::Optimizer::add_param_group may lose"));
  optimizer->param_groups().push_back(optim::group({parameter({2})}, SGD{.lr = 0.25}));
  optimizer->step();
  CHECK(optimizer->param_groups().back().options().get_lr() == 0.25);
}

TEST_CASE("a group that is refused is not added, and the next one is as good as ever",
          "[optim][error]") {
  const at::Tensor taken = parameter({2});
  const auto optimizer = SGD{.lr = 0.1}.build(Tensors{taken});
  const auto refused = [&](OptimizerParamGroup group, const std::string& why) {
    CHECK_THROWS_WITH(optimizer->add_param_group(group), ContainsSubstring(why));
    CHECK(optimizer->param_groups().size() == 1);
  };
  refused({Tensors{parameter({2})}, std::make_unique<torch::optim::AdamOptions>(0.1)},
          "options of another optimizer");
  refused(optim::group({parameter({2})}, SGD{.lr = -1.0}), "SGD: lr is -1");
  refused(optim::group({taken * 2}, SGD{.lr = 0.5}), "can't optimize a non-leaf Tensor");
  CHECK_THROWS_WITH(
      static_cast<torch::optim::Optimizer&>(*optimizer).add_param_group(Tensors{parameter({2})}),
      ContainsSubstring("may lose"));
  optimizer->add_param_group(optim::group({parameter({2})}, SGD{.lr = 0.5}));
  CHECK(optimizer->param_groups().at(1).options().get_lr() == 0.5);
}

TEST_CASE("initial_lr is the learning rate at construction, per group", "[optim][law]") {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{parameter({2})});
  groups.push_back(optim::group({parameter({2})}, SGD{.lr = 1.0}));
  const auto optimizer = sgd.build(groups);
  optimizer->param_groups()[0].options().set_lr(0.5);
  const auto initial = [&](std::size_t g) {
    return dynamic_cast<optim::InitialLearningRate&>(optimizer->param_groups()[g].options())
        .initial_lr;
  };
  CHECK(initial(0) == 0.1);
  CHECK(initial(1) == 1.0);
}

TEST_CASE("replacing a parameter keeps the state of the others and drops its own",
          "[optim][surgery][law]") {
  Tensors all{parameter({4}), parameter({5}), parameter({6})};
  const Tensors untouched = copy(all);
  const auto optimizer = adamw.build(all);
  const auto reference = adamw.build(untouched);
  at::Tensor fresh;
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      fresh = parameter({7}, 9);
      optimizer->param_groups()[0].params()[1] = fresh;
      CHECK(optimizer->state().size() == 3);
      all[1] = fresh;
    }
    set_gradients({all[0], all[2], all[1]}, 70 + step);
    set_gradients({untouched[0], untouched[2], untouched[1]}, 70 + step);
    optimizer->step();
    reference->step();
  }
  CHECK(all[0].equal(untouched[0]));
  CHECK(all[2].equal(untouched[2]));
  CHECK(optimizer->state_of(fresh)->step == 3);
  CHECK(optimizer->state_of(all[0])->step == 6);
  CHECK(optimizer->state().size() == 3);
}

TEST_CASE("a new parameter never inherits the state of one that was freed", "[optim][surgery]") {
  Tensors all{parameter({4})};
  const auto optimizer = sgd.build(all);
  set_gradients(all, 1);
  optimizer->step();
  optimizer->param_groups()[0].params().clear();
  all.clear();
  for (int i = 0; i < 20; ++i) {  // one of these would take the freed address
    const at::Tensor next = torch::zeros({4}).requires_grad_();
    next.mutable_grad() = torch::ones({4});
    optimizer->param_groups()[0].params() = {next};
    optimizer->step();
    CHECK(torch::allclose(next, torch::full({4}, -0.1)));
    optimizer->param_groups()[0].params().clear();
  }
}

TEST_CASE("parameters and groups may be added and removed between steps", "[optim][surgery]") {
  const Tensors all{parameter({4}), parameter({5}), parameter({6})};
  const Tensors expected = copy(all);
  const auto optimizer = sgd.build(Tensors{all[0]});
  set_gradients(all, 1);
  set_gradients(expected, 1);
  optimizer->step();
  optimizer->param_groups()[0].params().push_back(all[1]);
  optimizer->add_param_group(OptimizerParamGroup(Tensors{all[2]}));
  optimizer->step();
  optimizer->param_groups()[0].params().erase(optimizer->param_groups()[0].params().begin());
  optimizer->step();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto alone = sgd.build(Tensors{expected[i]});
    alone->step();
    if (i > 0) {
      alone->step();
    }
  }
  for (std::size_t i = 1; i < 3; ++i) {
    CHECK(all[i].equal(expected[i]));
  }
  CHECK(all[0].equal(expected[0] - 0.1 * 0.9 * expected[0].grad() - 0.1 * expected[0].grad()) ==
        false);
  CHECK(optimizer->state().size() == 2);
}

TEST_CASE("state that others erase or replace is noticed", "[optim][surgery]") {
  const Tensors all{torch::zeros({3}).requires_grad_()};
  const auto optimizer = sgd.build(all);
  all[0].mutable_grad() = torch::ones({3});
  optimizer->step();
  optimizer->step();
  CHECK(torch::allclose(all[0], torch::full({3}, -0.1 - 0.19)));
  optimizer->state().clear();
  optimizer->step();  // momentum starts anew
  CHECK(torch::allclose(all[0], torch::full({3}, -0.29 - 0.1)));
  auto& state =
      static_cast<optim::ParameterState&>(*optimizer->state().at(all[0].unsafeGetTensorImpl()));
  state.buffers[0] = torch::full({3}, 10.0);
  optimizer->step();
  CHECK(torch::allclose(all[0], torch::full({3}, -0.39 - 1.0)));
}

TEST_CASE("options may change between steps, momentum switched on included", "[optim][surgery]") {
  const Tensors all{torch::zeros({3}).requires_grad_()};
  const auto optimizer = SGD{.lr = 0.1}.build(all);
  all[0].mutable_grad() = torch::ones({3});
  optimizer->step();
  CHECK_FALSE(optimizer->state_of(all[0])->buffers[0].defined());
  auto& options = static_cast<optim::GroupOptions<SGD>&>(optimizer->param_groups()[0].options());
  options.hyper.momentum = 0.5;
  optimizer->step();
  optimizer->step();
  CHECK(torch::allclose(all[0], torch::full({3}, -0.1 - 0.1 - 0.15)));
}

TEST_CASE("a parameter that changes its type keeps its state", "[optim][surgery]") {
  const Tensors all{torch::zeros({3}).requires_grad_()};
  const auto optimizer = sgd.build(all);
  all[0].mutable_grad() = torch::ones({3});
  optimizer->step();
  all[0].mutable_grad().reset();
  all[0].set_data(all[0].to(at::kDouble));
  all[0].mutable_grad() = torch::ones({3}, at::kDouble);
  optimizer->step();
  CHECK(torch::allclose(all[0], torch::full({3}, -0.29, at::kDouble), 1e-5, 1e-7));
  CHECK(optimizer->state_of(all[0])->buffers[0].scalar_type() == at::kDouble);
}

TEST_CASE("parameters of several types share an optimizer", "[optim][law]") {
  const Tensors all{torch::zeros({40}).requires_grad_(),
                    torch::zeros({40}, at::kDouble).requires_grad_(),
                    torch::zeros({40}, at::kBFloat16).requires_grad_()};
  for (const auto& p : all) {
    p.mutable_grad() = torch::ones_like(p);
  }
  const auto optimizer = sgd.build(all);
  optimizer->step();
  optimizer->step();
  for (const auto& p : all) {
    CHECK(torch::allclose(p.to(at::kDouble), torch::full({40}, -0.29, at::kDouble), 1e-2));
  }
}

TEST_CASE("any memory layout of parameter and gradient gives the same step", "[optim][law]") {
  const at::Tensor values = torch::randn({2, 3, 4, 5});
  const at::Tensor gradient = torch::randn({2, 3, 4, 5});
  const auto train = [&](const at::Tensor& p, const at::Tensor& g, const auto& hyper) {
    p.mutable_grad() = g;
    const auto optimizer = hyper.build(Tensors{p});
    for (int step = 0; step < 3; ++step) {
      optimizer->step();
    }
    return p.detach().contiguous();
  };
  const auto check = [&](const auto& hyper) {
    const auto channels_last = at::MemoryFormat::ChannelsLast;
    const at::Tensor want = train(values.clone().requires_grad_(), gradient, hyper);
    const at::Tensor laid = values.clone().contiguous(channels_last).requires_grad_();
    CHECK(train(laid, gradient, hyper).equal(want));
    CHECK(laid.is_contiguous(channels_last));
    CHECK(train(values.clone().requires_grad_(), gradient.contiguous(channels_last), hyper)
              .equal(want));
    CHECK(train(values.clone().requires_grad_(), gradient[0].expand({2, 3, 4, 5}), hyper)
              .equal(train(values.clone().requires_grad_(),
                           gradient[0].expand({2, 3, 4, 5}).contiguous(), hyper)));
    // Every second column of a wider tensor: not dense.
    const at::Tensor wide = torch::zeros({2, 3, 4, 10});
    const at::Tensor sparse = wide.slice(3, 0, 10, 2);
    sparse.copy_(values);
    sparse.requires_grad_();
    CHECK(train(sparse, gradient, hyper).equal(want));
    CHECK(wide.slice(3, 1, 10, 2).abs().max().item<float>() == 0.0F);
  };
  check(sgd);
  check(DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.0005});
  check(adamw);
}

TEST_CASE("step calls the closure with gradients on and returns its loss", "[optim][law]") {
  const at::Tensor p = torch::ones({3}).requires_grad_();
  const auto optimizer = SGD{.lr = 0.5}.build(Tensors{p});
  const at::NoGradGuard outer;
  const at::Tensor loss = optimizer->step([&] {
    optimizer->zero_grad();
    at::Tensor value = (p * p).sum();
    value.backward();
    return value;
  });
  CHECK(loss.item<float>() == 3.0F);
  CHECK(p.equal(torch::zeros({3})));
  CHECK_FALSE(optimizer->step().defined());
}

TEST_CASE("a step is seen by autograd's check of saved tensors", "[optim][law]") {
  const at::Tensor p = torch::ones({3}).requires_grad_();
  const auto optimizer = SGD{.lr = 0.5}.build(Tensors{p});
  const at::Tensor loss = (p * p).sum();
  p.mutable_grad() = torch::ones({3});
  optimizer->step();
  CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("what cannot be trained is refused", "[optim][error]") {
  const at::Tensor p = torch::ones({3, 2}).requires_grad_();
  const auto optimizer = sgd.build(Tensors{p});
  p.mutable_grad() = torch::ones({3, 2}).to_sparse();
  CHECK_THROWS_WITH(optimizer->step(), ContainsSubstring("SGD: sparse gradients"));

  const at::Tensor z = torch::ones({3}, at::kComplexFloat).requires_grad_();
  z.mutable_grad() = torch::ones({3}, at::kComplexFloat);
  CHECK_THROWS_WITH(adamw.build(Tensors{z})->step(), ContainsSubstring("only floating point"));

  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{p}, std::make_unique<torch::optim::SGDOptions>(0.1));
  CHECK_THROWS_WITH(sgd.build(groups), ContainsSubstring("options of another optimizer"));
}

TEST_CASE("a restored optimizer takes bit-equal steps", "[optim][checkpoint]") {
  const auto check = [](const auto& hyper, const auto& blank) {
    const Tensors first{parameter({4, 3}), parameter({5}), parameter({6})};
    const auto original =
        hyper.build({optim::group({first[0], first[1]}, hyper), optim::group({first[2]}, hyper)});
    const auto train = [](const Tensors& all, auto& optimizer, int from, int to) {
      for (int step = from; step < to; ++step) {
        set_gradients(all, 90 + step);
        if (step < 2) {
          all[1].mutable_grad().reset();
        }
        optimizer->param_groups()[0].options().set_lr(0.1 / (step + 1));
        optimizer->step();
      }
    };
    train(first, original, 0, 4);
    Archive archive;
    original->save(archive);
    const Tensors second = copy(first);
    const auto restored = blank.build(
        {optim::group({second[0], second[1]}, blank), optim::group({second[2]}, blank)});
    restored->load(archive);
    CHECK(restored->param_groups()[0].options().get_lr() ==
          original->param_groups()[0].options().get_lr());
    train(first, original, 4, 8);
    train(second, restored, 4, 8);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(first[i].equal(second[i]));
    }
  };
  check(sgd, SGD{.lr = 0.7});
  check(DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true},
        DecoupledSGDW{.lr = 0.7});
  check(Adam{.lr = 0.1, .betas = {0.8, 0.9}, .amsgrad = true}, Adam{});
  check(adamw, DecoupledAdamW{});
}

TEST_CASE("saved state has the names of the reference", "[optim][checkpoint]") {
  const Tensors all{parameter({2}), parameter({3})};
  const auto optimizer = adamw.build(all);
  set_gradients(all, 1);
  all[0].mutable_grad().reset();
  optimizer->step();
  Archive archive;
  optimizer->save(archive);
  CHECK(archive.get<std::string>("optimizer") == "DecoupledAdamW");
  CHECK(archive.get<double>("groups/0/lr") == 0.01);
  CHECK(archive.get<double>("groups/0/initial_lr") == 0.01);
  CHECK(archive.get<double>("groups/0/beta2") == 0.95);
  CHECK_FALSE(archive.contains("param0"));
  CHECK(archive.get<int>("param1/step") == 1);
  CHECK(archive.tensor("param1/exp_avg").allclose(0.1 * all[1].grad()));
  CHECK(archive.contains("param1/exp_avg_sq"));
  CHECK_FALSE(archive.contains("param1/max_exp_avg_sq"));
}

TEST_CASE("an archive of another optimizer or model is refused and changes nothing",
          "[optim][checkpoint][error]") {
  const Tensors all{parameter({2}), parameter({3})};
  set_gradients(all, 1);
  const auto optimizer = sgd.build(all);
  optimizer->step();
  Archive archive;
  optimizer->save(archive);

  const auto refused = [&](const auto& other, const std::string& why) {
    CHECK_THROWS_WITH(other->load(archive), ContainsSubstring(why));
  };
  refused(adamw.build(all), "DecoupledAdamW: the archive holds a SGD");
  refused(sgd.build({optim::group({all[0]}, sgd), optim::group({all[1]}, sgd)}),
          "holds 1 parameter groups, this optimizer has 2");
  refused(sgd.build(Tensors{all[0]}), "group 0 holds 2 parameters in the archive, 1 in this");
  const auto swapped = SGD{.lr = 0.7, .momentum = 0.9}.build(Tensors{all[1], all[0]});
  swapped->step();
  const at::Tensor before = swapped->state_of(all[0])->buffers[0];
  refused(swapped, "param0/momentum_buffer is [2] in the archive, the parameter is [3]");
  CHECK(swapped->param_groups()[0].options().get_lr() == 0.7);
  CHECK(swapped->state_of(all[0])->buffers[0].is_same(before));
}

TEST_CASE("torch::save says what to use instead", "[optim][checkpoint][error]") {
  const auto optimizer = sgd.build(Tensors{parameter({2})});
  torch::serialize::OutputArchive out;
  CHECK_THROWS_WITH(optimizer->save(out), ContainsSubstring("use a tutti::Archive"));
}

TEST_CASE("CUDA takes the steps of the CPU", "[optim][cuda][gpu]") {
  if (!torch::cuda::is_available()) {
    return tutti_test::skip("there is no CUDA device");
  }
  const auto check = [](const auto& hyper) {
    const Tensors host{parameter({300, 7}), parameter({13}, 2)};
    Tensors device;
    for (const auto& p : host) {
      device.push_back(p.detach().to(at::kCUDA).requires_grad_());
    }
    const auto on_host = hyper.build(host);
    const auto on_device = hyper.build(device);
    for (int step = 0; step < 5; ++step) {
      set_gradients(host, step);
      for (std::size_t i = 0; i < host.size(); ++i) {
        device[i].mutable_grad() = host[i].grad().to(at::kCUDA);
      }
      on_host->param_groups()[0].options().set_lr(0.1 / (step + 1));
      on_device->param_groups()[0].options().set_lr(0.1 / (step + 1));
      on_host->step();
      on_device->step();
    }
    for (std::size_t i = 0; i < host.size(); ++i) {
      CHECK(torch::allclose(host[i], device[i].cpu(), 1e-5, 1e-6));
    }
  };
  check(SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  check(DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 9e-4});
  check(Adam{.lr = 0.1, .amsgrad = true});
  check(AdamW{.lr = 0.1});
  check(DecoupledAdamW{.lr = 0.1, .weight_decay = 9e-4});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
