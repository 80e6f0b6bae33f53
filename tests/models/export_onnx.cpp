// SPDX-License-Identifier: Apache-2.0
#include <tutti/models/export_onnx.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <tutti/models/detail/onnx_sizes.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::export_onnx;
using tutti::OnnxModel;
using tutti::Outputs;

// A message of Protocol Buffers, as it is read: fields by number, in order.
struct Message {
  std::multimap<int, std::string> texts;
  std::multimap<int, std::int64_t> numbers;

  explicit Message(std::string_view bytes) {
    const auto varint = [&] {
      std::uint64_t out = 0;
      for (int shift = 0;; shift += 7) {
        REQUIRE(!bytes.empty());
        const auto byte = static_cast<unsigned char>(bytes[0]);
        bytes.remove_prefix(1);
        out |= static_cast<std::uint64_t>(byte & 127U) << shift;
        if (byte < 128) {
          return out;
        }
      }
    };
    while (!bytes.empty()) {
      const std::uint64_t key = varint();
      const int field = static_cast<int>(key >> 3U);
      if ((key & 7U) == 0) {
        numbers.emplace(field, static_cast<std::int64_t>(varint()));
        continue;
      }
      const std::uint64_t size = (key & 7U) == 5 ? 4 : varint();
      REQUIRE(size <= bytes.size());
      texts.emplace(field, std::string(bytes.substr(0, size)));
      bytes.remove_prefix(size);
    }
  }

  [[nodiscard]] Message part(int field) const { return Message(text(field)); }
  [[nodiscard]] std::string text(int field) const {
    const auto found = texts.find(field);
    return found == texts.end() ? "" : found->second;
  }
  [[nodiscard]] std::int64_t number(int field) const {
    const auto found = numbers.find(field);
    return found == numbers.end() ? 0 : found->second;
  }
  [[nodiscard]] std::vector<Message> parts(int field) const {
    std::vector<Message> out;
    const auto [begin, end] = texts.equal_range(field);
    for (auto i = begin; i != end; ++i) {
      out.emplace_back(i->second);
    }
    return out;
  }
};

// What a test looks at in a file.
struct File {
  Message model;
  Message graph = model.part(7);

  explicit File(const std::filesystem::path& path) : model(read_bytes(path)) {}

  [[nodiscard]] std::vector<std::string> operators() const {
    std::vector<std::string> out;
    for (const Message& node : graph.parts(1)) {
      out.push_back(node.text(4));
    }
    return out;
  }

  // The weights by name.
  [[nodiscard]] std::map<std::string, Message> weights() const {
    std::map<std::string, Message> out;
    for (const Message& tensor : graph.parts(5)) {
      out.emplace(tensor.text(8), tensor);
    }
    return out;
  }

  // "inputs: 1 [batch, 4]", of inputs (field 11) or outputs (field 12).
  [[nodiscard]] std::vector<std::string> values(int field) const {
    std::vector<std::string> out;
    for (const Message& value : graph.parts(field)) {
      const Message tensor = value.part(2).part(1);
      std::string sizes;
      for (const Message& dim : tensor.part(2).parts(1)) {
        const std::string name = dim.text(2);
        sizes +=
            (sizes.empty() ? "" : ", ") + (name.empty() ? std::to_string(dim.number(1)) : name);
      }
      out.push_back(value.text(1) + ": " + std::to_string(tensor.number(1)) + " [" + sizes + "]");
    }
    return out;
  }
};

// A network of one function, with a weight that it may use.
struct OneImpl : torch::nn::Module {
  using Function = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  explicit OneImpl(Function function, at::Tensor w = torch::ones({4}))
      : weight(register_parameter("weight", std::move(w))), run(std::move(function)) {}
  at::Tensor forward(const at::Tensor& x) { return run(x, weight); }
  at::Tensor weight;
  Function run;
};
TORCH_MODULE(One);

at::Tensor rows() {
  return torch::arange(8, torch::kFloat).view({2, 4});
}

// What export_onnx() says of a network of this function.
std::string refusal(OneImpl::Function function, const at::Tensor& example = rows(),
                    const tutti::OnnxOptions& options = {}) {
  const TemporaryFolder folder;
  const std::string out = message([&] {
    export_onnx(One(std::move(function)), example, (folder / "a.onnx").string(), options);
  });
  CHECK(sorted_names(folder.path()).empty());
  return out;
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                               torch::nn::Dropout(0.5), torch::nn::Flatten(),
                               torch::nn::Linear(4 * 5 * 5, 2));
}

}  // namespace

TEST_CASE("the file has the operators, the names and the numbers of the model",
          "[models][export_onnx]") {
  const TemporaryFolder folder;
  const auto net = small_net();
  const auto path = folder / "net.onnx";
  export_onnx(net, torch::randn({2, 3, 5, 5}), path.string());
  const File file(path);
  CHECK(file.model.number(1) == 8);
  CHECK(file.model.text(2) == "tutti");
  CHECK(file.model.part(8).number(2) == 18);
  CHECK(file.operators() == std::vector<std::string>{"Conv", "BatchNormalization", "Relu",
                                                     "Reshape", "Gemm", "Identity"});
  CHECK(file.values(11) == std::vector<std::string>{"inputs: 1 [batch, 3, 5, 5]"});
  CHECK(file.values(12) == std::vector<std::string>{"outputs: 1 [batch, 2]"});
  const auto weights = file.weights();
  for (const auto& parameter : net->named_parameters()) {
    INFO(parameter.key());
    const at::Tensor& value = parameter.value();
    REQUIRE(weights.contains(parameter.key()));
    CHECK(weights.at(parameter.key()).text(9) ==
          std::string(static_cast<const char*>(value.const_data_ptr()), value.nbytes()));
  }
  CHECK(weights.contains("1.running_mean"));
  CHECK_FALSE(weights.contains("1.num_batches_tracked"));
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"net.onnx"});
}

TEST_CASE("options name inputs and outputs and say which sizes differ", "[models][export_onnx]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.onnx";
  const OnnxModel model = One([](const at::Tensor& x, const at::Tensor&) {
    return x.flatten(1).sum(1, /*keepdim=*/true).expand({-1, x.size(1)}).relu();
  });
  const at::Tensor x = torch::randn({2, 5, 3});
  export_onnx(model, x, path.string(),
              {.input_names = {"x"},
               .output_names = {"y"},
               .dynamic_axes = {{"x", {{0, "n"}, {1, "length"}}}}});
  CHECK(File(path).values(11) == std::vector<std::string>{"x: 1 [n, length, 3]"});
  CHECK(File(path).values(12) == std::vector<std::string>{"y: 1 [n, length]"});
  export_onnx(model, x, path.string(), {.dynamic_batch = false, .overwrite = true});
  CHECK(File(path).values(11) == std::vector<std::string>{"inputs: 1 [2, 5, 3]"});
  const OnnxModel two(One([](const at::Tensor& a, const at::Tensor&) { return a; }).ptr(),
                      [](const Batch& batch) {
                        return Outputs{{"sum", batch.at("a") + batch.at("b")},
                                       {"all", at::cat({batch.at("a"), batch.at("a")})}};
                      });
  export_onnx(two, Batch{{"a", rows()}, {"b", rows().slice(0, 0, 1)}, {"labels", rows()}},
              path.string(), {.overwrite = true});
  CHECK(File(path).values(11) == std::vector<std::string>{"a: 1 [batch, 4]", "b: 1 [1, 4]"});
  CHECK(File(path).values(12) ==
        std::vector<std::string>{"sum: 1 [batch, 4]", "all: 1 [2*batch, 4]"});
}

TEST_CASE("a model stays as it was", "[models][export_onnx]") {
  const TemporaryFolder folder;
  auto net = small_net();
  net->train();
  net[1]->eval();
  net->forward(torch::randn({4, 3, 5, 5})).sum().backward();
  std::map<std::string, at::Tensor> before, gradients;
  for (const auto& buffer : net->named_buffers()) {
    before[buffer.key()] = buffer.value().clone();
  }
  for (const auto& parameter : net->named_parameters()) {
    before[parameter.key()] = parameter.value().detach().clone();
    gradients[parameter.key()] = parameter.value().grad().clone();
  }
  const at::Tensor x = torch::randn({2, 3, 5, 5}, torch::requires_grad());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  export_onnx(net, x, (folder / "a.onnx").string());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  const auto nodes = File(folder / "a.onnx").operators();
  CHECK(std::count(nodes.begin(), nodes.end(), "Cast") == 0);
  CHECK(net->is_training());
  CHECK_FALSE(net[1]->is_training());
  for (const auto& buffer : net->named_buffers()) {
    CHECK(buffer.value().equal(before.at(buffer.key())));
  }
  for (const auto& parameter : net->named_parameters()) {
    CHECK(parameter.value().equal(before.at(parameter.key())));
    CHECK(parameter.value().requires_grad());
    CHECK(parameter.value().grad().equal(gradients.at(parameter.key())));
  }
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("weights keep their type", "[models][export_onnx]") {
  const auto [type, number] = GENERATE(std::pair(torch::kHalf, 10), std::pair(torch::kBFloat16, 16),
                                       std::pair(torch::kDouble, 11));
  const TemporaryFolder folder;
  torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::GELU());
  net->to(type);
  export_onnx(net, rows().to(type), (folder / "a.onnx").string());
  const File file(folder / "a.onnx");
  CHECK(file.weights().at("0.weight").number(2) == number);
  CHECK(file.values(12)[0].starts_with("outputs: " + std::to_string(number) + " "));
}

TEST_CASE("weights stand beside the file on request", "[models][export_onnx]") {
  const TemporaryFolder folder;
  const torch::nn::Sequential net(torch::nn::Linear(32, 32));
  const std::string path = (folder / "a.onnx").string();
  for (const bool overwrite : {false, true}) {
    export_onnx(net, torch::randn({2, 32}), path, {.external_data = true, .overwrite = overwrite});
  }
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"a.onnx", "a.onnx.data"});
  const at::Tensor weight = net->parameters()[0];
  CHECK(read_bytes(path + ".data") ==
        std::string(static_cast<const char*>(weight.const_data_ptr()), weight.nbytes()));
  const auto weights = File(path).weights();
  const Message& there = weights.at("0.weight");
  CHECK(there.number(14) == 1);
  std::map<std::string, std::string> where;
  for (const Message& entry : there.parts(13)) {
    where[entry.text(1)] = entry.text(2);
  }
  CHECK(where == std::map<std::string, std::string>{
                     {"location", "a.onnx.data"}, {"offset", "0"}, {"length", "4096"}});
  CHECK(weights.at("0.bias").text(9).size() == 128);  // short ones are in the file
  std::filesystem::remove(path);
  CHECK_THAT(
      message([&] { export_onnx(net, torch::randn({2, 32}), path, {.external_data = true}); }),
      ContainsSubstring("a.onnx.data' is there already; set overwrite, or choose another path"));
}

TEST_CASE("a file is there whole or not at all", "[models][export_onnx]") {
  const TemporaryFolder folder;
  const torch::nn::Sequential net(torch::nn::Linear(4, 3));
  const auto write = [&](const std::string& path, bool overwrite = false) {
    return message([&] { export_onnx(net, rows(), path, {.overwrite = overwrite}); });
  };
  const std::string path = (folder / "a.onnx").string();
  write_bytes(path, "mine");
  CHECK_THAT(write(path),
             ContainsSubstring("a.onnx' is there already; set overwrite, or choose another"));
  CHECK(read_bytes(path) == "mine");
  CHECK(write(path, true) == "nothing");
  CHECK(read_bytes(path).size() > 60);
  CHECK_THAT(write(folder.path().string(), true),
             ContainsSubstring("is a folder, expected a file"));
  CHECK_THAT(write((folder / "none/a.onnx").string()),
             ContainsSubstring("No such file or directory"));
  CHECK_THAT(write(path + "/b.onnx"), ContainsSubstring("Not a directory"));
  CHECK_THAT(write(""), ContainsSubstring("the path is '', expected that of a file"));
  CHECK_THAT(write((folder / "a/").string()), ContainsSubstring("expected that of a file"));
  write_bytes(folder / "other", "other");
  std::filesystem::create_symlink(folder / "other", folder / "link.onnx");
  CHECK_THAT(write((folder / "link.onnx").string()), ContainsSubstring("is there already"));
  CHECK(write((folder / "link.onnx").string(), true) == "nothing");
  CHECK(read_bytes(folder / "other") == "other");  // the link is replaced, not what it leads to
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"a.onnx", "link.onnx", "other"});
}

TEST_CASE("what no file can have is refused", "[models][export_onnx]") {
  using T = const at::Tensor&;
  CHECK_THAT(
      refusal([](T x, T w) { return x.mul(w).erfinv(); }),
      ContainsSubstring("after 'weight' the model calls aten::erfinv, which export_onnx() does not "
                        "write"));
  CHECK_THAT(refusal([](T x, T w) { return x.atan2(w); }),
             ContainsSubstring("'weight' calls aten::atan2, which export_onnx() does not write"));
  CHECK_THAT(refusal([](T x, T w) { return std::get<0>(x.add(w).sort()); }),
             ContainsSubstring("calls aten::sort which export_onnx() does not write"));
  CHECK_THAT(refusal([](T x, T w) { return at::softplus(x.add(w), 1, 1); }),
             ContainsSubstring("calls aten::softplus with a threshold below 15"));
  CHECK_THAT(refusal([](T x, T) { return x.sum().item<double>() > 0 ? x.relu() : x.neg(); }),
             ContainsSubstring("takes a number out of a tensor that depends on the inputs"));
  CHECK_THAT(
      refusal([](T x, T) { return x.size(0) > 2 ? x.relu() : x.neg(); }),
      ContainsSubstring("the model calls aten::neg for one size of the inputs and aten::relu for "
                        "another"));
  CHECK_THAT(refusal([](T x, T) { return x.mul(1.0 / static_cast<double>(x.size(0))); }),
             ContainsSubstring("differs with the sizes of the inputs"));
  CHECK_THAT(refusal([](T x, T) { return x.add(at::rand({4})); }),
             ContainsSubstring("a tensor [4] that is not the same in every run"));
  CHECK_THAT(
      refusal([](T x, T) {
        at::Tensor out = at::zeros({x.size(0), 4});
        std::copy_n(x.const_data_ptr<float>(), x.numel(), out.mutable_data_ptr<float>());
        return out.mul(2);
      }),
      ContainsSubstring("the model calls aten::zeros and fills what it returns by other means than "
                        "ATen's operators"));
  CHECK_THAT(refusal([](T x, T) {
               const at::Tensor y = x.relu();
               y.select(1, 0).zero_();
               return y;
             }),
             ContainsSubstring("changed through a view of it"));
  CHECK_THAT(refusal([](T x, T w) {
               w.data().add_(1);
               return x.mul(w);
             }),
             ContainsSubstring("the forward pass changes 'weight'"));
  CHECK_THAT(refusal([](T, T w) { return w.relu(); }),
             ContainsSubstring("does not depend on the inputs"));
}

TEST_CASE("layers that have no such operator are refused by name", "[models][export_onnx]") {
  const auto refused = [](const torch::nn::Sequential& net, const at::Tensor& x) {
    return message([&] { export_onnx(net, x, "/nowhere/a.onnx"); });
  };
  CHECK_THAT(refused(torch::nn::Sequential(
                         torch::nn::Conv2d(3, 4, 1),
                         torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions(3))),
                     torch::randn({2, 3, 8, 8})),
             ContainsSubstring(
                 "after '0' the model calls aten::adaptive_avg_pool2d to a size that does not "
                 "divide the input's"));
  CHECK_THAT(refused(torch::nn::Sequential(torch::nn::BatchNorm2d(
                         torch::nn::BatchNormOptions(3).track_running_stats(false))),
                     torch::randn({2, 3, 8, 8})),
             ContainsSubstring("'0' calls aten::batch_norm with the statistics of the batch"));
}

TEST_CASE("examples and options that do not fit are refused", "[models][export_onnx]") {
  using T = const at::Tensor&;
  const auto relu = [](T x, T) { return x.relu(); };
  CHECK_THAT(
      refusal(relu, rows(), {.input_names = {"a", "b"}}),
      ContainsSubstring("there are 2 input_names and 1 inputs (inputs), expected one for each"));
  CHECK_THAT(
      refusal(relu, rows(), {.output_names = {"a", "b"}}),
      ContainsSubstring("there are 2 output_names and 1 outputs (outputs), expected one for each"));
  CHECK_THAT(
      refusal(relu, rows(), {.output_names = {"inputs"}}),
      ContainsSubstring("the name 'inputs' of an output is empty, or that of another input"));
  CHECK_THAT(
      refusal(relu, rows(), {.dynamic_axes = {{"x", {{1, "n"}}}}}),
      ContainsSubstring("dynamic_axes names the input 'x', which the example does not have"));
  CHECK_THAT(refusal(relu, rows(), {.dynamic_axes = {{"inputs", {{2, "n"}}}}}),
             ContainsSubstring("dynamic_axes names dimension 2 of 'inputs', which is [2, 4]"));
  CHECK_THAT(refusal(relu, rows(), {.dynamic_axes = {{"inputs", {{1, ""}}}}}),
             ContainsSubstring("dimension 1 of 'inputs' has an empty name in dynamic_axes"));
  CHECK_THAT(
      refusal(relu, rows(), {.dynamic_axes = {{"inputs", {{1, "batch"}}}}}),
      ContainsSubstring("the dimensions called 'batch' are 2 in 'inputs' and 4 in 'inputs'"));
  CHECK_THAT(refusal([](T x, T w) { return x.mul(w); }, rows(),
                     {.dynamic_axes = {{"inputs", {{1, "width"}}}}}),
             ContainsSubstring(
                 "'width' is to be of any size, and the model runs with 4 but with none of "));
  CHECK_THAT(refusal(relu, torch::zeros({0, 4})),
             ContainsSubstring("'inputs' of the example is empty"));
  const TemporaryFolder folder;
  const OnnxModel one(One(relu).ptr(), [](const Batch& b) { return Outputs(b.at("a").relu()); });
  CHECK_THAT(
      message([&] {
        export_onnx(one, Batch{{"a", rows()}, {"b", rows()}}, (folder / "a.onnx").string());
      }),
      ContainsSubstring("the outputs do not depend on the input 'b'; leave it out of the example"));
  CHECK_THAT(message([&] { export_onnx(one, Batch(), (folder / "a.onnx").string()); }),
             ContainsSubstring("the example has no inputs, expected a batch"));
  CHECK_THAT(message([&] {
               export_onnx(torch::nn::Sequential(nullptr), rows(), (folder / "a.onnx").string());
             }),
             ContainsSubstring("there is no model"));
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("numbers follow sizes by a factor and a sum, or not at all", "[models][export_onnx]") {
  using tutti::models::detail::size_rule;
  const std::vector<tutti::models::detail::OnnxSymbol> symbols{
      {.name = "n", .input = "x", .axis = 0, .sizes = {2, 3, 2, 3}},
      {.name = "t", .input = "x", .axis = 1, .sizes = {8, 8, 9, 9}}};
  const auto text = [&](const tutti::models::detail::Numbers& numbers) {
    const auto rule = size_rule(numbers, symbols);
    return rule ? rule->text(symbols) : "none";
  };
  CHECK(text({2, 3, 2, 3}) == "n");
  CHECK(text({9, 9, 10, 10}) == "t+1");
  CHECK(text({16, 24, 18, 27}) == "n*t");
  CHECK(text({32, 48, 36, 54}) == "2*n*t");
  CHECK(text({-2, -3, -2, -3}) == "-1*n");
  CHECK(size_rule({7, 7, 7, 7}, symbols)->symbols.empty());
  CHECK(text({10, 11, 11, 12}) == "none");  // a sum of two sizes
  CHECK(text({4, 9, 4, 9}) == "5*n-6");
  CHECK(text({4, 9, 4, 10}) == "none");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
