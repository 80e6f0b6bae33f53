// SPDX-License-Identifier: Apache-2.0
// Trains on real handwritten digits with three policies of one's own: an algorithm, a callback and
// a destination for what is logged. docs/extending.md leads through own_policies.hpp, which has
// them.
//
// Run it:    own_policies; --max-duration 10ep for another length, --k 10 for another Lookahead
// It prints: the loss and the accuracy on 360 unseen digits after every epoch; metrics.csv has
//            every number
// ctest: --max-duration 2ep --metrics-file own_policies.csv
#include "own_policies.hpp"

#include <cstdio>
#include <string>

#include <tutti/cli.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/train/reproducibility.hpp>
#include <tutti/trainer.hpp>

// Every fifth of 1,797 images is a test image.
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
  tutti::TrainerOptions options{.max_duration = "5ep", .seed = 17};
  Lookahead lookahead{};
  CsvFile file{};
  tutti::cli::Program program{"own_policies", "Trains with policies of one's own."};
  program.add("--k", lookahead.k, "batches between two updates of the slow weights")
      .add("--metrics-file", file.path, "where every number goes")
      .add(options)
      .parse(argc, argv);
  options.train = load(true);
  options.eval = {{"test", load(false)}};
  options.optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4};

  tutti::seed_all(options.seed.value_or(17));
  tutti::Classifier model{tutti::models::cifar_resnet({.in_channels = 1, .blocks = {1, 1, 1}}),
                          {.num_classes = 10}};
  tutti::Trainer<Lookahead, HardestBatch, CsvFile> trainer{model, options, lookahead,
                                                           HardestBatch{}, std::move(file)};
  trainer.fit();
} catch (...) {
  return tutti::report_failure();
}
