// SPDX-License-Identifier: Apache-2.0
// Learns to tell three species of penguins by four measurements.
//
// Run it:    build/my_project, in the folder of penguins.csv
// It prints: a progress bar, the accuracy on 69 unseen penguins, and where the weights are
// Then:      predict.py opens the weights in Python
#include <cstdint>
#include <cstdio>
#include <string>

#include <ATen/ops/arange.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/data/csv.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/failure.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/train/reproducibility.hpp>
#include <tutti/trainer.hpp>

// Two linear layers. The mean and the deviation of the training data are buffers, so that they are
// saved with the weights: whoever opens the file needs nothing else.
struct PenguinNetImpl final : torch::nn::Module {
  PenguinNetImpl(const at::Tensor& features, std::int64_t num_classes)
      : mean(register_buffer("mean", features.mean(at::IntArrayRef{0}))),
        deviation(register_buffer("deviation", features.std(/*dim=*/0, /*unbiased=*/true))),
        hidden(register_module("hidden", tutti::nn::Linear(features.size(1), 32))),
        output(register_module("output", tutti::nn::Linear(32, num_classes))) {}

  at::Tensor forward(const at::Tensor& x) {                // (N, 4)
    return output(hidden((x - mean) / deviation).relu());  // (N, 3)
  }

  at::Tensor mean, deviation;  // (4)
  tutti::nn::Linear hidden, output;
};
TORCH_MODULE(PenguinNet);

int main() try {
  const tutti::data::CsvTable penguins =
      tutti::data::read_csv("penguins.csv", {.label = "species",
                                             .ignore = {"island", "sex", "year"},
                                             .missing = tutti::data::MissingValues::drop_row});

  // The file is sorted by species: every fifth row is for the test, the others are for training.
  const at::Tensor is_test = at::arange(penguins.features.size(0)).remainder(5).eq(0);
  const at::Tensor train_rows = is_test.logical_not().nonzero().flatten();
  const at::Tensor test_rows = is_test.nonzero().flatten();
  const tutti::TensorLoader train{penguins.features.index_select(0, train_rows),
                                  penguins.labels.index_select(0, train_rows),
                                  {.batch_size = 32, .shuffle = true}};
  const tutti::TensorLoader test{penguins.features.index_select(0, test_rows),
                                 penguins.labels.index_select(0, test_rows)};

  tutti::seed_all(17);  // before the model draws its first weights
  const auto num_classes = static_cast<std::int64_t>(penguins.classes.size());
  tutti::Classifier model{PenguinNet(train.dataset().inputs(), num_classes),
                          {.num_classes = num_classes}};

  const tutti::TrainerOptions options{
      .train = train,
      .eval = {{"test", test}},
      .max_duration = "60ep",
      .optimizer = tutti::DecoupledAdamW{.lr = 1e-2, .weight_decay = 1e-5},
      .schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "5ep"},
      .seed = 17,
      .save_folder = "run",
      .save_interval = "10ep",
      .save_overwrite = true,
      .save_num_checkpoints_to_keep = 1};
  tutti::Trainer trainer{model, options, tutti::LabelSmoothing{.smoothing = 0.1},
                         tutti::EMA{.half_life = "50ba"}};
  trainer.fit();

  const double accuracy = trainer.state().metric("test", "MulticlassAccuracy");
  std::printf("test accuracy: %.2f %%\n", 100 * accuracy);
  std::printf("weights:       %s/model.safetensors\n", trainer.last_checkpoint().c_str());
} catch (...) {
  return tutti::report_failure();
}
