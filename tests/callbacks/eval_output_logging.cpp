#include <tutti/callbacks/eval_output_logging.hpp>

#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/out_of_memory.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<EvalOutputLogging> == Role::callback);
static_assert(Recipe<With<EvalOutputLogging{.max_examples = 5}>>::valid);

namespace {

/// Doubles its inputs.
struct Doubler : tiny::Net {
  Outputs eval_forward(const Batch& batch) { return batch.inputs() * 2.0; }
};

std::vector<Batch> numbered() {
  return {{at::tensor({1.0, 2.0}), at::tensor({10, 20})}, {at::tensor({3.0}), at::tensor({30})}};
}

}  // namespace

TEST_CASE("an evaluation's examples are logged as a table", "[callbacks][eval_output_logging]") {
  auto options = callback_run::options(2, "1ep");
  options.eval = {{"test", numbered()}};
  Trainer trainer{std::make_shared<Doubler>(), options, EvalOutputLogging{}, InMemoryLogger{}};
  trainer.fit();
  CHECK(trainer.get<InMemoryLogger>().tables.at("test_step_2") ==
        R"({"columns": ["input", "output", "target"], "data": [["1", "2", "10"], )"
        R"(["2", "4", "20"], ["3", "6", "30"]]})");
}

TEST_CASE("the number of examples and their texts can be chosen",
          "[callbacks][eval_output_logging]") {
  auto options = callback_run::options(2, "1ep");
  options.eval = {{"a", numbered()}, {"b", numbered()}};
  Trainer trainer{std::make_shared<Doubler>(), options,
                  EvalOutputLogging{.max_examples = 1,
                                    .output_text = [](const at::Tensor& value) -> std::string {
                                      return value.item<double>() < 3 ? "low" : "high";
                                    }},
                  InMemoryLogger{}};
  trainer.fit();
  const auto& tables = trainer.get<InMemoryLogger>().tables;
  CHECK_THAT(tables.at("a_step_2"), ContainsSubstring(R"("data": [["1", "low", "10"]])"));
  CHECK_THAT(tables.at("b_step_2"), ContainsSubstring(R"("data": [["1", "low", "10"]])"));
}

TEST_CASE("the limit of examples may lie within a batch, and -1 is none",
          "[callbacks][eval_output_logging]") {
  const auto table = [](std::int64_t max_examples, std::vector<Batch> data) {
    auto options = callback_run::options(2, "1ep");
    options.eval = {{"test", std::move(data)}};
    Trainer trainer{
        std::make_shared<Doubler>(), options,
        EvalOutputLogging{
            .max_examples = max_examples,
            .input_text = [](const at::Tensor& x) { return std::to_string(x.item<int>()); },
            .target_text = [](const at::Tensor& y) { return std::to_string(y.item<int>() + 1); }},
        InMemoryLogger{}};
    trainer.fit();
    return trainer.get<InMemoryLogger>().tables.at("test_step_2");
  };
  const std::vector<Batch> data = numbered();
  CHECK_THAT(table(2, {data[1], data[0]}),
             ContainsSubstring(R"("data": [["3", "6", "31"], ["1", "2", "11"]]})"));
  const std::string all = table(-1, {Batch(at::arange(100.0, 220.0)), data[0]});
  CHECK_THAT(all, ContainsSubstring(R"("data": [["100", "200", ""], )"));  // without targets
  CHECK_THAT(all, ContainsSubstring(R"(["219", "438", ""], ["1", "2", "11"], ["2", "4", "21"]]})"));
  CHECK_THROWS_WITH((EvalOutputLogging{.max_examples = 0}.validate()),
                    ContainsSubstring("max_examples is 0, expected at least 1, or -1 for all"));
}

namespace {

/// Has no room for more than one example, which it finds out at the second microbatch at times.
struct Small final {
  static constexpr std::string_view name = "Small";
  bool first = true;
  void apply(EvalBeforeForward, const State& state) {
    const std::int64_t size = state.batch.num_samples();
    if (size > 2 || (size == 2 && !std::exchange(first, false))) {
      tutti_test::out_of_memory();
    }
  }
};

}  // namespace

TEST_CASE("an attempt that runs out of memory leaves no rows", "[callbacks][eval_output_logging]") {
  auto options = callback_run::options(2, "1ep");
  options.eval = {
      {"test", std::vector<Batch>{{at::arange(1.0, 5.0), at::tensor({10, 20, 30, 40})}}}};
  options.device_train_microbatch_size = 4;
  options.eval[0].device_eval_microbatch_size = "auto";
  Trainer trainer{std::make_shared<Doubler>(), options, Small{}, EvalOutputLogging{},
                  InMemoryLogger{}};
  trainer.fit();
  CHECK(trainer.get<InMemoryLogger>().latest("trainer/test/device_eval_microbatch_size") == 1);
  CHECK(trainer.get<InMemoryLogger>().tables.at("test_step_2") ==
        R"({"columns": ["input", "output", "target"], "data": [["1", "2", "10"], )"
        R"(["2", "4", "20"], ["3", "6", "30"], ["4", "8", "40"]]})");
}

TEST_CASE("a long tensor is shown by its first numbers", "[callbacks][eval_output_logging]") {
  CHECK(tutti::detail::numbers_text(at::scalar_tensor(7)) == "7");
  CHECK(tutti::detail::numbers_text(at::tensor({0.25, -3.0})) == "[0.25, -3]");
  CHECK(tutti::detail::numbers_text(at::zeros({0})) == "[]");
  CHECK(tutti::detail::numbers_text(at::zeros({1}).div(0)) == "[nan]");
  CHECK(tutti::detail::numbers_text(at::arange(16)).ends_with("14, 15]"));
  CHECK(tutti::detail::numbers_text(at::arange(100)).ends_with("14, 15, ...]"));
}

TEST_CASE("rows keep their texts on the way between processes",
          "[callbacks][eval_output_logging]") {
  const tutti::detail::TextRows rows{{"a", "", "c"}, {std::string("\0x", 2), "e", "f"}};
  tutti::detail::TextRows back;
  tutti::detail::append_rows(back, tutti::detail::to_bytes(rows), 3);
  CHECK(back == rows);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
