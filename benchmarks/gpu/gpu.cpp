// Whole steps of the models that GPUs are bought for: ResNet-50 on 8-bit images and GPT-2 of 124
// million parameters on tokens, in bfloat16 under autocast. pytorch_side.py does the same.
//
// Usage: benchmark_gpu resnet50|resnet50_graphs|gpt2|gpt2_graphs|gpt2_recipe DEVICE BATCH SIZE
// WARM_UP STEPS. SIZE: pixels of an image's side, tokens of a sequence. On the device "cpu" it only
// shows that it works. Prints one line of JSON: examples a second over STEPS, after WARM_UP.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <torch/torch.h>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/fused/normalize.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/cuda_graphs.hpp>
#include <tutti/trainer.hpp>

namespace {

struct Plan {
  std::string name;
  std::string device;
  std::int64_t batch = 0;
  std::int64_t size = 0;
  std::int64_t warm_up = 0;
  std::int64_t steps = 0;
};

// When the device had done what came before the batches asked for after the warm-up and the last.
struct Times {
  using Clock = std::chrono::steady_clock;
  static Clock::time_point now(const Plan& plan) {
    if (plan.device != "cpu") {
      torch::cuda::synchronize();
    }
    return Clock::now();
  }
  std::int64_t asked = 0;
  Clock::time_point begin, end;
};

// The data, and the clock in them.
class Clocked {
 public:
  Clocked(tutti::TensorLoader loader, Plan plan)
      : loader_(std::move(loader)), plan_(std::move(plan)) {}

  void start(std::int64_t epoch, std::int64_t first_batch = 0) {
    loader_.start(epoch, first_batch);
  }
  std::optional<tutti::Batch> next() {
    std::optional<tutti::Batch> out = loader_.next();
    if (out && times_->asked == plan_.warm_up) {
      times_->begin = Times::now(plan_);
    }
    if (out && times_->asked == plan_.warm_up + plan_.steps) {
      times_->end = Times::now(plan_);
    }
    times_->asked += out ? 1 : 0;
    return out;
  }
  [[nodiscard]] std::int64_t size() const { return loader_.size(); }
  [[nodiscard]] std::int64_t batch_size() const { return plan_.batch; }
  [[nodiscard]] std::shared_ptr<Times> times() const { return times_; }

 private:
  tutti::TensorLoader loader_;
  Plan plan_;
  std::shared_ptr<Times> times_ = std::make_shared<Times>();
};

Clocked data_of(const Plan& plan, const tutti::Batch& batch) {
  return {tutti::TensorLoader{
              batch,
              {.batch_size = plan.batch, .shuffle = true, .drop_last = true, .pin_memory = true}},
          plan};
}

Clocked images(const Plan& plan) {
  const std::int64_t n = 4 * plan.batch;
  return data_of(plan, {at::randint(256, {n, 3, plan.size, plan.size}, at::kByte),
                        at::randint(1000, {n}, at::kLong)});
}

Clocked tokens(const Plan& plan) {
  const at::Tensor ids = at::randint(50257, {32 * plan.batch, plan.size}, at::kLong);
  return data_of(plan, {{"input_ids", ids}, {"labels", ids}});
}

template <class Model, class... Policies>
void run(const Plan& plan, Model model, const Clocked& data, const tutti::OptimizerSpec& optimizer,
         Policies... policies) {
  const bool graphs = plan.name.ends_with("_graphs") && plan.device != "cpu";
  tutti::Trainer trainer(std::move(model),
                         {.train = data,
                          .max_duration = tutti::Time::batches(plan.warm_up + plan.steps + 1),
                          .optimizer = optimizer,
                          .device = plan.device,
                          .precision = tutti::Precision::amp_bf16,
                          .cuda_graphs = graphs,
                          .seed = 17,
                          .progress_bar = false},
                         std::move(policies)...);
  trainer.fit();
  const std::chrono::duration<double> seconds = data.times()->end - data.times()->begin;
  const auto examples = static_cast<double>(plan.steps * plan.batch);
  std::printf("{\"name\": \"%s\", \"per_second\": %.3f, \"loss\": %.4f, \"torch\": \"%s\"}\n",
              plan.name.c_str(), examples / seconds.count(),
              trainer.state().loss.template item<double>(), TORCH_VERSION);
}

// Without metrics in training, as the loops beside it.
struct GPT2 final : tutti::models::GPT2LMHeadModelImpl {
  using GPT2LMHeadModelImpl::GPT2LMHeadModelImpl;
  static tutti::Metrics metrics(bool /*train*/) { return {}; }
};

bool choose(const Plan& plan) {
  if (plan.name == "resnet50" || plan.name == "resnet50_graphs") {
    const tutti::Classifier model{tutti::models::resnet50(),
                                  {.num_classes = 1000, .train_metrics = tutti::Metrics{}}};
    run(plan, model, images(plan), tutti::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-5},
        tutti::fused::Normalize{.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}},
        tutti::ChannelsLast{});
    return true;
  }
  const auto model = std::make_shared<GPT2>(
      tutti::models::GPT2Options{.embd_pdrop = 0, .attn_pdrop = 0, .resid_pdrop = 0});
  const tutti::AdamW adamw{.lr = 3e-4, .betas = {0.9, 0.95}, .weight_decay = 0.1};
  if (plan.name == "gpt2" || plan.name == "gpt2_graphs") {
    run(plan, model, tokens(plan), adamw);
    return true;
  }
  if (plan.name == "gpt2_recipe") {
    run(plan, model, tokens(plan), adamw,
        tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                                .clipping_threshold = 1.0},
        tutti::EMA{.smoothing = 0.999});
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  if (argc == 7) {
    plan = {argv[1],
            argv[2],
            std::atoll(argv[3]),
            std::atoll(argv[4]),
            std::atoll(argv[5]),
            std::atoll(argv[6])};
  }
  torch::manual_seed(17);
  if (plan.batch < 1 || plan.size < 1 || plan.steps < 1 || !choose(plan)) {
    std::fprintf(
        stderr,
        "usage: %s resnet50|resnet50_graphs|gpt2|gpt2_graphs|gpt2_recipe DEVICE BATCH SIZE "
        "WARM_UP STEPS\n",
        argv[0]);
    return 2;
  }
}
