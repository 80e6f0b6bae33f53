#include <tutti/train/evaluation.hpp>

#include <tutti/trainer.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Evaluator;
using tutti::Trainer;

/// Remembers how many batches each loader is said to have.
struct Lengths final {
  std::vector<std::int64_t> predict;
  void apply(tutti::PredictStart, const tutti::State& state) {
    predict.push_back(state.dataloader_len);
  }
};

tutti::TrainerOptions options(std::vector<Evaluator> eval) {
  return {.train = tiny::batches(2),
          .eval = std::move(eval),
          .max_duration = "1ep",
          .optimizer = tutti::SGD{.lr = 0.1},
          .progress_bar = false};
}

}  // namespace

TEST_CASE("the sets of one evaluation need labels of their own", "[train][eval]") {
  const auto data = tiny::batches(1);
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({data, data})}),
                    ContainsSubstring("two evaluation sets have the label \"eval\""));
  Trainer<> trainer{tiny::net(), options({{"a", data}})};
  CHECK_THROWS_WITH(trainer.eval({{"b", data}, {"b", data}}), ContainsSubstring("label \"b\""));
  CHECK_NOTHROW(trainer.eval({{"a", data}}));  // one call replaces another's values
}

TEST_CASE("an evaluation of nothing is an error, not an accuracy of 0", "[train][eval]") {
  Trainer<> empty{tiny::net(), options({{"test", tiny::batches(0)}})};
  CHECK_THROWS_WITH(empty.fit(), ContainsSubstring("the evaluation set \"test\" gave no batch"));
}

TEST_CASE("a prediction without data is refused", "[train][predict]") {
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({})}.predict({})),
                    ContainsSubstring("predict: there is no data"));
}

TEST_CASE("a prediction of some batches says how many there are", "[train][predict]") {
  Trainer<Lengths> trainer{tiny::net(), options({})};
  trainer.predict(tiny::batches(5));
  trainer.predict(tiny::batches(5), 2);
  trainer.predict(tiny::batches(5), 9);
  CHECK(trainer.get<Lengths>().predict == std::vector<std::int64_t>{5, 2, 5});
}
