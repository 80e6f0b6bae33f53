// Image models from Python's libraries, fine-tuned here, and back: the libraries compute the same
// logits from what tutti saves, and 20 steps have the losses that they have in PyTorch.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/models/vit.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;

std::map<std::string, at::Tensor> tensors(const std::filesystem::path& path) {
  const auto read = tutti::checkpoint::read_safetensors(path);
  return {read.begin(), read.end()};
}

template <class M>
at::Tensor logits(M& net, const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  net->eval();
  return net(x);
}

void check_close(const at::Tensor& got, const at::Tensor& want) {
  const double worst = (got - want).abs().max().template item<double>();
  CHECK(worst <= 5e-5 * want.abs().max().template item<double>());
}

// Module::to would change counters, too.
void convert(const torch::nn::Module& net, at::ScalarType type) {
  for (at::Tensor tensor : net.parameters()) {
    tensor.set_data(tensor.to(type));
  }
  for (at::Tensor tensor : net.buffers()) {
    if (tensor.is_floating_point()) {
      tensor.set_data(tensor.to(type));
    }
  }
}

// Fine-tunes, compares losses, and saves where Python looks for it.
template <class M>
void fine_tune(M net, const std::filesystem::path& folder) {
  const auto io = tensors(folder / "io.safetensors");
  const at::Tensor x = io.at("x");
  check_close(logits(net, x), io.at("logits"));
  const at::Tensor losses = io.at("losses");
  const at::Tensor train_x = io.at("train_x");  // of a deep network in float64
  convert(*net, train_x.scalar_type());
  tutti::Trainer trainer{
      tutti::Classifier{net, {.num_classes = 5}},
      {.train = std::vector<tutti::Batch>{tutti::Batch(train_x, io.at("labels"))},
       .max_duration = tutti::Time(losses.size(0), tutti::TimeUnit::batch),
       .optimizer = tutti::SGD{.lr = io.at("lr").template item<double>()},
       .device = "cpu",
       .progress_bar = false},
      tutti::InMemoryLogger{}};
  trainer.fit();
  const auto& logged = trainer.template get<tutti::InMemoryLogger>().data;
  const auto& values = logged.find("loss/train/total")->second.values;
  REQUIRE(static_cast<std::int64_t>(values.size()) == losses.size(0));
  for (std::int64_t i = 0; i < losses.size(0); ++i) {
    const double want = losses[i].template item<double>();
    INFO("step " << i);
    CHECK(std::abs(values[static_cast<std::size_t>(i)] - want) <= 1e-4 * want);
  }
  convert(*net, x.scalar_type());
  const at::Tensor y = logits(net, x);
  models::save_pretrained(net, (folder / "saved").string());
  tutti::checkpoint::write_safetensors(folder / "tutti.safetensors", {{"x", x}, {"logits", y}});
  M again = models::from_pretrained<M>((folder / "saved").string());
  CHECK(logits(again, x).equal(y));
}

template <class M>
void from_folder(const std::filesystem::path& folder) {
  INFO(folder.filename().string());
  fine_tune(models::from_pretrained<M>(folder.string()), folder);
}

// torchvision's file has no config beside it.
template <class M>
void from_file(M net, const std::filesystem::path& folder) {
  INFO(folder.filename().string());
  models::load_pretrained(net->weight_layout(), (folder / "weights.pth").string());
  fine_tune(net, folder);
}

}  // namespace

TEST_CASE("image models are fine-tuned here and go on in timm, Transformers and torchvision",
          "[round_trip][vision][python]") {
  const std::string modules = "timm, torchvision, transformers, safetensors";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  const auto run = [&](const std::string& what) {
    const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/vision.py";
    return std::system(
        (python + " '" + script + "' " + what + " '" + folder.path().string() + "'").c_str());
  };
  REQUIRE(run("make") == 0);
  from_folder<models::VisionTransformer>(folder / "timm_vit");
  from_folder<models::VisionTransformer>(folder / "timm_vit_avg");
  from_folder<models::ResNet>(folder / "timm_resnet");
  from_folder<models::VisionTransformer>(folder / "hf_vit");
  from_folder<models::ResNet>(folder / "hf_resnet");
  from_file(models::VisionTransformer(models::VisionTransformerOptions{.image_size = 16,
                                                                       .patch_size = 4,
                                                                       .num_layers = 2,
                                                                       .num_heads = 4,
                                                                       .hidden_dim = 32,
                                                                       .mlp_dim = 48,
                                                                       .num_classes = 5}),
            folder / "torchvision_vit");
  from_file(models::resnet18({.num_classes = 5}), folder / "torchvision_resnet18");
  CHECK(run("check") == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
