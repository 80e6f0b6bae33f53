#include <tutti/dist/sharded.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <tutti/dist/process_group.hpp>
#include <tutti/models/gpt2.hpp>
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

/// Each, with reductions that are waited for and that overlap with the backward pass.
const std::vector<std::pair<ShardStage, bool>> ways{{ShardStage::optimizer, false},
                                                    {ShardStage::gradients, false},
                                                    {ShardStage::gradients, true},
                                                    {ShardStage::parameters, false},
                                                    {ShardStage::parameters, true}};

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// A linear layer that is a unit, and notes whether its weight was there when it ran.
struct PartImpl final : torch::nn::Module, tutti::nn::Unit {
  explicit PartImpl(std::int64_t width = 5)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return in_unit(x, [&](const at::Tensor& y) {
      there = linear->weight.storage().nbytes() > 0;
      return linear(y).tanh();
    });
  }
  torch::nn::Linear linear;
  bool there = false;
};
TORCH_MODULE(Part);

struct Net final : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(5, 5))),
        a(register_module("a", Part())),
        b(register_module("b", Part())),
        last(register_module("last", torch::nn::Linear(5, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return last(b(a(first(x)))); }
  torch::nn::Linear first;
  Part a, b;
  torch::nn::Linear last;
};

std::shared_ptr<Net> net(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  auto out = std::make_shared<Net>();
  out->to(at::kDouble);
  return out;
}

/// Rows of one batch, the same on every rank; this rank's are every size-th.
at::Tensor rows(dist::Communicator& group) {
  torch::manual_seed(5);
  return at::randn({12, 5}, at::kDouble).slice(0, group.rank(), 12, group.size());
}

at::Tensor all_rows() {
  torch::manual_seed(5);
  return at::randn({12, 5}, at::kDouble);
}

template <class Loss>
void pass(dist::Sharding& sharding, Loss&& loss, bool last = true) {
  sharding.before_forward(last);
  const at::Tensor value = loss();
  sharding.before_backward(value);
  value.backward();
  sharding.after_backward();
}

const dist::ShardedParameter& named(const dist::Sharding& sharding, const std::string& name) {
  for (const auto& one : sharding.parameters()) {
    if (one.name == name) {
      return one;
    }
  }
  throw std::logic_error("no parameter " + name);
}

/// The gradient of a parameter, put together of its parts.
at::Tensor gradient(const dist::Sharding& sharding, const dist::ShardedParameter& one) {
  return one.shard.grad().defined() ? sharding.whole_of(one, one.shard.grad()) : at::Tensor();
}

struct Rows final : torch::nn::Module {
  Rows() {
    two = register_parameter("two", at::arange(6, at::kFloat).view({2, 3}));
    nine = register_parameter("nine", at::arange(9, at::kFloat));
    scalar = register_parameter("scalar", at::full({}, 7.0));
    // Channels last: rows are whole, but not in the order of their sizes.
    images = register_parameter(
        "images", at::arange(5 * 2 * 3, at::kFloat).view({5, 3, 1, 2}).permute({0, 3, 2, 1}));
  }
  at::Tensor two, nine, scalar, images;
};

}  // namespace

TEST_CASE("rank body: rows of a rank", "[.rank]") {
  const auto group = dist::initialize();
  const auto r = static_cast<std::size_t>(group->rank());
  Rows model;
  const std::vector<at::Tensor> before{model.two.detach().clone(), model.nine.detach().clone(),
                                       model.scalar.detach().clone(),
                                       model.images.detach().clone()};
  const auto strides = model.images.strides().vec();
  for (const ShardStage stage : stages) {
    const auto sharding = dist::shard(model, group, {.stage = stage});
    const auto rows_of = [&](const char* name) { return named(*sharding, name).shard.size(0); };
    CHECK(rows_of("two") == std::vector<std::int64_t>{1, 1, 0, 0}[r]);
    CHECK(rows_of("nine") == std::vector<std::int64_t>{3, 3, 3, 0}[r]);
    CHECK(rows_of("scalar") == std::vector<std::int64_t>{1, 0, 0, 0}[r]);
    CHECK(rows_of("images") == std::vector<std::int64_t>{2, 2, 1, 0}[r]);
    CHECK(named(*sharding, "nine").first == std::vector<std::int64_t>{0, 3, 6, 9}[r]);
    CHECK(model.images.strides() == at::IntArrayRef(strides));
    std::size_t i = 0;
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      CHECK(one.shard.is_leaf());
      CHECK(one.shard.requires_grad());
      CHECK(one.whole.equal(before[i]));
      CHECK(sharding->shard_of(one.whole).is_same(one.shard));
      CHECK(sharding->whole_of(one, one.shard.detach()).equal(before[i]));
      CHECK(sharding->part_of(one, before[i]).equal(one.shard));
      ++i;
    }
    const at::Tensor other = at::zeros({1});
    CHECK(sharding->shard_of(other).is_same(other));
  }
}

TEST_CASE("rank body: the mean of gradients", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = net();
  alone->forward(all_rows()).square().mean().backward();
  for (const auto& [stage, overlaps] : ways) {
    INFO(to_string(stage) << (overlaps ? ", overlapping" : ""));
    const auto model = net(group->rank() == 0 ? 1 : 2);  // rank 0's weights win
    const auto sharding = dist::shard(*model, group, {.stage = stage, .overlap_reduce = overlaps});
    pass(*sharding, [&] { return model->forward(rows(*group)).square().mean(); });
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      CHECK(gradient(*sharding, one)
                .allclose(alone->named_parameters()[one.name].grad(), 1e-12, 1e-14));
      CHECK_FALSE(one.whole.grad().defined());
    }
    // What was kept back by NoSync comes with the next.
    for (const auto& one : sharding->parameters()) {
      one.shard.mutable_grad().reset();
    }
    {
      const dist::NoSync local(sharding.get());
      pass(*sharding, [&] { return model->forward(rows(*group)).square().mean(); });
      CHECK_FALSE(named(*sharding, "a.linear.weight").shard.grad().defined());
    }
    pass(*sharding, [&] { return model->forward(rows(*group)).square().mean(); });
    const auto& one = named(*sharding, "a.linear.weight");
    CHECK(gradient(*sharding, one).allclose(alone->a->linear->weight.grad() * 2, 1e-12, 1e-14));
  }
}

// The sum over microbatches is made in the type of the reduction, not in that of computation.
TEST_CASE("rank body: the sum over microbatches", "[.rank]") {
  const auto group = dist::initialize();
  torch::manual_seed(5);
  const at::Tensor x = at::randn({8, 12, 5}).slice(1, group->rank(), 12, group->size());
  for (const ShardStage stage : {ShardStage::optimizer, ShardStage::gradients}) {
    INFO(to_string(stage));
    const auto model = net();
    model->to(at::kFloat);
    const auto sharding = dist::shard(*model, group,
                                      {.stage = stage,
                                       .param_dtype = at::kBFloat16,
                                       .reduce_dtype = at::kFloat,
                                       .reduce_at_end = stage == ShardStage::gradients});
    const auto backward = [&](std::int64_t i, bool last) {
      const at::Tensor part = x[i].to(at::kBFloat16);
      pass(*sharding, [&] { return model->forward(part).to(at::kFloat).square().mean(); }, last);
    };
    std::map<std::string, at::Tensor> sums;  // of passes that are averaged each
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      backward(i, true);
      for (const auto& one : sharding->parameters()) {
        const at::Tensor mean = gradient(*sharding, one).clone();
        sums[one.name] = i == 0 ? mean : sums[one.name] + mean;
        one.shard.mutable_grad().reset();
      }
    }
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      backward(i, i + 1 == x.size(0));
    }
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      const at::Tensor sum = gradient(*sharding, one);
      CHECK(sum.scalar_type() == at::kFloat);
      CHECK(sum.allclose(sums[one.name], 1e-6, 1e-6));
      CHECK_FALSE(one.whole.grad().defined());
    }
    // What was kept of a step that is given up does not come with the next.
    backward(0, false);
    sharding->reset();
    for (const auto& one : sharding->parameters()) {
      one.shard.mutable_grad().reset();
    }
    backward(1, true);
    const at::Tensor again = gradient(*sharding, named(*sharding, "a.linear.weight")).clone();
    named(*sharding, "a.linear.weight").shard.mutable_grad().reset();
    backward(1, true);
    CHECK(gradient(*sharding, named(*sharding, "a.linear.weight")).equal(again));
  }
}

namespace {

/// A frozen layer with a trained one beside it, each of its own type, and a trained one of a third.
struct AdaptedImpl final : torch::nn::Module, tutti::nn::Unit {
  AdaptedImpl()
      : base(register_module("base", torch::nn::Linear(5, 5))),
        adapter(register_module("adapter", torch::nn::Linear(5, 5))) {
    base->to(at::kBFloat16);
    for (const at::Tensor& parameter : base->parameters()) {
      parameter.set_requires_grad(false);
    }
    adapter->to(at::kDouble);
    scale = register_parameter("scale", at::full({5}, 0.5F));
  }
  at::Tensor forward(const at::Tensor& x) {
    return in_unit(x, [&](const at::Tensor& y) {
      const at::Tensor fixed =
          at::linear(y, base->weight.to(at::kDouble), base->bias.to(at::kDouble));
      return fixed * scale.to(at::kDouble) + adapter(y).tanh();
    });
  }
  torch::nn::Linear base, adapter;
  at::Tensor scale;
};
TORCH_MODULE(Adapted);

std::shared_ptr<torch::nn::SequentialImpl> adapted() {
  torch::manual_seed(1);
  return std::make_shared<torch::nn::SequentialImpl>(Adapted(), Adapted());
}

}  // namespace

TEST_CASE("rank body: a unit of several types", "[.rank]") {
  const auto group = dist::initialize();
  const auto alone = adapted();
  alone->forward(all_rows()).square().mean().backward();
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    const auto model = adapted();
    const auto sharding = dist::shard(*model, group, {.stage = stage});
    const at::Tensor frozen = model->named_parameters()["1.base.weight"];
    CHECK((frozen.storage().nbytes() > 0) == (stage != ShardStage::parameters));
    pass(*sharding, [&] { return model->forward(rows(*group)).square().mean(); });
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      const at::Tensor expected = alone->named_parameters()[one.name];
      CHECK(one.shard.scalar_type() == expected.scalar_type());
      const at::Tensor mean = gradient(*sharding, one);
      REQUIRE(mean.defined() == expected.grad().defined());
      if (mean.defined()) {
        const double rounding = mean.scalar_type() == at::kDouble ? 1e-12 : 1e-6;
        CHECK(mean.allclose(expected.grad(), rounding, rounding));
      }
    }
    {
      const auto whole = sharding->summon(/*write_back=*/true);
      CHECK(frozen.equal(alone->named_parameters()["1.base.weight"]));
      const c10::NoGradGuard no_grad;
      frozen.fill_(3);
    }
    const auto& one = named(*sharding, "1.base.weight");
    CHECK(sharding->whole_of(one, one.shard).eq(3).all().item<bool>());
  }
  // All compute, and travel, in one type then.
  const auto model = adapted();
  const auto sharding =
      dist::shard(*model, group, {.stage = ShardStage::parameters, .param_dtype = at::kBFloat16});
  for (const auto& one : sharding->parameters()) {
    CHECK(one.shard.scalar_type() == alone->named_parameters()[one.name].scalar_type());
    CHECK(one.whole.scalar_type() == at::kBFloat16);
  }
}

TEST_CASE("rank body: memory of units", "[.rank]") {
  const auto group = dist::initialize();
  const auto model = net();
  const at::Tensor before = model->a->linear->weight.detach().clone();
  const at::Tensor expected = net()->forward(rows(*group)).detach();
  const auto sharding = dist::shard(*model, group, {.stage = ShardStage::parameters});
  const auto there = [&](const at::Tensor& tensor) { return tensor.storage().nbytes() > 0; };
  CHECK_FALSE(there(model->a->linear->weight));
  CHECK(there(model->first->weight));
  {
    const c10::NoGradGuard no_grad;
    CHECK(model->forward(rows(*group)).equal(expected));
    CHECK(model->a->there);
    CHECK_FALSE(there(model->a->linear->weight));
  }
  sharding->before_forward(true);
  const at::Tensor loss = model->forward(rows(*group)).sum();
  CHECK_FALSE(there(model->a->linear->weight));
  CHECK_FALSE(there(model->b->linear->weight));
  sharding->before_backward(loss);
  loss.backward();
  CHECK_FALSE(there(model->b->linear->weight));
  CHECK(named(*sharding, "b.linear.weight").shard.grad().defined());  // while gradients came
  sharding->after_backward();
  CHECK_FALSE(there(model->a->linear->weight));
  {
    const auto whole = sharding->summon();
    CHECK(model->a->linear->weight.equal(before));
    CHECK_THAT(error_of([&] { (void)sharding->summon(); }), ContainsSubstring("summoned already"));
    CHECK_THAT(
        error_of([&] { model->forward(rows(*group)); }),
        ContainsSubstring("the unit 'a' is to be trained while its parameters are summoned"));
    if (group->rank() == 0) {  // alone
      const c10::NoGradGuard no_grad;
      CHECK(model->forward(rows(*group)).equal(expected));
      CHECK(model->a->linear->weight.equal(before));
    }
  }
  {
    const auto whole = sharding->summon(/*write_back=*/true);
    const c10::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.zero_();
    }
  }
  sharding->after_step();
  const c10::NoGradGuard no_grad;
  CHECK(model->forward(rows(*group)).eq(0).all().item<bool>());
}

TEST_CASE("rank body: gradients that are missing", "[.rank]") {
  const auto group = dist::initialize();
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    const auto model = net();
    model->a->linear->bias.set_requires_grad(false);
    const auto sharding = dist::shard(*model, group, {.stage = stage});
    // b runs nowhere. Gradients of a are on rank 1 alone, where ranks may differ: with
    // ShardStage::parameters they wait for each other's.
    const bool differs = stage != ShardStage::parameters;
    pass(*sharding, [&] {
      const at::Tensor y = model->a(model->first(rows(*group)));
      return group->rank() == 1 ? y.sum() : differs ? model->first->bias.sum() : y.sum() * 0;
    });
    CHECK_FALSE(named(*sharding, "b.linear.weight").shard.grad().defined());
    CHECK_FALSE(named(*sharding, "a.linear.bias").shard.grad().defined());
    CHECK_FALSE(named(*sharding, "last.weight").shard.grad().defined());
    const at::Tensor of_a = gradient(*sharding, named(*sharding, "a.linear.weight"));
    const auto alone = net();
    torch::manual_seed(5);
    const at::Tensor x = at::randn({12, 5}, at::kDouble).slice(0, 1, 12, group->size());
    alone->a(alone->first(x)).sum().backward();
    CHECK(of_a.allclose(alone->a->linear->weight.grad() / group->size(), 1e-12, 1e-14));
  }
}

namespace {

/// A unit whose parameters are large enough to travel alone, but `few` and `bias`.
struct LargeImpl final : torch::nn::Module, tutti::nn::Unit {
  LargeImpl() {
    const auto add = [&](const char* name, const at::Tensor& value, bool trains = true) {
      return register_parameter(
          name, value.to(at::kDouble).contiguous(value.suggest_memory_format()), trains);
    };
    two = add("two", at::arange(2 * 40000).view({2, 40000}));  // some ranks have none of it
    bias = add("bias", at::arange(7));
    seven = add("seven", at::arange(7 * 40000).view({7, 40000}));  // the last has less
    frozen = add("frozen", at::arange(4 * 40000).view({4, 40000}), false);
    images = add("images", at::arange(6 * 64 * 32 * 32)
                               .view({6, 64, 32, 32})
                               .contiguous(at::MemoryFormat::ChannelsLast));
    few = add("few", at::arange(9).view({3, 3}));
  }
  /// Gradients are `scale` times what is() says. without: `seven` has none.
  at::Tensor forward(double scale, bool without = false) {
    const at::Tensor start = at::full({}, scale, at::kDouble).set_requires_grad(true);
    return in_unit(start, [&](const at::Tensor& x) {
      at::Tensor sum = frozen.sum() * 0;
      for (const auto& one : named_parameters()) {
        there = there && one.value().storage().nbytes() > 0;
        if (one.value().requires_grad() && !(without && one.key() == "seven")) {
          sum = sum + (one.value() * is(one.value()).to(x.scalar_type())).sum();
        }
      }
      return sum * x;
    });
  }
  static at::Tensor is(const at::Tensor& parameter) {
    return (at::arange(parameter.numel(), at::kDouble) % 7 - 3).view(parameter.sizes());
  }
  at::Tensor two, bias, seven, frozen, images, few;
  bool there = true;
};
TORCH_MODULE(Large);

struct TwoLarge final : torch::nn::Module {
  TwoLarge() : a(register_module("a", Large())), b(register_module("b", Large())) {}
  Large a, b;
};

}  // namespace

TEST_CASE("rank body: large parameters", "[.rank]") {
  const auto group = dist::initialize();
  const std::int64_t size = group->size();
  const double mean = static_cast<double>(size + 1) / 2;
  const TwoLarge same;
  const auto as_it_was = [&](const std::string& name, const at::Tensor& value) {
    return value.equal(same.named_parameters()[name].detach());
  };
  for (const auto& [stage, overlaps] : ways) {
    INFO(to_string(stage) << (overlaps ? ", overlapping" : ""));
    TwoLarge model;
    const auto sharding = dist::shard(model, group, {.stage = stage, .overlap_reduce = overlaps});
    CHECK((model.a->two.storage().nbytes() > 0) == (stage != ShardStage::parameters));
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      CHECK(as_it_was(one.name, sharding->whole_of(one, one.shard.detach())));
    }
    {
      const auto whole = sharding->summon();
      for (const auto& one : model.named_parameters()) {
        INFO(one.key());
        CHECK(as_it_was(one.key(), one.value().detach()));
      }
    }
    if (overlaps) {  // what was begun before a failure is not taken for a later pass's
      sharding->before_forward(true);
      (model.a->forward(7) + model.b->forward(7)).backward();
      const auto& of_b = named(*sharding, "b.two").shard;
      CHECK((of_b.grad().defined() && !named(*sharding, "a.two").shard.grad().defined()));
      sharding->reset();
      for (const auto& one : sharding->parameters()) {
        one.shard.mutable_grad().reset();
      }
    }
    // Where b does not run, its gradients are waited for at the end, and a's with them.
    pass(*sharding, [&, both = overlaps] {
      const double scale = group->rank() + 1.0;
      const at::Tensor of_a = model.a->forward(scale, group->rank() == 1);
      return both ? of_a + model.b->forward(scale) : of_a;
    });
    CHECK(model.a->there);
    CHECK((model.a->two.storage().nbytes() > 0) == (stage != ShardStage::parameters));
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      const at::Tensor got = gradient(*sharding, one);
      if ((one.name.starts_with("b.") && !overlaps) || !one.whole.requires_grad()) {
        CHECK_FALSE(got.defined());
        continue;
      }
      const double expected = one.name == "a.seven" ? mean - 2.0 / static_cast<double>(size) : mean;
      CHECK(got.allclose(LargeImpl::is(got) * expected, 1e-15, 0));
    }
    // The next forward pass and summon() have what the step made of the shards.
    const c10::NoGradGuard no_grad;
    for (const auto& one : sharding->parameters()) {
      one.shard.add_(1);
    }
    sharding->after_step();
    const auto whole = sharding->summon(/*write_back=*/true);
    for (const auto& one : model.named_parameters()) {
      INFO(one.key());
      CHECK(as_it_was(one.key(), one.value().detach() - 1));
      one.value().mul_(2);
    }
  }
  // Gradients in another type than parameters travel in messages, parameters alone nevertheless.
  for (const auto reduce : {at::kFloat, at::kBFloat16, at::kHalf}) {
    INFO(c10::toString(reduce));
    TwoLarge model;
    const auto type = reduce == at::kHalf ? at::kHalf : at::kBFloat16;
    const auto sharding =
        dist::shard(model, group,
                    {.stage = ShardStage::parameters, .param_dtype = type, .reduce_dtype = reduce});
    pass(*sharding, [&] { return model.a->forward(group->rank() + 1.0); });
    const auto& one = named(*sharding, "a.images");
    CHECK(gradient(*sharding, one).allclose(LargeImpl::is(one.whole) * mean, 4e-3, 0));
    const auto whole = sharding->summon();
    CHECK(as_it_was("b.images", model.b->images.detach()));  // whole in its own type
  }
}

TEST_CASE("rank body: one tensor in two units", "[.rank]") {
  struct Tied final : torch::nn::Module {
    struct Half final : torch::nn::Module, tutti::nn::Unit {
      explicit Half(const at::Tensor& shared) {
        weight = register_parameter("weight", shared);
        bias = register_parameter("bias", at::ones({4}, at::kDouble));
      }
      at::Tensor forward(const at::Tensor& x) {
        return in_unit(x, [&](const at::Tensor& y) { return y.matmul(weight).tanh() + bias; });
      }
      at::Tensor weight, bias;
    };
    Tied() {
      const at::Tensor shared = at::eye(4, at::kDouble);
      one = register_module("one", std::make_shared<Half>(shared));
      two = register_module("two", std::make_shared<Half>(one->weight));
    }
    at::Tensor forward(const at::Tensor& x) { return two->forward(one->forward(x)); }
    std::shared_ptr<Half> one, two;
  };
  const auto group = dist::initialize();
  torch::manual_seed(5);
  const at::Tensor x = at::randn({4, 4}, at::kDouble);
  Tied alone;
  alone.forward(x).square().mean().backward();
  for (const ShardStage stage : stages) {
    Tied model;
    const auto sharding = dist::shard(model, group, {.stage = stage});
    CHECK(sharding->parameters().size() == 3);
    CHECK(model.one->weight.storage().nbytes() > 0);  // it is in no unit
    pass(*sharding, [&] {
      return model.forward(x.slice(0, group->rank(), 4, group->size())).square().mean();
    });
    CHECK(gradient(*sharding, named(*sharding, "one.weight"))
              .allclose(alone.one->weight.grad(), 1e-12, 1e-14));
  }
}

TEST_CASE("rank body: units that are computed again", "[.rank]") {
  const auto group = dist::initialize();
  const auto make = [] {
    torch::manual_seed(1);
    auto model = tutti::models::GPT2LMHeadModel(tutti::models::GPT2Options{
        .vocab_size = 11, .n_positions = 6, .n_embd = 8, .n_layer = 2, .n_head = 2});
    model->to(at::kDouble);
    model->eval();  // no dropout
    model->transformer->set_activation_checkpointing(true);
    return model;
  };
  torch::manual_seed(5);
  const at::Tensor ids = at::randint(11, {4, 6}, at::kLong);
  const auto loss = [](auto& model, const at::Tensor& some) {
    tutti::Batch batch;
    batch["input_ids"] = some;
    batch["labels"] = some;
    return model->loss(model->forward(batch), batch).total();
  };
  auto alone = make();
  loss(alone, ids).backward();
  for (const auto& [stage, overlaps] : ways) {
    INFO(to_string(stage) << (overlaps ? ", overlapping" : ""));
    auto model = make();
    const auto sharding = dist::shard(*model, group, {.stage = stage, .overlap_reduce = overlaps});
    for (int i = 0; i < 2; ++i) {
      pass(*sharding, [&] { return loss(model, ids.slice(0, group->rank(), 4, group->size())); });
    }
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      CHECK(gradient(*sharding, one)
                .allclose(alone->named_parameters()[one.name].grad() * 2, 1e-10, 1e-12));
    }
  }
}

TEST_CASE("rank body: units that run several times", "[.rank]") {
  const auto group = dist::initialize();
  const auto two_views = [](Net& model, const at::Tensor& x) {
    const at::Tensor one = model.b(model.a(model.a(model.first(x))));
    const at::Tensor other = model.b(model.a(x));  // a first run without a gradient of its input
    return (model.last(one) - model.last(other)).square().mean();
  };
  const auto alone = net();
  two_views(*alone, all_rows()).backward();
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    const auto model = net();
    const auto sharding = dist::shard(*model, group, {.stage = stage});
    for (int i = 0; i < 2; ++i) {
      for (const auto& one : sharding->parameters()) {
        one.shard.mutable_grad().reset();
      }
      pass(*sharding, [&] { return two_views(*model, rows(*group)); });
      for (const auto& one : sharding->parameters()) {
        INFO(one.name);
        const at::Tensor got = gradient(*sharding, one);
        REQUIRE(got.defined());
        CHECK(got.allclose(alone->named_parameters()[one.name].grad(), 1e-12, 1e-14));
      }
    }
  }
}

TEST_CASE("rank body: two backward passes", "[.rank]") {
  const auto group = dist::initialize();
  // The second loss has its gradients of the last unit alone before those of the first are wanted.
  const auto losses = [](Net& model, const at::Tensor& x) {
    const at::Tensor middle = model.a(model.first(x));
    return std::pair(middle.square().mean(), model.last(model.b(middle)).abs().mean());
  };
  const auto alone = net();
  const auto [of_middle, of_end] = losses(*alone, all_rows());
  (of_middle + of_end).backward();
  for (const auto& [stage, overlaps] : ways) {
    for (const bool middle_first : {true, false}) {
      INFO(to_string(stage) << (overlaps ? ", overlapping" : ""));
      const auto model = net();
      const auto sharding =
          dist::shard(*model, group, {.stage = stage, .overlap_reduce = overlaps});
      for (int step = 0; step < 2; ++step) {
        for (const auto& one : sharding->parameters()) {
          one.shard.mutable_grad().reset();
        }
        sharding->before_forward(true);
        auto [first, second] = losses(*model, rows(*group));
        if (!middle_first) {
          std::swap(first, second);
        }
        sharding->before_backward(first);
        first.backward({}, /*retain_graph=*/true);
        second.backward();
        sharding->after_backward();
        for (const auto& one : sharding->parameters()) {
          INFO(one.name);
          CHECK_FALSE(one.whole.grad().defined());
          const at::Tensor got = gradient(*sharding, one);
          REQUIRE(got.defined());
          CHECK(got.allclose(alone->named_parameters()[one.name].grad(), 1e-12, 1e-14));
        }
      }
    }
  }
}

TEST_CASE("rank body: parameters that are left alone", "[.rank]") {
  const auto group = dist::initialize();
  const auto make = [](std::uint64_t seed = 1) {
    auto model = net(seed);
    model->a->linear->weight.set_requires_grad(false);
    model->a->linear->weight.set_data(model->a->linear->weight.to(at::kFloat));
    for (const at::Tensor& one : model->b->parameters()) {
      one.set_requires_grad(false);
    }
    return model;
  };
  const auto loss = [](Net& model, const at::Tensor& x) {
    const at::Tensor y =
        at::linear(model.first(x), model.a->linear->weight.to(at::kDouble), model.a->linear->bias);
    return model.last(model.b(y)).square().mean();
  };
  const auto alone = make();
  loss(*alone, all_rows()).backward();
  for (const ShardStage stage : {ShardStage::optimizer, ShardStage::gradients}) {
    INFO(to_string(stage));
    const auto model = make(group->rank() == 0 ? 1 : 2);  // rank 0's win, of these too
    const auto sharding =
        dist::shard(*model, group,
                    {.stage = stage, .ignored = {"a.*.weight", "b"}, .param_dtype = at::kDouble});
    CHECK(sharding->parameters().size() == 5);
    const at::Tensor table = model->a->linear->weight;
    CHECK(table.scalar_type() == at::kFloat);
    CHECK(sharding->shard_of(table).is_same(table));
    CHECK(table.equal(alone->a->linear->weight));
    pass(*sharding, [&] { return loss(*model, rows(*group)); });
    for (const auto& one : sharding->parameters()) {
      INFO(one.name);
      CHECK(gradient(*sharding, one)
                .allclose(alone->named_parameters()[one.name].grad(), 1e-12, 1e-14));
    }
  }
  // A unit of which nothing is left always has its memory; of the other one only the bias goes.
  const auto model = make();
  const auto sharding =
      dist::shard(*model, group, {.stage = ShardStage::parameters, .ignored = {"a.*.weight", "b"}});
  CHECK(model->b->linear->weight.storage().nbytes() > 0);
  CHECK(model->a->linear->weight.storage().nbytes() > 0);
  CHECK(model->a->linear->bias.storage().nbytes() == 0);
  const c10::NoGradGuard no_grad;
  CHECK(model->b(all_rows()).equal(alone->b(all_rows())));
  const auto refused = [&](std::vector<std::string> ignored) {
    auto other = make();
    return error_of([&] {
      (void)dist::shard(*other, group,
                        {.stage = ShardStage::parameters, .ignored = std::move(ignored)});
    });
  };
  CHECK(refused({"b", "b.linear", "b.*.bias"}) == "no error");  // the second ones are within
  CHECK_THAT(refused({"a"}), ContainsSubstring("ignored names 'a.linear.bias', which trains"));
  CHECK_THAT(refused({"b", "teacher"}),
             ContainsSubstring("ignored has 'teacher', which matches no parameter"));
}

TEST_CASE("rank body: what cannot be sharded", "[.rank]") {
  const auto group = dist::initialize();
  const auto refused = [&](torch::nn::Module& model, dist::ShardingOptions options) {
    return error_of([&] { (void)dist::shard(model, group, options); });
  };
  const auto model = net();
  CHECK_THAT(refused(*model, {}), ContainsSubstring("stage is none"));
  CHECK_THAT(refused(*model, {.stage = ShardStage::gradients, .shard_degree = 3}),
             ContainsSubstring("shard_degree is 3 in a run of 2 ranks"));
  CHECK_THAT(refused(*model, {.stage = ShardStage::parameters, .reduce_at_end = true}),
             ContainsSubstring("take ShardStage::gradients"));
  CHECK_THAT(refused(*model, {.stage = ShardStage::gradients, .param_dtype = at::kInt}),
             ContainsSubstring("param_dtype or reduce_dtype is Int"));
  CHECK_THAT(
      refused(*model, {.stage = ShardStage::gradients, .shard_degree = group->rank() == 0 ? 0 : 2}),
      ContainsSubstring("rank 1 has [sharding stage gradients, shard_degree 2") &&
          ContainsSubstring("with the same options, on every rank"));
  {
    auto other = net();
    if (group->rank() == 1) {
      other->register_module("more", torch::nn::Linear(2, 2));
    }
    CHECK_THAT(refused(*other, {.stage = ShardStage::gradients}),
               ContainsSubstring("rank 1 has [parameter more.weight"));
  }
  {
    auto frozen = net();
    for (const at::Tensor& parameter : frozen->parameters()) {
      parameter.set_requires_grad(false);
    }
    CHECK_THAT(refused(*frozen, {.stage = ShardStage::gradients}),
               ContainsSubstring("no parameter of the module requires a gradient"));
  }
  {
    struct Empty final : torch::nn::Module, tutti::nn::Unit {};
    auto with_empty = net();
    with_empty->register_module("empty", std::make_shared<Empty>());
    CHECK_THAT(refused(*with_empty, {.stage = ShardStage::parameters}),
               ContainsSubstring("the unit 'empty' has no parameters of its own"));
  }
  {
    auto whole_numbers = net();
    whole_numbers->a->register_parameter("other", at::ones({2}, at::kInt), false);
    CHECK_THAT(refused(*whole_numbers, {.stage = ShardStage::parameters}),
               ContainsSubstring("sharding: 'a.other' is Int, expected a floating type"));
    auto elsewhere = net();
    elsewhere->a->register_parameter("other", at::ones({2}, at::kMeta));
    CHECK_THAT(refused(*elsewhere, {.stage = ShardStage::parameters}),
               ContainsSubstring("expected one device in a unit"));
  }
  {
    auto twice = net();
    const auto sharding = dist::shard(*twice, group, {.stage = ShardStage::parameters});
    CHECK_THAT(refused(*twice, {.stage = ShardStage::parameters}),
               ContainsSubstring("part of a model that is sharded already"));
  }
  {
    struct Sparse final : torch::nn::Module {
      Sparse()
          : words(register_module(
                "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)))) {}
      torch::nn::Embedding words;
    } sparse;
    const auto sharding = dist::shard(sparse, group, {.stage = ShardStage::gradients});
    CHECK_THAT(error_of([&] {
                 pass(*sharding, [&] { return sparse.words(at::zeros({2}, at::kLong)).sum(); });
               }),
               ContainsSubstring("the gradient of 'words.weight' is sparse"));
  }
}

TEST_CASE("a rank has rows of each parameter as fully_shard gives it", "[dist][sharded]") {
  CHECK(run_ranks("rank body: rows of a rank", 4) == all_passed);
}

TEST_CASE("shards get the mean of all ranks' gradients", "[dist][sharded]") {
  CHECK(run_ranks("rank body: the mean of gradients", 3) == all_passed);
}

TEST_CASE("microbatches in bfloat16 are added up in the type of the reduction", "[dist][sharded]") {
  CHECK(run_ranks("rank body: the sum over microbatches", 2) == all_passed);
}

TEST_CASE("the parameters of a unit keep their types", "[dist][sharded]") {
  CHECK(run_ranks("rank body: a unit of several types", 3) == all_passed);
}

TEST_CASE("a unit's parameters are there while it runs, and within summon", "[dist][sharded]") {
  CHECK(run_ranks("rank body: memory of units") == all_passed);
}

TEST_CASE("a parameter without gradient on any rank has none afterwards", "[dist][sharded]") {
  CHECK(run_ranks("rank body: gradients that are missing", 3) == all_passed);
}

TEST_CASE("large parameters go from where they lie to where they belong", "[dist][sharded]") {
  for (const int ranks : {2, 4}) {
    CHECK(run_ranks("rank body: large parameters", ranks) == all_passed);
  }
}

TEST_CASE("a parameter of two units belongs to what contains both", "[dist][sharded]") {
  CHECK(run_ranks("rank body: one tensor in two units") == all_passed);
}

TEST_CASE("a unit that runs several times has the gradients of all runs", "[dist][sharded]") {
  CHECK(run_ranks("rank body: units that run several times", 2) == all_passed);
}

TEST_CASE("a second backward pass over one graph adds its gradients", "[dist][sharded]") {
  CHECK(run_ranks("rank body: two backward passes") == all_passed);
}

TEST_CASE("what options leave alone stays whole on every rank", "[dist][sharded]") {
  CHECK(run_ranks("rank body: parameters that are left alone") == all_passed);
}

TEST_CASE("activation checkpointing works on units", "[dist][sharded]") {
  CHECK(run_ranks("rank body: units that are computed again") == all_passed);
}

TEST_CASE("what cannot be sharded is refused on every rank", "[dist][sharded]") {
  CHECK(run_ranks("rank body: what cannot be sharded") == all_passed);
}

TEST_CASE("fp16 gradients are divided before their sum by what fully_shard takes",
          "[dist][sharded]") {
  const std::vector<int> expected{1, 2, 2, 2, 2, 4, 2, 4, 2, 4};  // of 1 to 10 ranks
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(dist::detail::divided_ahead(static_cast<int>(i) + 1) == expected[i]);
  }
}

TEST_CASE("one process has all parts", "[dist][sharded]") {
  const auto model = net();
  const auto alone = net();
  const auto sharding = dist::shard(*model, std::make_shared<dist::SingleProcess>(),
                                    {.stage = ShardStage::parameters});
  pass(*sharding, [&] { return model->forward(all_rows()).sum(); });
  alone->forward(all_rows()).sum().backward();
  for (const auto& one : sharding->parameters()) {
    CHECK(one.shard.grad().equal(alone->named_parameters()[one.name].grad()));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
