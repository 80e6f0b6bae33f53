#include <tutti/train/evaluation.hpp>

#include <tutti/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/trace.hpp>

#include "support/catch.hpp"
#include "support/measured.hpp"
#include "support/out_of_memory.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using tutti::Evaluator;
using tutti::Trainer;
using tutti_test::Measured;

/// Remembers how many batches each loader is said to have.
struct Lengths final {
  std::vector<std::int64_t> predict;
  void apply(tutti::PredictStart, const tutti::State& state) {
    predict.push_back(state.dataloader_len);
  }
};

/// What is to be seen of an evaluation: at its start, after each batch and when training goes on.
struct Seen final {
  std::vector<std::string> lines;
  void apply(tutti::EvalStart, const tutti::State& state) { note("start", state); }
  void apply(tutti::EvalBatchEnd, const tutti::State& state) {
    const tutti::Timestamp& now = state.eval_timestamp;
    lines.push_back(c10::str(now.batch, " batches, ", now.sample, " samples, ", now.token,
                             " tokens, ", state.eval_retries, " retries"));
  }
  void apply(tutti::BatchCheckpoint, const tutti::State& state) { note("go on", state); }
  void note(const char* what, const tutti::State& state) {
    lines.push_back(c10::str(what, " with ", state.dataloader_len, " of ", state.dataloader_label));
  }
};

/// Which set was evaluated, after which batch.
struct Evaluated final {
  std::vector<std::string> lines;
  void apply(tutti::EvalStart, const tutti::State& state) {
    lines.push_back(c10::str(state.dataloader_label, " ", state.timestamp.batch));
  }
};

double error_over(const std::shared_ptr<Measured>& net, const tutti::Batch& batch) {
  const c10::AutoGradMode no_grad(false);
  return Measured::error(net->forward(batch).tensor(), batch.targets()).item<double>();
}

/// One batch, whose last examples are there only to make ranks equally long.
struct Padded {
  tutti::Batch batch;
  std::int64_t extra = 1;
  bool given = true;
  void start(std::int64_t, std::int64_t) { given = false; }
  std::optional<tutti::Batch> next() {
    return std::exchange(given, true) ? std::nullopt : std::optional(batch);
  }
  [[nodiscard]] std::int64_t repeated() const { return extra; }
};

/// Runs out of memory in these forward passes of the run.
struct Overflows final {
  std::vector<int> in;
  int passes = 0;
  void apply(tutti::EvalAfterForward, const tutti::State&) {
    if (std::find(in.begin(), in.end(), ++passes) != in.end()) {
      tutti_test::out_of_memory();
    }
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

TEST_CASE("functions say when to evaluate and when to save", "[train][eval][checkpoint]") {
  const TemporaryFolder folder;
  const auto log = std::make_shared<std::vector<std::string>>();
  tutti::TrainerOptions o =
      options({{"first", tiny::batches(1)}, {"second", tiny::batches(1), {.interval = "3ba"}}});
  o.train = tiny::batches(4);
  o.eval_interval = [log](const tutti::State& state, std::string_view event) {
    log->push_back(c10::str(event, " ", state.timestamp.batch));
    return event == tutti::BatchEnd::name && state.timestamp.batch == 2;
  };
  o.save_folder = folder.path().string();
  o.save_interval = [](const tutti::State& state, std::string_view) {
    return state.eval_metric_values.contains("first");  // once it has been evaluated
  };
  Trainer<Evaluated> trainer{tiny::net(), o};
  trainer.fit();
  CHECK(*log == std::vector<std::string>{"batch_end 1", "batch_end 2", "batch_end 3", "batch_end 4",
                                         "epoch_end 4", "fit_end 4"});
  CHECK(trainer.get<Evaluated>().lines ==
        std::vector<std::string>{"first 2", "second 3", "second 4"});
  CHECK_FALSE(fs::exists(folder / "ep0-ba1"));
  for (const char* name : {"ep0-ba2", "ep0-ba3", "ep0-ba4"}) {
    CHECK(fs::exists(folder / name));
  }
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

TEST_CASE("an evaluation of some batches counts them, and training goes on where it was",
          "[train][eval]") {
  tutti::DataSpec data = tiny::batches(5, 4);
  data.hooks.num_tokens = [](const tutti::Batch&) { return tutti::TokenCount(10); };
  Trainer<Seen> trainer{tiny::net(),
                        options({{"part", data, {.interval = "2ba", .subset_num_batches = 2}}})};
  trainer.fit();
  CHECK(trainer.get<Seen>().lines ==
        std::vector<std::string>{"go on with 2 of train", "start with 2 of part",
                                 "1 batches, 4 samples, 10 tokens, 0 retries",
                                 "2 batches, 8 samples, 20 tokens, 0 retries",
                                 "go on with 2 of train"});
}

TEST_CASE("every evaluation counts anew, and not what only makes ranks equally long",
          "[train][eval]") {
  const auto net = std::make_shared<Measured>();
  const tutti::Batch batch = tiny::batches(1, 5)[0];
  const std::vector<tutti::Batch> parts = batch.split(2);
  const double of_four = (error_over(net, parts[0]) + error_over(net, parts[1])) / 2;
  const std::vector<tutti::Batch> ones = batch.split(1);
  const double of_parts =  // LossMetric is a mean over batches
      (error_over(net, batch.split(3)[0]) + error_over(net, ones[3])) / 2;
  for (const auto& [size, expected] :  // the last one alone in its microbatch, and not
       std::vector<std::pair<std::int64_t, double>>{{0, of_four}, {2, of_four}, {3, of_parts}}) {
    INFO(size);
    Trainer<Seen> trainer{net, options({})};
    const Evaluator set{"test", Padded{batch}, {.device_eval_microbatch_size = size}};
    for (int i = 0; i < 2; ++i) {
      trainer.eval({set});
      CHECK(trainer.state().eval_metric_values.at("test").at("MSE") == Approx(expected));
    }
    CHECK(trainer.get<Seen>().lines.back() == "1 batches, 4 samples, 0 tokens, 0 retries");
  }
}

TEST_CASE("several examples that do not count may fill more than one microbatch", "[train][eval]") {
  const auto net = std::make_shared<Measured>();
  const tutti::Batch batch = tiny::batches(1, 5)[0];
  Trainer<Seen> trainer{net, options({})};
  for (const auto& [extra, counted] :  // microbatches of 2, 2 and 1
       std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 2}, {4, 1}}) {
    trainer.eval({{"test", Padded{batch, extra}, {.device_eval_microbatch_size = 2}}});
    CHECK(trainer.state().eval_metric_values.at("test").at("MSE") ==
          Approx(error_over(net, batch.split(counted)[0])));
  }
  CHECK(trainer.get<Seen>().lines.back() == "1 batches, 1 samples, 0 tokens, 0 retries");
}

TEST_CASE("memory that runs out within a batch makes no example count twice", "[train][eval]") {
  const auto net = std::make_shared<Measured>();
  const auto data = tiny::batches(2, 8);
  const double whole = (error_over(net, data[0]) + error_over(net, data[1])) / 2;
  Trainer<Seen, Overflows> trainer{net, options({{"test", data, {}}}), Seen{},
                                   Overflows{.in = {1, 3}}};  // of 8, and the second of 4
  trainer.eval({{"test", data, {.device_eval_microbatch_size = "auto"}}});
  CHECK(trainer.state().eval_metric_values.at("test").at("MSE") == Approx(whole));
  CHECK(trainer.get<Overflows>().passes == 1 + 2 + 4 + 4);
  CHECK(trainer.get<Seen>().lines[1] == "1 batches, 8 samples, 0 tokens, 2 retries");
  CHECK(trainer.get<Seen>().lines[2] == "2 batches, 16 samples, 0 tokens, 0 retries");
}

TEST_CASE("a prediction fires its events and counts from 0 each time", "[train][predict]") {
  struct Labels final {
    std::vector<std::string> seen{};
    void apply(tutti::PredictBatchEnd, const tutti::State& state) {
      seen.push_back(c10::str(state.dataloader_label, " ", state.predict_timestamp.batch, " ",
                              state.predict_timestamp.sample));
    }
  };
  Trainer<tutti::Trace, Labels> trainer{tiny::net(), options({})};
  trainer.predict(tiny::batches(2, 3));
  std::vector<std::string> expected{"predict_start"};
  for (int i = 0; i < 2; ++i) {
    for (const char* event : {"predict_batch_start", "predict_before_forward",
                              "predict_after_forward", "predict_batch_end"}) {
      expected.emplace_back(event);
    }
  }
  expected.emplace_back("predict_end");
  auto& lines = trainer.get<tutti::Trace>().lines;
  lines.erase(lines.begin(), std::find(lines.begin(), lines.end(), "predict_start"));
  CHECK(lines == expected);
  trainer.predict(tiny::batches(1, 5));
  CHECK(trainer.get<Labels>().seen ==
        std::vector<std::string>{"predict 1 3", "predict 2 6", "predict 1 5"});
}

TEST_CASE("an evaluation's loader begins the pass of the batch at which training stands",
          "[train][eval]") {
  struct Starts {
    std::vector<std::int64_t>* epochs = nullptr;
    bool given = true;
    void start(std::int64_t epoch, std::int64_t) {
      epochs->push_back(epoch);
      given = false;
    }
    std::optional<tutti::Batch> next() {
      return std::exchange(given, true) ? std::nullopt : std::optional(tiny::batches(1).front());
    }
  };
  std::vector<std::int64_t> epochs;
  Trainer<> trainer{tiny::net(),
                    {.train = tiny::batches(3),
                     .eval = {{"test", Starts{&epochs}, {.interval = "2ba"}}},
                     .max_duration = "2ep",
                     .optimizer = tutti::SGD{.lr = 0.1},
                     .progress_bar = false}};
  trainer.fit();
  CHECK(epochs == std::vector<std::int64_t>{2, 4, 6});
}

TEST_CASE("what policies compute behind an evaluation's forward pass is in full precision",
          "[train][eval]") {
  struct Products final {
    std::vector<at::ScalarType> types{};
    void apply(tutti::EvalAfterForward, const tutti::State&) {
      types.push_back(at::ones({2, 2}).mm(at::ones({2, 2})).scalar_type());
    }
  };
  Trainer<Products> trainer{tiny::net(),
                            {.train = tiny::batches(1),
                             .eval = {{"test", tiny::batches(1)}},
                             .max_duration = "1ep",
                             .optimizer = tutti::SGD{.lr = 0.1},
                             .device = "cpu",
                             .precision = tutti::Precision::amp_bf16,
                             .progress_bar = false}};
  trainer.fit();
  CHECK(trainer.get<Products>().types == std::vector<at::ScalarType>{at::kFloat});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
