#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <tutti/algorithms/gyro_dropout.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/optim/annealing.hpp>

#include "golden/run_algorithms.hpp"
#include "golden/runner.hpp"
#include "nn/golden_model.hpp"

// Algorithms whose cases go through a whole run: averages, freezing, dropout masks that stay.

namespace golden {
namespace {

// A run of the reference with SWA: a loop by hand, with SWA at its events.
class AveragedRun {
 public:
  AveragedRun(const Case& c, Verdict& verdict)
      : case_(c),
        verdict_(verdict),
        net_(build_model(c.params["model"], Layers::replaceable)),
        swa_(make_swa(c.params["swa"])),
        batches_(c.params["batches"].integer()) {
    load_state(*net_, c.ins("state."));
    const auto sgd = sgd_of<tutti::SGD>(c.params["sgd"], "SGD");
    lr_ = sgd.lr;
    state_.model = net_.ptr();
    state_.optimizers = {sgd.build(net_->parameters())};
    // The length of an epoch stays unknown, so that parts of the run are counted in whole epochs,
    // as the reference does.
    state_.max_duration = tutti::Time::parse(c.params["max_duration"].string());
    swa_.validate();
  }

  void operator()() {
    while (state_.timestamp < state_.max_duration) {
      step();
      schedule();
      advance(state_.timestamp.to_next_batch(case_.params["batch_size"].integer()));
      fire(tutti::BatchEnd{}, tutti::TimeUnit::batch);
      if (state_.timestamp.batch_in_epoch == batches_) {
        advance(state_.timestamp.to_next_epoch());
        fire(tutti::EpochEnd{}, tutti::TimeUnit::epoch);
      }
    }
    for (const auto& [name, tensor] : swa_.run.mean->means()) {
      verdict_.tensor("swa." + name, tensor);
    }
    if (swa_.run.mean->count() == 0) {  // the reference has a copy of the first weights then
      for (const auto& [name, tensor] : case_.outs("swa.")) {
        verdict_.leave_out("swa." + name);
      }
    }
    compare("final.");
    verdict_.number("final_lr", options().get_lr());
    verdict_.check(swa_.run.mean->count() == case_.expect["n_averaged"].integer(),
                   "n_averaged differs");
    verdict_.check(swa_.run.completed == case_.expect["completed"].boolean(), "completed differs");
    verdict_.check(swa_.run.elapsed == case_.expect["steps"].integer(), "steps differ");
  }

 private:
  torch::optim::OptimizerOptions& options() {
    return state_.optimizers[0]->param_groups()[0].options();
  }

  void step() {
    const std::int64_t size = case_.params["batch_size"].integer();
    const std::int64_t from = state_.timestamp.batch_in_epoch * size;
    const at::Tensor x = case_.in("x").slice(0, from, from + size);
    const at::Tensor y = case_.in("y").slice(0, from, from + size);
    state_.optimizers[0]->zero_grad();
    torch::nn::functional::cross_entropy(net_->forward(x), y).backward();
    state_.optimizers[0]->step();
  }

  void advance(const tutti::Timestamp& next) {
    state_.previous_timestamp = state_.timestamp;
    state_.timestamp = next;
  }

  void schedule() {
    if (case_.params["cosine"].boolean()) {
      tutti::Progress progress = state_.progress();
      progress.dataloader_len = batches_;
      options().set_lr(lr_ * tutti::CosineAnnealing{}(progress));
    }
  }

  template <class E>
  void fire(E event, tutti::TimeUnit unit) {
    if (swa_.update_interval.unit() == unit) {
      compare("traj." + std::to_string(events_++) + ".");
    }
    const double scheduled = options().get_lr();
    if (swa_.match(event, state_)) {
      const std::int64_t before = swa_.run.mean->count();
      swa_.apply(event, state_);
      if (swa_.schedule_swa_lr) {
        options().set_lr(swa_.run.mean->count() == before ? scheduled : reference_lr(scheduled));
      }
    }
  }

  // The reference's SWA derives its learning rate from what the run's schedule has just written,
  // each time it takes an average, and goes to the one at its own start, or to 1 in a run without
  // a schedule, whatever swa_lr is.
  double reference_lr(double scheduled) const {
    const auto share = [&](std::int64_t updates) {
      return tutti::functional::swa_learning_rate(0, 1, updates, swa_.anneal_steps,
                                                  swa_.anneal_strategy);
    };
    const double goal = case_.params["cosine"].boolean() ? (*swa_.run.initial_lrs)[0] : 1.0;
    const double before = share(swa_.run.mean->count() - 1);
    const double now = share(swa_.run.mean->count());
    const double from = before == 1 ? goal : (scheduled - before * goal) / (1 - before);
    return goal * now + from * (1 - now);
  }

  void compare(const std::string& prefix) {
    for (const auto& [name, tensor] : state_of(*net_)) {
      verdict_.tensor(prefix + name, tensor);
    }
  }

  const Case& case_;
  Verdict& verdict_;
  tutti::nn::Sequential net_;
  tutti::SWA swa_;
  std::int64_t batches_;
  tutti::State state_;
  double lr_ = 0;
  int events_ = 0;
};

void swa(const Case& c, Verdict& verdict) {
  expect_keys(c, {"model", "swa", "max_duration", "sgd", "cosine", "batches", "batch_size"});
  AveragedRun(c, verdict)();
}

std::vector<std::string> names_in(const torch::optim::Optimizer& optimizer,
                                  const torch::nn::Module& model) {
  std::vector<std::string> out;
  for (const auto& item : model.named_parameters()) {
    for (const at::Tensor& parameter : optimizer.param_groups()[0].params()) {
      if (parameter.is_same(item.value())) {
        out.push_back(item.key());
      }
    }
  }
  return out;
}

std::vector<std::string> strings(const Json& list) {
  std::vector<std::string> out;
  for (const Json& text : list.array()) {
    out.push_back(text.string());
  }
  return out;
}

void freeze_layers(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "freeze_layers");
  const Json& layers = a.json("model");
  const double start = a.number("freeze_start", 0.5);
  const double level = a.number("freeze_level", 1.0);
  a.done();
  const at::Tensor durations = c.in("durations");
  std::vector<std::int64_t> depths;
  std::vector<double> fractions;
  for (std::int64_t i = 0; i < durations.size(0); ++i) {
    auto model = build_model(layers, Layers::plain);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    const auto report = tutti::functional::freeze_layers(*model, optimizer,
                                                         durations[i].item<double>(), start, level);
    depths.push_back(report.layers);
    fractions.push_back(report.fraction);
    std::vector<std::string> frozen;
    for (const auto& item : model->named_parameters()) {
      if (!item.value().requires_grad()) {
        frozen.push_back(item.key());
      }
    }
    const auto at = static_cast<std::size_t>(i);
    verdict.check(frozen == strings(c.expect["frozen"][at]), "other parameters are frozen");
    verdict.check(names_in(optimizer, *model) == strings(c.expect["optimizer_left"][at]),
                  "other parameters are left in the optimizer");
  }
  verdict.tensor("depth", at::tensor(depths, at::kLong));
  verdict.tensor("percentage", at::tensor(fractions, at::kDouble));
}

// The masks are uniform numbers above p, the picks numbers of masks.
std::shared_ptr<tutti::Tape> masks_and_picks(const Case& c) {
  auto tape = std::make_shared<tutti::Tape>();
  for (std::size_t i = 0; i < c.draws.size(); ++i) {
    const at::Tensor draw = c.draw_tensor(i).flatten();
    for (std::int64_t j = 0; j < draw.numel(); ++j) {
      if (c.draws[i]["call"].string() == "torch.rand") {
        tape->uniforms.push_back(draw[j].item<double>());
      } else {
        tape->integers.push_back(draw[j].item<std::int64_t>());
      }
    }
  }
  return tape;
}

void apply_gyro_dropout(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "apply_gyro_dropout");
  const std::int64_t iterations = a.integer("iters_per_epoch", 0);
  const std::int64_t epochs = a.integer("max_epoch", 0);
  const double p = a.number("p", 0.5);
  const std::int64_t sigma = a.integer("sigma", 256);
  const std::int64_t tau = a.integer("tau", 16);
  a.done();
  tutti::nn::Sequential model{tutti::nn::Dropout()};
  const auto apply = [&] {
    tutti::functional::apply_gyro_dropout(*model, iterations, epochs, p, sigma, tau);
  };
  if (iterations * epochs < sigma) {  // a division by zero in the reference's first call
    verdict.raises_as_reference(apply);
    return;
  }
  apply();
  const auto layer = std::dynamic_pointer_cast<tutti::nn::GyroDropoutImpl>(model->ptr(0));
  auto state = layer->state();
  state.rng.replay(masks_and_picks(c));
  layer->set_state(state);
  if (c.expect.find("raises") != nullptr) {
    verdict.differs(stated::any_batch);
    return;
  }
  const at::Tensor x = c.in("x");
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    verdict.tensor("y." + std::to_string(i), model->forward(x[i]));
    verdict.tensor("mask." + std::to_string(i), layer->mask(x.size(1)));
  }
  verdict.tensor("preselect", layer->state().masks);
  verdict.number("iter_num", static_cast<double>(layer->options.period));
  model->eval();
  verdict.tensor("y_eval", model->forward(x[0]));
}

void set_batch_sequence_length(const Case& c, Verdict& verdict) {
  const Arguments a(c.params, "set_batch_sequence_length");
  const std::int64_t length = a.integer("curr_seq_len", 0);
  const bool truncate = a.flag("truncate", true);
  const bool preserve = a.flag("preserve_end_of_sequence", false);
  a.done();
  tutti::Batch batch;
  for (const std::string& key : c.in_keys()) {
    batch[key] = c.in(key);
  }
  const tutti::Batch got =
      tutti::functional::set_batch_sequence_length(batch, length, truncate, preserve);
  for (const auto& [name, tensor] : got) {
    verdict.tensor(name, tensor);
  }
}

void seq_length_warmup(const Case& c, Verdict& verdict) {
  const std::int64_t batches = c.params["max_duration_batches"].integer();
  const Json* raises = c.expect.find("raises");
  Json::Object args = c.params.object();
  std::erase_if(args, [](const auto& item) { return item.first == "max_duration_batches"; });
  const tutti::SeqLengthWarmup warmup = make_seq_length_warmup(Json(args));
  warmup.validate();
  const auto total = static_cast<std::int64_t>(warmup.duration * static_cast<double>(batches));
  std::vector<std::int64_t> lengths;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    lengths.push_back(tutti::functional::warmup_seq_length(
        batch, total, warmup.min_seq_length, warmup.max_seq_length, warmup.step_size));
  }
  if (raises != nullptr) {
    verdict.check(lengths.back() == warmup.max_seq_length || total == batches,
                  "the full length is not reached");
    verdict.differs(stated::short_warmup);
    return;
  }
  verdict.tensor("seq_len", at::tensor(lengths, at::kLong));
}

}  // namespace

Handlers run_handlers() {
  return {{"SWA", swa},
          {"freeze_layers", freeze_layers},
          {"apply_gyro_dropout", apply_gyro_dropout},
          {"set_batch_sequence_length", set_batch_sequence_length},
          {"SeqLengthWarmup", seq_length_warmup}};
}

}  // namespace golden
