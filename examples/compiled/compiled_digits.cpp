// SPDX-License-Identifier: Apache-2.0
// Trains a vision transformer of timm, exported from Python, on handwritten digits with MixUp and
// EMA.
//
// Run it:    compiled_digits, with the package beside this file (it is data); docs/compiled.md
// exports a
//            compiled one, for --package
// It prints: the accuracy on 360 unseen digits with EMA's average, and how Python loads the weights
//            that were trained, whose accuracy is near it
// ctest: --max-duration 1ep --weights compiled-digits-test.safetensors
#include <cstdio>
#include <filesystem>
#include <string>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/cli.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/compiled.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

// Every fifth of the 1,797 images is a test image, as in digits.cpp and check.py.
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
  std::string package = TUTTI_EXAMPLES_DATA "/../compiled/digits.tutti";
  std::string weights = "trained.safetensors";
  tutti::TrainerOptions options{.max_duration = "30ep", .device = "cpu", .seed = 17};
  tutti::cli::Program program{"compiled_digits", "Trains an exported model on handwritten digits."};
  program.add("--package", package, "folder of tutti_export.py")
      .add("--weights", weights, "where the trained weights go, a new file")
      .add(options)
      .parse(argc, argv);
  options.train = load(true);
  options.eval = {{"test", load(false)}};
  options.optimizer = tutti::AdamW{.lr = 2e-3, .weight_decay = 1e-2};
  options.schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "2ep"};

  tutti::seed_all(options.seed.value_or(17));
  const auto net = tutti::load_compiled(package);
  tutti::Trainer<tutti::MixUp, tutti::EMA> trainer{tutti::Classifier{net, {.num_classes = 10}},
                                                   options, tutti::MixUp{.alpha = 0.2},
                                                   tutti::EMA{.half_life = "20ba"}};
  trainer.fit();
  std::printf("test accuracy: %.2f %%\n",
              100 * trainer.state().metric("test", "MulticlassAccuracy"));
  std::filesystem::remove(weights);
  net->save_weights(weights);
  std::printf("weights: %s; in Python: python examples/compiled/check.py %s\n", weights.c_str(),
              weights.c_str());
} catch (...) {
  return tutti::report_failure();
}
