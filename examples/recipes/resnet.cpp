// SPDX-License-Identifier: Apache-2.0
// Trains a ResNet by MosaicML's recipes of 2022: --recipe none, mild, medium or hot.
//
// Run it:    resnet --data PATH; alone it says where the images come from, --help lists the rest
// It prints: a progress bar, and the accuracy on the test images after every epoch
// Its page:  docs/zoo.md, with what was measured
// ctest: --data demo --recipe hot --small --batch-size 64 --max-duration 1ep
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/stochastic_depth.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/data/random_flip.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/losses/binary_cross_entropy.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

#include "../images.hpp"

#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)
#include <tutti/data/compose.hpp>
#include <tutti/data/image_folder_dataset.hpp>
#endif

using tutti::data::Split;
using Net = tutti::models::ResNet;

// The recipes. What is not named here is in common: optimizer, schedule, crops.
using Plain = tutti::Trainer<tutti::ChannelsLast, tutti::JSONLinesLogger>;
using Mild = tutti::Trainer<tutti::ProgressiveResizing, tutti::LabelSmoothing, tutti::BlurPool,
                            tutti::ChannelsLast, tutti::EMA, tutti::JSONLinesLogger>;
using Medium =
    tutti::Trainer<tutti::ProgressiveResizing, tutti::MixUp, tutti::LabelSmoothing, tutti::BlurPool,
                   tutti::ChannelsLast, tutti::SAM, tutti::EMA, tutti::JSONLinesLogger>;
using Hot =
    tutti::Trainer<tutti::RandAugment, tutti::ProgressiveResizing, tutti::ColOut, tutti::MixUp,
                   tutti::LabelSmoothing, tutti::BlurPool, tutti::StochasticDepth,
                   tutti::ChannelsLast, tutti::SAM, tutti::EMA, tutti::JSONLinesLogger>;

struct Settings {
  std::string data, recipe = "mild";
  bool small = false;              // a network and images of 32 pixels
  std::int64_t batch_size = 2048;  // of one process
  double lr = 2.048;               // of 2048 images in a batch of all processes together
  std::int64_t num_workers = 8;
  tutti::Time ema_half_life = "100ba", ema_update_interval = "20ba";
};

// Images that are read into memory, all of 32 pixels.
void use_small_images(const Settings& settings, tutti::TrainerOptions& options,
                      std::int64_t& num_classes) {
  const auto loader = [&](Split split) {
    const tutti::data::ImageSet set = example::load(settings.data, split);
    num_classes = std::ssize(set.classes);
    tutti::ImageLoaderOptions images{.batch_size = settings.batch_size,
                                     .mean = {0.491, 0.482, 0.447},
                                     .std = {0.247, 0.243, 0.262}};
    if (split == Split::train) {
      TORCH_CHECK(settings.batch_size >= 1 && settings.batch_size <= set.images.size(0),
                  "--batch-size is ", settings.batch_size, ", expected 1 to ", set.images.size(0),
                  ", the number of images");
      images.shuffle = images.drop_last = true;
      images.transforms = {{"crop", tutti::data::RandomCrop{.size = 32, .padding = 4}},
                           {"flip", tutti::data::RandomHorizontalFlip{}}};
    }
    return tutti::ImageLoader{set.images, set.labels, images};
  };
  options.train = loader(Split::train);
  options.eval = {{"test", loader(Split::test)}};
}

// Images that are decoded while they are needed: trained with 176 pixels, tested with 224.
void use_large_images([[maybe_unused]] const Settings& settings,
                      [[maybe_unused]] tutti::TrainerOptions& options,
                      [[maybe_unused]] std::int64_t& num_classes) {
#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)
  namespace data = tutti::data;
  const data::ImageFolderDataset train{
      settings.data, {.prefix = "train/", .framing = data::RandomResizedCrop{.size = 176}}};
  const data::ImageFolderDataset test{settings.data,
                                      {.prefix = "val/",
                                       .framing = data::ResizeAndCrop{.resize = 232, .crop = 224},
                                       .classes = train.classes()}};
  num_classes = std::ssize(train.classes());
  const data::Compose normalize{
      data::Normalize{.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}}};
  options.train = tutti::DataLoader{train,
                                    {.batch_size = settings.batch_size,
                                     .shuffle = true,
                                     .drop_last = true,
                                     .num_workers = settings.num_workers,
                                     .on_error = tutti::OnError::skip,
                                     .transforms = {{"flip", data::RandomHorizontalFlip{}}},
                                     .transform = normalize}};
  options.eval = {{"test", tutti::DataLoader{test,
                                             {.batch_size = settings.batch_size,
                                              .num_workers = settings.num_workers,
                                              .transform = normalize}}}};
#else
  TORCH_CHECK(false, "this program was built without libjpeg and libpng; for JPEG images install ",
              "libjpeg-dev, for PNG libpng-dev, then configure and build again; --small reads "
              "CIFAR-10's own files without them");
#endif
}

// Every class has a loss of its own and is improbable at first, and the scales of norms are drawn.
void start_for_binary_losses(Net& net) {
  const at::NoGradGuard no_grad;
  for (const auto& module : net->modules(/*include_self=*/false)) {
    if (auto* norm = module->as<torch::nn::BatchNorm2dImpl>()) {
      torch::nn::init::uniform_(norm->weight);
    }
  }
  torch::nn::init::kaiming_normal_(net->fc->weight);
  net->fc->bias.fill_(-std::log(static_cast<double>(net->fc->bias.size(0))));
}

template <class Recipe, class... Policies>
void train(const Settings& settings, tutti::TrainerOptions options, double weight_decay,
           Policies... policies) {
  std::int64_t num_classes = 0;
  settings.small ? use_small_images(settings, options, num_classes)
                 : use_large_images(settings, options, num_classes);
  options.optimizer =
      tutti::DecoupledSGDW{.lr = settings.lr, .momentum = 0.875, .weight_decay = weight_decay};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "0.0889dur"};  // 8 epochs of 90
  Net net = settings.small ? tutti::models::cifar_resnet20({.num_classes = num_classes})
                           : tutti::models::resnet50({.num_classes = num_classes});
  tutti::ClassifierOptions classifier{.num_classes = num_classes};
  if (settings.recipe != "none") {
    start_for_binary_losses(net);
    classifier.loss = tutti::BinaryCrossEntropyWithLogits{};
  }
  tutti::Classifier model{net, classifier};
  Recipe trainer{model, options, std::move(policies)..., tutti::JSONLinesLogger{.overwrite = true}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  if (trainer.state().rank == 0) {
    std::printf("%s: test accuracy %.2f %%\n", settings.recipe.c_str(),
                100 * trainer.state().metric("test", "MulticlassAccuracy"));
  }
}

int main(int argc, char** argv) try {
  Settings settings;
  tutti::TrainerOptions options{.max_duration = "90ep",
                                .seed = 42,
                                .run_name = "resnet",
                                .run_folder = "resnet-run",
                                .save_overwrite = true};
  tutti::cli::Program program{"resnet", "Trains a ResNet by a recipe."};
  program.add("--data", settings.data, "where the images are")
      .add("--recipe", settings.recipe, "none, mild, medium or hot")
      .add("--small", settings.small, "ResNet-20 and images of 32 pixels, in memory")
      .add("--batch-size", settings.batch_size, "images of a batch")
      .add("--lr", settings.lr, "the highest learning rate")
      .add("--num-workers", settings.num_workers, "threads that decode images")
      .add("--ema-half-life", settings.ema_half_life, "of the averages, in ba or ep")
      .add("--ema-update-interval", settings.ema_update_interval, "how often to average")
      .add(options)
      .parse(argc, argv);
  if (settings.data.empty()) {
    std::printf(
        "resnet --data PATH --small trains ResNet-20 on these images; %s"
        "Without --small it trains ResNet-50 on a folder or .tar of images of any size,\n"
        "train/CLASS/NAME.JPEG and val/CLASS/NAME.JPEG.\n",
        example::where_images_are);
    return 0;
  }
  tutti::seed_all(options.seed.value_or(42));
  using tutti::BlurPool, tutti::ChannelsLast, tutti::ColOut, tutti::EMA, tutti::LabelSmoothing;
  using tutti::MixUp, tutti::ProgressiveResizing, tutti::RandAugment, tutti::SAM;
  const EMA ema{.half_life = settings.ema_half_life,
                .update_interval = settings.ema_update_interval};
  const ProgressiveResizing grow{.initial_scale = 0.5, .delay_fraction = 0.4};
  if (settings.recipe == "none") {
    train<Plain>(settings, options, 5e-4, ChannelsLast{});
  } else if (settings.recipe == "mild") {
    train<Mild>(settings, options, 5e-4, grow, LabelSmoothing{.smoothing = 0.08}, BlurPool{},
                ChannelsLast{}, ema);
  } else if (settings.recipe == "medium") {
    train<Medium>(settings, options, 5e-4, grow, MixUp{.alpha = 0.2},
                  LabelSmoothing{.smoothing = 0.1}, BlurPool{}, ChannelsLast{},
                  SAM{.rho = 0.5, .interval = 10}, ema);
  } else if (settings.recipe == "hot") {
    train<Hot>(
        settings, options, 3e-4, RandAugment{.severity = 10, .depth = 1},
        ProgressiveResizing{.initial_scale = 0.6, .delay_fraction = 0.2},
        ColOut{.p_row = 0.05, .p_col = 0.05}, MixUp{.alpha = 0.25},
        LabelSmoothing{.smoothing = 0.13}, BlurPool{},
        tutti::StochasticDepth{.stochastic_method = tutti::DropMethod::sample, .drop_rate = 0.1},
        ChannelsLast{}, SAM{.rho = 0.5, .interval = 5}, ema);
  } else {
    TORCH_CHECK(false, "--recipe is ", settings.recipe, ", expected none, mild, medium or hot");
  }
} catch (...) {
  return tutti::report_failure();
}
