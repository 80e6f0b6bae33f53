// Claim: Normalize + MixUp + CutOut of 64 x 3 x 224 x 224 bytes in one fused pass takes about as
// long as making floats of them alone, and five transforms hardly longer than two. CPU, one thread.
//
// The data part of a trainer's step, from the batch of bytes to what the model sees, fused and with
// the same policies one after the other.
//
// Usage: benchmark_fused [ALTERNATIONS]. Every way of doing it is timed once per alternation, in
// turn, so that slow changes of the machine hit all alike. Prints one line of JSON: the times of
// each.

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/core/engine.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

namespace {

using tutti::Rng;
using tutti::fused::Pass;

const std::vector<double> mean{0.485, 0.456, 0.406};
const std::vector<double> deviation{0.229, 0.224, 0.225};
const tutti::fused::Normalize normalize{.mean = mean, .std = deviation};

at::Tensor per_channel(const std::vector<double>& values) {
  return at::tensor(values, at::kFloat).view({-1, 1, 1});
}

// CPU time of the process, which other work on the machine hardly moves.
double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Draws {
  at::Tensor indices;
  double mixing;
  tutti::fused::Box hole;
};

Draws draw(Rng& rng, const at::Tensor& x) {
  const double mixing = tutti::functional::draw_mixing(rng, 0.2);
  return {rng.permutation(x.size(0)), mixing,
          tutti::detail::draw_hole(rng, x.size(2), x.size(3), x.size(2) / 2, false)};
}

// As one writes it down.
at::Tensor straightforward(const at::Tensor& images, Rng& rng) {
  const Draws draws = draw(rng, images);
  at::Tensor x = (images.to(at::kFloat) / 255 - per_channel(mean)) / per_channel(deviation);
  x = (1 - draws.mixing) * x + draws.mixing * x.index_select(0, draws.indices);
  at::Tensor mask = at::ones_like(x);
  const auto& hole = draws.hole;
  mask.slice(2, hole.top, hole.bottom).slice(3, hole.left, hole.right).zero_();
  return x * mask;
}

// With every operation in place that can be.
at::Tensor in_place(const at::Tensor& images, Rng& rng) {
  const Draws draws = draw(rng, images);
  at::Tensor x =
      images.to(at::kFloat).div_(255).sub_(per_channel(mean)).div_(per_channel(deviation));
  const at::Tensor partner = x.index_select(0, draws.indices).mul_(draws.mixing);
  x.mul_(1 - draws.mixing).add_(partner);
  const auto& hole = draws.hole;
  x.slice(2, hole.top, hole.bottom).slice(3, hole.left, hole.right).zero_();
  return x;
}

template <class... Stages>
std::function<at::Tensor(const at::Tensor&)> fused(Stages... stages) {
  return [pass = Pass{normalize, stages...}](const at::Tensor& images) mutable {
    return pass.plan(images)(images);
  };
}

using Accepted = tutti::accept<tutti::CutMix, tutti::CutOut>;

struct Nothing : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) { return outputs.tensor(); }
};

// What a recipe does with a batch before the model sees it.
template <class... Ps>
std::function<at::Tensor(const at::Tensor&)> recipe(bool fuse, Ps... policies) {
  using tutti::fused::Normalize;
  using Base = tutti::Engine<Normalize, Ps...>;
  using Engine = typename decltype(tutti::detail::brought_engine<Base>(
      tutti::types<Normalize, Ps...>{}))::type;
  Normalize first = normalize;
  first.fuse = fuse;
  auto engine = std::make_shared<Engine>(first, policies...);
  engine->allow_deferred(true);
  tutti::seed_policies(*engine, 1);
  auto state = std::make_shared<tutti::State>();
  state->task = std::make_shared<Nothing>();
  state->max_duration = "10ep";
  return [engine, state](const at::Tensor& images) {
    state->batch = tutti::Batch(images, at::zeros({images.size(0)}, at::kLong));
    engine->template fire<tutti::AfterDataloader>(*state);
    engine->template fire<tutti::BatchStart>(*state);
    engine->template fire<tutti::BeforeTrainBatch>(*state);
    engine->template fire<tutti::BeforeForward>(*state);
    return state->batch.inputs();
  };
}

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);
  const int alternations = count > 1 ? std::atoi(arguments[1]) : 40;
  at::manual_seed(0);
  const at::Tensor images = at::randint(0, 256, {64, 3, 224, 224}, at::kByte);
  Rng rng(1);
  const tutti::MixUp mixup;
  const tutti::CutOut cutout;
  const tutti::ColOut colout{.p_row = 0.01, .p_col = 0.01};  // as many pixels, but for 2 %
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> ways{
      {"cast", [](const at::Tensor& x) { return x.to(at::kFloat); }},
      {"straightforward", [&](const at::Tensor& x) { return straightforward(x, rng); }},
      {"in_place", [&](const at::Tensor& x) { return in_place(x, rng); }},
      {"fused", fused(mixup, cutout)},
      {"fused_two", fused(mixup)},
      {"fused_five", fused(colout, cutout, mixup, tutti::CutMix{})},
      {"recipe", recipe(true, cutout, mixup)},
      {"recipe_apart", recipe(false, cutout, mixup)},
      {"recipe_five", recipe(true, colout, cutout, mixup, Accepted{}, tutti::CutMix{})},
      {"recipe_five_apart", recipe(false, colout, cutout, mixup, Accepted{}, tutti::CutMix{})},
  };
  std::vector<std::vector<double>> times(ways.size());
  for (int round = -2; round < alternations; ++round) {  // two to warm up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t way = round % 2 == 0 ? i : ways.size() - 1 - i;
      const double before = milliseconds();
      const at::Tensor out = ways[way].second(images);
      const double passed = milliseconds() - before;
      if (round >= 0) {
        times[way].push_back(passed);
      }
    }
  }
  std::printf("{\"kernels\": \"%s\", \"torch\": \"%s\"",
              tutti::fused::detail::available().back().name, TORCH_VERSION);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    std::printf(", \"%s\": [", ways[way].first.c_str());
    for (std::size_t i = 0; i < times[way].size(); ++i) {
      std::printf("%s%.3f", i == 0 ? "" : ", ", times[way][i]);
    }
    std::printf("]");
  }
  std::printf("}\n");
}
