#include <tutti/nn/deferred_init.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <tutti/checkpoint/module_state.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/cifar_resnet.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vit.hpp>

#include "models/vision.hpp"
#include "support/counted_memory.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using tutti_test::CountedMemory;
using Module = std::shared_ptr<torch::nn::Module>;

namespace {

// What models do to their tensors when they are built.
struct Net : torch::nn::Module {
  explicit Net(std::int64_t width = 20) {
    linear = register_module("linear", torch::nn::Linear(7, width));
    register_module("embedding",
                    torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).padding_idx(1)));
    register_module("norm", torch::nn::BatchNorm1d(width));
    register_module("lstm", torch::nn::LSTM(4, 3));
    register_buffer("mask", at::ones({5, 5}).tril().to(at::kBool));
    register_buffer("few", torch::tensor({1.0F, 2.0F, 3.0F}));
    register_buffer("ids", at::arange(6).expand({1, -1}));
    register_parameter("frozen", at::full({3}, 2.5), /*requires_grad=*/false);
    const c10::AutoGradMode no_grad(false);
    torch::nn::init::orthogonal_(linear->weight);
    linear->weight.mul_(0.5).add_(at::randn({width, 7}), 0.1);
    linear->weight.narrow(0, 2, 3).normal_(0, 0.02);
    linear->weight.index_put_({at::arange(2)}, at::zeros({7}));
    register_parameter("stacked", at::stack({linear->bias, at::dropout(linear->bias, 0.5, true)}));
    register_parameter("turned", at::rand({4, 6}).t());
    to(at::kDouble);
  }
  torch::nn::Linear linear{nullptr};
};

// The values with and without memory at first; from the same random numbers.
void compare(const std::function<Module()>& build) {
  at::manual_seed(5);
  const Module expected = build();
  at::manual_seed(5);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const Module model = nn::deferred_init(build);
  CHECK(nn::is_deferred(*model));
  CHECK(at::detail::getDefaultCPUGenerator().get_state().equal(before));
  at::manual_seed(6);
  nn::materialize(*model);
  CHECK_FALSE(nn::is_deferred(*model));
  const auto parameters = expected->named_parameters();
  REQUIRE(model->named_parameters().size() == parameters.size());
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    const at::Tensor& other = parameters[item.key()];
    CHECK(item.value().equal(other));
    CHECK(item.value().dtype() == other.dtype());
    CHECK(item.value().strides() == other.strides());
    CHECK(item.value().requires_grad() == other.requires_grad());
    CHECK(item.value().is_leaf());
  }
  const auto buffers = expected->named_buffers();
  REQUIRE(model->named_buffers().size() == buffers.size());
  for (const auto& item : model->named_buffers()) {
    INFO(item.key());
    CHECK(item.value().equal(buffers[item.key()]));
  }
}

std::string refused(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a model that is built without memory gets the values that it would have had", "[nn]") {
  SECTION("what models do") {
    compare([] { return std::make_shared<Net>(); });
  }
  SECTION("GPT-2") {
    compare([] {
      return models::GPT2LMHeadModel(
                 models::GPT2Options{
                     .vocab_size = 37, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3})
          .ptr();
    });
  }
  SECTION("BERT") {
    compare([] {
      return models::BertForMaskedLM(models::BertOptions{.vocab_size = 30,
                                                         .hidden_size = 16,
                                                         .num_hidden_layers = 2,
                                                         .num_attention_heads = 2,
                                                         .intermediate_size = 24,
                                                         .max_position_embeddings = 12})
          .ptr();
    });
  }
  SECTION("Llama") {
    compare([] {
      return models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = 50,
                                                           .hidden_size = 16,
                                                           .intermediate_size = 24,
                                                           .num_hidden_layers = 2,
                                                           .num_attention_heads = 4,
                                                           .num_key_value_heads = 2})
          .ptr();
    });
  }
  SECTION("vision transformer") {
    compare([] { return models::VisionTransformer(vision::tiny()).ptr(); });
  }
  SECTION("ResNets") {
    compare([] { return models::resnet18().ptr(); });
    compare([] { return models::cifar_resnet20().ptr(); });
  }
}

TEST_CASE("a seed that is set meanwhile, or again, counts", "[nn]") {
  compare([] {
    auto out = std::make_shared<torch::nn::Module>();
    out->register_buffer("first", at::randn({3}));
    at::manual_seed(9);
    out->register_buffer("second", at::randn({3}));
    at::manual_seed(9);
    out->register_buffer("third", at::rand({3}));
    return out;
  });
  const auto model = nn::deferred_init([] { return std::make_shared<torch::nn::Module>(); });
  const auto draw = [&](const char* name) {
    at::manual_seed(4);
    const auto source = nn::deferred_init([] { return at::randn({2}); });
    const ::tutti::detail::InitTape::Recording recording(::tutti::detail::InitTape::of(source));
    model->register_buffer(name, source.add(at::randn({2})));
  };
  draw("sum");
  at::manual_seed(4);
  const at::Tensor twice = at::randn({2}).mul(2);
  nn::materialize(*model);
  CHECK(model->buffers().front().equal(twice));
}

TEST_CASE("tensors of one memory, and a tied weight, stay so", "[nn]") {
  const auto model = nn::deferred_init([] {
    auto out = std::make_shared<torch::nn::Module>();
    const at::Tensor both = at::randn({4, 3});
    out->register_parameter("both", both);
    out->register_buffer("part", both.detach().narrow(0, 1, 2));
    auto linear = out->register_module("linear", torch::nn::Linear(3, 4));
    linear->weight = linear->register_parameter("other", both);
    return out;
  });
  nn::materialize(*model);
  const auto parameters = model->named_parameters();
  CHECK(parameters["both"].is_same(parameters["linear.other"]));
  CHECK(model->named_buffers()["part"].equal(parameters["both"].narrow(0, 1, 2)));
  CHECK(model->named_buffers()["part"].is_alias_of(parameters["both"]));
}

TEST_CASE("memory is taken for what is being made alone", "[nn]") {
  constexpr std::int64_t bytes = 4 * 300 * 300;
  const CountedMemory counted;
  const auto start = CountedMemory::now;
  CountedMemory::most = start;
  auto model = nn::deferred_init([] {
    auto out = std::make_shared<torch::nn::Module>();
    for (int i = 0; i < 8; ++i) {
      out->register_module("layer" + std::to_string(i),
                           torch::nn::Linear(torch::nn::LinearOptions(300, 300).bias(false)));
    }
    const c10::AutoGradMode no_grad(false);
    for (at::Tensor& one : out->parameters()) {  // anew, as many models do when all is there
      one.normal_(0, 0.02);
    }
    return out;
  });
  CHECK(CountedMemory::most - start < bytes / 2);
  const auto tensors = ::tutti::detail::tensors_without_memory(*model);
  REQUIRE(tensors.size() == 8);
  std::vector<std::size_t> order;
  CountedMemory::most = CountedMemory::now;
  ::tutti::detail::InitTape::of(tensors.front())
      ->make(tensors, [&](std::size_t i, const auto& values) {
        order.push_back(i);
        CHECK(values.whole().sizes() == tensors[i].sizes());
      });
  CHECK(order == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(CountedMemory::most - CountedMemory::now < bytes * 3 / 2);
}

TEST_CASE("weights that are loaded are not drawn before", "[nn]") {
  at::manual_seed(1);
  const Net saved;
  Archive archive;
  checkpoint::save_module(saved, archive);
  const bool inside = GENERATE(false, true);
  std::shared_ptr<Net> model;
  if (inside) {
    model = nn::deferred_init([&] {
      auto out = std::make_shared<Net>();
      checkpoint::load_module(*out, archive);
      return out;
    });
  } else {
    model = nn::deferred_init([] { return std::make_shared<Net>(); });
    checkpoint::load_module(*model, archive);
  }
  at::Tensor& weight = model->linear->weight;
  const auto tape = ::tutti::detail::InitTape::of(weight);
  int whole = 0;
  const at::Tensor rows = at::empty({2, 7}, at::kDouble);
  tape->make({weight}, [&](std::size_t, const auto& values) {
    ++whole;
    values.rows(3, rows);
  });
  CHECK(whole == 1);
  CHECK(rows.equal(saved.linear->weight.narrow(0, 3, 2)));
  nn::materialize(*model);
  const auto expected = saved.named_parameters();
  for (const auto& item : model->named_parameters()) {
    CHECK(item.value().equal(expected[item.key()]));
  }
}

TEST_CASE("rows of a file are read alone", "[nn]") {
  const auto model =
      nn::deferred_init([] { return std::make_shared<torch::nn::LinearImpl>(3, 8); });
  std::vector<std::string> reads;
  const auto tape = ::tutti::detail::InitTape::of(model->weight);
  tape->fill(model->weight, [&](std::int64_t first, const at::Tensor& rows) {
    reads.push_back(std::to_string(first) + "+" + std::to_string(rows.size(0)));
    rows.fill_(first);
  });
  const at::Tensor mine = at::zeros({2, 3});
  tape->make({model->weight, model->bias}, [&](std::size_t i, const auto& values) {
    if (i == 0) {
      values.rows(4, mine);
    }
  });
  CHECK(reads == std::vector<std::string>{"4+2"});
  CHECK(mine.equal(at::full({2, 3}, 4.0F)));
}

TEST_CASE("what cannot be put off is refused with its operator", "[nn]") {
  CHECK_THAT(
      refused([] { nn::deferred_init([] { return at::randn({3}).sum().item<double>() > 0; }); }),
      ContainsSubstring("deferred_init: aten::") && ContainsSubstring("cannot be put off"));
  CHECK_THAT(refused([] {
               nn::deferred_init([] {
                 const at::Tensor out = at::empty({3});
                 out.mutable_data_ptr<float>()[0] = 1;
                 return out;
               });
             }),
             ContainsSubstring("this tensor has no memory yet, since deferred_init() made it"));
  CHECK_THAT(refused([] {
               const at::Tensor real = at::zeros({3});
               nn::deferred_init([&] { return real.add_(at::ones({3})); });
             }),
             ContainsSubstring("writes into 'self', which has memory"));
  CHECK_THAT(refused([] { nn::deferred_init([] { return at::ones({3}).resize_({2}); }); }),
             ContainsSubstring("gives a tensor other sizes or strides"));
  const auto one = nn::deferred_init([] { return std::make_shared<Net>(); });
  const auto other = nn::deferred_init([] { return std::make_shared<Net>(); });
  CHECK_THAT(refused([&] { nn::deferred_init([&] { return one->linear->weight.add(1); }); }),
             ContainsSubstring("aten::add.Scalar has a tensor that another deferred_init() made") ||
                 ContainsSubstring("has a tensor that another deferred_init() made"));
  one->register_module("other", other);
  CHECK_THAT(refused([&] { nn::materialize(*one); }),
             ContainsSubstring("tensors of several calls of deferred_init()"));
  CHECK_THAT(refused([&] { other->linear->forward(at::ones({1, 7}, at::kDouble)); }),
             ContainsSubstring("has no memory yet"));
}

TEST_CASE("what is built inside of it belongs to the same model", "[nn]") {
  at::manual_seed(2);
  const at::Tensor expected = at::randn({3}).add(at::randn({3}));
  at::manual_seed(2);
  auto model = std::make_shared<torch::nn::Module>();
  nn::deferred_init([&] {
    const at::Tensor first = at::randn({3});
    const at::Tensor second = nn::deferred_init([] { return at::randn({3}); });
    model->register_buffer("sum", first.add(second));
    return 0;
  });
  nn::materialize(*model);
  CHECK(model->buffers().front().equal(expected));
  CHECK_FALSE(::tutti::detail::RecordedInit::current());
  CHECK(at::ones({2}).sum().item<double>() == 2);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
