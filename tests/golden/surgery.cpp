#include <cmath>

#include <torch/optim/sgd.h>

#include <tutti/models/resnet.hpp>

#include "golden/runner.hpp"
#include "golden/surgery.hpp"
#include "nn/golden_model.hpp"

namespace golden {
namespace {

constexpr Layers both_kinds[] = {Layers::plain, Layers::replaceable};

// The model of a case with its weights, and an optimizer that holds them.
struct Subject {
  Subject(const Case& c, Layers layers) : model(build_model(c.params["model"], layers)) {
    load_state(*model, c.ins("state."));
  }

  // After surgery: loads the weights that it made at random, where the case gives them.
  void settle(const Case& c, Verdict& verdict) {
    load_state(*model, c.ins("after."));
    verdict.check(optimizer.param_groups()[0].params().size() == model->parameters().size(),
                  "the optimizer lost track of the parameters");
  }

  tutti::nn::Sequential model;
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.1)};
};

// Runs the forward pass under the autocast of the case, if it has one.
at::Tensor forward(const Case& c, tutti::nn::Sequential& model, const at::Tensor& x) {
  const Json* autocast = c.params.find("autocast");
  if (autocast == nullptr || autocast->is_null()) {
    return model->forward(x);
  }
  const tutti::Autocast on(x.device().type(),
                           autocast->string() == "bf16" ? at::kBFloat16 : at::kHalf);
  return model->forward(x);
}

// Output, gradients by the reference's names, and buffers afterwards.
void check_pass(const Case& c, Verdict& verdict, tutti::nn::Sequential& model) {
  const at::Tensor x = c.in("x").requires_grad_();
  const at::Tensor y = forward(c, model, x);
  verdict.check(y.scalar_type() == c.out("y").scalar_type(), "y has another type");
  verdict.tensor("y", y);
  y.to(torch::kFloat).mul(c.in("g")).sum().backward();
  verdict.tensor("grad_x", x.grad());
  for (const auto& parameter : model->named_parameters()) {
    verdict.tensor("grad." + parameter.key(), parameter.value().grad());
  }
  const auto state = state_of(*model);
  for (const auto& [name, tensor] : c.outs("after.")) {
    verdict.tensor("after." + name, state.at(name));
  }
}

// ---- SqueezeExcite -----------------------------------------------------------------------------

void apply_squeeze_excite(const Case& c, Verdict& verdict) {
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    auto options = make_squeeze_excite(c.params["args"]);
    options.if_none = tutti::surgery::IfNone::ignore;
    tutti::functional::apply_squeeze_excite(*subject.model, options, subject.optimizer);
    std::vector<std::int64_t> latent;
    tutti::surgery::for_each<tutti::nn::SqueezeExcite2d>(
        *subject.model, [&](auto& gate, const auto&) {
          latent.push_back(gate.pool_and_mlp->children().at(2)->parameters().at(0).size(0));
        });
    verdict.check(integers(c.expect["latent"]) == latent, "the widths of the gates differ");
    subject.settle(c, verdict);
    check_pass(c, verdict, subject.model);
  }
}

// ---- GhostBatchNorm ----------------------------------------------------------------------------

void apply_ghost_batchnorm(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "apply_ghost_batchnorm");
  const tutti::GhostBatchNorm options{.ghost_batch_size = a.integer("ghost_batch_size", 32),
                                      .if_none = tutti::surgery::IfNone::ignore};
  const bool train = a.flag("train", true);
  static_cast<void>(a.json("model"));
  a.done();
  if (c.expect.find("raises") != nullptr && !train) {
    Subject plain(c, Layers::plain);
    Subject subject(c, Layers::plain);
    tutti::functional::apply_ghost_batchnorm(*subject.model, options, subject.optimizer);
    plain.model->eval();
    subject.model->eval();
    verdict.check(subject.model->forward(c.in("x")).equal(plain.model->forward(c.in("x"))),
                  "a small batch is not evaluated as by the plain layers");
    verdict.differs(stated::whole_batches);
    return;
  }
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    const auto report =
        tutti::functional::apply_ghost_batchnorm(*subject.model, options, subject.optimizer);
    verdict.check(report.count() == c.info["count"].integer(), "another number of layers");
    subject.model->train(train);
    verdict.raises_as_reference([&] { check_pass(c, verdict, subject.model); });
  }
}

// ---- ChannelsLast ------------------------------------------------------------------------------

void apply_channels_last(const Case& c, Verdict& verdict) {
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    tutti::functional::apply_channels_last(*subject.model);
    for (const auto& parameter : subject.model->named_parameters()) {
      const std::vector<std::int64_t> want = integers(c.expect["strides"][parameter.key()]);
      verdict.check(parameter.value().strides() == want, parameter.key() + ": other strides");
    }
    const at::Tensor x = tutti::functional::channels_last(c.in("x"));
    verdict.check(x.strides() == integers(c.expect["x_stride"]), "x: other strides");
    at::Tensor y = x;
    for (std::int64_t i = 0; i < c.params["prefix"].integer(); ++i) {
      y = (subject.model->begin() + i)->forward(y);
    }
    verdict.tensor("y", y);
    verdict.check(y.strides() == integers(c.expect["y_stride"]), "y: other strides");
  }
}

// ---- LowPrecisionLayerNorm, LowPrecisionGroupNorm ----------------------------------------------

template <class F>
void low_precision(const Case& c, Verdict& verdict, F&& apply) {
  using tutti::Precision;
  const std::string& name = c.params["precision"].string();
  const Precision precision = name == "amp_bf16"   ? Precision::amp_bf16
                              : name == "amp_fp16" ? Precision::amp_fp16
                                                   : Precision::fp32;
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    const tutti::surgery::Report report = apply(*subject.model, precision, subject.optimizer);
    verdict.check(report.replaced.size() == c.info["replaced"].size(), "other layers replaced");
    check_pass(c, verdict, subject.model);
  }
}

void apply_low_precision_layernorm(const Case& c, Verdict& verdict) {
  low_precision(c, verdict, [](auto&&... args) {
    return tutti::functional::apply_low_precision_layernorm(args...);
  });
}

void apply_low_precision_groupnorm(const Case& c, Verdict& verdict) {
  low_precision(c, verdict, [](auto&&... args) {
    return tutti::functional::apply_low_precision_groupnorm(args...);
  });
}

// ---- WeightStandardization ---------------------------------------------------------------------

// Convolutions with one weight per output channel.
std::int64_t of_one_weight(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& weight = item.value();
    count += weight.dim() >= 3 && weight.numel() == weight.size(0) ? 1 : 0;
  }
  return count;
}

void apply_weight_standardization(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "apply_weight_standardization");
  const std::int64_t n_last_layers_ignore = a.integer("n_last_layers_ignore", 0);
  static_cast<void>(a.json("model"));
  a.done();
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    const auto report = tutti::functional::apply_weight_standardization(
        *subject.model,
        {.n_last_layers_ignore = n_last_layers_ignore, .if_none = tutti::surgery::IfNone::ignore},
        subject.optimizer);
    const std::int64_t expected = c.expect["count"].integer();
    if (const std::int64_t single = of_one_weight(*subject.model); single > 0) {
      verdict.check(report.count() <= expected && report.count() + single >= expected,
                    "another number of layers than is stated");
      verdict.leave_out_all(stated::one_weight);
      continue;
    }
    verdict.check(report.count() == expected, "another number of layers");
    tutti::surgery::for_each<tutti::nn::WeightStandardized>(
        *subject.model, [&](const auto& layer, const tutti::surgery::Visit& where) {
          verdict.tensor("weight." + where.path,
                         tutti::functional::standardize_weights(layer.original()));
        });
    check_pass(c, verdict, subject.model);
  }
}

// ---- StochasticDepth ---------------------------------------------------------------------------

// The case's bottlenecks in a row, under the name "blocks".
struct Bottlenecks : torch::nn::Module {
  explicit Bottlenecks(const Json& list) {
    for (const Json& block : list.array()) {
      blocks->push_back(
          tutti::models::Bottleneck(tutti::models::BlockOptions{.in_channels = block[0].integer(),
                                                                .width = block[1].integer(),
                                                                .stride = block[2].integer()}));
    }
    register_module("blocks", blocks);
  }
  tutti::nn::Sequential blocks;
};

// The reference draws what is kept, or a number below 1 for each example; tutti keeps a block for a
// number below its chance.
tutti::Rng replay_skips(const Case& c) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < c.draws.size(); ++i) {
    const bool whole = c.draws[i]["call"].string() == "torch.bernoulli";
    const at::Tensor drawn = c.draw_tensor(i).flatten();
    for (std::int64_t n = 0; n < drawn.numel(); ++n) {
      const auto value = drawn[n].item<double>();
      tape->uniforms.push_back(!whole ? value : value == 1 ? 0.0 : 1.0);
    }
  }
  tutti::Rng rng;
  rng.replay(tape);
  return rng;
}

at::Tensor drop_rates(const tutti::models::StochasticBlocks& blocks) {
  return at::tensor(blocks.drop_rates(), at::kFloat);
}

void apply_stochastic_depth(const Case& c, Verdict& verdict) {
  Bottlenecks model(c.params["blocks"]);
  load_state(model, c.ins("state."));
  const Arguments a(c.params["args"], "apply_stochastic_depth");
  const tutti::StochasticDepth options = stochastic_depth_options(a);
  a.done();
  const auto blocks =
      tutti::functional::apply_stochastic_depth(model,
                                                {.target_layer_name = options.target_layer_name,
                                                 .stochastic_method = options.stochastic_method,
                                                 .drop_rate = options.drop_rate,
                                                 .drop_distribution = options.drop_distribution},
                                                replay_skips(c));
  verdict.tensor("drop_rates", drop_rates(*blocks));
  model.train(c.params["train"].boolean());
  const at::Tensor x = c.in("x").requires_grad_();
  const at::Tensor y = model.blocks->forward(x);
  verdict.tensor("y", y);
  y.mul(c.in("g")).sum().backward();
  verdict.tensor("grad_x", x.grad());
  for (const auto& parameter : model.named_parameters()) {
    const std::string key = "grad." + parameter.key();
    if (c.has_out(key)) {
      verdict.tensor(key, parameter.value().grad());
    }
    verdict.check(parameter.value().grad().defined() == c.has_out(key),
                  key + ": a gradient only where the reference has one");
  }
  const auto state = state_of(model);
  for (const auto& [name, tensor] : c.outs("after.")) {
    verdict.tensor("after." + name, state.at(name));
  }
}

// From the end of the warm-up on the reference keeps the rates of the last batch before it; tutti
// goes on to the rate asked for.
void stochastic_depth_warmup(const Case& c, Verdict& verdict) {
  auto model = std::make_shared<Bottlenecks>(c.params["blocks"]);
  tutti::State state;
  state.model = model;
  const Arguments a(c.params, "StochasticDepth");
  tutti::StochasticDepth policy = stochastic_depth_options(a);
  policy.drop_warmup = drop_warmup(a);
  static_cast<void>(a.json("blocks"));
  a.done();
  policy.validate();
  if (c.expect.find("raises") != nullptr && !policy.drop_warmup.is_fraction()) {
    verdict.differs(stated::warmup_units);
    return;
  }
  policy.apply(tutti::Init{}, state);

  const at::Tensor elapsed = c.in("elapsed");
  constexpr std::int64_t whole = std::int64_t{1} << 50;  // as fine as doubles are
  state.max_duration = tutti::Time::batches(whole);
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < elapsed.numel(); ++i) {
    const auto now = elapsed[i].item<double>();
    state.timestamp.batch = std::llround(now * static_cast<double>(whole));
    if (policy.match(tutti::BatchStart{}, state)) {
      policy.apply(tutti::BatchStart{}, state);
    }
    const bool sticks = policy.drop_warmup.value() > 0 && now >= policy.drop_warmup.value();
    const at::Tensor row = drop_rates(**policy.run.blocks);
    rows.push_back(sticks && !rows.empty() ? rows.back() : row);
    const double last = row[-1].item<double>();
    verdict.check(!sticks || std::abs(last - policy.drop_rate) < 1e-6, "the warm-up has no end");
  }
  verdict.tensor("drop_rates", at::stack(rows));
}

// ---- Factorize ---------------------------------------------------------------------------------

void apply_factorization(const Case& c, Verdict& verdict) {
  for (const Layers layers : both_kinds) {
    Subject subject(c, layers);
    tutti::functional::apply_factorization(
        *subject.model, make_factorize<tutti::functional::FactorizationOptions>(c.params["args"]),
        subject.optimizer);
    std::size_t i = 0;
    tutti::surgery::for_each<tutti::nn::Factorized>(
        *subject.model,
        [&](const tutti::nn::Factorized& layer, const tutti::surgery::Visit& where) {
          const Json& want = c.expect["latent"][i++];
          const bool linear = dynamic_cast<const tutti::nn::FactorizedLinear*>(&layer) != nullptr;
          verdict.check(where.path == want[0].string() &&
                            linear == (want[1].string() == "FactorizedLinear") &&
                            layer.rank() == want[2].integer(),
                        where.path + ": another kind or rank");
        });
    verdict.check(i == c.expect["latent"].size(), "another number of factored layers");
    subject.settle(c, verdict);
    check_pass(c, verdict, subject.model);
  }
}

// Rows of q: 0 for a linear layer and 1 for a convolution, in, out, kernel, groups.
void factorize_sizes(const Case& c, Verdict& verdict) {
  const at::Tensor q = c.in("q");
  const at::Tensor latent = c.in("latent");
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < q.size(0); ++row) {
    const auto at = [&](std::int64_t i) { return q[row][i].item<std::int64_t>(); };
    const bool conv = at(0) == 1;
    const std::int64_t k = tutti::functional::latent_size(latent[row].item<double>(), at(1), at(2));
    const std::int64_t useful =
        tutti::functional::largest_useful_rank(at(1) * (conv ? at(3) * at(4) : 1), at(2));
    out.insert(out.end(), {k, useful, (!conv || at(5) == 1) && k <= useful ? 1 : 0});
  }
  verdict.tensor("r", at::tensor(out, at::kLong).view({-1, 3}));
}

// The reference keeps the last round. It takes the given bias from Y before it measures the error,
// and not from the outputs; its number is made here from tutti's product.
void factorize_matrix(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "factorize_matrix");
  const double rank = a.number("rank", 0.25);
  const std::int64_t n_iters = a.integer("n_iters", 3);
  a.done();
  const auto optional = [&](const char* key) { return c.has_in(key) ? c.in(key) : at::Tensor{}; };
  const at::Tensor X = c.in("X");
  const at::Tensor Y = c.in("Y");
  const at::Tensor bias = optional("bias");
  const auto got = tutti::functional::factorize_matrix(X, Y, c.in("Wa"), optional("Wb"), bias, rank,
                                                       n_iters, /*keep_best=*/false);
  at::Tensor y = X.matmul(got.Wa);
  y = (got.Wb.defined() ? y.matmul(got.Wb) : y).add(got.bias);
  verdict.tensor("bias", got.bias);
  verdict.tensor("Y_hat", y);
  verdict.number("rank", static_cast<double>(got.rank));
  const auto nmse = [&](const at::Tensor& want) {
    return ((want - y).square().mean() / want.var()).item<double>();
  };
  verdict.check(got.rank == -1 || std::abs(got.nmse - nmse(Y)) < 1e-5, "nmse is not the error");
  verdict.number("nmse", got.rank == -1 ? 0 : nmse(bias.defined() ? Y - bias : Y));
}

}  // namespace

Handlers surgery_handlers() {
  return {{"apply_channels_last", apply_channels_last},
          {"apply_factorization", apply_factorization},
          {"factorize_matrix", factorize_matrix},
          {"factorize_sizes", factorize_sizes},
          {"apply_ghost_batchnorm", apply_ghost_batchnorm},
          {"apply_low_precision_groupnorm", apply_low_precision_groupnorm},
          {"apply_low_precision_layernorm", apply_low_precision_layernorm},
          {"apply_squeeze_excite", apply_squeeze_excite},
          {"apply_stochastic_depth", apply_stochastic_depth},
          {"StochasticDepth_warmup", stochastic_depth_warmup},
          {"apply_weight_standardization", apply_weight_standardization}};
}

}  // namespace golden
