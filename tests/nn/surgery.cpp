#include <tutti/nn/surgery.hpp>

#include "support/catch.hpp"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/serialize.h>

#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;
using Catch::Matchers::ContainsSubstring;

// Computes what the old layer did, through a twin.
struct WrappedLinearImpl : nn::Substitute {
  explicit WrappedLinearImpl(const torch::nn::LinearImpl& layer) {
    inner = register_module("inner", nn::Linear(nn::twin(layer)));
  }
  at::Tensor forward(const at::Tensor& x) { return inner(x); }
  nn::Linear inner{nullptr};
};

// Counts its calls, so that a test sees whether it is in the path.
struct CountingImpl : WrappedLinearImpl {
  using WrappedLinearImpl::WrappedLinearImpl;
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return WrappedLinearImpl::forward(x);
  }
  int calls = 0;
};

const auto wrap = [](torch::nn::LinearImpl& layer) {
  return std::make_shared<WrappedLinearImpl>(layer);
};

// The usual shape of a user's model: typed members, a Sequential, a list.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(4, 4));
    body = register_module(
        "body", nn::Sequential(torch::nn::Linear(4, 4),
                               nn::Sequential(nn::Linear(4, 4), torch::nn::Linear(4, 4))));
    heads = register_module("heads", torch::nn::ModuleList());
    heads->push_back(nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return heads->at<nn::LinearImpl>(0).forward(body(first(x).relu()).tanh());
  }
  nn::Linear first{nullptr};
  nn::Sequential body{nullptr};
  torch::nn::ModuleList heads{nullptr};
};

}  // namespace

TEST_CASE("wrapping every layer keeps the outputs and gradients and extends the names",
          "[surgery][law]") {
  NetImpl net;
  const at::Tensor x = torch::randn({3, 4});
  const at::Tensor expected = net.forward(x);
  expected.sum().backward();
  std::vector<at::Tensor> grads;
  for (at::Tensor& parameter : net.parameters()) {
    grads.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  const auto report = surgery::replace<nn::Linear>(net, wrap);

  CHECK(report.visited == 5);
  CHECK(report.replaced ==
        std::vector<std::string>{"first", "body.0", "body.1.0", "body.1.1", "heads.0"});
  CHECK(report.skipped.empty());
  const at::Tensor got = net.forward(x);
  CHECK(got.equal(expected));
  got.sum().backward();
  const auto parameters = net.parameters();
  REQUIRE(parameters.size() == grads.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    CHECK(parameters[i].grad().equal(grads[i]));
  }
  CHECK(net.named_parameters().keys() ==
        std::vector<std::string>{
            "first.inner.weight", "first.inner.bias", "body.0.inner.weight", "body.0.inner.bias",
            "body.1.0.inner.weight", "body.1.0.inner.bias", "body.1.1.inner.weight",
            "body.1.1.inner.bias", "heads.0.inner.weight", "heads.0.inner.bias"});
}

TEST_CASE("every replaced layer is really called through its replacement", "[surgery]") {
  NetImpl net;
  std::vector<std::shared_ptr<CountingImpl>> made;
  surgery::replace<nn::Linear>(net, [&](torch::nn::LinearImpl& layer) {
    return made.emplace_back(std::make_shared<CountingImpl>(layer));
  });
  net.forward(torch::randn({1, 4}));
  REQUIRE(made.size() == 5);
  for (const auto& counting : made) {
    CHECK(counting->calls == 1);
  }
}

TEST_CASE("a second surgery reaches the layer that the first one kept", "[surgery]") {
  NetImpl net;
  const at::Tensor x = torch::randn({3, 4});
  const at::Tensor expected = net.forward(x);
  std::vector<std::shared_ptr<CountingImpl>> made;
  const auto count_calls = [&](torch::nn::LinearImpl& layer) {
    return made.emplace_back(std::make_shared<CountingImpl>(layer));
  };
  surgery::replace<nn::Linear>(net, wrap);
  const auto second = surgery::replace<nn::Linear>(net, count_calls);
  CHECK(second.replaced.front() == "first.inner");
  surgery::replace<nn::Linear>(net, wrap);
  CHECK(net.forward(x).equal(expected));
  REQUIRE(made.size() == 5);
  for (const auto& counting : made) {
    CHECK(counting->calls == 1);
  }
  CHECK(net.named_parameters().contains("body.1.0.inner.inner.inner.weight"));
}

TEST_CASE("the policy sees positions, may decline, and declined layers count", "[surgery]") {
  NetImpl net;
  std::vector<std::string> seen;
  const auto report = surgery::replace<nn::Linear>(
      net, [&](torch::nn::LinearImpl& layer, const surgery::Visit& where) -> surgery::Replacement {
        seen.push_back(std::to_string(where.index) + " " + where.path);
        if (where.index == 1) {
          return std::make_shared<WrappedLinearImpl>(layer);
        }
        return nullptr;
      });
  CHECK(seen ==
        std::vector<std::string>{"0 first", "1 body.0", "2 body.1.0", "3 body.1.1", "4 heads.0"});
  CHECK(report.count() == 1);
  CHECK(report.visited == 5);
}

TEST_CASE("a layer in several places is replaced once, in all of them", "[surgery]") {
  struct SharedImpl : torch::nn::Module {
    SharedImpl() {
      register_module("encoder", layer);
      register_module("decoder", layer);
      tail = register_module("tail", torch::nn::Sequential(layer, torch::nn::Tanh()));
    }
    at::Tensor forward(const at::Tensor& x) { return tail->forward(layer(x)); }
    nn::Linear layer{4, 4};
    torch::nn::Sequential tail{nullptr};
  } net;
  const at::Tensor x = torch::randn({2, 4});
  const at::Tensor expected = net.forward(x);
  std::vector<std::shared_ptr<CountingImpl>> made;
  const auto report = surgery::replace<nn::Linear>(net, [&](torch::nn::LinearImpl& layer) {
    return made.emplace_back(std::make_shared<CountingImpl>(layer));
  });
  CHECK(report.replaced == std::vector<std::string>{"encoder"});
  CHECK(net.forward(x).equal(expected));
  CHECK(made.at(0)->calls == 2);
  CHECK(net.named_children()["decoder"] == made[0]);
  CHECK(net.tail->ptr(0) == made[0]);
  CHECK(net.tail->named_children()["0"] == made[0]);
}

TEST_CASE("train, eval, dtype and device changes reach what stands in", "[surgery]") {
  NetImpl net;
  net.eval();
  net.first->train();
  surgery::replace<nn::Linear>(net, wrap);
  const auto children = net.named_modules("", /*include_self=*/false);
  CHECK(children["first.inner"]->is_training());
  CHECK_FALSE(children["body.0"]->is_training());
  CHECK_FALSE(children["body.0.inner"]->is_training());
  net.train();
  CHECK(children["body.0.inner"]->is_training());
  net.to(torch::kDouble);
  CHECK(net.forward(torch::randn({2, 4}, torch::kDouble)).scalar_type() == torch::kDouble);
  CHECK(net.first->weight.scalar_type() == torch::kDouble);
}

TEST_CASE("new tensors take dtype and requires_grad of the layer they replace", "[surgery]") {
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::ReLU());
  net->to(torch::kDouble);
  net->ptr<torch::nn::LinearImpl>(0)->weight.set_requires_grad(false);
  const auto fresh = [](torch::nn::LinearImpl&) {
    auto made = std::make_shared<nn::LinearImpl>(3, 3);
    made->register_buffer("steps", torch::zeros({1}, torch::kLong));
    return made;
  };
  surgery::replace<nn::Linear>(*net, fresh);
  const auto parameters = net->named_parameters();
  CHECK(parameters["0.weight"].scalar_type() == torch::kDouble);
  CHECK_FALSE(parameters["0.weight"].requires_grad());
  CHECK(parameters["0.bias"].requires_grad());
  CHECK(parameters["1.weight"].requires_grad());
  CHECK(net->named_buffers()["0.steps"].scalar_type() == torch::kLong);
  CHECK(net->forward(torch::randn({2, 3}, torch::kDouble)).size(1) == 3);

  surgery::replace<nn::Linear>(*net, fresh, {.keep_dtype = false});
  CHECK(net->named_parameters()["0.weight"].scalar_type() == torch::kFloat);
}

TEST_CASE("a replaced model saves and loads under its new names", "[surgery]") {
  auto net = std::make_shared<NetImpl>();
  auto other = std::make_shared<NetImpl>();
  surgery::replace<nn::Linear>(*net, wrap);
  surgery::replace<nn::Linear>(*other, wrap);
  std::stringstream stream;
  torch::save(net, stream);
  torch::load(other, stream);
  const at::Tensor x = torch::randn({2, 4});
  CHECK(other->forward(x).equal(net->forward(x)));
}

TEST_CASE("an exception in the policy leaves the model as it was", "[surgery]") {
  NetImpl net;
  const auto names = net.named_parameters().keys();
  CHECK_THROWS_WITH(
      surgery::replace<nn::Linear>(net,
                                   [](torch::nn::LinearImpl& layer, const surgery::Visit& where) {
                                     TORCH_CHECK(where.index < 2, "not this one");
                                     return std::make_shared<WrappedLinearImpl>(layer);
                                   }),
      ContainsSubstring("not this one"));
  CHECK(net.named_parameters().keys() == names);
  CHECK_FALSE(net.first->slot());
}

TEST_CASE("a replacement that holds the very layer is refused", "[surgery]") {
  struct KeepsImpl : nn::Substitute {
    explicit KeepsImpl(std::shared_ptr<torch::nn::LinearImpl> layer)
        : inner(register_module("inner", std::move(layer))) {}
    at::Tensor forward(const at::Tensor& x) { return inner->forward(x); }
    std::shared_ptr<torch::nn::LinearImpl> inner;
  };
  NetImpl net;
  CHECK_THROWS_WITH(
      surgery::replace<nn::Linear>(
          net,
          [](torch::nn::LinearImpl& layer) {
            return std::make_shared<KeepsImpl>(
                std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer.shared_from_this()));
          }),
      ContainsSubstring("its forward would never end; keep tutti::nn::twin(layer)"));
}

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int depth) {
    if (depth > 0) {
      register_module("inner", std::make_shared<nn::Replaceable<BlockImpl>>(depth - 1));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
struct Block : torch::nn::ModuleHolder<nn::Replaceable<BlockImpl>> {
  using Impl = nn::Replaceable<BlockImpl>;
};

}  // namespace

TEST_CASE("layers inside a layer that is replaced too are refused", "[surgery]") {
  torch::nn::Module net;
  net.register_module("block", std::make_shared<nn::Replaceable<BlockImpl>>(1));
  CHECK_THROWS_WITH(
      surgery::replace<Block>(net, [](BlockImpl& block) { return nn::twin(block); }),
      ContainsSubstring("the policy replaces block.inner and block, which contains it"));
  const auto outer_only = [](BlockImpl& block, const surgery::Visit& where) {
    return where.index == 0 ? nn::twin(block) : nullptr;
  };
  CHECK(surgery::replace<Block>(net, outer_only).count() == 1);
}

namespace {

// Collects warnings while it lives.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

struct PlainNetImpl : torch::nn::Module {
  torch::nn::Linear shared{3, 3};
  torch::nn::Linear plain = register_module("plain", torch::nn::Linear(3, 3));
  torch::nn::Sequential tail =
      register_module("tail", torch::nn::Sequential(torch::nn::Linear(3, 3), shared));
  torch::nn::Linear also = register_module("also", shared);
};

}  // namespace

TEST_CASE("plain members cannot be replaced, and the warning says what to change", "[surgery]") {
  PlainNetImpl net;
  Warnings warnings;
  const auto report = surgery::replace<nn::Linear>(net, wrap, {.who = "Wrapping"});
  CHECK(report.replaced == std::vector<std::string>{"tail.0"});
  CHECK(report.skipped == std::vector<std::string>{"plain", "tail.1"});
  CHECK_THAT(warnings.text,
             ContainsSubstring("Wrapping: 2 of the torch::nn::Linear layers could not be replaced "
                               "(plain, tail.1)") &&
                 ContainsSubstring("declare them as tutti::nn::Linear (same options, same "
                                   "parameter names"));
  CHECK(net.named_parameters().contains("plain.weight"));
  CHECK(net.tail->ptr(1) == net.shared.ptr());
}

TEST_CASE("layers that the policy declines are no reason to warn", "[surgery]") {
  PlainNetImpl net;
  Warnings warnings;
  surgery::replace<nn::Linear>(
      net, [](torch::nn::LinearImpl&) -> surgery::Replacement { return nullptr; });
  CHECK(warnings.text.empty());
}

TEST_CASE("replacing nothing is ignored, warned of or refused, as asked", "[surgery]") {
  NetImpl net;
  const auto none = [](torch::nn::Conv2dImpl& conv) { return nn::twin(conv); };
  Warnings warnings;
  CHECK(surgery::replace<nn::Conv2d>(net, none).count() == 0);
  CHECK(warnings.text.empty());
  surgery::replace<nn::Conv2d>(net, none, {.if_none = surgery::IfNone::warn, .who = "Test"});
  CHECK_THAT(warnings.text, ContainsSubstring("Test: no torch::nn::Conv2d was replaced, so it has "
                                              "no effect"));
  CHECK_THROWS_WITH(
      surgery::replace<nn::Conv2d>(net, none, {.if_none = surgery::IfNone::error}),
      ContainsSubstring("surgery: no torch::nn::Conv2d was replaced: the model has none"));
}

TEST_CASE("a surgery that replaced nothing says which layers it passed over and why", "[surgery]") {
  PlainNetImpl net;
  Warnings warnings;
  const auto policy = [](torch::nn::LinearImpl& linear,
                         const surgery::Visit& where) -> surgery::Replacement {
    if (where.path == "tail.0") {
      return surgery::Replacement::keep("too narrow");
    }
    return nn::twin(linear);
  };
  const std::string expected =
      "Wrapping: no torch::nn::Linear was replaced: it passed over plain, tail.1 (a plain member "
      "that "
      "its parent calls directly: declare it as tutti::nn::Linear, or put it into a Sequential); "
      "tail.0 (too narrow).";
  CHECK_THROWS_WITH(surgery::replace<nn::Linear>(
                        net, policy, {.if_none = surgery::IfNone::error, .who = "Wrapping"}),
                    ContainsSubstring(expected));
  const auto report = surgery::replace<nn::Linear>(net, policy);
  REQUIRE(report.kept.size() == 3);
  CHECK(report.kept[1].path == "tail.0");
  CHECK(report.kept[1].why == "too narrow");
}

TEST_CASE("a derived layer in a Sequential keeps its own forward around the replacement",
          "[surgery]") {
  struct ShiftedImpl : nn::LinearImpl {
    using nn::LinearImpl::LinearImpl;
    at::Tensor forward(const at::Tensor& x) { return nn::LinearImpl::forward(x) + 1; }
  };
  torch::nn::Sequential net(std::make_shared<ShiftedImpl>(2, 2));
  const at::Tensor x = torch::randn({1, 2});
  const at::Tensor expected = net->forward(x);
  CHECK(surgery::replace<nn::Linear>(*net, wrap).count() == 1);
  CHECK(net->forward(x).equal(expected));
  CHECK(net->named_parameters().contains("0.inner.weight"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
