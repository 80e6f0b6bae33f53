// SPDX-License-Identifier: Apache-2.0
// Trains Keller Jordan's airbench network on CIFAR-10 in eight epochs.
//
// Run it:    airbench --data PATH; alone it says where the images come from, --help lists the rest
// It prints: a progress bar, the accuracy on the test images after every epoch, and at the end that
//            of six views of each test image together
// Its page:  docs/zoo.md, with what was measured
// ctest: --data demo --width 8 --batch-size 64 --max-duration 3ep --run-folder airbench-test
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <tutti/algorithms/channels_last.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/cli.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/stateful.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/optim/groups.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/trainer.hpp>

#include "../images.hpp"

namespace nn = tutti::nn;
using torch::optim::OptimizerParamGroup;
using tutti::data::ImageSet;
using tutti::data::Split;

const std::vector<double> mean{0.4914, 0.4822, 0.4465};
const std::vector<double> deviation{0.2470, 0.2435, 0.2616};

// A 3x3 convolution that hands its input on: its first filters are the identity.
nn::Conv2d dirac(std::int64_t in, std::int64_t out) {
  nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  torch::nn::init::dirac_(conv->weight.detach().slice(0, 0, in));
  return conv;
}

// With biases alone, and statistics that follow the last few batches.
nn::BatchNorm2d norm(std::int64_t channels) {
  nn::BatchNorm2d out(torch::nn::BatchNorm2dOptions(channels).eps(1e-12).momentum(0.4));
  out->weight.set_requires_grad(false);
  return out;
}

struct GroupImpl final : torch::nn::Module {
  GroupImpl(std::int64_t in, std::int64_t out)
      : conv1(register_module("conv1", dirac(in, out))),
        norm1(register_module("norm1", norm(out))),
        conv2(register_module("conv2", dirac(out, out))),
        norm2(register_module("norm2", norm(out))) {}

  at::Tensor forward(const at::Tensor& x) {
    return torch::gelu(norm2(conv2(torch::gelu(norm1(torch::max_pool2d(conv1(x), 2))))));
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
};
TORCH_MODULE(Group);

struct AirbenchNetImpl final : torch::nn::Module {
  using model_features = tutti::types<tutti::takes_images, tutti::fixed_input_size>;

  // width: channels of the first group; the other two have four times as many.
  explicit AirbenchNetImpl(std::int64_t width)
      : whiten(register_module("whiten", nn::Conv2d(torch::nn::Conv2dOptions(3, 24, 2)))),
        group1(register_module("group1", Group(24, width))),
        group2(register_module("group2", Group(width, 4 * width))),
        group3(register_module("group3", Group(4 * width, 4 * width))),
        head(register_module("head",
                             nn::Linear(torch::nn::LinearOptions(4 * width, 10).bias(false)))) {
    const at::NoGradGuard no_grad;
    whiten->weight.set_requires_grad(false);
    head->weight.div_(head->weight.std());
  }

  // The first layer gives 2x2 patches as their principal components, all with a variance of about
  // 1, and those with the other sign. images: [N, 3, 32, 32], normalized.
  void whiten_patches_of(const at::Tensor& images) {
    const at::NoGradGuard no_grad;
    const at::Tensor patches = images.unfold(2, 2, 1).unfold(3, 2, 1);  // [N, 3, 31, 31, 2, 2]
    const at::Tensor flat = patches.permute({0, 2, 3, 1, 4, 5}).reshape({-1, 12});
    const auto [values, vectors] = torch::linalg_eigh(flat.t().mm(flat).div(flat.size(0)), "U");
    const at::Tensor filters =
        vectors.t().reshape({12, 3, 2, 2}) / values.add(5e-4).sqrt().view({-1, 1, 1, 1});
    whiten->weight.copy_(torch::cat({filters, -filters}));
  }

  // x: [N, 3, 32, 32]. Returns [N, 10].
  at::Tensor once(const at::Tensor& x) {
    const at::Tensor y = group3(group2(group1(torch::gelu(whiten(x)))));  // [N, 4 * width, 3, 3]
    const at::Tensor features = torch::max_pool2d(y, 3).flatten(1);       // [N, 4 * width]
    return head(features) / features.size(1);
  }

  // In an evaluation with six views: the image, and it moved by a pixel up and left or down and
  // right, each of them also mirrored; the two in the middle weigh as much as the other four.
  at::Tensor forward(const at::Tensor& x) {
    if (is_training() || !six_views) {
      return once(x);
    }
    const auto both_sides = [this](const at::Tensor& view) {
      return (once(view) + once(view.flip({3}))) / 2;
    };
    const at::Tensor framed = torch::reflection_pad2d(x, {1, 1, 1, 1});  // [N, 3, 34, 34]
    const auto moved = [&](std::int64_t by) {
      return both_sides(framed.narrow(2, by, x.size(2)).narrow(3, by, x.size(3)));
    };
    return both_sides(x) / 2 + (moved(0) + moved(2)) / 4;
  }

  nn::Conv2d whiten;
  Group group1, group2, group3;
  nn::Linear head;
  bool six_views = false;
};
TORCH_MODULE(AirbenchNet);

// Optimizers that step on the same gradients, each for parameters of its own.
class Together final : public torch::optim::Optimizer, public tutti::Stateful {
 public:
  explicit Together(std::vector<std::shared_ptr<Optimizer>> parts)
      : Optimizer(std::vector<OptimizerParamGroup>{},
                  std::make_unique<tutti::optim::GroupOptions<tutti::SGD>>(tutti::SGD{.lr = 0})),
        parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      for (const OptimizerParamGroup& group : part->param_groups()) {
        param_groups_.push_back(group);
      }
    }
  }

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    hand_on();
    for (const auto& part : parts_) {
      part->step();
    }
    return loss;
  }

  using Optimizer::load;
  using Optimizer::save;
  void save(tutti::Archive& archive) const override {
    hand_on();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      dynamic_cast<const Stateful&>(*parts_[i]).save(archive.child(std::to_string(i)));
    }
  }
  void load(const tutti::Archive& archive) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      dynamic_cast<Stateful&>(*parts_[i]).load(archive.child(std::to_string(i)));
    }
    each_group([](OptimizerParamGroup& part, OptimizerParamGroup& own) {
      own.options().set_lr(part.options().get_lr());
    });
  }

 private:
  // The parts' groups are copied into this one's, whose rates the trainer sets.
  void hand_on() const {
    const_cast<Together*>(this)->each_group(
        [](OptimizerParamGroup& part, OptimizerParamGroup& own) {
          part.params() = own.params();
          part.options().set_lr(own.options().get_lr());
        });
  }
  template <class F>
  void each_group(F f) {
    std::size_t i = 0;
    for (const auto& part : parts_) {
      for (OptimizerParamGroup& group : part->param_groups()) {
        f(group, param_groups_.at(i++));
      }
    }
  }

  std::vector<std::shared_ptr<Optimizer>> parts_;
};

// Muon for filters, SGD for the head and the biases. The rates are the original's, which are those
// of the sum of a batch's losses; here the loss is their mean.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Module& net,
                                                        std::int64_t batch_size) {
  using tutti::optim::ParameterGroup;
  ParameterGroup whiten, biases, head, filters;
  for (const auto& parameter : net.named_parameters()) {
    if (parameter->requires_grad()) {
      const std::string& name = parameter.key();
      ParameterGroup& group = name == "whiten.bias"   ? whiten
                              : name == "head.weight" ? head
                              : parameter->dim() == 4 ? filters
                                                      : biases;
      group.names.push_back(name);
      group.parameters.push_back(*parameter);
    }
  }
  const auto examples = static_cast<double>(batch_size);
  for (ParameterGroup* group : {&whiten, &biases, &head}) {
    const double lr = (group == &head ? 0.67 : 0.053) * examples;
    group->settings.lr = lr;
    group->settings.weight_decay = 2e-6 * examples / lr;
  }
  whiten.settings.schedule = tutti::Linear{.t_max = "0.375dur"};  // then it stays as it is
  return std::make_shared<Together>(std::vector<std::shared_ptr<torch::optim::Optimizer>>{
      tutti::optim::build(tutti::SGD{.lr = 0, .momentum = 0.85, .nesterov = true},
                          {whiten, biases, head}),
      tutti::optim::build(
          tutti::Muon{.lr = 0.24, .weight_decay = 0, .momentum = 0.6, .ns_steps = 3}, {filters})});
}

// A filter's direction is what Muon learns: before each step all have a norm of 1 on the average.
struct UnitFilters final {
  static constexpr tutti::About about{.reads_gradients = false};
  void apply(tutti::AfterTrainBatch, tutti::State& state) const {
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : state.model->parameters()) {
      if (weight.dim() == 4 && weight.requires_grad()) {
        weight.mul_(std::sqrt(static_cast<double>(weight.size(0))) / weight.norm());
      }
    }
  }
};

// Every second epoch shows all images mirrored, so that each is seen from both sides in two epochs.
// Which side comes first is drawn once, when they are loaded.
struct AlternatingFlip final {
  bool match(tutti::AfterDataloader, const tutti::State& state) const {
    return state.timestamp.epoch % 2 == 1;
  }
  void apply(tutti::AfterDataloader, tutti::State& state) const {
    state.batch.inputs() = state.batch.inputs().flip({3});
  }
};

using Airbench = tutti::Trainer<AlternatingFlip, tutti::LabelSmoothing, UnitFilters,
                                tutti::ChannelsLast, tutti::JSONLinesLogger>;

int main(int argc, char** argv) try {
  std::string path;
  std::int64_t width = 64;
  std::int64_t batch_size = 2000;
  tutti::TrainerOptions options{.max_duration = "8ep",
                                .schedule_ahead = true,
                                .seed = 17,
                                .run_name = "airbench",
                                .run_folder = "airbench-run",
                                .save_overwrite = true};
  tutti::cli::Program program{"airbench", "Trains the airbench network on CIFAR-10."};
  program.add("--data", path, "where the images are")
      .add("--width", width, "channels of the first group, a quarter of the others'")
      .add("--batch-size", batch_size, "images of a batch")
      .add(options)
      .parse(argc, argv);
  if (path.empty()) {
    std::printf("airbench --data PATH trains on these images; %s", example::where_images_are);
    return 0;
  }
  TORCH_CHECK(width >= 1, "--width is ", width, ", expected 1 or more");
  tutti::seed_all(options.seed.value_or(17));
  ImageSet train = example::load(path, Split::train);
  const ImageSet test = example::load(path, Split::test);
  TORCH_CHECK(batch_size >= 1 && batch_size <= train.images.size(0), "--batch-size is ", batch_size,
              ", expected 1 to ", train.images.size(0), ", the number of images");
  const at::Tensor mirrored = torch::rand({train.images.size(0), 1, 1, 1}).lt(0.5);
  train.images = torch::where(mirrored, train.images.flip({3}), train.images);

  tutti::ImageLoaderOptions images{
      .batch_size = batch_size,
      .shuffle = true,
      .drop_last = true,
      .transforms = {{"crop",
                      tutti::data::RandomCrop{.size = 32,
                                              .padding = 2,
                                              .padding_mode = tutti::data::PaddingMode::reflect}}},
      .mean = mean,
      .std = deviation};
  options.train = tutti::ImageLoader{train.images, train.labels, images};
  options.eval = {
      {"test", tutti::ImageLoader{
                   test.images, test.labels, {.batch_size = 500, .mean = mean, .std = deviation}}}};
  options.optimizer = [batch_size](torch::nn::Module& net) {
    return make_optimizer(net, batch_size);
  };
  options.schedule = tutti::Linear{};

  AirbenchNet net(width);
  const at::Tensor first = train.images.slice(0, 0, 5000).to(torch::kFloat).div(255);
  net->whiten_patches_of((first - torch::tensor(mean).view({3, 1, 1})) /
                         torch::tensor(deviation).view({3, 1, 1}));
  tutti::Classifier model{net, {.num_classes = 10}};
  Airbench trainer{model,
                   options,
                   AlternatingFlip{},
                   tutti::LabelSmoothing{.smoothing = 0.2},
                   UnitFilters{},
                   tutti::ChannelsLast{},
                   tutti::JSONLinesLogger{.overwrite = true}};
  trainer.fit();
  if (trainer.state().eval_metric_values.empty()) {  // --eval-interval 0, or nothing left to train
    trainer.eval();
  }
  const double plain = trainer.state().metric("test", "MulticlassAccuracy");
  net->six_views = true;
  trainer.eval();
  if (trainer.state().rank == 0) {
    std::printf("test accuracy: %.2f %%, of six views %.2f %%\n", 100 * plain,
                100 * trainer.state().metric("test", "MulticlassAccuracy"));
  }
} catch (...) {
  return tutti::report_failure();
}
