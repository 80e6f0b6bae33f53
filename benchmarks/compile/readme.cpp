// The first program of README.md, with data.
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <tutti/tutti.hpp>

int main() {
  const at::Tensor images = at::rand({1000, 3, 32, 32});
  const at::Tensor labels = at::randint(10, {1000}, at::kLong);
  tutti::TensorLoader test_loader{images, labels, {.batch_size = 256}};

  tutti::Classifier model{tutti::models::resnet18({.num_classes = 10}), {.num_classes = 10}};

  tutti::Trainer<tutti::MixUp, tutti::BlurPool, tutti::LabelSmoothing, tutti::EMA> trainer{
      model,
      {.train = tutti::TensorLoader{images, labels, {.batch_size = 128, .shuffle = true}},
       .eval = {{"test", test_loader}},
       .max_duration = "90ep",
       .optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4},
       .schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "5ep"},
       .save_folder = "run/checkpoints"}};
  trainer.fit();
}
