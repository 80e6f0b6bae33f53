// One training step of a small network in C++: microseconds per step.
//
//     benchmark_peer_tutti torch_optim|fused_sgd|tutti|tutti_metric|tutti_algorithms
//
// Claim: tutti's Trainer takes a step faster than a hand-written loop over torch::optim::SGD,
// because its optimizers use the fused kernels, and costs next to nothing over the fastest
// hand-written one. run.py runs these and the Python peers alternately and prints the table.

#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "peers/loops.hpp"

namespace {

constexpr std::int64_t warm_up = 500, block = 200, blocks = 15;

template <class... Policies>
void train(const std::shared_ptr<bench::Stopwatch>& data, bool metric, Policies... policies) {
  tutti::ClassifierOptions options{.num_classes = bench::classes};
  if (!metric) {
    options.train_metrics = tutti::Metrics{};
  }
  tutti::Trainer<Policies...> trainer(
      tutti::Classifier(bench::mlp(), options),
      {.train = data,
       .max_duration = "1ep",
       .optimizer = tutti::SGD{.lr = bench::lr, .momentum = bench::momentum},
       .device = "cpu",
       .seed = 1,
       .progress_bar = false},
      std::move(policies)...);
  trainer.fit();
}

bool run(const std::string& name, const std::shared_ptr<bench::Stopwatch>& data) {
  if (name == "torch_optim") {
    bench::loop_with_torch_optim(*data);
  } else if (name == "fused_sgd") {
    bench::loop_with_fused_sgd(*data);
  } else if (name == "tutti") {
    train(data, false);
  } else if (name == "tutti_metric") {
    train(data, true);
  } else if (name == "tutti_algorithms") {
    train(data, false, tutti::MixUp{.alpha = 0.2}, tutti::LabelSmoothing{.smoothing = 0.1},
          tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                  .clipping_threshold = 1.0});
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const std::string name = argc == 2 ? argv[1] : "";
  auto data = std::make_shared<bench::Stopwatch>(warm_up, block, blocks);
  if (!run(name, data)) {
    std::fprintf(stderr, "usage: %s torch_optim|fused_sgd|tutti|tutti_metric|tutti_algorithms\n",
                 argv[0]);
    return 2;
  }
  bench::report(name, *data);
}
