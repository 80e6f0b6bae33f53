// SPDX-License-Identifier: Apache-2.0
// Trains a residual network on CIFAR-10 with a recipe of eight algorithms.
//
// Run it:    cifar10 --data PATH; alone it says where the images come from, --help lists the rest
// It prints: a progress bar, and the accuracy on the test images after every epoch. The first
//            epochs are the fastest: images are small at first and grow
// ctest: --data demo --max-duration 3ep
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/squeeze_excite.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/data/random_flip.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

#include "images.hpp"

using tutti::data::ImageSet;
using tutti::data::Split;
using Recipe = tutti::Trainer<tutti::RandAugment, tutti::ProgressiveResizing, tutti::CutMix,
                              tutti::LabelSmoothing, tutti::SqueezeExcite, tutti::BlurPool,
                              tutti::ChannelsLast, tutti::EMA>;

tutti::ImageLoader make_loader(const std::string& path, Split split) {
  const ImageSet set = example::load(path, split);
  tutti::ImageLoaderOptions options{.batch_size = 128,
                                    .shuffle = split == Split::train,
                                    .mean = {0.491, 0.482, 0.447},
                                    .std = {0.247, 0.243, 0.262}};
  if (split == Split::train) {
    options.transforms = {{"crop", tutti::data::RandomCrop{.size = 32, .padding = 4}},
                          {"flip", tutti::data::RandomHorizontalFlip{}}};
  }
  return {set.images, set.labels, options};
}

int main(int argc, char** argv) try {
  std::string path;
  tutti::TrainerOptions options{.max_duration = "20ep", .seed = 17};
  tutti::cli::Program program{"cifar10", "Trains a residual network on CIFAR-10."};
  program.add("--data", path, "where the images are").add(options).parse(argc, argv);
  if (path.empty()) {
    std::printf("cifar10 --data PATH trains on these images; %s", example::where_images_are);
    return 0;
  }
  tutti::seed_all(17);
  const tutti::ImageLoader train = make_loader(path, Split::train);
  tutti::Classifier model{tutti::models::cifar_resnet20()};
  options.train = train;
  options.eval = {{"test", make_loader(path, Split::test)}};
  options.optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "0.1dur"};
  Recipe trainer{model,
                 options,
                 tutti::RandAugment{.severity = 5, .depth = 1},
                 tutti::ProgressiveResizing{.initial_scale = 0.5, .delay_fraction = 0.3},
                 tutti::CutMix{},
                 tutti::LabelSmoothing{},
                 tutti::SqueezeExcite{.latent_channels = 0.25, .min_channels = 32},
                 tutti::BlurPool{},
                 tutti::ChannelsLast{},
                 tutti::EMA{.half_life = tutti::Time::batches((train.size() + 3) / 4)}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  const double accuracy = trainer.state().metric("test", "MulticlassAccuracy");
  std::printf("test accuracy: %.2f %%\n", 100 * accuracy);
} catch (...) {
  return tutti::report_failure();
}
