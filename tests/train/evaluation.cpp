#include <tutti/train/evaluation.hpp>

#include <tutti/trainer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/make_metrics.hpp>
#include <tutti/models/classifier.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/tiny.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Evaluator;
using tutti::MulticlassAccuracy;
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

/// Two classes, and a network whose outputs are its inputs.
struct Same : torch::nn::Module {
  Same() { register_parameter("unused", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
auto classifier(const tutti::Metrics& metrics) {
  return tutti::Classifier{std::make_shared<Same>(), {.num_classes = 3, .eval_metrics = metrics}};
}

}  // namespace

TEST_CASE("two evaluation sets of one label are refused, as their metrics have the same names",
          "[train][eval]") {
  const auto data = tiny::batches(1);
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({{"a", data}, {"b", data}, {"a", data}})}),
                    ContainsSubstring("two evaluation sets have the label \"a\"") &&
                        ContainsSubstring("a label of its own"));
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({data, data})}),
                    ContainsSubstring("two evaluation sets have the label \"eval\""));
  Trainer<> trainer{tiny::net(), options({{"a", data}})};
  CHECK_THROWS_WITH(trainer.eval({{"b", data}, {"b", data}}), ContainsSubstring("label \"b\""));
  CHECK_NOTHROW(trainer.eval({{"a", data}}));  // one call replaces another's values
}

TEST_CASE("the label of the training data is taken", "[train][eval]") {
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({{"train", tiny::batches(1)}})}),
                    ContainsSubstring("share the names metrics/train/... with the training data"));
}

TEST_CASE("an evaluation of nothing is an error, not an accuracy of 0", "[train][eval]") {
  Trainer<> empty{tiny::net(), options({{"test", tiny::batches(0)}})};
  CHECK_THROWS_WITH(empty.fit(), ContainsSubstring("the evaluation set \"test\" gave no batch"));
  CHECK_THROWS_WITH(
      (Trainer<>{tiny::net(), options({{"test", tiny::batches(1), {.subset_num_batches = 0}}})}),
      ContainsSubstring("\"test\": it is to have 0 batches, expected -1 (all) or 1 or more"));
}

TEST_CASE("an evaluation or a prediction without data is refused", "[train][eval][predict]") {
  CHECK_THROWS_WITH((Trainer<>{tiny::net(), options({{"test", {}}})}),
                    ContainsSubstring("the evaluation set \"test\" has no data"));
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
