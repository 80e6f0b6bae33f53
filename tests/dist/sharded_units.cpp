#include <tutti/dist/sharded.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/fake_communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/batchnorm.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/rms_norm.hpp>
#include <tutti/nn/unit.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace dist = tutti::dist;
using Catch::Matchers::ContainsSubstring;
using dist::ShardStage;
using tutti_test::all_passed;
using tutti_test::run_ranks;

namespace {

constexpr ShardStage stages[] = {ShardStage::optimizer, ShardStage::gradients,
                                 ShardStage::parameters};

/// Nothing here knows of units.
struct BlockImpl final : torch::nn::Module {
  explicit BlockImpl(std::int64_t width = 6)
      : up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(up(x).tanh()); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct Net final : torch::nn::Module {
  explicit Net(std::int64_t width = 6, int depth = 4)
      : first(register_module("first", torch::nn::Linear(width, width))),
        layers(register_module("layers", torch::nn::Sequential())),
        last(register_module("last", torch::nn::Linear(width, 2))) {
    for (int i = 0; i < depth; ++i) {
      layers->push_back(Block(width));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return last(layers->forward(first(x))); }
  const at::Tensor& weight(std::size_t block) { return layers[block]->as<BlockImpl>()->up->weight; }
  torch::nn::Linear first;
  torch::nn::Sequential layers;
  torch::nn::Linear last;
};

template <class Model = Net>
std::shared_ptr<Model> made(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  auto out = std::make_shared<Model>();
  out->to(at::kDouble);
  return out;
}

bool there(const at::Tensor& tensor) {
  return tensor.storage().nbytes() > 0;
}

at::Tensor all_rows(std::int64_t width = 6) {
  torch::manual_seed(5);
  return at::randn({12, width}, at::kDouble);
}

/// Of one batch, every size-th.
at::Tensor part_of(const dist::Communicator& group, const at::Tensor& all) {
  return all.slice(0, group.rank(), all.size(0), group.size());
}

template <class Loss>
at::Tensor pass(dist::Sharding& sharding, Loss&& loss, bool last = true) {
  sharding.before_forward(last);
  const at::Tensor value = loss();
  sharding.before_backward(value);
  value.backward();
  sharding.after_backward();
  return value.detach();
}

void forget_gradients(const dist::Sharding& sharding) {
  for (const auto& one : sharding.parameters()) {
    one.shard.mutable_grad().reset();
  }
}

/// The gradients of the model alone, and of its parts, within so much of the largest element.
void check_gradients(const dist::Sharding& sharding, torch::nn::Module& alone, double within) {
  const auto parameters = alone.named_parameters();
  REQUIRE_FALSE(sharding.parameters().empty());
  for (const auto& one : sharding.parameters()) {
    INFO(one.name);
    const at::Tensor expected = parameters[one.name].grad();
    REQUIRE(one.shard.grad().defined() == expected.defined());
    CHECK_FALSE(one.whole.grad().defined());
    if (expected.defined()) {
      const at::Tensor off = (sharding.whole_of(one, one.shard.grad()) - expected).abs().max();
      CHECK(off.item<double>() <= within * expected.abs().max().clamp_min(1e-3).item<double>());
    }
  }
}

}  // namespace

TEST_CASE("rank body: modules that are named", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = made();
  const double loss_alone = [&] {
    const at::Tensor loss = alone->forward(all_rows()).square().mean();
    loss.backward();
    return loss.item<double>();
  }();
  for (const ShardStage stage : stages) {
    for (const bool overlaps : {false, true}) {
      INFO(to_string(stage) << (overlaps ? ", overlapping" : ""));
      const auto model = made(group->rank() == 0 ? 1 : 2);  // rank 0's weights win
      const auto sharding = dist::shard(
          *model, group, {.stage = stage, .units = {"layers.*"}, .overlap_reduce = overlaps});
      const auto loss = [&] { return model->forward(part_of(*group, all_rows())).square().mean(); };
      for (int step = 0; step < 3; ++step) {  // from the second on, units are known ahead
        const at::Tensor value = pass(*sharding, loss);
        group->all_reduce(value);
        CHECK(std::abs(value.item<double>() / group->size() - loss_alone) < 1e-14);
        check_gradients(*sharding, *alone, 1e-12);
        forget_gradients(*sharding);
      }
      // Two microbatches, of which the first alone is not averaged.
      pass(*sharding, [&] { return loss() / 2; }, false);
      pass(*sharding, [&] { return loss() / 2; });
      check_gradients(*sharding, *alone, 1e-12);
      forget_gradients(*sharding);
      // Two backward passes over one graph.
      sharding->before_forward(true);
      const at::Tensor half = loss() / 2;
      sharding->before_backward(half);
      half.backward({}, /*retain_graph=*/true);
      half.backward();
      sharding->after_backward();
      check_gradients(*sharding, *alone, 1e-12);
    }
  }
}

TEST_CASE("rank body: memory of modules that are named", "[.rank]") {
  const auto group = dist::initialize();
  const auto model = made();
  const at::Tensor x = part_of(*group, all_rows());
  const at::Tensor expected = model->forward(x).detach();
  const at::Tensor before = model->weight(2).detach().clone();
  const auto sharding =
      dist::shard(*model, group, {.stage = ShardStage::parameters, .units = {"layers.*"}});
  const auto here = [&] {
    std::string out;
    for (std::size_t i = 0; i < 4; ++i) {
      out += there(model->weight(i)) ? '1' : '0';
    }
    return out;
  };
  CHECK(here() == "0000");
  CHECK(there(model->first->weight));
  for (int step = 0; step < 2; ++step) {
    sharding->before_forward(true);
    const at::Tensor y = model->forward(x);
    CHECK(y.detach().allclose(expected, 0, 1e-14));
    CHECK(here() == "0011");  // where the backward pass begins
    sharding->before_backward(y);
    y.sum().backward();
    CHECK(here() == "0000");
    sharding->after_backward();
    CHECK(here() == "0000");
  }
  // Gradients may go through a part of the model alone.
  sharding->before_forward(true);
  const at::Tensor half = model->layers[1]->as<BlockImpl>()->forward(x).sum();
  sharding->before_backward(half);
  half.backward();
  sharding->after_backward();
  CHECK(here() == "0000");
  {
    const c10::NoGradGuard no_grad;
    CHECK(model->forward(x).allclose(expected, 0, 1e-14));
    CHECK(here() == "0011");
    // The tensors of three modules, at once.
    const at::Tensor norms = at::stack({model->weight(0), model->weight(1), model->weight(2)});
    CHECK(norms[2].equal(before));
  }
  {
    const auto whole = sharding->summon(/*write_back=*/true);
    CHECK(here() == "1111");
    CHECK(model->weight(2).equal(before));
    const c10::NoGradGuard no_grad;
    model->weight(2).mul_(2);
  }
  {
    const c10::NoGradGuard no_grad;
    CHECK((model->weight(2) - before * 2).abs().max().item<double>() == 0);
    CHECK_THROWS_WITH(
        model->weight(2).mul_(2),
        ContainsSubstring("aten::mul_ writes into a parameter of which each rank has a part") &&
            ContainsSubstring("write within summon(/*write_back=*/true)"));
  }
  const auto calls = dist::flight_recorder().entries();
  for (const char* unit : {"layers.0", "what is in no unit"}) {
    CHECK(std::any_of(calls.begin(), calls.end(), [&](const dist::RecordedCall& call) {
      return std::string_view(call.purpose.data()) == unit;
    }));
  }
  // A step that is given up.
  sharding->before_forward(true);
  model->forward(x).sum().backward();
  sharding->reset();
  CHECK(here() == "0000");
  pass(*sharding, [&] { return model->forward(x).sum(); });
  CHECK(here() == "0000");
}

namespace {

struct HeadImpl final : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

/// Layers of LibTorch, a tensor of two modules, a frozen one, one without use.
struct Everything final : torch::nn::Module {
  Everything()
      : words(register_module("words", torch::nn::Embedding(13, 8))),
        encoder(register_module(
            "encoder",
            torch::nn::TransformerEncoder(
                torch::nn::TransformerEncoderLayer(
                    torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)),
                2))),
        lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(8, 8).num_layers(2)))),
        convolution(register_module("convolution", torch::nn::Conv1d(8, 8, 3))),
        norm(register_module("norm", torch::nn::GroupNorm(2, 8))),
        unused(register_module("unused", torch::nn::Linear(8, 8))),
        head(register_module("head", Head(words->weight))) {
    encoder->layers[0]->as<torch::nn::TransformerEncoderLayer>()->linear1->weight.set_requires_grad(
        false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = encoder(words(ids).transpose(0, 1));
    x = std::get<0>(lstm(x));
    x = norm(convolution(x.permute({1, 2, 0})));
    return head(x.transpose(1, 2));
  }
  torch::nn::Embedding words;
  torch::nn::TransformerEncoder encoder;
  torch::nn::LSTM lstm;
  torch::nn::Conv1d convolution;
  torch::nn::GroupNorm norm;
  torch::nn::Linear unused;
  Head head;  // its tensor belongs to none of both
};

/// In float32, where layers read memory themselves.
struct Norms final : torch::nn::Module {
  Norms() : layers(register_module("layers", torch::nn::Sequential())) {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(tutti::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
      layers->push_back(tutti::nn::BatchNorm2d(4));
    }
    layers->push_back(tutti::nn::RMSNorm(8));
    layers->push_back(torch::nn::Linear(8, 8));
    layers->push_back(tutti::nn::RMSNorm(8));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

}  // namespace

TEST_CASE("rank body: layers that are named", "[.rank]") {
  const auto group = dist::initialize();
  at::manual_seed(3);
  const at::Tensor ids = at::randint(13, {12, 5}, at::kLong);
  const auto alone = made<Everything>();
  const auto loss = [](Everything& model, const at::Tensor& rows) {
    return model.forward(rows).square().mean();
  };
  loss(*alone, ids).backward();
  for (const std::vector<std::string>& units :
       {std::vector<std::string>{"*"},
        {"encoder.layers.*", "lstm", "unused"},
        {"encoder", "encoder.layers.*", "encoder.layers.?.linear1"}}) {
    for (const ShardStage stage : {ShardStage::gradients, ShardStage::parameters}) {
      INFO(to_string(stage) << " of " << at::ArrayRef<std::string>(units));
      const auto model = made<Everything>();
      const auto sharding = dist::shard(*model, group, {.stage = stage, .units = units});
      CHECK(there(model->words->weight));  // shared, so it is in none
      for (int step = 0; step < 2; ++step) {
        pass(*sharding, [&] { return loss(*model, part_of(*group, ids)); });
        check_gradients(*sharding, *alone, 1e-11);
        forget_gradients(*sharding);
      }
    }
  }
  at::manual_seed(4);
  const at::Tensor images = at::randn({12, 4, 4, 8});
  const auto sum = [&](Norms& model) { return model.forward(images).pow(3).mean(); };
  torch::manual_seed(1);
  Norms whole;
  sum(whole).backward();
  torch::manual_seed(1);
  Norms cut;
  const auto sharding =
      dist::shard(cut, group, {.stage = ShardStage::parameters, .units = {"layers.*"}});
  CHECK_FALSE(there(cut.layers[1]->as<tutti::nn::BatchNorm2d>()->weight));
  pass(*sharding, [&] { return sum(cut); });
  check_gradients(*sharding, whole, 1e-5);
}

namespace {

/// Units of both kinds, and blocks that the backward pass computes again.
struct Mixed final : torch::nn::Module {
  struct PartImpl final : torch::nn::Module, tutti::nn::Unit {
    PartImpl() : linear(register_module("linear", torch::nn::Linear(6, 6))) {}
    at::Tensor forward(const at::Tensor& x) {
      return in_unit(x, [&](const at::Tensor& y) { return linear(y).tanh(); });
    }
    torch::nn::Linear linear;
  };
  Mixed()
      : blocks(register_module("blocks", torch::nn::Sequential(Block(), Block(), Block()))),
        part(register_module("part", std::make_shared<PartImpl>())) {}
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      auto block = blocks->ptr<BlockImpl>(i);
      x = again ? tutti::functional::checkpoint_activations(
                      *block, [block](const at::Tensor& y) { return block->forward(y); }, x)
                : block->forward(x);
    }
    x = part->forward(x);
    return part->forward(blocks->ptr<BlockImpl>(1)->forward(x));  // a second run of each
  }
  torch::nn::Sequential blocks;
  std::shared_ptr<PartImpl> part;
  bool again = false;
};

}  // namespace

TEST_CASE("rank body: named modules beside units", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = made<Mixed>();
  alone->forward(all_rows()).square().mean().backward();
  for (const bool again : {false, true}) {
    for (const ShardStage stage : {ShardStage::gradients, ShardStage::parameters}) {
      INFO(to_string(stage) << (again ? ", computing again" : ""));
      const auto model = made<Mixed>();
      model->again = again;
      const auto sharding = dist::shard(*model, group, {.stage = stage, .units = {"blocks.*"}});
      for (int step = 0; step < 2; ++step) {
        pass(*sharding,
             [&] { return model->forward(part_of(*group, all_rows())).square().mean(); });
        check_gradients(*sharding, *alone, 1e-12);
        forget_gradients(*sharding);
      }
    }
  }
}

// The embedding of a GPT-2, whose blocks are units, is read at both ends.
TEST_CASE("rank body: an embedding that is named", "[.rank]") {
  const auto group = dist::initialize();
  const auto model = [] {
    torch::manual_seed(1);
    tutti::models::GPT2Options size{
        .vocab_size = 23, .n_positions = 8, .n_embd = 8, .n_layer = 5, .n_head = 2};
    size.resid_pdrop = size.embd_pdrop = size.attn_pdrop = 0;
    tutti::models::GPT2LMHeadModel out(size);
    out->to(at::kDouble);
    return out;
  };
  at::manual_seed(2);
  const at::Tensor ids = at::randint(23, {12, 6}, at::kLong);
  const auto loss = [](tutti::models::GPT2LMHeadModel& of, const at::Tensor& rows) {
    const tutti::Batch batch{{"input_ids", rows}, {"labels", rows}};
    return of->loss(of->forward(batch), batch).total();
  };
  auto alone = model();
  loss(alone, ids).backward();
  auto named = model();
  const auto sharding =
      dist::shard(*named, group, {.stage = ShardStage::parameters, .units = {"transformer.wte"}});
  const at::Tensor weight = named->named_parameters()["transformer.wte.weight"];
  for (int step = 0; step < 2; ++step) {
    CHECK_FALSE(there(weight));
    const std::uint64_t before = dist::flight_recorder().last().number;
    pass(*sharding, [&] { return loss(named, part_of(*group, ids)); });
    check_gradients(*sharding, *alone, 1e-11);
    forget_gradients(*sharding);
    int gathers = 0;
    for (const dist::RecordedCall& call : dist::flight_recorder().entries()) {
      gathers += call.number > before &&
                         std::string_view(call.purpose.data()) == "transformer.wte" &&
                         std::string_view(call.name) == "all_gather_into"
                     ? 1
                     : 0;
    }
    CHECK(gathers == 2);  // it was gone while the blocks ran
  }
}

TEST_CASE("rank body: reads of what is not there", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = made<Mixed>();
  alone->forward(all_rows()).square().mean().backward();
  std::vector<at::Tensor> weights;
  for (const bool named : {false, true}) {
    const auto model = made<Mixed>();
    const auto sharding = dist::shard(
        *model, group,
        {.stage = ShardStage::parameters,
         .units = named ? std::vector<std::string>{"blocks.*"} : std::vector<std::string>()});
    const at::Tensor weight = model->part->linear->weight;
    const auto reads = ContainsSubstring(
        "aten::add reads a parameter of the unit 'part', which does not run, so that the parameter "
        "has no memory; read it within summon()");
    CHECK_THROWS_WITH(weight + 1, reads);
    CHECK_FALSE(there(weight.detach()));  // these read nothing
    CHECK(at::zeros_like(weight).sizes() == weight.sizes());
    CHECK(weight.new_ones({2}).numel() == 2);
    weight.requires_grad_(false).requires_grad_(true);
    const auto on_another_thread = [](auto&& body) {
      std::exception_ptr error;
      std::thread([&] {
        try {
          body();
        } catch (...) {
          error = std::current_exception();
        }
      }).join();
      if (error) {
        std::rethrow_exception(error);
      }
    };
    CHECK_THROWS_WITH(on_another_thread([&] { weight + 1; }), reads);
    {
      at::Tensor out;
      on_another_thread([&] {
        const c10::NoGradGuard no_grad;
        out = model->forward(all_rows());
      });
      const c10::NoGradGuard no_grad;
      CHECK(out.equal(alone->forward(all_rows())));
    }
    pass(*sharding, [&] { return model->forward(part_of(*group, all_rows())).square().mean(); });
    check_gradients(*sharding, *alone, 1e-12);
    CHECK_THROWS_WITH(weight + 1, reads);
    {
      const auto whole = sharding->summon();
      CHECK((weight + 1).sizes() == weight.sizes());
    }
    CHECK_THROWS_WITH(weight + 1, reads);
    weights.push_back(weight);
    if (named) {
      weights.push_back(model->blocks[0]->as<BlockImpl>()->up->weight);
    }
  }
  for (const at::Tensor& weight : weights) {
    CHECK_THROWS_WITH(weight + 1,
                      ContainsSubstring("aten::add reads a parameter that has no memory, "
                                        "since what had sharded the model is gone"));
    CHECK_THROWS_WITH(weight.detach().zero_(), ContainsSubstring("aten::zero_ reads a parameter"));
  }
  // Operators are as ever once nothing is sharded.
  CHECK((all_rows() + 1).sum().item<double>() == all_rows().add(1).sum().item<double>());
}

TEST_CASE("rank body: units that stay until their gradients are there", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = made<Mixed>();
  alone->forward(all_rows()).square().mean().backward();
  for (const bool again : {false, true}) {
    const auto model = made<Mixed>();
    model->again = again;
    const auto sharding = dist::shard(
        *model, group,
        {.stage = ShardStage::parameters, .units = {"blocks.*"}, .reshard_after_forward = false});
    const auto here = [&] {
      int count = 0;
      for (const auto& one : sharding->parameters()) {
        count += there(one.whole) ? 1 : 0;
      }
      return count;
    };
    const at::Tensor x = part_of(*group, all_rows());
    for (int step = 0; step < 2; ++step) {
      CHECK(here() == 0);
      sharding->before_forward(true);
      const at::Tensor loss = model->forward(x).square().mean();
      CHECK(here() == 14);  // four tensors of each block, two of the part
      sharding->before_backward(loss);
      loss.backward();
      CHECK(here() == 0);
      sharding->after_backward();
      check_gradients(*sharding, *alone, 1e-12);
      forget_gradients(*sharding);
    }
    const c10::NoGradGuard no_grad;
    model->forward(x);
    CHECK(here() <= 8);  // two blocks
  }
}

TEST_CASE("rank body: units that neighbours keep", "[.rank]") {
  const auto group = dist::initialize();  // of four
  const auto alone = made<Mixed>();
  alone->forward(all_rows()).square().mean().backward();
  for (const bool again : {false, true}) {
    for (const int degree : {4, 2}) {
      for (const int among : {1, 2, 4}) {
        INFO("kept among " << among << " of " << degree << (again ? ", computed again" : ""));
        dist::ShardingOptions options{.stage = ShardStage::parameters,
                                      .shard_degree = degree,
                                      .units = {"blocks.*"},
                                      .reshard_after_forward = among};
        const auto model = made<Mixed>(group->rank() == 0 ? 1 : 2);
        model->again = again;
        if (among > degree) {
          CHECK_THROWS_WITH(
              dist::shard(*model, group, options),
              ContainsSubstring("reshard_after_forward is 4, where 2 ranks have a copy"));
          continue;
        }
        const auto sharding = dist::shard(*model, group, options);
        const at::Tensor x = part_of(*group, all_rows());
        const auto loss = [&] { return model->forward(x).square().mean(); };
        for (int step = 0; step < 3; ++step) {
          pass(*sharding, loss);
          check_gradients(*sharding, *alone, 1e-12);
          forget_gradients(*sharding);
        }
        // A pass without gradients keeps nothing, and one that ends early leaves nothing old.
        {
          const c10::NoGradGuard no_grad;
          sharding->before_forward(true);
          model->forward(x);
        }
        sharding->before_forward(true);
        static_cast<void>(loss());
        sharding->reset();
        for (const auto& one : sharding->parameters()) {
          one.shard.detach().mul_(2);
        }
        sharding->after_step();
        const auto doubled = made<Mixed>();
        for (const at::Tensor& one : doubled->parameters()) {
          one.detach().mul_(2);
        }
        doubled->forward(all_rows()).square().mean().backward();
        pass(*sharding, loss);
        check_gradients(*sharding, *doubled, 1e-12);
      }
    }
  }
}

TEST_CASE("rank body: neighbours keep what cannot be cut evenly", "[.rank]") {
  const auto group = dist::initialize();  // of four
  const auto make = [] {
    torch::manual_seed(1);
    torch::nn::Sequential layers(torch::nn::Linear(6, 5), torch::nn::Tanh(),
                                 torch::nn::Linear(5, 3), torch::nn::Tanh(),
                                 torch::nn::Linear(3, 1));
    layers->to(at::kDouble);
    return layers;
  };
  auto alone = make();
  alone->forward(all_rows()).square().mean().backward();
  auto model = make();  // 35, 18 and 4 elements
  const auto sharding = dist::shard(
      *model, group,
      {.stage = ShardStage::parameters, .units = {"0", "2", "4"}, .reshard_after_forward = 2});
  for (int step = 0; step < 2; ++step) {
    pass(*sharding, [&] { return model->forward(part_of(*group, all_rows())).square().mean(); });
    check_gradients(*sharding, *alone, 1e-12);
    forget_gradients(*sharding);
  }
}

TEST_CASE("modules that are named are units", "[dist][sharded]") {
  for (const int ranks : {1, 2, 3, 4}) {
    CHECK(run_ranks("rank body: modules that are named", ranks) == all_passed);
  }
  CHECK(run_ranks("rank body: memory of modules that are named", 2) == all_passed);
  CHECK(run_ranks("rank body: layers that are named", 3) == all_passed);
  CHECK(run_ranks("rank body: named modules beside units", 2) == all_passed);
  CHECK(run_ranks("rank body: an embedding that is named", 3) == all_passed);
  CHECK(run_ranks("rank body: reads of what is not there", 2) == all_passed);
  CHECK(run_ranks("rank body: units that stay until their gradients are there", 2) == all_passed);
  CHECK(run_ranks("rank body: units that neighbours keep", 4) == all_passed);
  CHECK(run_ranks("rank body: neighbours keep what cannot be cut evenly", 4) == all_passed);
}

TEST_CASE("names of units that fit no module are refused", "[dist][sharded]") {
  const auto group = std::make_shared<FakeCommunicator>();
  const auto error_of = [&](const std::vector<std::string>& units) -> std::string {
    Net net;
    try {
      dist::shard(net, group, {.stage = ShardStage::parameters, .units = units});
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  CHECK_THAT(error_of({"blocks.*"}),
             ContainsSubstring("units has 'blocks.*', which matches no module with parameters") &&
                 ContainsSubstring("the model's modules are 'first', 'layers', 'layers.0', "));
  CHECK(error_of({"layers.0", "layers.0.*"}) == "no error");  // the second ones have all
  Net net;
  const dist::ShardingOptions options{.stage = ShardStage::parameters, .units = {"layers.*"}};
  auto first = dist::shard(net, group, options);
  CHECK_THROWS_WITH(dist::shard(net, group, options),
                    ContainsSubstring("the unit 'layers.0' is part of a model that is sharded "
                                      "already; let go of that first"));
  first.reset();
  CHECK_THROWS_WITH(dist::shard(net, group, options),
                    ContainsSubstring("'layers.0.up.weight' has no memory, since what had sharded "
                                      "the model is gone; build the model anew"));
  CHECK(error_of({"*"}) == "no error");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
