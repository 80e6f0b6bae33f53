#include <tutti/train/engine_adapter.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/adam.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

template <class P>
P made() {
  if constexpr (std::is_same_v<P, GradientClipping>) {  // has no defaults
    return {.clipping_type = ClippingType::norm, .clipping_threshold = 0.05};
  } else {
    return {};
  }
}

template <class... Ps>
struct Adapted {
  Engine<Ps...> engine = [] {
    if constexpr (sizeof...(Ps) > 0) {
      return Engine<Ps...>(made<Ps>()...);
    } else {
      return Engine<>();
    }
  }();
  train::EngineAdapter<Engine<Ps...>> any{engine};
};

// Draws, so that a seed and the streams of a closure's passes can be told.
struct Noise final {
  Rng rng{};
  double first = 0;
  void apply(BeforeForward, State& state) {
    const double drawn = rng.uniform();
    first = first == 0 ? drawn : first;
    state.batch.inputs() = state.batch.inputs() + 0.01 * drawn;
  }
};

// Runs forward and backward twice in a step.
struct Twice final {
  std::vector<bool> finite{};
  template <class Closure, class Update>
  void step(State&, Closure&& closure, Update&& update) {
    finite.push_back(closure(false));
    finite.push_back(closure(true));
    update();
  }
  void apply(AfterTrainBatch, const State&) {}
};

struct Brings final {
  static constexpr About about{.no_graph = "needs the host"};
  void apply(BatchEnd, const State&) {}
};

// The weights after four steps of the engine's own loop, or of AnyEngine's.
template <class AsEngine, class... Ps>
at::Tensor trained() {
  const auto net = tiny::net();
  Adapted<Ps...> adapted;
  State state;
  state.model = net;
  state.task = net;
  state.communicator = std::make_shared<dist::SingleProcess>();
  state.optimizers = {Adam{.lr = 0.01}.build(net->parameters())};
  state.max_duration = "4ba";
  state.seed = 3;
  state.train_dataloader_len = 4;
  adapted.any.prepare(state);
  train::Run run;
  const std::vector<Batch> batches = tiny::batches(4);
  const auto steps = [&](auto& engine) {
    engine.template fire<Init>(state);
    engine.template fire<FitStart>(state);
    train::Step<AsEngine> step(engine, state, run);
    for (const Batch& batch : batches) {
      state.batch = batch;
      step();
      engine.template fire<BatchEnd>(state);
      ++state.timestamp.batch;
    }
  };
  if constexpr (train::is_erased<AsEngine>) {
    steps(adapted.any);
  } else {
    steps(adapted.engine);
  }
  return tiny::flat(*net);
}

}  // namespace

TEST_CASE("the policies are seeded and the destinations get what is logged", "[train][engine]") {
  Adapted<Noise, InMemoryLogger> adapted;
  State state;
  state.seed = 17;
  adapted.any.prepare(state);
  CHECK(state.logger.wants_metrics());
  Rng expected = Rng::for_policy(17, "Noise");
  CHECK(adapted.engine.template get<Noise>().rng.uniform() == expected.uniform());
}

TEST_CASE("a destination that is off gets nothing", "[train][engine]") {
  Adapted<Switch<InMemoryLogger>> adapted;
  adapted.engine.get<Switch<InMemoryLogger>>().on = false;
  State state;
  adapted.any.prepare(state);
  CHECK_FALSE(state.logger.wants_metrics());
}

TEST_CASE("an engine behind one type says of its recipe what the recipe says", "[train][engine]") {
  Adapted<GradientClipping, EMA> folds;
  CHECK(folds.any.fold_plan().gradients);
  CHECK(folds.any.fold_plan().averages);
  CHECK(folds.any.step_taker().empty());
  CHECK_FALSE(folds.any.has_savers());
  CHECK(folds.any.states().size() == 2);
  CHECK_FALSE(folds.any.constants(/*algorithms=*/false).empty());

  Adapted<GradientClipping, EMA, SAM> takes;
  CHECK_FALSE(takes.any.fold_plan());
  CHECK(takes.any.step_taker() == "SAM");

  Adapted<Brings, CheckpointSaver> saves;
  CHECK(saves.any.has_savers());
  CHECK(saves.any.why_no_graphs() == "Brings needs the host");
}

TEST_CASE("closing it closes the engine", "[train][engine]") {
  Adapted<Noise> adapted;
  State state;
  CHECK_FALSE(adapted.any.closed());
  adapted.any.close(state);
  CHECK(adapted.any.closed());
  CHECK(adapted.engine.closed());
}

TEST_CASE("the loop that is compiled once trains as the recipe's own does",
          "[train][engine][law]") {
#if defined(TUTTI_SEPARATE_COMPILATION)
  const auto same = []<class... Ps>(types<Ps...>) {
    const at::Tensor own = trained<Engine<Ps...>, Ps...>();
    CHECK(trained<train::AnyEngine, Ps...>().equal(own));
    CHECK_FALSE(own.equal(tiny::flat(*tiny::net())));
  };
  same(types<>{});
  same(types<Noise>{});
  same(types<GradientClipping, EMA>{});
  same(types<Noise, GradientClipping, EMA>{});
  same(types<Noise, Twice>{});
  same(types<SAM, EMA>{});
#else
  tutti_test::skip("a program with headers alone has only the recipe's own loop");
#endif
}

}  // namespace UNITY_BUILD_UNIQUE_ID
