#include "../examples/own_policies.hpp"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

static_assert(tutti::Algorithm<Lookahead>);
static_assert(tutti::Callback<HardestBatch>);
static_assert(tutti::Callback<StopOnNaN>);
static_assert(tutti::Recipe<Lookahead, HardestBatch, StopOnNaN, CsvFile>::valid);

namespace {

tutti::TrainerOptions options(tutti::Time length) {
  return {.train = tiny::batches(4),
          .max_duration = length,
          .optimizer = tutti::SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 5,
          .run_name = "own",
          .progress_bar = false};
}

}  // namespace

TEST_CASE("an own algorithm does what its paper says", "[example]") {
  tutti::State state;
  state.model = torch::nn::Linear(1, 1).ptr();
  at::Tensor weight = state.model->parameters()[0];
  tutti::Engine engine{Lookahead{.k = 2, .alpha = 0.25}};
  const at::NoGradGuard no_grad;

  weight.fill_(0);
  engine.fire<tutti::FitStart>(state);
  std::vector<double> after;
  for (const double fast : {1.0, 4.0, 3.0, 5.0}) {
    weight.fill_(fast);  // the optimizer's step
    state.timestamp = state.timestamp.to_next_batch(1);
    engine.fire<tutti::BatchEnd>(state);
    after.push_back(weight.item<double>());
  }
  CHECK(after == std::vector<double>{1, 1, 3, 2});  // 0 + 0.25 * (4 - 0), 1 + 0.25 * (5 - 1)
}

TEST_CASE("an own algorithm resumes bit for bit", "[example]") {
  const TemporaryFolder folder;
  const auto whole = tiny::net();
  tutti::Trainer<Lookahead>(whole, options("3ep"), Lookahead{.k = 3}).fit();

  auto first = options("5ba");  // inside an epoch, and between two updates
  first.save_folder = folder.path().string();
  tutti::Trainer<Lookahead>(tiny::net(), first, Lookahead{.k = 3}).fit();
  auto second = options("3ep");
  second.load_path = (folder.path() / "latest").string();
  const auto resumed = tiny::net(2);  // other weights, until the checkpoint is read
  tutti::Trainer<Lookahead>(resumed, second, Lookahead{.k = 3}).fit();
  CHECK(tiny::flat(*whole).equal(tiny::flat(*resumed)));

  const auto plain = tiny::net();
  tutti::Trainer<>(plain, options("3ep")).fit();
  CHECK(!tiny::flat(*whole).equal(tiny::flat(*plain)));
}

TEST_CASE("an own algorithm refuses what it cannot do", "[example]") {
  CHECK_THROWS_WITH(tutti::Trainer<Lookahead>(tiny::net(), options("1ep"), Lookahead{.k = 0}),
                    ContainsSubstring("Lookahead: k is 0, expected at least 1 batch"));
  CHECK_THROWS_WITH(tutti::Trainer<Lookahead>(tiny::net(), options("1ep"), Lookahead{.alpha = 2}),
                    ContainsSubstring("Lookahead: alpha is 2, expected more than 0"));
}

TEST_CASE("an own callback and an own destination see what happens", "[example]") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics.csv").string();
  tutti::Trainer<HardestBatch, CsvFile, tutti::InMemoryLogger> trainer{
      tiny::net(), options("2ep"), HardestBatch{}, CsvFile{.path = path}, tutti::InMemoryLogger{}};
  trainer.fit();
  trainer.close();

  const auto& logged = trainer.get<tutti::InMemoryLogger>();
  const auto& losses = logged.series("loss/train/total").values;
  const auto& index = logged.series("hardest_batch/index").values;
  REQUIRE(losses.size() == 8);
  REQUIRE(index.size() == 2);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(4 * epoch);
    CHECK(index[epoch] == static_cast<double>(std::max_element(begin, begin + 4) - begin));
  }
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK_THAT(text, ContainsSubstring("4,hardest_batch/index,"));
  CHECK_THAT(text, ContainsSubstring("8,hardest_batch/index,"));

  // A run that begins anew does not write behind another.
  tutti::Trainer<CsvFile>(tiny::net(), options("1ep"), CsvFile{.path = path}).fit();
  std::ifstream again(path);
  const std::string anew{std::istreambuf_iterator<char>(again), {}};
  CHECK_THAT(anew, ContainsSubstring("loss/train/total") && !ContainsSubstring("hardest_batch"));
}

TEST_CASE("an own callback stops a run", "[example]") {
  tutti::Trainer<StopOnNaN> sound{tiny::net(), options("2ep"), StopOnNaN{}};
  sound.fit();
  CHECK(sound.state().timestamp.batch == 8);

  const auto net = tiny::net();
  tutti::Trainer<StopOnNaN> broken{net, options("2ep"), StopOnNaN{}};
  {
    const at::NoGradGuard no_grad;
    net->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  broken.fit();
  CHECK(broken.state().timestamp.batch == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
