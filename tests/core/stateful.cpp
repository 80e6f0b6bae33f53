#include <tutti/core/stateful.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <tutti/core/archive.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::Archive;
using tutti::Stateful;

// Only a base: nobody makes one, none is sliced off, and deleting through it is safe.
static_assert(std::is_abstract_v<Stateful> && std::has_virtual_destructor_v<Stateful>);
static_assert(!std::copy_constructible<Stateful> && !std::is_copy_assignable_v<Stateful>);

struct Counter final : Stateful {
  void save(Archive& archive) const override { archive.put("count", count); }
  void load(const Archive& archive) override { count = archive.get<int>("count"); }
  int count = 0;
};
static_assert(std::copyable<Counter>);

}  // namespace

TEST_CASE("what a base class saved, a base class restores", "[core][stateful]") {
  Counter counter;
  counter.count = 7;
  const Stateful& saving = counter;
  Archive archive;
  saving.save(archive);
  const std::unique_ptr<Stateful> loading = std::make_unique<Counter>();
  loading->load(archive);
  CHECK(dynamic_cast<const Counter&>(*loading).count == 7);

  Counter untouched;
  untouched.count = 3;
  CHECK_THROWS_AS(untouched.load(Archive()), c10::Error);
  CHECK(untouched.count == 3);
}

TEST_CASE("an optimizer of this library is found by the base class, a LibTorch one is not",
          "[core][stateful]") {
  const std::vector<at::Tensor> parameters{at::ones({3}).requires_grad_()};
  const auto found = [](torch::optim::Optimizer& optimizer) {
    return dynamic_cast<Stateful*>(&optimizer);
  };
  CHECK(found(*tutti::SGD{.lr = 0.1}.build(parameters)) != nullptr);
  torch::optim::SGD plain(parameters, torch::optim::SGDOptions(0.1));
  CHECK(found(plain) == nullptr);

  const auto adam = tutti::Adam{.lr = 0.25}.build(parameters);
  parameters[0].mutable_grad() = at::ones({3});
  adam->step();
  Archive archive;
  found(*adam)->save(archive);
  const auto other = tutti::Adam{.lr = 0.5}.build(parameters);
  found(*other)->load(archive);
  Archive again;
  found(*other)->save(again);
  CHECK(again.names() == archive.names());
  CHECK(again.get<double>("groups/0/lr") == 0.25);

  const auto sgd = tutti::SGD{.lr = 0.5}.build(parameters);
  CHECK_THROWS_AS(found(*sgd)->load(archive), c10::Error);
  Archive kept;
  found(*sgd)->save(kept);
  CHECK(kept.get<double>("groups/0/lr") == 0.5);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
