// SPDX-License-Identifier: Apache-2.0
// Trains a small residual network on real handwritten digits with a recipe of four algorithms.
//
// Run it:    cmake -P cmake/quickstart.cmake, or the program alone; --help lists its options
// It prints: what the run is, a line for every epoch with the accuracy on 360 unseen digits (98 %
//            at the end, in well under a minute on two cores), a table of the best and last
//            metrics, where the weights are, and the command that trains on
// As two processes: see docs/distributed.md; many times with other options: docs/sweep.md
// ctest: --max-duration 2ep --run-folder digits-test
#include <cstdio>
#include <string>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

using Recipe = tutti::Trainer<tutti::MixUp, tutti::BlurPool, tutti::LabelSmoothing, tutti::EMA,
                              tutti::JSONLinesLogger>;

// 1,797 images of 8x8 pixels with 17 grey levels. Every fifth one, from the first on, is a test
// image: 360 of them, and 1,437 to train on, so that every writer's hand is in both parts.
tutti::TensorLoader load(bool train) {
  const std::string folder = TUTTI_EXAMPLES_DATA;
  at::Tensor images = tutti::data::load_idx(folder + "/digits-images.idx3-ubyte");  // (1797, 8, 8)
  at::Tensor labels = tutti::data::load_idx(folder + "/digits-labels.idx1-ubyte").to(at::kLong);
  images = images.to(at::kFloat).unsqueeze(1).div(8).sub(1);  // (1797, 1, 8, 8) in -1..1
  const at::Tensor is_test = at::arange(images.size(0)).remainder(5).eq(0);
  const at::Tensor rows = (train ? is_test.logical_not() : is_test).nonzero().flatten();
  return {images.index_select(0, rows),
          labels.index_select(0, rows),
          {.batch_size = 64, .shuffle = train}};
}

int main(int argc, char** argv) try {
  tutti::TrainerOptions options{.max_duration = "30ep",
                                .seed = 17,
                                .run_name = "digits",
                                .run_folder = "digits-run",
                                .save_interval = "10ep",
                                .save_overwrite = true};
  double lr = 0.1;
  tutti::cli::Program program{"digits", "Trains a small residual network on handwritten digits."};
  program.add("--lr", lr, "learning rate").add(options).parse(argc, argv);
  options.train = load(true);
  options.eval = {{"test", load(false)}};
  options.optimizer = tutti::DecoupledSGDW{.lr = lr, .momentum = 0.9, .weight_decay = 5e-4};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "2ep"};

  tutti::seed_all(options.seed.value_or(17));
  tutti::Classifier model{tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}}),
                          {.num_classes = 10}};
  Recipe trainer{model,
                 options,
                 tutti::MixUp{.alpha = 1.0},
                 tutti::BlurPool{},
                 tutti::LabelSmoothing{},
                 tutti::EMA{.half_life = "50ba"},
                 tutti::JSONLinesLogger{.overwrite = true}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  if (trainer.state().rank == 0) {
    const double accuracy = trainer.state().metric("test", "MulticlassAccuracy");
    std::printf("test accuracy: %.2f %%\n", 100 * accuracy);
  }
} catch (...) {
  return tutti::report_failure();
}
