#include <tutti/callbacks/image_visualizer.hpp>

#include <map>

#include <torch/nn/modules/conv.h>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<ImageVisualizer> == Role::callback);
static_assert(Recipe<With<ImageVisualizer{.interval = "1ep", .num_images = 4}>>::valid);

namespace {

/// Keeps every picture it is given.
struct Gallery final {
  struct Picture {
    std::string title;
    at::Tensor images;
    bool channels_last;
    std::map<std::string, at::Tensor> masks;
    std::int64_t step;
  };
  std::vector<Picture> pictures{};

  void log_images(const LoggedImages& logged, std::int64_t step) {
    auto& picture = pictures.emplace_back(
        Picture{std::string(logged.name), logged.images, logged.channels_last, {}, step});
    for (const auto& mask : logged.masks) {
      picture.masks.emplace(std::string(mask.name), mask.masks);
    }
  }
  [[nodiscard]] std::vector<std::string> titles() const {
    std::vector<std::string> out;
    for (const auto& picture : pictures) {
      out.push_back(picture.title + "@" + std::to_string(picture.step));
    }
    return out;
  }
};

/// One convolution: images [N, 3, 4, 4] to classes [N, 5, 4, 4].
struct Segmenter : torch::nn::Module {
  Segmenter() { conv = register_module("conv", torch::nn::Conv2d(3, 5, 1)); }
  Outputs forward(const Batch& batch) { return conv->forward(batch.inputs()); }
  Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().square().mean(); }
  torch::nn::Conv2d conv{nullptr};
};

std::vector<Batch> pictures(int count, const at::Tensor& targets) {
  at::manual_seed(7);
  std::vector<Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::rand({3, 3, 4, 4}), targets);
  }
  return out;
}

TrainerOptions options(int batches, const at::Tensor& targets = at::zeros({3, 4, 4}, at::kLong)) {
  auto out = callback_run::options();
  out.train = pictures(batches, targets);
  out.eval = {{"test", pictures(2, targets)}};
  out.max_duration = "1ep";
  return out;
}

}  // namespace

TEST_CASE("images are shown on due batches and of the first evaluation batch",
          "[callbacks][image_visualizer]") {
  auto with = options(5);
  with.device_train_microbatch_size = 2;
  Trainer trainer{std::make_shared<Segmenter>(), with,
                  ImageVisualizer{.interval = "2ba", .num_images = 1}, Gallery{}};
  trainer.fit();
  const auto& gallery = trainer.get<Gallery>();
  CHECK(gallery.titles() == std::vector<std::string>{"Images/Train@0", "Images/Train@2",
                                                     "Images/Train@4", "Images/Eval@5"});
  CHECK(gallery.pictures[0].images.sizes() == at::IntArrayRef{1, 3, 4, 4});
  CHECK(gallery.pictures[0].images.equal(
      pictures(1, at::zeros({3, 4, 4}))[0].inputs().slice(0, 0, 1)));
  CHECK(gallery.pictures[0].masks.empty());
}

TEST_CASE("a segmentation is shown with its prediction and the truth",
          "[callbacks][image_visualizer]") {
  at::Tensor targets = at::ones({3, 4, 4}, at::kLong);
  targets.select(1, 0).fill_(-1);
  targets.select(1, 1).fill_(0);
  Trainer trainer{std::make_shared<Segmenter>(), options(2, targets),
                  ImageVisualizer{.mode = ImageVisualizer::Mode::segmentation}, Gallery{}};
  trainer.fit();
  const auto& shown = trainer.get<Gallery>().pictures;
  REQUIRE(trainer.get<Gallery>().titles() ==
          std::vector<std::string>{"Images/Train@0", "Images/Eval@2"});
  CHECK(shown[0].images.size(0) == 3);
  REQUIRE(shown[1].masks.size() == 2);
  const at::Tensor& truth = shown[1].masks.at("ground_truth");
  CHECK(truth.select(1, 0).eq(5).all().item<bool>());  // ignored pixels: the number of classes
  CHECK(truth.select(1, 1).eq(0).all().item<bool>());
  CHECK(truth.slice(1, 2).eq(1).all().item<bool>());
  const auto net = trainer.state().task;
  const at::Tensor expected = net.forward(Batch(shown[1].images)).tensor().argmax(1);
  CHECK(shown[1].masks.at("prediction").equal(expected));
}

TEST_CASE("a one-hot truth becomes classes", "[callbacks][image_visualizer]") {
  at::Tensor one_hot = at::zeros({3, 5, 4, 4});
  one_hot.select(1, 3).fill_(1);
  Trainer trainer{std::make_shared<Segmenter>(), options(1, one_hot),
                  ImageVisualizer{.mode = ImageVisualizer::Mode::segmentation}, Gallery{}};
  trainer.fit();
  CHECK(trainer.get<Gallery>().pictures[0].masks.at("ground_truth").eq(3).all().item<bool>());
}

TEST_CASE("images may have no channels, or have them last", "[callbacks][image_visualizer]") {
  Gallery gallery;
  State state;
  state.logger.add(gallery);
  ImageVisualizer visualizer{.channels_last = true};
  state.batch = Batch(at::rand({2, 4, 6}));
  visualizer.apply(BeforeForward{}, state);
  state.batch = Batch(at::rand({2, 4, 6, 3}));
  visualizer.apply(BeforeForward{}, state);
  REQUIRE(gallery.pictures.size() == 2);
  CHECK(gallery.pictures[0].images.sizes() == at::IntArrayRef{2, 1, 4, 6});
  CHECK_FALSE(gallery.pictures[0].channels_last);
  CHECK(gallery.pictures[1].images.sizes() == at::IntArrayRef{2, 4, 6, 3});
  CHECK(gallery.pictures[1].channels_last);
}

TEST_CASE("batches without images are refused", "[callbacks][image_visualizer]") {
  Trainer trainer{tiny::net(), callback_run::options(), ImageVisualizer{}, Gallery{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("the images are [6, 4], expected"));
  Trainer unseen{tiny::net(), callback_run::options(), ImageVisualizer{}};
  CHECK_NOTHROW(unseen.fit());  // nobody takes images
  CHECK_THROWS_WITH((ImageVisualizer{.num_images = 0}.validate()),
                    ContainsSubstring("num_images is 0, expected at least 1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
