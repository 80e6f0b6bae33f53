// What an algorithm does to the end of a short run: its accuracy, and the CPU time that it took.
//
//     benchmark_accuracy NAMES KIND SEED EPOCHS FILES...
//
// NAMES are algorithms with a + between them, or "none". KIND is what is trained, and FILES what
// on: "images" (a residual network on records of CIFAR-10, to train on and to test with), "half"
// (the same in amp_bf16, with GroupNorm behind its first layer), "text" (a GPT-2 on the bytes of a
// file), "masked" (a BERT on the same). The seed decides weights, order and all that is drawn.
// Prints a line of JSON: the CPU seconds of fit(), with the one evaluation at its end, and what
// that found. accuracy.py runs all of them and prints the table of docs/zoo.md.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/data/cifar.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/mask_tokens.hpp>
#include <tutti/data/random_flip.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/tutti.hpp>

#include "support.hpp"

namespace {

using namespace tutti;

constexpr std::int64_t length = 128;      // of a sequence of bytes
constexpr std::int64_t vocabulary = 128;  // ASCII; what hides a byte is the last of them

/// Three stages of one residual block each, at 16, 8 and 4 pixels, and a head with LayerNorm and
/// Dropout, so that there is a layer for every algorithm.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool group_norm, std::int64_t width = 16) {
    stem = register_module(
        "stem", nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).stride(2).padding(1).bias(false)));
    if (group_norm) {
      gn = register_module("gn", nn::GroupNorm(torch::nn::GroupNormOptions(4, width)));
    } else {
      bn = register_module("bn", nn::BatchNorm2d(width));
    }
    body = register_module("body", nn::Sequential());
    body->push_back(models::BasicBlock(models::BlockOptions{.in_channels = width, .width = width}));
    for (const std::int64_t in : {width, 2 * width}) {
      body->push_back(models::BasicBlock(
          models::BlockOptions{.in_channels = in, .width = 2 * in, .stride = 2}));
    }
    hidden = register_module("hidden", nn::Linear(4 * width, 4 * width));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({4 * width})));
    dropout = register_module("dropout", nn::Dropout(0.1));
    fc = register_module("fc", nn::Linear(4 * width, 10));
  }
  at::Tensor forward(at::Tensor x) {  // [N, 3, H, W]
    x = stem(x);
    x = body->forward((bn ? bn(x) : gn(x)).relu()).mean({2, 3});  // [N, 4 * width]
    return fc(dropout(norm(hidden(x)).relu()));                   // [N, 10]
  }
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d bn{nullptr};
  nn::GroupNorm gn{nullptr};
  nn::Sequential body{nullptr};
  nn::Linear hidden{nullptr}, fc{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

struct Plan {
  std::vector<std::string> names;
  std::string kind;
  std::uint64_t seed = 0;
  std::int64_t epochs = 1;
  std::vector<std::string> files;

  [[nodiscard]] bool has(std::string_view name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

/// Trains with those of the algorithms that the plan names; false when it names another.
template <class... As>
bool train(const Plan& plan, const AnyModel& model, TrainerOptions options, const char* metric,
           const As&... algorithms) {
  const auto known = (std::int64_t{0} + ... + std::int64_t{plan.has(name_of<As>())});
  if (known != std::ssize(plan.names)) {
    return false;
  }
  options.max_duration = plan.epochs;
  options.eval_interval = plan.epochs;
  options.allow_idle_policies = true;
  options.device = "cpu";
  options.seed = plan.seed;
  options.progress_bar = false;
  Trainer<Switch<As>...> trainer(model, options,
                                 Switch<As>(algorithms, plan.has(name_of<As>()))...);
  const std::clock_t start = std::clock();
  trainer.fit();
  std::printf("{\"seconds\": %.2f, \"%s\": %.5f}\n",
              static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, metric,
              trainer.state().metric("test", metric));
  return true;
}

bool train_images(const Plan& plan) {
  const auto loader = [&](const std::string& file, bool training) {
    const data::ImageSet set = data::load_cifar10_batches({file});
    ImageLoaderOptions options{
        .batch_size = 64, .mean = {0.491, 0.482, 0.447}, .std = {0.247, 0.243, 0.262}};
    if (training) {
      options.shuffle = options.drop_last = true;
      options.transforms = {{"crop", data::RandomCrop{.size = 32, .padding = 4}},
                            {"flip", data::RandomHorizontalFlip{}}};
    }
    return ImageLoader{set.images, set.labels, options};
  };
  const bool half = plan.kind == "half";
  torch::manual_seed(plan.seed);
  const Classifier model(Net(half), {.num_classes = 10, .train_metrics = Metrics{}});
  const TrainerOptions options{
      .train = loader(plan.files.at(0), true),
      .eval = {{"test", loader(plan.files.at(1), false)}},
      .optimizer = SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4},
      .schedule = CosineAnnealingWithWarmup{.t_warmup = "0.1dur"},
      .precision = half ? Precision::amp_bf16 : Precision::fp32,
  };
  // One look of SAM in ten batches in a recipe, as MosaicML's has it.
  const std::int64_t interval = plan.names.size() > 1 ? 10 : 1;
  return train(plan, model, options, "MulticlassAccuracy", AugMix{}, RandAugment{}, BlurPool{},
               ChannelsLast{}, ColOut{}, CutMix{}, CutOut{}, EMA{.half_life = "50ba"},
               Factorize{.min_channels = 32,
                         .latent_channels = 0.5,
                         .min_features = 64,
                         .latent_features = 0.5},
               GhostBatchNorm{.ghost_batch_size = 16},
               GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1},
               LabelSmoothing{.smoothing = 0.1}, LayerFreezing{}, LowPrecisionGroupNorm{},
               LowPrecisionLayerNorm{}, MixUp{.alpha = 0.2}, ProgressiveResizing{},
               SAM{.interval = interval}, SelectiveBackprop{},
               SqueezeExcite{.latent_channels = 0.25, .min_channels = 16},
               StochasticDepth{.target_layer_name = "ResNetBasicBlock",
                               .stochastic_method = DropMethod::sample,
                               .drop_rate = 0.1},
               WeightStandardization{}) ||
         // What conflicts with some of those.
         train(plan, model, options, "MulticlassAccuracy", GyroDropout{.p = 0.1, .sigma = 64},
               SWA{});
}

/// Sequences of bytes, hidden anew in every epoch.
struct Hidden {
  at::Tensor ids;  // int64 [N, length]
  [[nodiscard]] std::int64_t size() const { return ids.size(0); }
  [[nodiscard]] Batch get(std::int64_t index) const {
    return {{"input_ids", ids[index]}, {"attention_mask", torch::ones({length}, torch::kLong)}};
  }
};

bool train_text(const Plan& plan) {
  // What hides a byte is no byte of the text.
  const auto [ids, unseen] = bench::bytes_of(plan.files.at(0), length, vocabulary - 1);
  torch::manual_seed(plan.seed);
  TrainerOptions options{.optimizer = AdamW{.lr = 2e-3, .weight_decay = 0.01},
                         .schedule = CosineAnnealingWithWarmup{.t_warmup = "0.1dur"}};
  const auto go = [&](const AnyModel& model) {
    return train(plan, model, options, "LanguageCrossEntropy",
                 ALiBi{.max_sequence_length = length, .train_sequence_length_scaling = 1},
                 SeqLengthWarmup{.min_seq_length = 32, .max_seq_length = length}) ||
           train(plan, model, options, "LanguageCrossEntropy", GatedLinearUnits{});
  };
  if (plan.kind == "text") {
    const auto loader = [](const at::Tensor& from, bool training) {
      return TensorLoader{Batch{{"input_ids", from}, {"labels", from}},
                          {.batch_size = 16, .shuffle = training, .drop_last = training}};
    };
    options.train = loader(ids, true);
    options.eval = {{"test", loader(unseen, false)}};
    return go(models::GPT2LMHeadModel(models::GPT2Options{.vocab_size = vocabulary,
                                                          .n_positions = length,
                                                          .n_embd = 64,
                                                          .n_layer = 2,
                                                          .n_head = 4})
                  .ptr());
  }
  const auto loader = [](const at::Tensor& from, bool training) {
    DataLoaderOptions all_of_it{.batch_size = 16, .shuffle = training, .drop_last = training};
    if (!training) {
      all_of_it.seed = 0;  // the same bytes are asked for in every run
    }
    all_of_it.transform =
        data::MaskTokens{.mask_token_id = vocabulary - 1, .vocab_size = vocabulary};
    return DataLoader{Hidden{from}, all_of_it};
  };
  options.train = loader(ids, true);
  options.eval = {{"test", loader(unseen, false)}};
  return go(models::BertForMaskedLM(models::BertOptions{.vocab_size = vocabulary,
                                                        .hidden_size = 64,
                                                        .num_hidden_layers = 2,
                                                        .num_attention_heads = 4,
                                                        .intermediate_size = 256,
                                                        .max_position_embeddings = length})
                .ptr());
}

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty() && names != "none") {
    const std::size_t end = std::min(names.find('+'), names.size());
    out.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  bench::one_thread();
  const std::string_view kind = argc > 2 ? argv[2] : "";
  const bool images = kind == "images" || kind == "half", text = kind == "text" || kind == "masked";
  if (!(images && argc == 7) && !(text && argc == 6)) {
    std::fprintf(stderr, "usage: %s NAMES images|half|text|masked SEED EPOCHS FILES...\n", argv[0]);
    return 2;
  }
  const Plan plan{.names = split(argv[1]),
                  .kind = std::string(kind),
                  .seed = std::strtoull(argv[3], nullptr, 10),
                  .epochs = std::strtoll(argv[4], nullptr, 10),
                  .files = {argv + 5, argv + argc}};
  if (!(images ? train_images(plan) : train_text(plan))) {
    std::fprintf(stderr, "%s: no such algorithms for %s\n", argv[1], argv[2]);
    return 2;
  }
}
