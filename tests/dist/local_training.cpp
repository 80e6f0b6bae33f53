#include <tutti/algorithms/diloco.hpp>
#include <tutti/algorithms/local_sgd.hpp>
#include <tutti/core/on.hpp>
#include <tutti/trainer.hpp>

#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// LocalSGD and DiLoCo on two ranks.

using namespace tutti;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

/// Remembers the weights after each batch.
struct Record final {
  std::vector<at::Tensor> weights{};
  void apply(BatchEnd, State& state) { weights.push_back(tiny::flat(*state.model)); }
};

TrainerOptions options(double momentum = 0) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({32, 4});
  const at::Tensor y = at::randn({32, 2});
  return {.train = TensorLoader{x, y, {.batch_size = 4}},
          .max_duration = "2ep",
          .optimizer = SGD{.lr = 0.1, .momentum = momentum},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

// The weights after each batch of a run of this rank.
template <class... Policies>
std::vector<at::Tensor> weights_of(const TrainerOptions& given, Policies... policies) {
  Trainer trainer{tiny::net(), given, policies..., Record{}};
  trainer.fit();
  return trainer.template get<Record>().weights;
}

bool equal_on_all_ranks(const at::Tensor& tensor) {
  const auto all = dist::default_group()->all_gather(tensor);
  return all[0].equal(all[1]);
}

}  // namespace

TEST_CASE("rank body: LocalSGD meets every other batch", "[.rank]") {
  const auto weights = weights_of(options(0.9), LocalSGD{.interval = "2ba"});
  REQUIRE(weights.size() == 8);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    CHECK(equal_on_all_ranks(weights[i]) == (i % 2 == 1));
  }
  // Until start they meet after every batch.
  const auto later = weights_of(options(0.9), LocalSGD{.interval = "4ba", .start = "3ba"});
  for (std::size_t i = 0; i < later.size(); ++i) {
    CHECK(equal_on_all_ranks(later[i]) == (i < 3 || i == 6));
  }
}

TEST_CASE("rank body: LocalSGD averages once more what was frozen between two averages",
          "[.rank]") {
  at::Tensor frozen;
  Trainer trainer{tiny::net(), options(), LocalSGD{.interval = "3ba"},
                  on<EpochEnd>([&](State& state) {
                    frozen = state.model->parameters().front();
                    frozen.set_requires_grad(false);
                  })};
  trainer.fit();
  CHECK(equal_on_all_ranks(frozen.detach()));
  CHECK(equal_on_all_ranks(tiny::flat(*trainer.state().model)));
}

TEST_CASE("rank body: plain SGD that meets after every batch is data-parallel SGD", "[.rank]") {
  const auto parallel = weights_of(options());
  const auto local = weights_of(options(), LocalSGD{.interval = "1ba"});
  const auto outer =
      weights_of(options(), DiLoCo{.interval = "1ba", .outer_lr = 1, .outer_momentum = 0});
  REQUIRE(parallel.size() == 8);
  for (std::size_t i = 0; i < parallel.size(); ++i) {
    CHECK(local[i].allclose(parallel[i], 1e-5, 1e-6));
    CHECK(outer[i].allclose(parallel[i], 1e-5, 1e-6));
  }
}

TEST_CASE("rank body: DiLoCo follows its formula", "[.rank]") {
  const auto group = dist::initialize();
  constexpr double lr = 0.7;
  constexpr double momentum = 0.9;
  torch::nn::Linear net(3, 2);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.fill_(1);
  }
  functional::OuterStep step(*net);
  double start = 1;
  double velocity = 0;
  for (int round = 0; round < 3; ++round) {
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.sub_(group->rank() == 0 ? 0.1 : 0.3);  // the ranks' own ways
    }
    step(*net, *group, lr, momentum);
    velocity = momentum * velocity + 0.2;
    start -= lr * (0.2 + momentum * velocity);
    for (const at::Tensor& parameter : net->parameters()) {
      CHECK((parameter - start).abs().max().item<double>() < 1e-6);
    }
  }
}

TEST_CASE("rank body: a resumed DiLoCo goes on from its outer state", "[.rank]") {
  const TemporaryFolder own;
  const std::string folder = dist::initialize()->broadcast_bytes(own.path().string(), 0);
  const DiLoCo policy{.interval = "2ba"};
  const auto whole = weights_of(options(), policy);
  TrainerOptions first = options();
  first.save_folder = folder;
  first.save_interval = "1ep";
  first.max_duration = "1ep";
  weights_of(first, policy);
  TrainerOptions second = options();
  second.load_path = folder + "/latest";
  const auto rest = weights_of(second, policy);
  REQUIRE(rest.size() == 4);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    CHECK(rest[i].equal(whole[i + 4]));
  }
}

TEST_CASE("LocalSGD averages the ranks when it says", "[dist][local_sgd]") {
  CHECK(run_ranks("rank body: LocalSGD meets every other batch") == all_passed);
  CHECK(run_ranks("rank body: LocalSGD averages once more what was frozen between two averages") ==
        all_passed);
}

TEST_CASE("LocalSGD and DiLoCo with an interval of one batch are data-parallel SGD",
          "[dist][local_sgd][diloco]") {
  CHECK(run_ranks("rank body: plain SGD that meets after every batch is data-parallel SGD") ==
        all_passed);
}

TEST_CASE("DiLoCo's outer step is SGD with Nesterov's momentum", "[dist][diloco]") {
  CHECK(run_ranks("rank body: DiLoCo follows its formula") == all_passed);
}

TEST_CASE("DiLoCo resumes bit for bit where ranks have no state of their own", "[dist][diloco]") {
  CHECK(run_ranks("rank body: a resumed DiLoCo goes on from its outer state") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
