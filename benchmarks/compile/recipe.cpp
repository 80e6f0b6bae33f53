// What somebody has on the desk: a network, data, and a recipe of four policies, one of them their
// own. run.py compiles it as tutti_add_program() does.
#include <cstdio>
#include <cstdlib>

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <tutti/tutti.hpp>

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t classes) {
    conv = register_module("conv", tutti::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3)));
    norm = register_module("norm", tutti::nn::BatchNorm2d(16));
    pool = register_module("pool", tutti::nn::MaxPool2d(2));
    out = register_module("out", tutti::nn::Linear(16 * 3 * 3, classes));
  }
  at::Tensor forward(const at::Tensor& x) {
    return out->forward(pool->forward(norm->forward(conv->forward(x)).relu()).flatten(1));
  }
  tutti::nn::Conv2d conv{nullptr};
  tutti::nn::BatchNorm2d norm{nullptr};
  tutti::nn::MaxPool2d pool{nullptr};
  tutti::nn::Linear out{nullptr};
};
TORCH_MODULE(Net);

// Adds noise to the gradients.
struct GradientNoise final {
  double stddev = 1e-3;
  tutti::Rng rng{};

  void apply(tutti::AfterTrainBatch, tutti::State& state) {
    for (auto& parameter : state.model->parameters()) {
      if (auto& grad = parameter.mutable_grad(); grad.defined()) {
        grad.add_(grad, stddev * (rng.uniform() - 0.5));
      }
    }
  }
};

int main() try {
  tutti::seed_all(17);
  const at::Tensor images = at::rand({1000, 1, 8, 8});
  const at::Tensor labels = at::randint(10, {1000}, at::kLong);
  tutti::Classifier model{Net(10), {.num_classes = 10}};
  tutti::Trainer trainer{
      model,
      {.train = tutti::TensorLoader{images, labels, {.batch_size = 64, .shuffle = true}},
       .eval = {{"test", tutti::TensorLoader{images, labels, {.batch_size = 256}}}},
       .max_duration = "10ep",
       .optimizer = tutti::DecoupledAdamW{.lr = 1e-3, .weight_decay = 1e-5},
       .schedule = tutti::CosineAnnealingWithWarmup{.t_warmup = "1ep"},
       .save_folder = "run"},
      tutti::MixUp{.alpha = 0.3},
      tutti::LabelSmoothing{.smoothing = 0.1},
      GradientNoise{.stddev = 1e-4},
      tutti::EMA{.half_life = "100ba"}};
  trainer.fit();
  std::printf("%.3f\n", trainer.state().metric("test", "MulticlassAccuracy"));
  return EXIT_SUCCESS;
} catch (...) {
  return tutti::report_failure();
}
