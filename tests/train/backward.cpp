#include <tutti/train/backward.hpp>

#include "support/catch.hpp"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <tutti/algorithms/sam.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/trainer.hpp>

#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// The walk gives LibTorch's gradients bit for bit, and leaves to its engine what only that can do.

namespace {

using namespace tutti;

using Leaves = std::vector<at::Tensor>;
using MakeLoss = std::function<at::Tensor(const Leaves&)>;

Leaves leaves(std::vector<std::vector<std::int64_t>> shapes) {
  at::manual_seed(3);
  Leaves out;
  for (const auto& shape : shapes) {
    out.push_back(at::randn(shape).requires_grad_());
  }
  return out;
}

// Gradients after `times` backward passes of the losses of `make`.
Leaves gradients(const Leaves& of, const MakeLoss& make, bool walk, int times = 1) {
  train::Backward backward;
  for (at::Tensor leaf : of) {
    leaf.mutable_grad().reset();
  }
  for (int i = 0; i < times; ++i) {
    at::manual_seed(11);
    const at::Tensor loss = make(of);
    if (walk) {
      backward(loss);
    } else {
      loss.backward();
    }
  }
  Leaves out;
  for (const at::Tensor& leaf : of) {
    out.push_back(leaf.grad());
  }
  return out;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    return a.defined() == b.defined();
  }
  if (a.is_sparse()) {
    return b.is_sparse() && a.to_dense().equal(b.to_dense());
  }
  return a.scalar_type() == b.scalar_type() && a.strides() == b.strides() && a.equal(b);
}

void check(const Leaves& of, const MakeLoss& make) {
  for (const int times : {1, 3}) {
    const Leaves walked = gradients(of, make, true, times);
    const Leaves expected = gradients(of, make, false, times);
    for (std::size_t i = 0; i < of.size(); ++i) {
      INFO("leaf " << i << ", " << times << " backward passes");
      CHECK(same(walked[i], expected[i]));
    }
  }
}

// The message of what `work` throws.
template <class Work>
std::string message(Work&& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

struct Halves : torch::autograd::Function<Halves> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return {x.narrow(0, 0, 2).clone(), x.narrow(0, 2, 2).clone()};
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    for (auto& gradient : gradients) {
      if (!gradient.defined()) {
        gradient = at::full({2}, 7.0);
      }
    }
    return {at::cat(gradients)};
  }
};

struct WrongShape : torch::autograd::Function<WrongShape> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    return {at::ones({3})};
  }
};

struct TooMany : torch::autograd::Function<TooMany> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0], gradients[0]};
  }
};

struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    throw std::runtime_error("no gradient today");
  }
};

}  // namespace

TEST_CASE("walked gradients are those of LibTorch's engine") {
  SECTION("one path") {
    check(leaves({{4, 3}, {3}}), [](const Leaves& x) {
      return at::linear(at::ones({2, 3}), x[0]).tanh().sum() * x[1].mean();
    });
  }
  SECTION("many paths into a node, sums in the engine's order") {
    check(leaves({{33}, {33}}), [](const Leaves& x) {
      at::Tensor sum = x[0];
      for (int i = 1; i < 9; ++i) {
        sum = sum * 1.1 + (x[0] * x[1] / i).sin() + sum.exp() * x[1];
        sum = sum / sum.norm();
      }
      return (sum + x[0]).pow(2).mean();
    });
  }
  SECTION("views, slices and outputs nobody uses") {
    check(leaves({{6, 4}}), [](const Leaves& x) {
      const auto parts = x[0].chunk(3);
      const auto sorted = x[0].t().sort(0);
      return parts[0].sum() + (parts[2] * parts[2]).sum() + std::get<0>(sorted)[0].sum() +
             x[0].expand({2, 6, 4}).select(1, 2).prod();
    });
  }
  SECTION("in-place operations and a leaf that takes no part") {
    check(leaves({{5}, {5}}), [](const Leaves& x) {
      at::Tensor y = x[0] * 2;
      y.narrow(0, 1, 3).mul_(x[0].narrow(0, 0, 3));
      y.relu_();
      return y.sum();
    });
  }
  SECTION("sparse gradients beside dense ones") {
    const at::Tensor rows = at::tensor({0, 2, 2}, at::kLong);
    check(leaves({{4, 3}}), [&](const Leaves& x) {
      return at::embedding(x[0], rows, -1, false, /*sparse=*/true).sum();
    });
    check(leaves({{4, 3}}), [&](const Leaves& x) {
      const at::Tensor once = x[0] * 1.0;
      return at::embedding(once, rows, -1, false, true).pow(2).sum() + once.sum();
    });
    check(leaves({{4, 3}}), [&](const Leaves& x) {
      const at::Tensor once = x[0] * 1.0;
      return once.sum() + at::embedding(once, rows, -1, false, true).pow(2).sum() +
             at::embedding(once, rows, -1, false, true).sum();
    });
  }
  SECTION("functions of one's own, with a gradient that never comes") {
    check(leaves({{4}}), [](const Leaves& x) { return Halves::apply(x[0])[1].sum(); });
    check(leaves({{4}}), [](const Leaves& x) {
      const auto halves = Halves::apply(x[0] * 3);
      return (halves[0] * halves[1]).sum();
    });
  }
  SECTION("a loss that is a leaf, or a view of one") {
    check(leaves({{}}), [](const Leaves& x) { return x[0]; });
    check(leaves({{1}}), [](const Leaves& x) { return x[0].squeeze(); });
    check(leaves({{1, 1}}), [](const Leaves& x) { return x[0]; });
  }
  SECTION("two types") {
    check(leaves({{8, 8}, {8}}), [](const Leaves& x) {
      const at::Tensor low = x[0].to(at::kBFloat16);
      return at::matmul(low, low).to(at::kFloat).mul(x[1]).sum() + x[1].to(at::kDouble).sum();
    });
  }
}

TEST_CASE("walked gradients of networks are those of LibTorch's engine") {
  at::manual_seed(5);
  SECTION("layers with dropout") {
    auto net = tiny::net(2, 0.3);
    const Batch batch(at::randn({6, 4}), at::randn({6, 2}));
    check(net->parameters(),
          [&](const Leaves&) { return net->loss(net->forward(batch), batch).total(); });
  }
  SECTION("residual convolutions with normalisation, in fp32 and under autocast") {
    auto net = models::cifar_resnet({.blocks = {1, 1, 1}});
    const at::Tensor classes = at::tensor({1, 3}, at::kLong);
    at::Tensor images = at::randn({2, 3, 16, 16});
    const MakeLoss loss = [&](const Leaves&) {
      return at::cross_entropy_loss(net->forward(images), classes);
    };
    check(net->parameters(), loss);
    check(net->parameters(), [&](const Leaves& x) {
      const Autocast low(at::kCPU, at::kBFloat16);
      return loss(x);
    });
    images = images.contiguous(at::MemoryFormat::ChannelsLast);
    check(net->parameters(), loss);
  }
  SECTION("a transformer with its table of tokens used twice") {
    models::GPT2LMHeadModel net(models::GPT2Options{
        .vocab_size = 11, .n_positions = 12, .n_embd = 16, .n_layer = 2, .n_head = 4});
    const at::Tensor tokens = at::randint(11, {2, 12}, at::kLong);
    const Batch batch{{"input_ids", tokens}, {"labels", tokens}};
    check(net->parameters(),
          [&](const Leaves&) { return net->loss(net->forward(batch), batch).total(); });
  }
}

TEST_CASE("what only LibTorch's engine can do is left to it") {
  const MakeLoss loss = [](const Leaves& x) { return (x[0] * 2).tanh().sum(); };
  SECTION("hooks of a leaf and of a tensor between") {
    Leaves x = leaves({{3}});
    x[0].register_hook([](const at::Tensor& gradient) { return gradient * 10; });
    check(x, loss);
    check(leaves({{3}}), [](const Leaves& x) {
      const at::Tensor y = x[0] * 2;
      y.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
      return y.tanh().sum();
    });
  }
  SECTION("gradients of tensors that are no leaves") {
    train::Backward backward;
    const Leaves x = leaves({{3}});
    at::Tensor y = x[0] * 2;
    y.retain_grad();
    backward(y.sum());
    CHECK(y.grad().equal(at::ones({3})));
    CHECK(x[0].grad().equal(at::full({3}, 2.0)));
  }
  SECTION("hooks of a node, as DDP has them") {
    struct Count final : torch::autograd::FunctionPostHook {
      explicit Count(int& calls) : calls_(calls) {}
      torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                                const torch::autograd::variable_list&) override {
        ++calls_;
        torch::autograd::Engine::get_default_engine().queue_callback([this] { ++calls_; });
        return outputs;
      }
      int& calls_;
    };
    int calls = 0;
    train::Backward backward;
    const Leaves x = leaves({{3}});
    const auto edge = torch::autograd::impl::gradient_edge(x[0]);
    edge.function->add_post_hook(std::make_unique<Count>(calls));
    backward(loss(x));
    CHECK(calls == 2);
  }
  SECTION("anomaly mode, which names the node that made a NaN") {
    const torch::autograd::DetectAnomalyGuard anomaly;
    train::Backward backward;
    const Leaves x = leaves({{3}});
    CHECK(message([&] { backward((x[0] * 0).sqrt().mul(0).sum()); }).find("nan values") !=
          std::string::npos);
  }
}

TEST_CASE("errors of a backward pass are LibTorch's, and the next pass is as if there were none") {
  train::Backward backward;
  const Leaves x = leaves({{4}});
  const std::vector<MakeLoss> wrong{
      [](const Leaves& x) { return x[0] * 2; },                           // no scalar
      [](const Leaves& x) { return x[0].detach().sum(); },                // no gradient
      [](const Leaves& x) { return WrongShape::apply(x[0] * 2).sum(); },  //
      [](const Leaves& x) { return TooMany::apply(x[0] * 2).sum(); },
      [](const Leaves& x) { return Throws::apply(x[0] * 2).sum() + x[0].sum(); },
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    INFO("case " << i);
    const std::string walked = message([&] { backward(wrong[i](x)); });
    CHECK(!walked.empty());
    CHECK(walked == message([&] { wrong[i](x).backward(); }));
  }
  at::Tensor loss = x[0].pow(2).sum();
  x[0].mutable_grad().reset();
  backward(loss);
  CHECK(x[0].grad().equal(x[0].detach() * 2));
  CHECK(message([&] { backward(loss); }).find("second time") != std::string::npos);
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE("a graph as deep as the stack is not is walked") {
  train::Backward backward;
  const Leaves x = leaves({{1}});
  at::Tensor y = x[0];
  for (int i = 0; i < 100'000; ++i) {
    y = y + x[0];
  }
  backward(y.sum());
  CHECK(x[0].grad().item<double>() == 100'001.0);
}

TEST_CASE("a run is the same with LibTorch's engine and without") {
  std::vector<at::Tensor> weights;
  for (const bool engine : {true, false}) {
    auto net = tiny::net(4, 0.2);
    Trainer<SAM> trainer(net, {.train = tiny::batches(4),
                               .max_duration = "2ep",
                               .device_train_microbatch_size = 2,
                               .autograd_engine = engine,
                               .device = "cpu",
                               .seed = 17,
                               .progress_bar = false});
    trainer.fit();
    weights.push_back(tiny::flat(*net));
  }
  CHECK(weights[0].equal(weights[1]));
}

TEST_CASE("a sum of gradients leaves alone what another node is still to get",
          "[train][backward]") {
  // The addition hands one tensor to both sides; `a` gets more of it before `b` has taken its own.
  for (const bool view : {false, true}) {
    INFO("through a view: " << view);
    check(leaves({{2, 3}, {6}}), [view](const Leaves& x) {
      const at::Tensor weights = at::arange(6, at::kFloat);
      const at::Tensor a = x[0] * 2;
      const at::Tensor b = view ? x[1] * 3 : x[1].view({2, 3}) * 3;
      const at::Tensor more = a * 5;
      const at::Tensor sum = view ? a.view(6) + b : a + b;
      return (sum.flatten() * weights).sum() + (more.flatten() * weights).sum();
    });
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
