#include <tutti/fused/engine.hpp>

#include "support/catch.hpp"

#include <memory>
#include <set>
#include <vector>

#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/core/switch.hpp>

#include "fused/runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace fused_runs;
using tutti::ColOut;
using tutti::CutMix;
using tutti::CutOut;
using tutti::LabelSmoothing;
using tutti::MixUp;
using tutti::ProgressiveResizing;
using tutti::Switch;

namespace {

// One type for all runs; each test turns on what it needs.
Outcome run_with(const TrainerOptions& with, bool fuse, bool dense, const std::vector<bool>& has,
                 const MixUp& mixup = {.alpha = 1}, const CutOut& cutout = {}) {
  return train(with, dense, normalize(fuse), Switch(ColOut{.p_row = 0.2}, has[0]),
               Switch(ProgressiveResizing{.delay_fraction = 0.2, .size_increment = 1}, has[1]),
               Switch(cutout, has[2]), Switch(mixup, has[3]), Switch(CutMix{}, has[4]),
               Switch(LabelSmoothing{.smoothing = 0.2}, has[5]));
}

// The same without fusing, on the loader's floats.
Outcome run_on_floats(bool dense, const std::vector<bool>& has, const CutOut& cutout) {
  return train(options(false), dense, Switch(ColOut{.p_row = 0.2}, has[0]),
               Switch(ProgressiveResizing{.delay_fraction = 0.2, .size_increment = 1}, has[1]),
               Switch(cutout, has[2]), Switch(MixUp{.alpha = 1}, has[3]), Switch(CutMix{}, has[4]),
               Switch(LabelSmoothing{.smoothing = 0.2}, has[5]));
}

// Keeps every second of its inputs, and copies of them.
struct Keeper : torch::nn::Module {
  Keeper() { out = register_module("out", torch::nn::Linear(3, classes)); }
  at::Tensor forward(const at::Tensor& x) {
    places.insert(x.const_data_ptr());
    if (calls++ % 2 == 0) {
      kept.push_back(x);
      copies.push_back(x.clone());
    }
    return out->forward(x.mean({2, 3}));
  }
  torch::nn::Linear out{nullptr};
  std::set<const void*> places;
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> copies;
  int calls = 0;
};

}  // namespace

TEST_CASE("inputs that somebody keeps stay as they were, the memory of the others is used again",
          "[fused][engine][law]") {
  auto net = std::make_shared<Keeper>();
  const at::Tensor x = at::randint(0, 256, {160, 3, 32, 64}, at::kByte);
  tutti::Trainer trainer(tutti::Classifier(net, {.num_classes = classes}),
                         {.train = tutti::ImageLoader(x, at::randint(0, classes, {160}, at::kLong),
                                                      {.batch_size = 16, .to_float = false}),
                          .max_duration = "2ep",
                          .seed = 1,
                          .progress_bar = false},
                         normalize(true), MixUp{});
  trainer.fit();
  REQUIRE(net->calls == 20);
  for (std::size_t i = 0; i < net->kept.size(); ++i) {
    CHECK(net->kept[i].equal(net->copies[i]));
  }
  CHECK(net->places.size() < 15);  // ten are kept
}

TEST_CASE("a recipe that fuses trains as the same policies one after the other",
          "[fused][engine][law]") {
  for (unsigned subset = 0; subset < 64; ++subset) {
    std::vector<bool> has(6);
    for (unsigned bit = 0; bit < has.size(); ++bit) {
      has[bit] = (subset >> bit & 1U) != 0;
    }
    const CutOut cutout{.num_holes = 2, .per_image = subset % 3 == 0};
    const MixUp mixup{.alpha = 1};
    INFO("subset " << subset);
    const Outcome separate = run_on_floats(true, has, cutout);
    check_same(run_with(options(true), true, true, has, mixup, cutout), separate);
    check_same(run_with(options(true), false, true, has, mixup, cutout), separate);
    check_close(run_with(options(true), true, false, has, mixup, cutout),
                run_on_floats(false, has, cutout));
  }
}

TEST_CASE("where targets are not mixed as the images are, the loss is as without fusing",
          "[fused][engine][law]") {
  const std::vector<bool> mixing{true, false, true, true, false, true};
  const auto check = [&](const TrainerOptions& with, const MixUp& mixup) {
    check_same(run_with(with, true, false, mixing, mixup),
               run_with(with, false, false, mixing, mixup));
  };
  check(options(true), {.alpha = 1, .interpolate_loss = true});

  const auto changed = [](tutti::Batch (*change)(tutti::Batch)) {
    TrainerOptions with = options(true);
    with.train.hooks.batch_transform = change;
    return with;
  };
  check(changed([](tutti::Batch batch) {
          batch.targets() = batch.targets().unsqueeze(1).eq(at::arange(classes)).to(at::kFloat);
          return batch;
        }),
        {.alpha = 1});
}

TEST_CASE("inputs that are not the batch's are mixed by themselves", "[fused][engine][law]") {
  TrainerOptions with = options(true);
  with.train.hooks.batch_transform = [](tutti::Batch batch) {
    batch["others"] = batch.inputs().to(at::kFloat);
    return batch;
  };
  const std::vector<bool> mixing{true, true, true, true, true, false};
  const MixUp others{.alpha = 1, .input_key = "others"};
  const CutOut cutout{.input_key = "others"};
  check_same(run_with(with, true, true, mixing, others, cutout),
             run_with(with, false, true, mixing, others, cutout));
  check_close(run_with(with, true, false, mixing, others, cutout),
              run_with(with, false, false, mixing, others, cutout));
  const MixUp by_name{.alpha = 1, .input_key = "inputs", .target_key = "targets"};
  check_same(run_with(with, true, true, mixing, by_name, cutout),
             run_with(with, false, true, mixing, by_name, cutout));
}

TEST_CASE("bytes wait for the device where there is a pass for it", "[fused][engine][cuda]") {
  const at::Tensor x = images(true, 4, 4).next()->inputs();
  const auto waits = [&](at::Device device) {
    tutti::fused::Engine<tutti::Engine<Normalize, CutOut, MixUp>> engine(normalize(true), CutOut{},
                                                                         MixUp{});
    tutti::State state;
    state.device = device;
    state.batch = tutti::Batch(x, at::zeros({4}, at::kLong));
    engine.allow_deferred(true);
    engine.fire<tutti::AfterDataloader>(state);
    return state.batch.inputs().scalar_type() == at::kByte;
  };
  CHECK(waits(at::kCPU));
  CHECK(waits(at::Device(at::kCUDA, 0)) == tutti::fused::detail::has_kernels);
  CHECK_FALSE(waits(at::Device(at::kMPS, 0)));
}

TEST_CASE("a fused recipe has the same inputs on a GPU as on the CPU",
          "[fused][engine][cuda][gpu]") {
  if (!tutti::fused::detail::has_kernels || !torch::cuda::is_available()) {
    return tutti_test::skip("built without TUTTI_WITH_CUDA, or there is no CUDA device");
  }
  const auto on = [](const char* device, bool dense, bool interpolate) {
    TrainerOptions with = options(true);
    with.device = device;
    return run_with(with, true, dense, {true, true, true, true, !interpolate, true},
                    {.alpha = 1, .interpolate_loss = interpolate}, {.per_image = true});
  };
  for (const bool dense : {false, true}) {
    for (const bool interpolate : {false, true}) {
      Outcome there = on("cuda", dense, interpolate);
      const Outcome here = on("cpu", dense, interpolate);
      for (at::Tensor& input : there.inputs) {
        CHECK(input.is_cuda());
        input = input.cpu();
      }
      check_inputs(there, here);  // also those of evaluation
      CHECK(there.weights.cpu().allclose(here.weights, 1e-2, 5e-3));
    }
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
