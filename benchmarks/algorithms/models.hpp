// SPDX-License-Identifier: Apache-2.0
#pragma once

// The networks and the batches, built as composer_side.py builds them, and the clock in the data.

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <tutti/models/bert.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/resnet.hpp>

#include "support.hpp"

namespace bench::algorithms {

/// Steps: before the clock starts, of a block, and after the last, so that
/// nothing of a run's end is timed.
inline constexpr std::int64_t warm_up = 16, block = 10, blocks = 6, rest = 8;
inline constexpr std::int64_t steps = warm_up + block * blocks + rest;

/// A model and what it is trained on: what "small", "bert" and so on mean.
struct Kind {
  enum class Net { small, batch_norm, resnet, bert } net = Net::small;
  std::int64_t batch = 8;
  std::int64_t size = 16;  ///< sides of the images, length of the sequences
  std::int64_t epoch = 0;  ///< batches of an epoch; 0: all
};

/// What a name means. Those with a verb are what an algorithm makes of the others, so that the
/// step without it is on tensors of the same size.
inline std::optional<Kind> kind_of(std::string_view name) {
  using Net = Kind::Net;
  struct Named {
    std::string_view name;
    Kind kind;
  };
  static constexpr Named all[] = {
      {"small", {}},
      {"small_cut", {.size = 13}},
      {"small_resized", {.size = 8}},
      {"small_chosen", {.batch = 4}},
      {"small_epochs", {.epoch = block}},
      {"batch_norm", {.net = Net::batch_norm}},
      {"resnet", {.net = Net::resnet, .size = 8}},
      {"bert", {.net = Net::bert, .batch = 4, .size = 32}},
      {"bert_reshaped", {.net = Net::bert}},
      {"bert_shortened", {.net = Net::bert, .batch = 4}},
  };
  for (const Named& one : all) {
    if (one.name == name) {
      return one.kind;
    }
  }
  return std::nullopt;
}

/// Convolution, normalisation, strided convolution, max-pool, LayerNorm, Dropout, two Linear.
struct SmallImpl : torch::nn::Module {
  explicit SmallImpl(bool batch_norm) {
    using namespace tutti;
    stem = register_module("stem", nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1)));
    if (batch_norm) {
      bn = register_module("bn", nn::BatchNorm2d(16));
    } else {
      gn = register_module("gn", nn::GroupNorm(torch::nn::GroupNormOptions(4, 16)));
    }
    down = register_module("down",
                           nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)));
    pool = register_module("pool", nn::MaxPool2d(torch::nn::MaxPool2dOptions(2)));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    hidden = register_module("hidden", nn::Linear(32, 32));
    dropout = register_module("dropout", nn::Dropout(0.5));
    fc = register_module("fc", nn::Linear(32, classes));
  }
  at::Tensor forward(at::Tensor x) {  // [N, 3, H, W]
    x = stem(x);
    x = (bn ? bn(x) : gn(x)).relu();
    x = pool(down(x).relu()).mean({2, 3});       // [N, 32]
    return fc(dropout(hidden(norm(x)).relu()));  // [N, classes]
  }
  tutti::nn::Conv2d stem{nullptr}, down{nullptr};
  tutti::nn::BatchNorm2d bn{nullptr};
  tutti::nn::GroupNorm gn{nullptr};
  tutti::nn::MaxPool2d pool{nullptr};
  tutti::nn::LayerNorm norm{nullptr};
  tutti::nn::Linear hidden{nullptr}, fc{nullptr};
  tutti::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Small);

/// Two of torchvision's bottleneck blocks with 32 channels.
struct NarrowImpl : torch::nn::Module {
  NarrowImpl() {
    using namespace tutti;
    stem = register_module("stem", nn::Conv2d(torch::nn::Conv2dOptions(3, 32, 3).padding(1)));
    body = register_module("body", nn::Sequential());
    for (int i = 0; i < 2; ++i) {
      body->push_back(models::Bottleneck(models::BlockOptions{.in_channels = 32, .width = 8}));
    }
    fc = register_module("fc", nn::Linear(32, classes));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(body->forward(stem(x)).mean({2, 3})); }
  tutti::nn::Conv2d stem{nullptr};
  tutti::nn::Sequential body{nullptr};
  tutti::nn::Linear fc{nullptr};
};
TORCH_MODULE(Narrow);

inline constexpr std::int64_t vocabulary = 128;

/// A BERT without metrics in training, as every model here.
struct Bert : tutti::models::BertForMaskedLMImpl {
  Bert()
      : BertForMaskedLMImpl({.vocab_size = vocabulary,
                             .hidden_size = 32,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 4,
                             .intermediate_size = 64,
                             .max_position_embeddings = 64}) {}
  static tutti::Metrics metrics(bool /*train*/) { return {}; }
};

template <class Net>
auto classifier(Net net) {
  return tutti::Classifier(net, {.num_classes = classes, .train_metrics = tutti::Metrics{}});
}

inline tutti::AnyModel make_model(const Kind& kind) {
  torch::manual_seed(0);
  switch (kind.net) {
    case Kind::Net::bert:
      return std::make_shared<Bert>();
    case Kind::Net::resnet:
      return classifier(Narrow());
    default:
      return classifier(Small(kind.net == Kind::Net::batch_norm));
  }
}

/// CPU time of this process, which other work on the machine hardly moves.
inline double cpu_microseconds() {
  return static_cast<double>(std::clock()) * (1e6 / CLOCKS_PER_SEC);
}

/// Gives out `steps` batches of the same 16, in epochs as long as the kind says, and takes the time
/// when it is asked for every `block`-th one after the warm-up. tutti's loader contract.
class Source {
 public:
  explicit Source(const Kind& kind) : kind_(kind) {
    torch::manual_seed(1);
    for (int i = 0; i < 16; ++i) {
      if (kind.net == Kind::Net::bert) {
        const at::Tensor ids = torch::randint(vocabulary, {kind.batch, kind.size}, torch::kLong);
        data_.push_back(tutti::Batch{
            {"input_ids", ids}, {"attention_mask", torch::ones_like(ids)}, {"labels", ids}});
      } else {
        data_.emplace_back(torch::randn({kind.batch, 3, kind.size, kind.size}),
                           torch::randint(classes, {kind.batch}, torch::kLong));
      }
    }
  }

  void start(std::int64_t, std::int64_t first_batch = 0) { at_ = first_batch; }
  std::optional<tutti::Batch> next() {
    if (at_++ >= size()) {
      return std::nullopt;
    }
    if (step_ >= warm_up && (step_ - warm_up) % block == 0) {
      stamps_.push_back(cpu_microseconds());
    }
    return data_[static_cast<std::size_t>(step_++ % 16)];
  }
  std::int64_t size() const { return kind_.epoch > 0 ? kind_.epoch : steps; }
  std::int64_t batch_size() const { return kind_.batch; }

  /// Microseconds per step, block by block.
  std::vector<double> microseconds() const {
    std::vector<double> out;
    for (std::size_t i = 1; i < stamps_.size() && i <= blocks; ++i) {
      out.push_back((stamps_[i] - stamps_[i - 1]) / static_cast<double>(block));
    }
    return out;
  }

 private:
  Kind kind_;
  std::vector<tutti::Batch> data_;
  std::int64_t at_ = 0, step_ = 0;
  std::vector<double> stamps_;
};

}  // namespace bench::algorithms
