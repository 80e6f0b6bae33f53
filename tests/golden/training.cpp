#include <algorithm>

#include <tutti/core/trace.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/metrics/accuracy.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/trainer.hpp>

#include "golden/algorithms.hpp"
#include "golden/draws.hpp"
#include "golden/images.hpp"
#include "golden/run_algorithms.hpp"
#include "golden/runner.hpp"
#include "golden/slots.hpp"
#include "golden/surgery.hpp"
#include "nn/golden_model.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace golden {
namespace {

using Algorithms = std::vector<std::shared_ptr<AnyAlgorithm>>;

template <class A>
std::shared_ptr<AnyAlgorithm> held(A algorithm) {
  return std::make_shared<detail::Held<A>>(std::move(algorithm));
}

template <class A>
std::shared_ptr<AnyAlgorithm> drawing(A algorithm, const std::shared_ptr<tutti::Tape>& tape) {
  algorithm.rng.replay(tape);
  return held(std::move(algorithm));
}

// Policies that change a model's layers; their models need not have any.
std::shared_ptr<AnyAlgorithm> make_surgery(const std::string& name, const Json& args) {
  const auto lenient = [](auto policy) {
    policy.if_none = tutti::surgery::IfNone::ignore;
    return held(std::move(policy));
  };
  if (name == "ChannelsLast") {
    return lenient(tutti::ChannelsLast{});
  }
  if (name == "Factorize") {
    return lenient(make_factorize<tutti::Factorize>(args));
  }
  if (name == "GhostBatchNorm") {
    return lenient(make_ghost_batchnorm(args));
  }
  if (name == "LowPrecisionGroupNorm") {
    return lenient(make_low_precision<tutti::LowPrecisionGroupNorm>(args));
  }
  if (name == "LowPrecisionLayerNorm") {
    return lenient(make_low_precision<tutti::LowPrecisionLayerNorm>(args));
  }
  if (name == "SqueezeExcite") {
    return lenient(make_squeeze_excite(args));
  }
  if (name == "StochasticDepth") {
    return lenient(make_stochastic_depth(args));
  }
  if (name == "WeightStandardization") {
    return lenient(make_weight_standardization(args));
  }
  return nullptr;
}

std::shared_ptr<AnyAlgorithm> make_algorithm(const std::string& name, const Json& args,
                                             const std::shared_ptr<tutti::Tape>& tape) {
  if (name == "MixUp") {
    return drawing(make_mixup(args), tape);
  }
  if (name == "CutMix") {
    return drawing(make_cutmix(args), tape);
  }
  if (name == "LabelSmoothing") {
    return held(make_label_smoothing(args));
  }
  if (name == "BlurPool") {
    return held(make_blurpool(args));
  }
  if (name == "CutOut") {
    return drawing(make_cutout(args), tape);
  }
  if (name == "ColOut") {
    return drawing(make_colout(args), tape);
  }
  if (name == "ProgressiveResizing") {
    return drawing(make_progressive_resizing(args), tape);
  }
  if (name == "SelectiveBackprop") {
    return drawing(make_selective_backprop(args), tape);
  }
  if (name == "RandAugment") {
    return held(make_randaugment(args));
  }
  if (name == "AugMix") {
    return held(make_augmix(args));
  }
  if (name == "EMA") {
    return held(Epochwise<tutti::EMA>{.policy = make_ema(args)});
  }
  if (name == "GradientClipping") {
    return held(make_gradient_clipping(args));
  }
  if (name == "SAM") {
    return held(make_sam(args));
  }
  if (name == "SWA") {
    return held(Epochwise<tutti::SWA>{.policy = make_swa(args)});
  }
  if (name == "LayerFreezing") {
    return held(make_layer_freezing(args));
  }
  if (name == "GyroDropout") {
    return held(make_gyro_dropout(args));
  }
  if (name == "SeqLengthWarmup") {
    return held(make_seq_length_warmup(args));
  }
  if (name == "Alibi") {
    return held(make_alibi(args));
  }
  if (name == "GatedLinearUnits") {
    return held(make_gated_linear_units(args));
  }
  return make_surgery(name, args);
}

// Skips the case when tutti lacks one of its algorithms.
void need_algorithms(const Json& list) {
  std::set<std::string> lacking;
  for (const Json& entry : list.array()) {
    if (!make_algorithm(entry[0].string(), entry[1], nullptr)) {
      lacking.insert(entry[0].string());
    }
  }
  std::string text;
  for (const std::string& name : lacking) {
    text += (text.empty() ? "needs " : ", ") + name;
  }
  if (!text.empty()) {
    throw Skipped(text);
  }
  if (list.size() > slot_count) {
    throw Skipped("more than " + std::to_string(slot_count) + " algorithms");
  }
}

// The algorithms of a case, which draw from the tape, in the order listed, but for the two that the
// reference moves.
Algorithms make_algorithms(const Json& list, const std::shared_ptr<tutti::Tape>& tape) {
  Algorithms all;
  for (const Json& entry : list.array()) {
    all.push_back(make_algorithm(entry[0].string(), entry[1], tape));
    all.back()->place = all.size() - 1;
  }
  std::stable_partition(all.begin(), all.end(), [](const auto& algorithm) {
    return algorithm->name() == "SelectiveBackprop";
  });
  std::stable_partition(all.begin(), all.end(), [](const auto& algorithm) {
    return algorithm->name() != "LowPrecisionLayerNorm";
  });
  return all;
}

// Hands the optimizer's step to the SAM among the algorithms, if there is one.
struct Stepper final {
  static constexpr tutti::Role role = tutti::Role::callback;
  tutti::SAM* sam = nullptr;

  void apply(tutti::FitEnd, tutti::State&) const {}
  template <class Closure, class Update>
  void step(tutti::State& state, Closure&& closure, Update&& update) {
    if (sam != nullptr) {
      sam->step(state, closure, update);
    } else if (closure(true)) {
      update();
    }
  }
};

// What the reference's runs report, batch by batch and epoch by epoch.
struct Watch final {
  std::vector<double> losses{};
  std::vector<double> learning_rates{};
  std::vector<double> eval_values{};  // cross entropy and accuracy in turn

  void apply(tutti::BatchStart, const tutti::State& state) {
    learning_rates.push_back(state.optimizers[0]->param_groups()[0].options().get_lr());
  }
  void apply(tutti::BatchEnd, const tutti::State& state) {
    losses.push_back(state.total_loss.at("total").item<double>());
  }
  void apply(tutti::EvalEnd, const tutti::State& state) {
    const auto& values = state.eval_metric_values.at("eval");
    if (values.contains("CrossEntropy")) {
      eval_values.push_back(values.at("CrossEntropy"));
      eval_values.push_back(values.at("MulticlassAccuracy"));
    }
  }
};

template <class Slots>
struct TrainerWith;
template <std::size_t... I>
struct TrainerWith<std::index_sequence<I...>> {
  using type = tutti::Trainer<tutti::reference_order, Slot<I>..., Stepper, Watch, tutti::Trace>;
};
using Trainer = TrainerWith<std::make_index_sequence<slot_count>>::type;

template <std::size_t... I>
std::unique_ptr<Trainer> make_trainer(tutti::AnyModel model, tutti::TrainerOptions options,
                                      const Algorithms& algorithms, std::index_sequence<I...>) {
  Stepper stepper;
  for (const auto& algorithm : algorithms) {
    if (auto* sam = dynamic_cast<detail::Held<tutti::SAM>*>(algorithm.get())) {
      stepper.sam = &sam->algorithm();
    }
  }
  const auto at = [&](std::size_t i) { return i < algorithms.size() ? algorithms[i] : nullptr; };
  return std::make_unique<Trainer>(std::move(model), std::move(options), tutti::reference_order{},
                                   Slot<I>{at(I)}..., stepper, Watch{}, tutti::Trace{});
}

tutti::OptimizerSpec make_optimizer(const Json& entry) {
  const std::string& name = entry[0].string();
  if (name == "DecoupledSGDW") {
    return decoupled_sgdw(entry[1]);
  }
  if (name == "DecoupledAdamW") {
    return decoupled_adamw(entry[1]);
  }
  throw Skipped("needs the optimizer " + name);
}

std::vector<tutti::Batch> slices(const at::Tensor& x, const at::Tensor& y, std::int64_t size) {
  std::vector<tutti::Batch> out;
  for (std::int64_t from = 0; from < x.size(0); from += size) {
    const std::int64_t to = std::min(from + size, x.size(0));
    out.emplace_back(x.slice(0, from, to), y.slice(0, from, to));
  }
  return out;
}

tutti::AnyModel classifier(const tutti::nn::Sequential& net, std::int64_t classes) {
  return tutti::Classifier(net.ptr(), {.num_classes = classes, .train_metrics = tutti::Metrics{}});
}

// ---- e2e_* -------------------------------------------------------------------------------------

tutti::TrainerOptions options_of(const Case& c) {
  const std::int64_t size = c.params["batch_size"].integer();
  tutti::TrainerOptions options{
      .train = slices(c.in("x"), c.in("y"), size),
      .eval = {{"eval", slices(c.in("x_eval"), c.in("y_eval"), size)}},
      .max_duration = tutti::Time::parse(c.params["max_duration"].string()),
      .optimizer = make_optimizer(c.params["optimizer"]),
      .device_train_microbatch_size = c.params["microbatch_size"].integer(),
      .device = "cpu",
      .seed = 1,
      .progress_bar = false};
  if (const Json& scheduler = c.params["scheduler"]; !scheduler.is_null()) {
    options.schedule = make_schedule(scheduler[0].string(), scheduler[1]);
  }
  return options;
}

void check_averages(const Case& c, Verdict& verdict, const Algorithms& algorithms) {
  for (const auto& algorithm : algorithms) {
    if (auto* held = dynamic_cast<detail::Held<Epochwise<tutti::EMA>>*>(algorithm.get())) {
      const tutti::EMA& ema = held->algorithm().policy;
      for (const auto& [name, tensor] : ema.averages()) {
        if (c.has_out("ema." + name)) {
          verdict.tensor("ema." + name, tensor);
        }
      }
      verdict.check(std::abs(ema.factor() - c.expect["ema_smoothing"].number()) < 1e-12,
                    "the smoothing is " + std::to_string(ema.factor()));
    }
  }
}

void whole_run(const Case& c, Verdict& verdict) {
  need_algorithms(c.params["algorithms"]);
  const auto tape = tape_of(c);
  const Algorithms algorithms = make_algorithms(c.params["algorithms"], tape);
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  auto trainer = make_trainer(classifier(net, c.params["classes"].integer()), options_of(c),
                              algorithms, std::make_index_sequence<slot_count>{});
  trainer->fit();

  const Watch& watch = trainer->get<Watch>();
  verdict.tensor("loss", at::tensor(watch.losses, at::kDouble));
  verdict.tensor("lr", at::tensor(watch.learning_rates, at::kDouble));
  verdict.tensor("eval_ce_acc", at::tensor(watch.eval_values, at::kDouble).view({-1, 2}));
  for (const auto& [name, tensor] : state_of(*net)) {
    verdict.tensor("final." + name, tensor);
  }
  check_averages(c, verdict, algorithms);
  verdict.check(is_used_up(*tape), "fewer random numbers were drawn than by the reference");
}

// ---- trace -------------------------------------------------------------------------------------

tutti::AnyModel trace_model(const Case& c) {
  if (c.params["model"].is_array()) {
    return classifier(build_model(c.params["model"], Layers::replaceable),
                      c.params["classes"].integer());
  }
  return tutti::models::BertForMaskedLM(tutti::models::BertOptions{.vocab_size = 40,
                                                                   .hidden_size = 16,
                                                                   .num_hidden_layers = 1,
                                                                   .num_attention_heads = 2,
                                                                   .intermediate_size = 32})
      .ptr();
}

// Random images and labels, or text: numerics play no part in what runs when.
std::vector<tutti::Batch> any_data(const Case& c, std::int64_t batches) {
  const std::int64_t size = c.params["batch_size"].integer();
  const std::int64_t classes = c.params["classes"].integer();
  std::vector<tutti::Batch> out;
  for (std::int64_t i = 0; !c.params["model"].is_array() && i < batches; ++i) {
    const at::Tensor ids = at::randint(40, {size, 32}, at::kLong);
    out.push_back({{"input_ids", ids}, {"labels", ids}, {"attention_mask", at::ones_like(ids)}});
  }
  if (!out.empty()) {
    return out;
  }
  for (std::int64_t i = 0; i < batches; ++i) {
    out.emplace_back(at::rand({size, 3, 16, 16}), at::randint(classes, {size}, at::kLong));
  }
  return out;
}

// Work that is tutti's own. ChannelsLast: its inputs. GyroDropout: the same masks in both passes of
// SAM. EMA: at the ends of fit and predict, for the reference leaves the averages in the model when
// a run ends with a checkpoint, and predicts without them; and where its average begins or comes
// out of the model at a batch or an epoch at which none is taken, `ended` being how many have
// ended.
bool is_own_work(const AnyAlgorithm& algorithm, const std::string& event, std::int64_t ended) {
  if (algorithm.name() == "ChannelsLast") {
    return event != "init";
  }
  if (algorithm.name() == "GyroDropout") {
    return event != "fit_start";
  }
  const auto* held = dynamic_cast<const detail::Held<Epochwise<tutti::EMA>>*>(&algorithm);
  if (held == nullptr || event == "fit_end" || event == "predict_end") {
    return held != nullptr;
  }
  const tutti::Time every = held->algorithm().policy.interval();
  const bool by_batch = every.unit() == tutti::TimeUnit::batch;
  return (event == "batch_end" && (!by_batch || ended % every.count() != 0)) ||
         (event == "epoch_end" && (by_batch || ended % every.count() != 0));
}

// Lines as the reference writes them: slots by the names of what they hold, with their place when a
// name occurs twice.
std::vector<std::string> as_reference(std::vector<std::string> lines,
                                      const Algorithms& algorithms) {
  std::map<std::string, std::int64_t> events;
  for (std::string& line : lines) {
    const auto at = line.find(">slot");
    if (at == std::string::npos) {
      ++events[line];
      continue;
    }
    const auto place = static_cast<std::size_t>(std::stoul(line.substr(at + 5)));
    const std::string event = line.substr(0, at);
    if (is_own_work(*algorithms.at(place), event, events[event])) {
      line.clear();
      continue;
    }
    const std::string_view name = algorithms.at(place)->name();
    const auto twice = std::count_if(algorithms.begin(), algorithms.end(),
                                     [&](const auto& other) { return other->name() == name; });
    line.erase(at + 1);
    line.append(name == "ALiBi" ? "Alibi" : name);
    line += twice > 1 ? "#" + std::to_string(algorithms.at(place)->place) : "";
  }
  std::erase(lines, "");
  return lines;
}

// What the reference's trace has and tutti's does not, on purpose: GradientClipping's work at INIT
// is for DeepSpeed, which tutti has not; SWA allocates when it begins to average; SeqLengthWarmup
// takes any model; ALiBi without a scaling leaves batches alone; and EMA has nothing to do for a
// checkpoint that is not written, as the last one is not twice.
std::vector<std::string> expected_lines(const Case& c) {
  std::vector<std::string> lines;
  std::set<std::string> idle{"init>GradientClipping", "init>SWA", "init>SeqLengthWarmup"};
  for (const Json& entry : c.params["algorithms"].array()) {
    if (entry[0].string() == "Alibi" && make_alibi(entry[1]).train_sequence_length_scaling == 1) {
      idle.insert("after_dataloader>Alibi");
    }
  }
  for (const Json& line : c.expect["trace"].array()) {
    const std::string& text = line.string();
    if (!idle.contains(text.substr(0, text.find('#')))) {
      lines.push_back(text);
    }
  }
  std::string saved;  // the event whose checkpoint is written below the line
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string event = line->substr(0, line->find('>'));
    if (line->find(">save:") != std::string::npos) {
      saved = event;
    } else if (*line == event) {
      saved.clear();
    } else if (event.ends_with("_checkpoint") && event != saved &&
               line->find(">EMA") != std::string::npos) {
      line->clear();
    }
  }
  std::erase(lines, "");
  return lines;
}

std::string first_difference(const std::vector<std::string>& got,
                             const std::vector<std::string>& want) {
  std::size_t i = 0;
  while (i < got.size() && i < want.size() && got[i] == want[i]) {
    ++i;
  }
  const auto line = [&](const std::vector<std::string>& lines) {
    return i < lines.size() ? "\"" + lines[i] + "\"" : std::string("the end");
  };
  return i == got.size() && i == want.size()
             ? ""
             : "line " + std::to_string(i) + " is " + line(got) + ", expected " + line(want);
}

// The same from a loader with a list of transforms, for policies that change single images.
tutti::ImageLoader any_images(std::int64_t batches, std::int64_t size, std::int64_t classes) {
  const std::int64_t n = batches * size;
  return tutti::ImageLoader(at::randint(256, {n, 3, 16, 16}, at::kByte),
                            at::randint(classes, {n}, at::kLong), {.batch_size = size});
}

tutti::TrainerOptions trace_options(const Case& c, const std::string& save_folder) {
  const std::int64_t size = c.params["batch_size"].integer();
  const std::int64_t classes = c.params["classes"].integer();
  tutti::TrainerOptions options{
      .train = any_images(c.params["batches"].integer(), size, classes),
      .max_duration = tutti::Time::parse(c.params["max_duration"].string()),
      .eval_interval = tutti::Time::parse(c.params["eval_interval"].string()),
      .optimizer = tutti::DecoupledSGDW{.lr = 0.01},
      .device_train_microbatch_size = c.params["microbatch_size"].integer(),
      .device = "cpu",
      .seed = 1,
      .progress_bar = false};
  if (!c.params["model"].is_array()) {
    options.train = any_data(c, c.params["batches"].integer());
  }
  if (const std::int64_t batches = c.params["eval_batches"].integer(); batches > 0) {
    options.eval = {{"eval", any_data(c, batches)}};
  }
  if (const Json* interval = c.params.find("save_interval")) {
    options.save_folder = save_folder;
    options.save_interval = tutti::Time::parse(interval->string());
  }
  return options;
}

void trace(const Case& c, Verdict& verdict) {
  need_algorithms(c.params["algorithms"]);
  const Algorithms algorithms = make_algorithms(c.params["algorithms"], tape_of(c));
  const TemporaryFolder folder;
  auto trainer = make_trainer(trace_model(c), trace_options(c, folder.path().string()), algorithms,
                              std::make_index_sequence<slot_count>{});
  const bool finished = verdict.raises_as_reference([&] {
    for (const Json& call : c.params["calls"].array()) {
      if (call.string() == "fit") {
        trainer->fit();
      } else if (call.string() == "eval") {
        trainer->eval();
      } else {
        trainer->predict(
            any_data(c, std::max<std::int64_t>(c.params["eval_batches"].integer(), 1)));
      }
    }
  });
  if (!finished) {
    return;  // how far either comes before it raises may differ
  }
  const auto got = as_reference(trainer->get<tutti::Trace>().lines, algorithms);
  const std::string difference = first_difference(got, expected_lines(c));
  verdict.check(difference.empty(), difference);
}

}  // namespace

Handlers training_handlers() {
  Handlers all{{"trace", trace}};
  for (const char* what :
       {"none", "labelsmoothing_blurpool", "mixup", "sam", "ema", "gradient_clipping", "cutmix",
        "stack", "selective_backprop", "data_stack"}) {
    all[std::string("e2e_") + what] = whole_run;
  }
  return all;
}

}  // namespace golden

namespace {

using namespace golden;

// The trainer of a recipe of types, with the same data, optimizer and draws as the slots'.
template <class... Policies>
std::pair<std::vector<double>, Tensors> run_recipe(const Case& c, Policies... policies) {
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  tutti::Trainer<tutti::reference_order, Policies..., Watch> trainer(
      classifier(net, c.params["classes"].integer()), options_of(c), tutti::reference_order{},
      std::move(policies)..., Watch{});
  trainer.fit();
  return {trainer.template get<Watch>().losses, state_of(*net)};
}

}  // namespace

TEST_CASE("a recipe of types trains bit for bit as the same algorithms in slots", "[golden]") {
  const Case c = golden::cases("e2e_mixup").at(0);
  const Json no_arguments(Json::Object{});
  const Json clipping(Json::Object{{"clipping_type", "norm"}, {"clipping_threshold", 0.5}});
  const Json half_life(Json::Object{{"half_life", "5ba"}});

  auto mixup = make_mixup(c.params["algorithms"][0][1]);
  mixup.rng.replay(tape_of(c));
  const auto [losses, weights] =
      run_recipe(c, make_blurpool(no_arguments), mixup, make_label_smoothing(no_arguments),
                 make_ema(half_life), make_gradient_clipping(clipping));

  const Algorithms algorithms{make_algorithm("BlurPool", no_arguments, nullptr),
                              make_algorithm("MixUp", c.params["algorithms"][0][1], tape_of(c)),
                              make_algorithm("LabelSmoothing", no_arguments, nullptr),
                              make_algorithm("EMA", half_life, nullptr),
                              make_algorithm("GradientClipping", clipping, nullptr)};
  auto net = build_model(c.params["model"], Layers::replaceable);
  load_state(*net, c.ins("state."));
  auto trainer = make_trainer(classifier(net, c.params["classes"].integer()), options_of(c),
                              algorithms, std::make_index_sequence<slot_count>{});
  trainer->fit();
  CHECK(trainer->get<Watch>().losses == losses);
  for (const auto& [name, tensor] : state_of(*net)) {
    INFO(name);
    CHECK(tensor.equal(weights.at(name)));
  }
}
