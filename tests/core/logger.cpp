#include <tutti/core/logger.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tutti/core/switch.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::Logger;

// Only ever referred to: what the picture is made of is no business of the logger.
alignas(16) const char no_tensor[16]{};
const at::Tensor& image = reinterpret_cast<const at::Tensor&>(no_tensor);
const tutti::State& run = reinterpret_cast<const tutti::State&>(no_tensor);  // likewise

using Lines = std::vector<std::string>;

struct Numbers {
  Lines lines;
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t step) {
    for (const auto& metric : metrics) {
      lines.push_back(std::to_string(step) + " " + std::string(metric.name) + " " +
                      std::to_string(static_cast<int>(metric.value)));
    }
  }
};

std::string kind_of(const tutti::HyperparameterValue& value) {
  return value.get_if<bool>() != nullptr           ? "bool"
         : value.get_if<std::int64_t>() != nullptr ? "integer"
         : value.get_if<double>() != nullptr       ? "double"
         : value.get_if<std::string>() != nullptr  ? "text"
                                                   : "nothing";
}

struct Everything {
  Lines lines;
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t step) {
    lines.push_back(std::to_string(step) + " metrics " + std::to_string(metrics.size()));
  }
  void log_hyperparameters(std::span<const tutti::Hyperparameter> values) {
    for (const auto& value : values) {
      lines.push_back(std::string(value.name) + " " + kind_of(value.value));
    }
  }
  void log_images(const tutti::LoggedImages& images, std::int64_t step) {
    const bool same = &images.images == &image;
    lines.push_back(std::to_string(step) + " " + std::string(images.name) +
                    (same ? " same" : " other") + (images.channels_last ? " last" : " first"));
  }
  void log_table(const tutti::LoggedTable& table, std::int64_t step) {
    lines.push_back(std::to_string(step) + " " + std::string(table.name) + " " + table.columns[0] +
                    " " + table.rows[1][0]);
  }
};

struct Files {
  Lines lines;
  void upload_file(std::string_view remote_file_name, std::string_view path) {
    lines.push_back(std::string(path) + " as " + std::string(remote_file_name));
  }
};

struct FilesBack : Files {
  bool download_file(std::string_view remote_file_name, std::string_view path) {
    lines.push_back(std::string(remote_file_name) + " to " + std::string(path));
    return remote_file_name == "there";
  }
};

struct Results {
  Lines lines;
  void log_result(const tutti::LoggedResult& result) {
    lines.push_back(std::string(&result.state == &run ? "same " : "other ") +
                    (result.complete ? "complete " : "ended ") +
                    std::string(result.latest_checkpoint) + " " +
                    std::string(result.best_checkpoint) + " " + std::string(result.resume));
  }
};

struct Tables {
  void log_table(const tutti::LoggedTable&, std::int64_t) {}
};

}  // namespace

TEST_CASE("a metric is made of any number", "[core][logger]") {
  Logger logger;
  Numbers numbers;
  logger.add(numbers);
  const std::int64_t batches = 7;
  const std::uint64_t seed = 8;
  logger.log_metrics({{"long", batches},
                      {"unsigned", seed},
                      {"int", 9},
                      {"float", 10.5F},
                      {"bool", true},
                      {std::string("double"), 11.0}},
                     1);
  CHECK(numbers.lines ==
        Lines{"1 long 7", "1 unsigned 8", "1 int 9", "1 float 10", "1 bool 1", "1 double 11"});
}

TEST_CASE("metrics reach every destination that takes them, in the order added", "[core][logger]") {
  Logger logger;
  Numbers numbers;
  Everything everything;
  logger.add(numbers);
  logger.add(everything);
  logger.log_metrics({{"loss/train/total", 2}, {"lr", 3}}, 7);
  CHECK(numbers.lines == Lines{"7 loss/train/total 2", "7 lr 3"});
  CHECK(everything.lines == Lines{"7 metrics 2"});
}

TEST_CASE("hyperparameters keep their kind, images and tables arrive as sent", "[core][logger]") {
  Logger logger;
  Numbers numbers;
  Everything everything;
  logger.add(numbers);
  logger.add(everything);

  logger.log_hyperparameters({{"nesterov", true},
                              {"seed", std::int64_t{17}},
                              {"lr", 0.1},
                              {"run_name", std::string("a")}});
  CHECK(everything.lines == Lines{"nesterov bool", "seed integer", "lr double", "run_name text"});

  everything.lines.clear();
  logger.log_images({.name = "Images/Train", .images = image, .channels_last = true}, 3);
  const std::vector<std::string> columns{"prompt"};
  const std::vector<std::vector<std::string>> rows{{"one"}, {"two"}};
  logger.log_table({.name = "generations", .columns = columns, .rows = rows}, 4);
  CHECK(everything.lines == Lines{"3 Images/Train same last", "4 generations prompt two"});
  CHECK(numbers.lines.empty());
}

TEST_CASE("a logger tells whether computing a metric or an image is worth it", "[core][logger]") {
  Logger logger;
  CHECK(!logger.wants_metrics());
  CHECK(!logger.wants_images());
  Tables tables;
  logger.add(tables);
  CHECK(!logger.wants_metrics());
  Numbers numbers;
  logger.add(numbers);
  CHECK(logger.wants_metrics());
  CHECK(!logger.wants_images());
  Everything everything;
  logger.add(everything);
  CHECK(logger.wants_images());
  logger.clear();
  CHECK(!logger.wants_metrics());
  CHECK(!logger.wants_images());
  logger.log_metrics({{"loss", 1}}, 0);
  CHECK(numbers.lines.empty());
}

TEST_CASE("files go to those who keep them, and a logger knows whether there is one",
          "[core][logger]") {
  static_assert(tutti::role_of<Files> == tutti::Role::logger);
  Logger logger;
  Numbers numbers;
  logger.add(numbers);
  CHECK(!logger.has_file_upload_destination());
  logger.upload_file("a", "b");
  Files files;
  logger.add(files);
  CHECK(logger.has_file_upload_destination());
  logger.upload_file("calm-motet/logs.txt", "/tmp/logs.txt");
  CHECK(files.lines == Lines{"/tmp/logs.txt as calm-motet/logs.txt"});
  CHECK(!logger.download_file("there", "a"));  // nobody gives files back
  tutti::Switch<FilesBack> both;
  logger.add(both);
  CHECK(logger.download_file("there", "a"));
  CHECK(!logger.download_file("gone", "b"));
  CHECK(both.policy.lines == Lines{"there to a", "gone to b"});
  both.on = false;
  CHECK(!logger.download_file("there", "a"));
  CHECK(numbers.lines.empty());
  logger.clear();
  CHECK(!logger.has_file_upload_destination());
}

TEST_CASE("the end of a fit is told to those who ask for it, through a switch as well",
          "[core][logger]") {
  static_assert(tutti::role_of<Results> == tutti::Role::logger);
  Logger logger;
  Numbers numbers;
  Results results;
  tutti::Switch<Results> on(Results{});
  tutti::Switch<Results> off(Results{}, false);
  logger.add(numbers);
  logger.add(results);
  logger.add(on);
  logger.add(off);
  logger.log_result({.state = run,
                     .complete = false,
                     .latest_checkpoint = "run/ep3",
                     .best_checkpoint = "best/ep2",
                     .resume = "digits --autoresume"});
  const Lines told{"same ended run/ep3 best/ep2 digits --autoresume"};
  CHECK(results.lines == told);
  CHECK(on.policy.lines == told);
  CHECK(off.policy.lines.empty());
  CHECK(numbers.lines.empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
