#include <tutti/nn/replacement.hpp>

#include "nn/replaceable.hpp"
#include "support/catch.hpp"

#include <concepts>
#include <memory>
#include <tuple>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using replaceable::DoubleImpl;
using tutti::surgery::Replacement;

struct TwoInputs : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x + y; }
};
struct NoModule {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

template <class From>
concept ReplacesALayer = std::convertible_to<From, Replacement>;

static_assert(ReplacesALayer<std::nullptr_t>);
static_assert(ReplacesALayer<std::shared_ptr<DoubleImpl>> && ReplacesALayer<nn::Linear>);
static_assert(ReplacesALayer<torch::nn::Linear> && ReplacesALayer<nn::Sequential>);
static_assert(!ReplacesALayer<std::shared_ptr<TwoInputs>>);
static_assert(!ReplacesALayer<std::shared_ptr<NoModule>>);
static_assert(!ReplacesALayer<std::shared_ptr<torch::nn::Module>>);  // it has no forward
static_assert(!ReplacesALayer<torch::nn::LSTM>);                     // it returns a tuple
static_assert(!ReplacesALayer<torch::nn::Sequential>);               // its forward is a template
static_assert(!ReplacesALayer<DoubleImpl*> && !ReplacesALayer<DoubleImpl>);

}  // namespace

TEST_CASE("no module at all keeps the layer", "[surgery]") {
  for (const Replacement& none :
       {Replacement(), Replacement(nullptr), Replacement(std::shared_ptr<DoubleImpl>()),
        Replacement(nn::Linear(nullptr))}) {
    CHECK(none.module() == nullptr);
    CHECK_FALSE(none.slot());
    CHECK(none.any().is_empty());
  }
}

TEST_CASE("a replacement is one module to the registry, the slot and a Sequential",
          "[surgery][law]") {
  const auto module = std::make_shared<DoubleImpl>();
  const Replacement replacement = module;
  CHECK(replacement.module() == module);
  CHECK(replacement.slot().module() == module);
  CHECK(replacement.any().ptr() == module);
  const at::Tensor x = torch::randn({3});
  CHECK(replacement.slot()(x).equal(x * 2));
  torch::nn::AnyModule any = replacement.any();
  CHECK(any.forward(x).equal(x * 2));
}

TEST_CASE("a holder's module is the replacement, not a copy of it", "[surgery]") {
  const nn::Linear ours(3, 2);
  const torch::nn::Linear plain(3, 2);
  CHECK(Replacement(ours).module() == ours.ptr());
  CHECK(Replacement(plain).module() == plain.ptr());
  const nn::Sequential chain(ours, torch::nn::Linear(2, 1));
  CHECK(Replacement(chain).slot()(torch::randn({4, 3})).sizes() == std::vector<std::int64_t>{4, 1});
}

TEST_CASE("a policy may return different modules for different layers", "[surgery]") {
  const auto policy = [](int i) -> Replacement {
    if (i == 0) {
      return std::make_shared<DoubleImpl>();
    }
    if (i == 1) {
      return nn::Linear(2, 2);
    }
    return nullptr;
  };
  CHECK(dynamic_cast<DoubleImpl*>(policy(0).module().get()) != nullptr);
  CHECK(dynamic_cast<nn::LinearImpl*>(policy(1).module().get()) != nullptr);
  CHECK(policy(2).module() == nullptr);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
