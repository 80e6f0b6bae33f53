#include <tutti/metrics/mean_average_precision.hpp>

#include <algorithm>

#include <ATen/ATen.h>

#include "metrics/torchmetrics.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;
using torchmetrics::Json;
using torchmetrics::Reported;

namespace {

MeanAveragePrecision make(const Json& args) {
  MeanAveragePrecisionOptions options;
  const std::map<std::string, BoxFormat> formats{
      {"xyxy", BoxFormat::xyxy}, {"xywh", BoxFormat::xywh}, {"cxcywh", BoxFormat::cxcywh}};
  options.box_format = formats.at(torchmetrics::get(args, "box_format", std::string("xyxy")));
  const auto list = [&](const char* name, auto& into) {
    if (args.contains(name)) {
      into.clear();
      for (const Json& number : args[name].array()) {
        into.push_back(
            static_cast<typename std::decay_t<decltype(into)>::value_type>(number.number()));
      }
    }
  };
  list("iou_thresholds", options.iou_thresholds);
  list("rec_thresholds", options.rec_thresholds);
  list("max_detection_thresholds", options.max_detection_thresholds);
  options.class_metrics = torchmetrics::get(args, "class_metrics", false);
  options.average = torchmetrics::average(args, Average::macro);
  return MeanAveragePrecision(options);
}

// The images of one update.
struct Images {
  std::vector<Detections> found;
  std::vector<GroundTruths> wanted;

  Images(const torchmetrics::Case& c, std::int64_t update) {
    const auto number = std::to_string(update);
    const auto cut = [&](const std::string& side, auto take) {
      const at::Tensor counts = c.in(side + number + "/count");
      std::int64_t from = 0;
      for (std::int64_t i = 0; i < counts.numel(); ++i) {
        const auto count = counts[i].item<std::int64_t>();
        take([&](const char* name) {
          const auto path = c.inputs() + "/" + side + number + "/" + name;
          const auto file = torchmetrics::tensors().find(path);
          return file == torchmetrics::tensors().end() ? at::Tensor{}
                                                       : file->second.narrow(0, from, count);
        });
        from += count;
      }
    };
    cut("preds", [&](auto at) { found.push_back({at("boxes"), at("scores"), at("labels")}); });
    cut("target",
        [&](auto at) { wanted.push_back({at("boxes"), at("labels"), at("iscrowd"), at("area")}); });
  }
};

GroundTruths object(std::vector<double> box, std::int64_t label) {
  return {at::tensor(box).view({1, 4}), at::tensor({label}, at::kLong)};
}
Detections detection(std::vector<double> box, double score, std::int64_t label) {
  return {at::tensor(box).view({1, 4}), at::tensor({score}), at::tensor({label}, at::kLong)};
}

}  // namespace

TEST_CASE("mean average precision agrees with torchmetrics and pycocotools", "[metrics][golden]") {
  std::string faulty;
  for (const auto& c : torchmetrics::cases("MeanAveragePrecision")) {
    auto metric = make(c.args());
    std::vector<std::string> keys;
    for (const Json& key : c.entry["keys"].array()) {
      keys.push_back(key.string());
    }
    const auto batch = [&](std::int64_t i) {
      const Images images(c, i);
      return std::pair{MeanAveragePrecision::pack(images.found),
                       MeanAveragePrecision::pack(images.wanted)};
    };
    const auto values = [&](const Metric& of, const std::vector<at::Tensor>& states) {
      const Reported reported(of, states);
      std::vector<double> out;
      for (const std::string& key : keys) {  // classes may be of a later update
        const auto at = std::find(reported.names.begin(), reported.names.end(), key);
        out.push_back(at == reported.names.end()
                          ? std::nan("")
                          : reported.values[static_cast<std::size_t>(at - reported.names.begin())]);
      }
      return out;
    };
    const auto fault = torchmetrics::faults(c, metric, batch, values);
    faulty += fault.empty() ? "" : fault + "\n";
    const Reported reported(metric, metric.states());
    faulty += reported.names.size() == keys.size() ? "" : c.text() + " reports other names\n";
    faulty += reported.values[0] == metric.compute() ? "" : c.text() + " computes no map\n";
  }
  CHECK(faulty == "");
}

TEST_CASE("values of mean average precision have COCO's names, behind a prefix", "[metrics]") {
  MeanAveragePrecision metric{{.class_metrics = true, .prefix = "boxes_"}};
  CHECK(metric.name() == "boxes_MeanAveragePrecision");
  CHECK(metric.compute() == -1);
  metric.update(MeanAveragePrecision::pack({detection({0, 0, 10, 10}, 0.9, 7)}),
                MeanAveragePrecision::pack({object({0, 0, 10, 10}, 7)}));
  const Reported reported(metric, metric.states());
  CHECK(reported.names ==
        std::vector<std::string>{"boxes_map", "boxes_map_50", "boxes_map_75", "boxes_map_small",
                                 "boxes_map_medium", "boxes_map_large", "boxes_mar_1",
                                 "boxes_mar_10", "boxes_mar_100", "boxes_mar_small",
                                 "boxes_mar_medium", "boxes_mar_large", "boxes_map_per_class_7",
                                 "boxes_mar_100_per_class_7"});
  const std::vector<double> want{1, 1, 1, 1, -1, -1, 1, 1, 1, 1, -1, -1, 1, 1};
  CHECK(torchmetrics::differ(reported.values, torchmetrics::as_tensor(want), 1e-12, 0) == "");
}

TEST_CASE("with other numbers of detections map is that of the largest", "[metrics]") {
  MeanAveragePrecision metric{{.max_detection_thresholds = {5, 1, 2}}};
  metric.update(MeanAveragePrecision::pack({detection({0, 0, 10, 10}, 0.9, 0)}),
                MeanAveragePrecision::pack({object({0, 0, 10, 10}, 0)}));
  CHECK(std::abs(metric.compute() - 1) < 1e-12);
  CHECK(Reported(metric, metric.states()).names[8] == "mar_5");
}

TEST_CASE("places whose label is below 0 are empty, and NaN scores come last", "[metrics]") {
  const at::Tensor found = MeanAveragePrecision::pack(
      {detection({0, 0, 10, 10}, 0.9, 0),
       Detections{at::empty({0, 4}), at::empty({0}), at::empty({0}, at::kLong)}});
  CHECK(found.sizes() == at::IntArrayRef({2, 1, 6}));
  CHECK(found[1][0][5].item<double>() == -1);
  const at::Tensor wanted =
      MeanAveragePrecision::pack({object({0, 0, 10, 10}, 0), object({0, 0, 10, 10}, 0)});
  CHECK(wanted.sizes() == at::IntArrayRef({2, 1, 7}));
  MeanAveragePrecision metric;
  metric.update(found, wanted);
  CHECK(std::abs(metric.compute() - 51.0 / 101.0) < 1e-12);  // half of the recalls
  metric.update(found.slice(1, 0, 0).slice(0, 0, 1), wanted.slice(0, 0, 1).slice(1, 0, 0));
  CHECK(std::abs(metric.compute() - 51.0 / 101.0) < 1e-12);
  metric.reset();
  at::Tensor two = at::cat({found, found}, 1).slice(0, 0, 1).clone();
  two[0][0][4] = std::nan("");
  two[0][0][0] = 1000;  // a wrong one
  two[0][0][2] = 1010;
  metric.update(two, wanted.slice(0, 0, 1).slice(2, 0, 5));
  CHECK(std::abs(metric.compute() - 1) < 1e-12);
}

TEST_CASE("options and shapes of mean average precision that do not fit are refused", "[metrics]") {
  CHECK_THROWS_WITH((MeanAveragePrecision{{.max_detection_thresholds = {1, 2}}}),
                    ContainsSubstring("max_detection_thresholds are"));
  CHECK_THROWS_WITH((MeanAveragePrecision{{.rec_thresholds = {0.5, 0.1}}}),
                    ContainsSubstring("rec_thresholds do not ascend"));
  CHECK_THROWS_WITH((MeanAveragePrecision{{.average = Average::none}}),
                    ContainsSubstring("neither macro nor micro"));
  CHECK_THROWS_WITH(MeanAveragePrecision{}.update(at::zeros({1, 2, 5}), at::zeros({1, 2, 5})),
                    ContainsSubstring("expected detections [N, D, 6] and objects [N, G, 5 to 7]"));
  CHECK_THROWS_WITH(
      MeanAveragePrecision::pack({Detections{at::zeros({1, 4}), at::zeros({2}), at::zeros({1})}}),
      ContainsSubstring("image 0 has boxes [1, 4], scores [2] and labels [1]"));
  CHECK_THROWS_WITH(
      MeanAveragePrecision::pack({GroundTruths{at::zeros({1, 4}), at::zeros({1}), at::zeros({3})}}),
      ContainsSubstring("iscrowd and area [n]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
