#include <tutti/train/microbatching.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/measured.hpp"
#include "support/other_rank.hpp"
#include "support/out_of_memory.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using tutti_test::Measured;
using tutti_test::out_of_memory;

namespace {

// A device with room for so many examples, that fills up at event E, from the batch `since` on.
template <class E>
struct Room final {
  std::int64_t examples = 2;
  std::int64_t since = 0;
  int overflows = 0;
  std::vector<std::int64_t> sizes{};  // of each batch's microbatches, as it ended

  void apply(E, State& state) {
    if (state.timestamp.batch >= since && state.batch.num_samples() > examples) {
      ++overflows;
      out_of_memory();
    }
  }
  void apply(BatchEnd, State& state) { sizes.push_back(state.device_train_microbatch_size); }
};

struct EvalRoom final {
  std::int64_t examples = 2;
  void apply(EvalAfterForward, const State& state) const {
    if (state.batch.num_samples() > examples) {
      out_of_memory();
    }
  }
};

TrainerOptions options(CountOrAuto microbatch, std::int64_t batch = 8) {
  return {.train = tiny::batches(3, batch),
          .max_duration = "2ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device_train_microbatch_size = microbatch,
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

template <class... Ps>
at::Tensor trained(const TrainerOptions& with, Ps... policies) {
  const auto model = tiny::net(1, /*drop=*/0.5);
  Trainer trainer{model, with, std::move(policies)...};
  trainer.fit();
  return tiny::flat(*model);
}

}  // namespace

TEMPLATE_TEST_CASE("an automatic size halves until it fits, and the run is that of the size found",
                   "[train][microbatching]", BeforeForward, AfterForward, AfterBackward) {
  const auto model = tiny::net(1, 0.5);
  Trainer trainer{model, options("auto"), MixUp{}, Room<TestType>{.examples = 3}, InMemoryLogger{}};
  trainer.fit();
  using Sizes = std::vector<std::int64_t>;
  CHECK(trainer.template get<Room<TestType>>().sizes == Sizes(6, 2));
  CHECK(trainer.template get<Room<TestType>>().overflows == 2);  // 8, 4
  CHECK(trainer.state().timestamp.batch == 6);
  CHECK(trainer.state().timestamp.sample == 48);
  CHECK(tiny::flat(*model).equal(trained(options(2), MixUp{})));
  CHECK(trainer.template get<InMemoryLogger>().latest("trainer/device_train_microbatch_size") == 2);
}

TEST_CASE("a size that fits stays, and the batch is taken whole", "[train][microbatching]") {
  const auto automatic = trained(options("auto"), Room<AfterForward>{.examples = 8});
  CHECK(automatic.equal(trained(options(0))));
}

TEST_CASE("memory that runs out later shrinks the size from that batch on",
          "[train][microbatching]") {
  const auto model = tiny::net();
  Trainer trainer{model, options("auto"), Room<AfterLoss>{.examples = 4, .since = 3}};
  trainer.fit();
  CHECK(trainer.get<Room<AfterLoss>>().sizes == std::vector<std::int64_t>{8, 8, 8, 4, 4, 4});
}

TEST_CASE("a single example that does not fit ends the run with advice", "[train][microbatching]") {
  CHECK_THROWS_WITH(
      trained(options("auto"), Room<AfterForward>{.examples = 0}),
      ContainsSubstring("the memory of cpu is too small for a single example, training"));
}

TEST_CASE("running out of memory is an error when the size is a number", "[train][microbatching]") {
  CHECK_THROWS_AS(trained(options(4), Room<AfterForward>{}), c10::OutOfMemoryError);
}

TEST_CASE("other errors are not taken for a lack of memory", "[train][microbatching]") {
  CHECK(train::is_out_of_memory(std::runtime_error("CUDA error: out of memory")));
  CHECK_FALSE(train::is_out_of_memory(std::runtime_error("the disk is full")));
  CHECK_THROWS_WITH(train::fits([] { throw std::runtime_error("the disk is full"); }),
                    ContainsSubstring("the disk is full"));
  CHECK_THROWS_WITH(train::fits([] { TORCH_CHECK(false, "CUDA error: device-side assert"); }),
                    ContainsSubstring("set device_train_microbatch_size to a number"));
  CHECK_FALSE(train::fits([] { out_of_memory(); }));
}

TEST_CASE("what one rank has no room for no rank takes, and one of them says so",
          "[train][microbatching]") {
  OtherRank fits(1);
  OtherRank overflows(0);
  CHECK(train::all_agree(true, fits));
  CHECK_FALSE(train::all_agree(false, fits));
  CHECK_FALSE(train::all_agree(true, overflows));
  const Warnings warnings;
  State state;
  for (const int rank : {0, 1}) {
    state.rank = rank;
    CHECK(train::smaller_microbatch(7, state, "training") == 3);
    CHECK(warnings.texts.size() == 1);
  }
}

TEST_CASE("a batch that is tried again begins whole", "[train][microbatching]") {
  struct Begins final {
    std::vector<std::int64_t> sizes{};
    void apply(BeforeTrainBatch, const State& state) { sizes.push_back(state.batch.num_samples()); }
  };
  Trainer trainer{tiny::net(), options("auto"), Room<AfterForward>{.examples = 2}, Begins{}};
  trainer.fit();
  CHECK(trainer.get<Begins>().sizes == std::vector<std::int64_t>(8, 8));  // two more than batches
}

TEST_CASE("SAM that runs out of memory uphill comes back and steps once",
          "[train][microbatching][sam]") {
  // The second pass of every second batch: the weights are uphill then.
  struct Uphill final {
    int pass = 0;
    int overflows = 0;
    void apply(BeforeTrainBatch, const State& state) { pass = state.is_ascent ? 1 : pass + 1; }
    void apply(AfterBackward, const State& state) {
      if (pass == 2 && state.batch.num_samples() > 4) {
        ++overflows;
        out_of_memory();
      }
    }
  };
  const auto model = tiny::net(1, 0.5);
  Trainer trainer{model, options("auto"), SAM{.interval = 2}, Uphill{}};
  trainer.fit();
  CHECK(trainer.get<Uphill>().overflows == 1);
  CHECK(trainer.get<SAM>().run.steps == 6);
  CHECK(trainer.state().device_train_microbatch_size == 4);
}

TEST_CASE("the size found is saved, so a resumed run does not search again",
          "[train][microbatching][resume]") {
  const TemporaryFolder folder;
  auto first = options("auto");
  first.save_folder = folder.path().string();
  const auto whole = trained(first, Room<AfterForward>{.examples = 2});
  auto second = options("auto");
  second.load_path = folder.path().string() + "/ep1-ba3";
  const auto model = tiny::net(9, 0.5);
  Trainer trainer{model, second, Room<AfterForward>{.examples = 2}};
  trainer.fit();
  CHECK(trainer.get<Room<AfterForward>>().overflows == 0);
  CHECK(tiny::flat(*model).equal(whole));
}

TEST_CASE("grad_accum is a number of microbatches", "[train][microbatching]") {
  auto chunks = options(0, 7);
  chunks.grad_accum = 3;  // of 3, 3 and 1
  CHECK(trained(chunks).equal(trained(options(3, 7))));
  auto automatic = options(0);
  automatic.grad_accum = "auto";
  CHECK(trained(automatic, Room<AfterForward>{.examples = 4}).equal(trained(options(4))));
  auto both = options(4);
  both.grad_accum = 2;
  CHECK_THROWS_WITH(trained(both), ContainsSubstring("grad_accum are both set"));
}

TEST_CASE("an evaluation finds its size and counts every example once", "[train][microbatching]") {
  const auto evaluate = [](CountOrAuto microbatch, auto... policies) {
    at::manual_seed(1);
    TrainerOptions with = options(0);
    with.eval = {{"test", tiny::batches(3, 7), {.device_eval_microbatch_size = microbatch}}};
    Trainer trainer{std::make_shared<Measured>(), with, InMemoryLogger{}, policies...};
    trainer.eval();
    return std::pair{trainer.state().eval_metric_values.at("test").at("MSE"),
                     trainer.template get<InMemoryLogger>()};
  };
  const auto [whole, nothing] = evaluate(0);
  const auto [found, logged] = evaluate("auto", EvalRoom{});
  CHECK_THAT(found, Catch::Matchers::WithinRel(whole, 1e-6));
  CHECK(logged.latest("trainer/test/device_eval_microbatch_size") == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
