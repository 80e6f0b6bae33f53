// Claim: layers of tutti::nn are no slower than those of torch::nn that they stand for, and
// several times as fast where ATen's loops on the CPU are slow. fp32, training, one thread.
//
// Usage: benchmark_layers [ALTERNATIONS]. Both ways of every case are timed once per alternation,
// in turn, so that slow changes of the machine hit all alike. Prints one line of JSON: the
// microseconds of CPU time of each, forward alone and with backward.

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/pooling.hpp>

namespace {

struct Case {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> ours, theirs;
  at::Tensor x, weights;
};

template <class Ours, class Theirs, class Options>
Case make_case(const std::string& name, const Options& options, at::Tensor x) {
  Ours ours(options);
  Theirs theirs(options);
  const at::Tensor weights = at::randn_like(ours(x));
  return {name, ours, theirs, std::move(x), weights};
}

std::vector<Case> cases() {
  using torch::nn::BatchNormOptions;
  using torch::nn::GroupNormOptions;
  using torch::nn::MaxPool2dOptions;
  constexpr auto last = at::MemoryFormat::ChannelsLast;
  const auto images = [](std::int64_t channels, std::int64_t side, at::MemoryFormat format) {
    return at::randn({32, channels, side, side}).contiguous(format);
  };
  std::vector<Case> out;
  for (const auto format : {at::MemoryFormat::Contiguous, last}) {
    const std::string end = format == last ? "_last" : "";
    for (const std::int64_t side : {56, 16, 8}) {
      out.push_back(make_case<tutti::nn::BatchNorm2d, torch::nn::BatchNorm2d>(
          "batchnorm_" + std::to_string(side) + end, BatchNormOptions(64),
          images(64, side, format)));
    }
    out.push_back(make_case<tutti::nn::MaxPool2d, torch::nn::MaxPool2d>(
        "maxpool2_32" + end, MaxPool2dOptions(2), images(32, 32, format)));
    out.push_back(make_case<tutti::nn::MaxPool2d, torch::nn::MaxPool2d>(
        "maxpool3_112" + end, MaxPool2dOptions(3).stride(2).padding(1), images(64, 112, format)));
  }
  out.push_back(make_case<tutti::nn::GroupNorm, torch::nn::GroupNorm>(
      "groupnorm_16", GroupNormOptions(4, 16), images(16, 16, last)));
  return out;
}

// What comes in has just been written, as by the layer next to this one.
double microseconds(const Case& what, bool ours, bool backward) {
  const at::Tensor x = what.x.clone().requires_grad_(backward);
  const c10::AutoGradMode grad(backward);
  std::clock_t before = std::clock();
  const at::Tensor y = (ours ? what.ours : what.theirs)(x);
  std::clock_t took = std::clock() - before;
  if (backward) {
    const at::Tensor dy = what.weights.clone();
    before = std::clock();
    y.backward(dy);
    took += std::clock() - before;
  }
  return 1e6 * static_cast<double>(took) / CLOCKS_PER_SEC;
}

}  // namespace

int main(int argc, char** argv) {
  const int alternations = argc > 1 ? std::atoi(argv[1]) : 20;
  at::set_num_threads(1);
  const std::vector<Case> all = cases();
  std::map<std::string, std::vector<double>> times;
  for (int i = -2; i < alternations; ++i) {  // the first two warm up
    for (const Case& what : all) {
      for (const bool backward : {false, true}) {
        for (const bool ours : {i % 2 == 0, i % 2 != 0}) {
          const double took = microseconds(what, ours, backward);
          if (i >= 0) {
            times[what.name + (backward ? "_both" : "_forward") + (ours ? "_tutti" : "_torch")]
                .push_back(took);
          }
        }
      }
    }
  }
  std::printf("{\"torch\": \"%s\"", TORCH_VERSION);
  for (const auto& [name, values] : times) {
    std::printf(", \"%s\": [", name.c_str());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::printf("%s%.1f", i == 0 ? "" : ", ", values[i]);
    }
    std::printf("]");
  }
  std::printf("}\n");
}
