#include <tutti/core/comparison.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/auroc.hpp>
#include <tutti/metrics/average_precision.hpp>
#include <tutti/metrics/binary_f1.hpp>
#include <tutti/metrics/calibration_error.hpp>
#include <tutti/metrics/confusion_matrix.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/metrics/dice.hpp>
#include <tutti/metrics/f1_score.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/metrics/masked_accuracy.hpp>
#include <tutti/metrics/mean_absolute_error.hpp>
#include <tutti/metrics/mean_average_precision.hpp>
#include <tutti/metrics/mean_squared_error.hpp>
#include <tutti/metrics/miou.hpp>
#include <tutti/metrics/pearson.hpp>
#include <tutti/metrics/precision_score.hpp>
#include <tutti/metrics/r2_score.hpp>
#include <tutti/metrics/recall.hpp>
#include <tutti/metrics/spearman.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Comparison;
using tutti::detail::direction;
using tutti::detail::is_better;
using tutti::detail::is_new_best;
using tutti::detail::named_direction;
using tutti::detail::unknown_direction;

TEST_CASE("a metric's name says which way is better, unless somebody does", "[core][comparison]") {
  for (const char* name : {"loss", "CrossEntropy", "MeanSquaredError", "LanguagePerplexity"}) {
    CHECK(direction(Comparison::by_name, name) == Comparison::less);
    CHECK(direction(Comparison::greater, name) == Comparison::greater);
    CHECK(is_better(Comparison::by_name, name, 1, 2));
    CHECK_FALSE(is_better(Comparison::by_name, name, 2, 1));
  }
  for (const char* name : {"MulticlassAccuracy", "Dice", "BinaryF1Score", ""}) {
    CHECK(direction(Comparison::by_name, name) == Comparison::greater);
    CHECK(direction(Comparison::less, name) == Comparison::less);
    CHECK(is_better(Comparison::by_name, name, 2, 1));
    CHECK_FALSE(is_better(Comparison::by_name, name, 1, 2));
  }
}

TEST_CASE("words in a metric's name say which way is better", "[core][comparison]") {
  for (const char* name : {"MAE",          "mae",      "reg/mae",
                           "val_rmse",     "valMAE",   "MAEOfAge",
                           "MSE",          "MSLE",     "MAPE",
                           "sMAPE",        "SMAPE",    "nll",
                           "WER",          "CER",      "TER",
                           "FID",          "FIDScore", "FID_2048",
                           "BrierScore",   "mae5",     "CosineDistance",
                           "KLDivergence", "deviance", "StandardDeviation",
                           "Hinge",        "hinge@2"}) {
    INFO(name);
    CHECK(named_direction(name) == Comparison::less);
    CHECK(direction(Comparison::by_name, name) == Comparison::less);
  }
  for (const char* name : {"val_acc",
                           "F1",
                           "MacroF1Score",
                           "FBeta",
                           "Specificity",
                           "ap",
                           "map_50",
                           "det/mar_100",
                           "IoU",
                           "JaccardIndex",
                           "r2",
                           "Kappa",
                           "BLEU",
                           "ROUGE",
                           "PSNR",
                           "SSIM",
                           "CosineSimilarity",
                           "ExplainedVariance",
                           "Throughput",
                           "KendallRankCorrCoef",
                           "MatthewsCorrCoef"}) {
    INFO(name);
    CHECK(named_direction(name) == Comparison::greater);
  }
  // A word must be whole, and a name of which nothing is known counts as greater is better.
  for (const char* name : {"Maestro", "water", "certainty", "Terms", "latency", "calls", "var2"}) {
    INFO(name);
    CHECK(named_direction(name) == Comparison::by_name);
    CHECK(direction(Comparison::by_name, name) == Comparison::greater);
  }
}

TEST_CASE("a direction that is not known is said", "[core][comparison]") {
  const auto said = [](Comparison comparison, const char* name) {
    return unknown_direction("EarlyStopper", "comparison = Comparison", comparison, name);
  };
  CHECK(
      said(Comparison::by_name, "latency") ==
      "EarlyStopper: the name \"latency\" does not say which value is better, so greater is taken "
      "to be; set comparison = Comparison::greater if it is, or comparison = Comparison::less if "
      "it is not");
  CHECK(said(Comparison::less, "latency").empty());
  CHECK(said(Comparison::greater, "latency").empty());
  CHECK(said(Comparison::by_name, "MAE").empty());
  CHECK(said(Comparison::by_name, "Dice").empty());
}

TEST_CASE("an equal value is no better one, and any number is better than none",
          "[core][comparison]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(is_new_best(Comparison::less, "", 1, 1));
  CHECK_FALSE(is_new_best(Comparison::greater, "", 1, 1));
  CHECK(is_new_best(Comparison::greater, "", -5, nan));
  CHECK_FALSE(is_new_best(Comparison::greater, "", nan, -5));
  CHECK_FALSE(is_new_best(Comparison::greater, "", nan, nan));
  CHECK(is_new_best(Comparison::less, "", 1, 2));
}

TEST_CASE("the name of every metric of the library says which way is better",
          "[core][comparison]") {
  const auto mean = [](const at::Tensor& outputs, const at::Tensor&) { return outputs.mean(); };
  const auto of_classes = [](std::int64_t classes) {
    return tutti::ClassScoreOptions{.num_classes = classes};
  };
  struct Known {
    std::string type;
    std::shared_ptr<const tutti::Metric> metric;
    Comparison direction;
  };
  const auto less = [](const char* type, auto metric) {
    return Known{type, std::make_shared<decltype(metric)>(std::move(metric)), Comparison::less};
  };
  const auto greater = [](const char* type, auto metric) {
    return Known{type, std::make_shared<decltype(metric)>(std::move(metric)), Comparison::greater};
  };
  const std::vector<Known> known{
      less("CalibrationError", tutti::CalibrationError{{.num_classes = 3}}),
      less("CrossEntropy", tutti::CrossEntropy{}),
      less("LanguageCrossEntropy", tutti::LanguageCrossEntropy{}),
      less("LanguagePerplexity", tutti::LanguagePerplexity{}),
      less("LossMetric", tutti::LossMetric{mean}),
      less("MeanAbsoluteError", tutti::MeanAbsoluteError{}),
      less("MeanSquaredError", tutti::MeanSquaredError{}),
      less("MeanSquaredError", tutti::MeanSquaredError{{.squared = false}}),
      greater("AUROC", tutti::AUROC{}),
      greater("AveragePrecision", tutti::AveragePrecision{}),
      greater("BinaryF1Score", tutti::BinaryF1Score{}),
      greater("Dice", tutti::Dice{3}),
      greater("F1Score", tutti::F1Score{of_classes(3)}),
      greater("MIoU", tutti::MIoU{3}),
      greater("MaskedAccuracy", tutti::MaskedAccuracy{}),
      greater("MeanAveragePrecision", tutti::MeanAveragePrecision{{.class_metrics = true}}),
      greater("MulticlassAccuracy", tutti::MulticlassAccuracy{}),
      greater("PearsonCorrCoef", tutti::PearsonCorrCoef{}),
      greater("PrecisionScore", tutti::PrecisionScore{of_classes(3)}),
      greater("R2Score", tutti::R2Score{}),
      greater("Recall", tutti::Recall{of_classes(3)}),
      greater("SpearmanCorrCoef", tutti::SpearmanCorrCoef{}),
  };
  struct Names final : tutti::MetricReport {
    std::vector<std::string> names;
    void value(double) override {}
    void value(std::string_view name, double) override { names.emplace_back(name); }
    void table(std::span<const std::string>, std::span<const std::vector<std::string>>) override {}
  };
  std::set<std::string> types{"ConfusionMatrix",  // a table
                              "FunctionMetric"};  // whose name is its user's
  for (const Known& one : known) {
    types.insert(one.type);
    Names names;
    one.metric->report(one.metric->states(), names);
    names.names.push_back(one.metric->name());
    for (const std::string& name : names.names) {
      INFO(name);
      CHECK(named_direction(name) == one.direction);
    }
  }
  std::set<std::string> there;
  for (const auto& file :
       std::filesystem::directory_iterator(TUTTI_SOURCE_DIR "/include/tutti/metrics")) {
    std::ifstream header(file.path());
    for (std::string line; std::getline(header, line);) {
      const std::size_t end = line.find(" final : public ");
      if (line.starts_with("class ") && end != std::string::npos) {
        there.insert(line.substr(6, end - 6));
      }
    }
  }
  CHECK(types == there);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
