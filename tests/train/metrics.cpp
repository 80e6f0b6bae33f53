#include <tutti/train/metrics.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/loggers/in_memory.hpp>
#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/make_metrics.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/other_rank.hpp"
#include "support/tiny.hpp"
#include "support/two_ranks.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using train::MetricSet;

namespace {

// The mean over batches of what the model's outputs sum up to. Counts in place.
class Sum final : public Metric {
 public:
  explicit Sum(std::string called) : name_(std::move(called)) {}
  void update(const at::Tensor& outputs, const at::Tensor&) override {
    states_[0].add_(outputs.sum());
    states_[1].add_(1);
  }
  using Metric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].item<double>() / states[1].item<double>();
  }
  [[nodiscard]] std::vector<at::Tensor> states() const override { return states_; }
  void set_states(std::vector<at::Tensor> states) override { states_ = std::move(states); }
  void reset() override { states_ = zeros(); }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Sum>(name_);
  }
  [[nodiscard]] std::string name() const override { return name_; }

 private:
  static std::vector<at::Tensor> zeros() {
    return {at::zeros({}, at::kDouble), at::zeros({}, at::kLong)};
  }
  std::string name_;
  std::vector<at::Tensor> states_ = zeros();
};

// All outputs, of which it reports the least and the largest and, as a table, how many there are.
class Extremes : public tutti::detail::ConcatMetric {
 public:
  using ConcatMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override {
    return states[0].numel() == 0 ? 0 : states[0].max().item<double>();
  }
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override {
    to.value("least", states[0].min().item<double>());
    to.value("largest", compute(states));
    to.table(std::vector<std::string>{"count"},
             std::vector<std::vector<std::string>>{{std::to_string(states[0].size(0))}});
  }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Extremes>();
  }
  [[nodiscard]] std::string name() const override { return "Extremes"; }

 private:
  [[nodiscard]] std::vector<at::Tensor> no_rows() const override { return {at::zeros({0})}; }
  void take_in(const at::Tensor& outputs, const at::Tensor&) override { add({outputs.clone()}); }
};

Metrics sums(const std::vector<std::string>& names) {
  Metrics out;
  for (const std::string& name : names) {
    out.push_back(std::make_shared<Sum>(name));
  }
  return out;
}

// A model whose outputs are its inputs, and what a run has beside it.
struct Identity : torch::nn::Module {
  Outputs forward(const Batch& batch) { return batch.inputs(); }
  Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().sum(); }
};
struct Bench {
  AnyModel model{std::make_shared<Identity>()};
  State state;
  InMemoryLogger logger;
  MetricValues values;

  Bench() {
    state.communicator = std::make_shared<dist::SingleProcess>();
    state.logger.add(logger);
    state.timestamp.batch = 7;
  }
  void update(MetricSet& set, double output) const {
    const Batch batch(at::full({1}, output, at::TensorOptions().requires_grad(true)), at::ones(1));
    set.update(model, batch, model.forward(batch));
  }
  double compute(const MetricSet& set, const std::string& name = "Sum") {
    set.compute(*state.communicator, state, values);
    return values.at(name);
  }
};

std::vector<std::string> chosen(const std::vector<std::string>& names) {
  Bench bench;
  MetricSet set(sums({"TopOne", "TopFive", "Error"}), names, "");
  bench.update(set, 1);
  set.compute(*bench.state.communicator, bench.state, bench.values);
  std::vector<std::string> out;
  for (const auto& [name, value] : bench.values) {
    out.push_back(name);
  }
  return out;  // in alphabetical order
}

}  // namespace

TEST_CASE("metrics are kept whose names match what is asked for in a part, in any case",
          "[train][metrics]") {
  using Names = std::vector<std::string>;
  CHECK(chosen({}) == Names{"Error", "TopFive", "TopOne"});
  CHECK(chosen({"tOP"}) == Names{"TopFive", "TopOne"});
  CHECK(chosen({"Five", "error"}) == Names{"Error", "TopFive"});
  CHECK(chosen({"One$|ERR"}) == Names{"Error", "TopOne"});
  CHECK(chosen({"^top\\D+$"}) == Names{"TopFive", "TopOne"});
  CHECK_THROWS_WITH(chosen({"top", "recall"}),
                    ContainsSubstring("no metric of the model has a name that matches \"recall\"; "
                                      "it has: TopOne, TopFive, Error"));
  CHECK_THROWS_WITH(chosen({"Top("}), ContainsSubstring("the regular expression \"Top(\""));
  CHECK_THROWS_WITH(MetricSet({}, {"top"}, ""), ContainsSubstring("it has: (none)"));
  CHECK(MetricSet({}, {}, "").empty());
  CHECK(MetricSet().empty());
}

TEST_CASE("metrics of one name are refused, and can be told apart", "[train][metrics]") {
  CHECK_THROWS_WITH(
      MetricSet(make_metrics(MulticlassAccuracy{}, MulticlassAccuracy{{.top_k = 2}}), {}, ""),
      ContainsSubstring("two metrics of the model are called \"MulticlassAccuracy\"") &&
          ContainsSubstring(".name = \"Top5\""));
  const MetricSet two(
      make_metrics(MulticlassAccuracy{}, MulticlassAccuracy{{.top_k = 2, .name = "Top2"}}), {}, "");
  CHECK(two.counts().size() == 2);
  // Of two that are not both asked for, none hides the other.
  CHECK_NOTHROW(MetricSet(sums({"A", "B", "A"}), {"b"}, ""));
}

TEST_CASE("metrics are logged behind the prefix at the present step, and kept by name",
          "[train][metrics]") {
  Bench bench;
  MetricSet set(sums({"Sum"}), {}, "metrics/test/");
  bench.update(set, 2);
  bench.update(set, 4);
  CHECK(bench.compute(set) == 3);
  const TimeSeries& logged = bench.logger.series("metrics/test/Sum");
  CHECK(logged.values == std::vector<double>{3});
  CHECK(logged.timestamps.at(0).batch == 7);
  CHECK_FALSE(set.counts()[0][0].requires_grad());
  set.reset();
  bench.update(set, 5);
  CHECK(bench.compute(set) == 5);
}

TEST_CASE("a null metric is refused", "[train][metrics]") {
  struct WithoutClone final : Extremes {
    [[nodiscard]] std::unique_ptr<tutti::Metric> clone() const override { return nullptr; }
    [[nodiscard]] std::string name() const override { return "Broken"; }
  };
  tutti::Metrics one_null = sums({"Sum"});
  one_null.push_back(nullptr);
  CHECK_THROWS_WITH(MetricSet(one_null, {}, ""),
                    ContainsSubstring("gives 2 metrics, one of which is null"));
  CHECK_THROWS_WITH(MetricSet(tutti::Metrics{std::make_shared<WithoutClone>()}, {}, ""),
                    ContainsSubstring("clone() of the metric Broken gives null"));
}

TEST_CASE("a value of no batch is warned of", "[train][metrics]") {
  Bench bench;
  MetricSet set(sums({"Sum", "Other"}), {}, "metrics/test/");
  const auto warned = [&] {
    const Warnings warnings;
    bench.compute(set);
    return warnings.texts;
  };
  CHECK(warned() ==
        std::vector<std::string>{
            "metrics/test/Sum and what stands beside it is computed, and no batch has come to it: "
            "the value says nothing; give the loader data"});
  bench.update(set, 2);
  CHECK(warned().empty());
  CHECK(warned().empty());
  set.reset();
  CHECK(warned().size() == 1);
  CHECK(Warnings().texts.empty());
  MetricSet none;
  const Warnings warnings;
  none.compute(*bench.state.communicator, bench.state, bench.state.train_metric_values);
  CHECK(warnings.texts.empty());
}

TEST_CASE("a value of another rank's batches is not warned of", "[train][metrics]") {
  struct OthersHaveBatches final : FakeCommunicator {
    using FakeCommunicator::all_reduce;
    void all_reduce(std::span<std::int64_t> values, dist::ReduceOp op) override {
      CHECK(op == dist::ReduceOp::maximum);
      std::fill(values.begin(), values.end(), 1);
    }
    void all_reduce(const at::Tensor& tensor, dist::ReduceOp) override { tensor.add_(5); }
  };
  Bench bench;
  bench.state.communicator = std::make_shared<OthersHaveBatches>();
  const MetricSet set(sums({"Sum"}), {}, "metrics/test/");
  const Warnings warnings;
  CHECK(bench.compute(set) == 1);  // a sum of 5 over 5 batches
  CHECK(warnings.texts.empty());
}

TEST_CASE("a metric that lacks its targets is named, with who can say what it sees",
          "[train][metrics]") {
  const Bench bench;
  MetricSet set(sums({"Sum"}), {}, "metrics/test/");
  const Batch batch(at::ones({1}));
  CHECK_THROWS_WITH(set.update(bench.model, batch, bench.model.forward(batch)),
                    ContainsSubstring("This is the metric metrics/test/Sum") &&
                        ContainsSubstring("update_metric(batch, outputs, metric)"));
}

TEST_CASE("every use of the model's metrics counts for itself", "[train][metrics]") {
  Bench bench;
  const Metrics metrics = sums({"Sum"});
  MetricSet one(metrics, {}, "");
  MetricSet other(metrics, {}, "");
  bench.update(one, 2);
  bench.update(other, 6);
  CHECK(bench.compute(one) == 2);
  CHECK(bench.compute(other) == 6);
}

TEST_CASE("counts that were put aside come back unchanged", "[train][metrics]") {
  Bench bench;
  MetricSet set(sums({"Sum"}), {}, "");
  bench.update(set, 2);
  const auto before = set.counts();
  bench.update(set, 100);
  set.set_counts(before);
  CHECK(bench.compute(set) == 2);
  bench.update(set, 4);
  CHECK(bench.compute(set) == 3);
  set.counts()[0][0].zero_();  // a copy
  CHECK(bench.compute(set) == 3);
  set.set_counts(before);
  CHECK(bench.compute(set) == 2);  // what was put aside did not go on counting
}

TEST_CASE("a value is that of all ranks' batches, and a rank's own counts stay its own",
          "[train][metrics]") {
  Bench bench;
  bench.state.communicator = std::make_shared<OtherRank>(1);  // a batch whose outputs sum up to 1
  MetricSet set(sums({"Sum"}), {}, "");
  bench.update(set, 5);
  CHECK(bench.compute(set) == 3);
  CHECK(bench.compute(set) == 3);
  Archive archive;
  set.save(bench.state, bench.values, archive);
  CHECK(archive.get<std::vector<at::Tensor>>("counts/Sum")[0].item<double>() == 6);
  CHECK(set.counts()[0][0].item<double>() == 5);
}

TEST_CASE("saved counts go on at rank 0 alone, and every rank has the values",
          "[train][metrics][resume]") {
  Bench bench;
  MetricSet set(sums({"Sum", "Other"}), {}, "");
  bench.update(set, 2);
  bench.compute(set);
  Archive archive;
  set.save(bench.state, bench.values, archive);
  for (const int rank : {0, 1}) {
    Bench later;
    later.state.rank = rank;
    MetricSet loaded(sums({"Sum", "Other"}), {}, "");
    later.update(loaded, 50);  // forgotten
    loaded.load(later.state, archive, later.values);
    CHECK(later.values == bench.values);
    later.update(loaded, 4);
    CHECK(later.compute(loaded) == (rank == 0 ? 3 : 4));
  }
}

TEST_CASE("a metric that was not computed before saving has no value afterwards",
          "[train][metrics][resume]") {
  Bench bench;
  MetricSet set(sums({"Sum"}), {}, "");
  Archive archive;
  set.save(bench.state, {}, archive);
  set = MetricSet(sums({"Sum", "New"}), {}, "");  // one that was not there, too
  set.load(bench.state, archive, bench.values);
  CHECK(bench.values.empty());
  bench.update(set, 4);
  CHECK(bench.compute(set, "New") == 4);
}

TEST_CASE(
    "a metric's several values are logged and kept under their names, its table under its own",
    "[train][metrics]") {
  Bench bench;
  MetricSet set(make_metrics(Extremes{}, Sum{"Sum"}), {}, "metrics/test/");
  bench.update(set, 2);
  bench.update(set, 4);
  CHECK(bench.compute(set, "largest") == 4);
  CHECK(bench.values == MetricValues{{"Sum", 3}, {"largest", 4}, {"least", 2}});
  CHECK(bench.logger.series("metrics/test/least").values == std::vector<double>{2});
  CHECK(bench.logger.series("metrics/test/largest").timestamps.at(0).batch == 7);
  CHECK(bench.logger.tables.at("metrics/test/Extremes") ==
        R"({"columns": ["count"], "data": [["2"]]})");
}

TEST_CASE("rows that were put aside come back, and those seen since are gone", "[train][metrics]") {
  Bench bench;
  MetricSet set(make_metrics(Extremes{}), {}, "");
  const auto empty = set.counts();
  bench.update(set, 2);
  const auto before = set.counts();
  bench.update(set, 100);
  bench.update(set, -100);
  set.set_counts(before);
  CHECK(bench.compute(set, "largest") == 2);
  bench.update(set, 3);
  CHECK(bench.compute(set, "least") == 2);
  set.set_counts(empty);
  bench.update(set, 5);
  CHECK(bench.compute(set, "least") == 5);
}

TEST_CASE("rows of all ranks make a value, of which some may have none", "[train][metrics][dist]") {
  for (const int last : {2, 0}) {  // batches of rank 1
    std::vector<MetricValues> values(2);
    std::vector<std::size_t> own(2);
    TwoRanks::run([&](const std::shared_ptr<dist::Communicator>& group) {
      const auto rank = static_cast<std::size_t>(group->rank());
      Bench bench;
      bench.state.communicator = group;
      MetricSet set(make_metrics(Extremes{}), {}, "");
      for (int i = 0; i < (rank == 0 ? 3 : last); ++i) {
        bench.update(set, static_cast<double>(rank) * 10 + i);
      }
      bench.compute(set, "least");
      values[rank] = bench.values;
      own[rank] = static_cast<std::size_t>(set.counts()[0][0].size(0));
    });
    CHECK(values[0] == MetricValues{{"largest", last == 0 ? 2 : 11}, {"least", 0}});
    CHECK(values[1] == values[0]);
    CHECK(own == std::vector<std::size_t>{3, static_cast<std::size_t>(last)});
  }
}

TEST_CASE("rows and values of several names are saved, and go on at rank 0 alone",
          "[train][metrics][resume]") {
  Bench bench;
  MetricSet set(make_metrics(Extremes{}), {}, "");
  bench.update(set, 2);
  bench.update(set, 7);
  bench.compute(set, "least");
  Archive archive;
  set.save(bench.state, bench.values, archive);
  for (const int rank : {0, 1}) {
    Bench later;
    later.state.rank = rank;
    MetricSet loaded(make_metrics(Extremes{}), {}, "");
    later.update(loaded, 50);  // forgotten
    loaded.load(later.state, archive, later.values);
    CHECK(later.values == MetricValues{{"largest", 7}, {"least", 2}});
    Archive again;  // before it is computed anew
    loaded.save(later.state, later.values, again);
    CHECK(again.get<std::vector<std::string>>("named/Extremes") ==
          std::vector<std::string>{"least", "largest"});
    later.update(loaded, 4);
    CHECK(later.compute(loaded, "least") == (rank == 0 ? 2 : 4));
  }
  Bench other;  // in a recipe without that metric nothing of it comes back
  MetricSet without(sums({"Sum"}), {}, "");
  without.load(other.state, archive, other.values);
  CHECK(other.values.empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
