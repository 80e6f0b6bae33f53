// Claims: Adam over 161 tensors of 64 elements takes a thirtieth of torch::optim::Adam's time; a
// step with clipping and averages in the same pass over memory is 1.5 times as fast as the three
// apart, the library's own and those of Composer, PyTorch and LibTorch, on the parameters of a
// ResNet-50 (25.6 million). CPU. What memory allows is measured beside it, by loops that read and
// write the same arrays and compute next to nothing.
//
// Memory is the library's as in a run of a Trainer (train/cpu_memory.hpp). LibTorch's functions are
// timed in the C library's as well, which a loop by hand has.
//
// Usage: benchmark_optim [ALTERNATIONS] [THREADS], or benchmark_optim sizes for the numbers of
// elements of the large model's parameters. Every way is timed once per alternation, in
// turn, so that slow changes of the machine hit all alike. Prints one line of JSON: the times of
// each in microseconds; of the CPU with one thread, by the clock on the wall with more.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/cpu_memory.hpp>

namespace {

using Tensors = std::vector<at::Tensor>;
using tutti::ClippingType;

constexpr double smoothing = 0.999;

double microseconds() {
  if (at::get_num_threads() == 1) {
    return 1e6 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

Tensors give_gradients(const Tensors& parameters) {
  Tensors gradients;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(at::randn_like(parameter).mul_(0.01));
    parameter.mutable_grad() = gradients.back();
  }
  return gradients;
}

Tensors small_parameters() {
  Tensors out;
  for (int i = 0; i < 161; ++i) {
    out.push_back(torch::randn({64}).requires_grad_());
  }
  give_gradients(out);
  return out;
}

// Thresholds each of which clips what the last one has left, without making gradients vanish soon.
class Thresholds {
 public:
  explicit Thresholds(const Tensors& gradients) : last_(tutti::detail::host_norm(gradients)) {}
  double next() { return last_ *= 0.999; }

 private:
  double last_;
};

// A model, its averages, and an optimizer made of `hyper`.
template <class Hyper>
struct Large {
  explicit Large(const Hyper& hyper)
      : parameters(model->parameters()),
        gradients(give_gradients(parameters)),
        averages(*model),
        optimizer(hyper.build(parameters)) {}

  // Three passes with the library's functions.
  void apart(double threshold) {
    tutti::functional::apply_gradient_clipping(parameters, ClippingType::norm, threshold);
    optimizer->step();
    averages.update(smoothing);
  }

  // What a Trainer does with the recipe GradientClipping + EMA.
  void fused_step(double threshold) {
    tutti::detail::Gradients both;
    for (const at::Tensor& parameter : parameters) {
      both.add(parameter);
    }
    tutti::optim::FusedStep fused{.keep_gradients = false};
    tutti::detail::fold_clipping(fused, both.gradients, ClippingType::norm, threshold);
    averages.join(fused, smoothing);
    optimizer->step(fused);
    averages.finish_update(smoothing);
  }

  std::shared_ptr<torch::nn::Module> model = tutti::models::resnet50().ptr();
  Tensors parameters;
  Tensors gradients;
  tutti::functional::EMAParameters averages;
  std::shared_ptr<tutti::optim::Fused<Hyper>> optimizer;
  Thresholds clipping{gradients};
};

// The same with LibTorch's functions.
struct Functions {
  Functions() {
    for (const at::Tensor& parameter : model->parameters()) {
      parameters.push_back(parameter);
      weights.push_back(parameter.detach());
      averages.push_back(parameter.detach().clone());
      first.push_back(at::zeros_like(parameter.detach()));
      second.push_back(at::zeros_like(parameter.detach()));
      steps.push_back(at::ones({}));
    }
    gradients = give_gradients(parameters);
    clipping.emplace(gradients);
  }
  void operator()() {
    const torch::NoGradGuard no_grad;
    torch::nn::utils::clip_grad_norm_(parameters, clipping->next());
    at::_fused_adamw_(weights, gradients, first, second, {}, steps, 1e-3, 0.9, 0.95, 1e-5, 1e-8,
                      false, false);
    at::_foreach_lerp_(averages, weights, 1 - smoothing);
  }
  std::shared_ptr<torch::nn::Module> model = tutti::models::resnet50().ptr();
  Tensors parameters, weights, gradients, averages, first, second, steps;
  std::optional<Thresholds> clipping;
};

// One float for each parameter of the large model, in arrays as many as a step has; what passes
// over them cost when all they do is wait for memory. Same arrays read and written as in Large.
struct Memory {
  [[gnu::noinline]] void norm() { sum += tutti::detail::squares_in_pieces(gradient, size); }
  [[gnu::noinline]] void clip() const {
    for (std::int64_t i = 0; i < size; ++i) {
      gradient[i] *= 0.999F;
    }
  }
  template <bool Adam, bool Follow>
  [[gnu::noinline]] void step() const {
    float* __restrict const p = parameter;
    float* __restrict const m = first;
    float* __restrict const v = second;
    float* __restrict const e = average;
    const float* __restrict const g = gradient;
    for (std::int64_t i = 0; i < size; ++i) {
      m[i] += g[i];
      if constexpr (Adam) {
        v[i] += g[i];
      }
      p[i] += g[i];
      if constexpr (Follow) {
        e[i] += p[i];
      }
    }
  }
  [[gnu::noinline]] void follow() const {
    float* __restrict const e = average;
    const float* __restrict const p = parameter;
    for (std::int64_t i = 0; i < size; ++i) {
      e[i] += p[i];
    }
  }

  template <bool Adam>
  void apart() {
    norm();
    clip();
    step<Adam, false>();
    follow();
  }
  template <bool Adam>
  void fused_step() {
    norm();
    step<Adam, true>();
  }

  explicit Memory(std::int64_t elements) : size(elements) {}
  float* take() { return tensors.emplace_back(at::full({size}, 1e-3F)).mutable_data_ptr<float>(); }

  std::int64_t size;
  Tensors tensors;
  float* const gradient = take();
  float* const parameter = take();
  float* const first = take();
  float* const second = take();
  float* const average = take();
  double sum = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::string(arguments[1]) == "sizes") {
    for (const at::Tensor& parameter : tutti::models::resnet50()->parameters()) {
      std::printf("%ld\n", static_cast<long>(parameter.numel()));
    }
    return 0;
  }
  const int alternations = count > 1 ? std::atoi(arguments[1]) : 20;
  at::set_num_threads(count > 2 ? std::atoi(arguments[2]) : 1);
  at::manual_seed(0);
  const Tensors ours = small_parameters();
  const Tensors theirs = small_parameters();
  const auto small = tutti::Adam{.lr = 1e-3}.build(ours);
  torch::optim::Adam reference(theirs, torch::optim::AdamOptions(1e-3));
  Functions functions;
  const tutti::cpu::Cache cache;
  Functions cached;
  Large<tutti::DecoupledAdamW> adam(tutti::DecoupledAdamW{.lr = 1e-3});
  Large<tutti::DecoupledSGDW> sgd(
      tutti::DecoupledSGDW{.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-5});
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : functions.weights) {
    elements += parameter.numel();
  }
  Memory memory(elements);
  const double rarely = 1e9;
  std::vector<std::pair<std::string, std::function<void()>>> ways{
      {"small_tutti", [&] { small->step(); }},
      {"small_libtorch", [&] { reference.step(); }},
      {"adam_functions", [&] { functions(); }},
      {"adam_functions_cached", [&] { cached(); }},
      {"adam_apart", [&] { adam.apart(adam.clipping.next()); }},
      {"adam_fused_step", [&] { adam.fused_step(adam.clipping.next()); }},
      {"adam_apart_unclipped", [&] { adam.apart(rarely); }},
      {"adam_fused_step_unclipped", [&] { adam.fused_step(rarely); }},
      {"sgd_apart", [&] { sgd.apart(sgd.clipping.next()); }},
      {"sgd_fused_step", [&] { sgd.fused_step(sgd.clipping.next()); }},
      {"adam_memory_apart", [&] { memory.apart<true>(); }},
      {"adam_memory_fused_step", [&] { memory.fused_step<true>(); }},
      {"sgd_memory_apart", [&] { memory.apart<false>(); }},
      {"sgd_memory_fused_step", [&] { memory.fused_step<false>(); }},
  };
  if (at::get_num_threads() > 1) {
    ways.resize(ways.size() - 4);  // those over bare memory have one
  }
  std::vector<std::vector<double>> times(ways.size());
  for (int round = -2; round < alternations; ++round) {  // two to warm up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t way = round % 2 == 0 ? i : ways.size() - 1 - i;
      const auto& name = ways[way].first;
      const int repeats = name.starts_with("small") ? 50 : 1;
      const double before = microseconds();
      for (int k = 0; k < repeats; ++k) {
        ways[way].second();
      }
      const double passed = (microseconds() - before) / repeats;
      if (round >= 0) {
        times[way].push_back(passed);
      }
    }
  }
  std::printf("{\"threads\": %d, \"torch\": \"%s\"", at::get_num_threads(), TORCH_VERSION);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    std::printf(", \"%s\": [", ways[way].first.c_str());
    for (std::size_t i = 0; i < times[way].size(); ++i) {
      std::printf("%s%.2f", i == 0 ? "" : ", ", times[way][i]);
    }
    std::printf("]");
  }
  std::printf("}\n");
}
