#include <tutti/core/event.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Row {
  std::string_view name;
  bool before;
  bool after;
  std::string_view canonical;
};

template <class... Es>
std::vector<Row> rows(tutti::types<Es...>) {
  return {Row{Es::name, tutti::is_before<Es>, tutti::is_after<Es>, tutti::canonical_name<Es>}...};
}

template <class A, class... Es>
std::string partners_of(tutti::types<Es...>) {
  std::string text;
  ((tutti::are_partners<A, Es> ? void(text += std::string(Es::name) + " ") : void()), ...);
  return text;
}

template <class... Es>
std::vector<std::string> partners(tutti::types<Es...> all) {
  return {partners_of<Es>(all)...};
}

// Name, opens a pair, closes a pair, what both halves share; as the reference lists them.
const std::vector<Row> reference{
    {"init", false, false, "init"},
    {"before_load", true, false, "load"},
    {"after_load", false, true, "load"},
    {"fit_start", true, false, "fit"},
    {"iteration_start", true, false, "iteration"},
    {"epoch_start", true, false, "epoch"},
    {"before_dataloader", true, false, "dataloader"},
    {"after_dataloader", false, true, "dataloader"},
    {"batch_start", true, false, "batch"},
    {"before_train_batch", true, false, "train_batch"},
    {"before_forward", true, false, "forward"},
    {"after_forward", false, true, "forward"},
    {"before_loss", true, false, "loss"},
    {"after_loss", false, true, "loss"},
    {"before_backward", true, false, "backward"},
    {"after_backward", false, true, "backward"},
    {"after_train_batch", false, true, "train_batch"},
    {"batch_end", false, true, "batch"},
    {"batch_checkpoint", false, false, "batch_checkpoint"},
    {"epoch_end", false, true, "epoch"},
    {"epoch_checkpoint", false, false, "epoch_checkpoint"},
    {"iteration_end", false, true, "iteration"},
    {"iteration_checkpoint", false, false, "iteration_checkpoint"},
    {"fit_end", false, true, "fit"},
    {"eval_before_all", true, false, "eval_all"},
    {"eval_start", true, false, "eval"},
    {"eval_batch_start", true, false, "eval_batch"},
    {"eval_before_forward", true, false, "eval_forward"},
    {"eval_after_forward", false, true, "eval_forward"},
    {"eval_batch_end", false, true, "eval_batch"},
    {"eval_end", false, true, "eval"},
    {"eval_after_all", false, true, "eval_all"},
    {"eval_standalone_start", true, false, "eval_standalone"},
    {"eval_standalone_end", false, true, "eval_standalone"},
    {"predict_start", true, false, "predict"},
    {"predict_batch_start", true, false, "predict_batch"},
    {"predict_before_forward", true, false, "predict_forward"},
    {"predict_after_forward", false, true, "predict_forward"},
    {"predict_batch_end", false, true, "predict_batch"},
    {"predict_end", false, true, "predict"},
};

}  // namespace

TEST_CASE("the events are the reference's, in the order of the loop, with its kinship",
          "[core][event]") {
  const auto got = rows(tutti::all_events{});
  REQUIRE(got.size() == reference.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(reference[i].name);
    CHECK(got[i].name == reference[i].name);
    CHECK(got[i].before == reference[i].before);
    CHECK(got[i].after == reference[i].after);
    CHECK(got[i].canonical == reference[i].canonical);
  }
}

TEST_CASE("every event that opens a pair has exactly one partner, and no other event has one",
          "[core][event]") {
  const auto found = partners(tutti::all_events{});
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::string expected;
    for (const Row& row : reference) {
      if (reference[i].before && row.after && row.canonical == reference[i].canonical) {
        expected += std::string(row.name) + " ";
      }
    }
    INFO(reference[i].name);
    CHECK(found[i] == expected);
    CHECK(found[i].empty() == !reference[i].before);
  }
}

TEST_CASE("evaluation and prediction events are told by the beginning of their names",
          "[core][event]") {
  STATIC_REQUIRE(tutti::is_eval<tutti::EvalBeforeAll>);
  STATIC_REQUIRE(tutti::is_eval<tutti::EvalStandaloneEnd>);
  STATIC_REQUIRE(!tutti::is_eval<tutti::BatchStart>);
  STATIC_REQUIRE(!tutti::is_eval<tutti::PredictStart>);
  STATIC_REQUIRE(tutti::is_predict<tutti::PredictBatchEnd>);
  STATIC_REQUIRE(!tutti::is_predict<tutti::EvalEnd>);
}

TEST_CASE("the names of Composer before 0.7 are the same events", "[core][event]") {
  STATIC_REQUIRE(std::is_same_v<tutti::TrainingStart, tutti::FitStart>);
  STATIC_REQUIRE(std::is_same_v<tutti::TrainingEnd, tutti::FitEnd>);
}

TEST_CASE("an event is an empty type and nothing else is an event", "[core][event]") {
  STATIC_REQUIRE(std::is_empty_v<tutti::BatchStart>);
  STATIC_REQUIRE(tutti::Event<tutti::BatchStart>);
  STATIC_REQUIRE(!tutti::Event<int>);
  STATIC_REQUIRE(!tutti::Event<const tutti::BatchStart&>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
