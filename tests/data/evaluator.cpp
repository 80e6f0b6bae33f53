#include <tutti/data/evaluator.hpp>

#include <vector>

#include <tutti/data/tensor_loader.hpp>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::Evaluator;

TEST_CASE("evaluation sets are written as a list of labels and loaders", "[data][law]") {
  tutti::TensorLoader test{at::zeros({10, 2}), at::zeros({10}), {.batch_size = 4}};
  const std::vector<Batch> plain(3);
  const std::vector<Evaluator> sets = {
      {"test", test},
      {"small", plain, {.metric_names = {"Accuracy"}, .interval = "5ep", .subset_num_batches = 2}}};
  REQUIRE(sets.size() == 2);
  CHECK(sets[0].label == "test");
  CHECK(sets[0].data.loader.size() == 3);
  CHECK(sets[0].subset_num_batches == -1);
  CHECK_FALSE(static_cast<bool>(sets[0].interval));
  CHECK(sets[1].interval == tutti::Time::epochs(5));
  CHECK(sets[1].metric_names == std::vector<std::string>{"Accuracy"});
}

TEST_CASE("a bare loader is the evaluation set called eval", "[data][law]") {
  const std::vector<Evaluator> sets = {std::vector<Batch>(3)};
  REQUIRE(sets.size() == 1);
  CHECK(sets[0].label == "eval");
  CHECK(sets[0].data.loader.size() == 3);
}

TEST_CASE("an evaluation set out of range is refused by its label", "[data]") {
  const std::vector<Batch> plain(3);
  CHECK_THROWS_WITH((Evaluator{"test", plain, {.subset_num_batches = -2}}),
                    ContainsSubstring("\"test\": subset_num_batches is -2, expected -1"));
  CHECK_THROWS_WITH((Evaluator{"test", plain, {.device_eval_microbatch_size = -1}}),
                    ContainsSubstring("device_eval_microbatch_size is -1"));
  CHECK_THROWS_WITH((Evaluator{"test", plain, {.interval = "-1ba"}}),
                    ContainsSubstring("interval is -1ba, expected a time like 1ep, 0ep for never"));
  CHECK_THROWS_WITH((Evaluator{"", plain}), ContainsSubstring("empty label"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
