// The kinds of image models: vision transformers and residual networks in timm's, torchvision's and
// Hugging Face's files, and the averages of timm's ModelEmaV3.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/state.hpp>
#include <tutti/models/from_pretrained.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/vision_layout.hpp>
#include <tutti/models/vit.hpp>

#include "golden_interop/runner.hpp"
#include "support/temporary_folder.hpp"

namespace golden_interop {
namespace {

namespace models = tutti::models;

// The case's config as its library writes it. That of a bare ResNet of timm has only the arguments
// of the class, which timm's own files have as model_args of an architecture.
Json config_of(const Case& c) {
  const Json read = c.read("config.json");
  if (!read.contains("class") || read["class"].string() != "timm.models.resnet.ResNet") {
    return read;
  }
  Json::Object args;
  for (const auto& [name, value] : read.object()) {
    if (name != "class" && name != "block") {
      args.emplace_back(name, value);
    }
  }
  const bool basic = read["block"].string() == "basic";
  return Json::Object{{"architecture", basic ? "resnet18" : "resnet50"},
                      {"num_classes", read["num_classes"]},
                      {"model_args", args}};
}

// Names and shapes are exactly those of the file, and parameters stand in its order.
void compare_names(const Case& c, const models::WeightLayout& layout) {
  std::map<std::string, std::vector<std::int64_t>> got;
  for (const auto& entry : layout.tensors) {
    got[entry.name] = entry.tensor.sizes().vec();
  }
  std::map<std::string, std::vector<std::int64_t>> want;
  for (const auto& [name, tensor] : c.weights()) {
    want[name] = tensor.sizes().vec();
  }
  c.check(got == want, "the layout's names or shapes differ from the file's");
  if (const Json* order = c.json.find("parameters_in_order")) {
    std::vector<std::string> in_order;
    for (const Json& name : order->array()) {
      in_order.push_back(name.string());
    }
    std::vector<std::string> mine;
    for (const auto& entry : layout.tensors) {
      if (std::find(in_order.begin(), in_order.end(), entry.name) != in_order.end()) {
        mine.push_back(entry.name);
      }
    }
    c.check(mine == in_order, "the parameters stand in another order");
  }
}

// A relu that rounds to the other side changes the gradients of deep bottlenecks.
double gradient_tolerance(const models::VisionTransformerImpl& /*net*/) {
  return 1e-4;
}
double gradient_tolerance(const models::ResNetImpl& net) {
  const auto& options = net.options();
  return options.block == models::Block::bottleneck && options.layers.size() == 4 &&
                 options.layers[2] >= 6
             ? 5e-3
             : 1e-4;
}

// The references of the training mode are without dropout, whatever the config says.
void without_dropout(torch::nn::Module& net) {
  for (const auto& module : net.modules()) {
    if (auto* dropout = module->as<torch::nn::Dropout>()) {
      dropout->options.p(0);
    }
  }
}

template <class M>
void run_network(const Case& c) {
  const TemporaryFolder folder;
  tutti::checkpoint::write_json(folder / "config.json", config_of(c));
  const Tensors weights = c.weights();
  tutti::checkpoint::write_safetensors(folder / "model.safetensors",
                                       {weights.begin(), weights.end()});
  M net = models::from_pretrained<M>(folder.path().string());
  compare_names(c, net->weight_layout());
  const Tensors io = c.io();
  net->eval();
  {
    const torch::NoGradGuard no_grad;
    c.close("logits", net(io.at("x")), io.at("logits"));
  }
  without_dropout(*net);
  const bool trains = io.count("logits_train") != 0;
  net->train(trains);
  const at::Tensor logits = net(io.at("x"));
  if (trains) {
    c.close("logits_train", logits, io.at("logits_train"));
  }
  const at::Tensor loss = at::cross_entropy_loss(logits, io.at("labels"));
  c.number("loss", loss.template item<double>(), c.json[trains ? "loss_train" : "loss"].number(),
           1e-5);
  loss.backward();
  c.gradient_norms(*net, net->weight_layout(), gradient_tolerance(*net));
  if (const Json* running = c.json.find("running_norms_after_one_training_pass")) {
    const auto buffers = net->named_buffers();
    for (const auto& [name, norm] : running->object()) {
      c.number(name, buffers[name].to(at::kDouble).norm().template item<double>(), norm.number(),
               5e-5);
    }
  }
}

void run_vision(const Case& c) {
  const Json json = config_of(c);
  const models::PretrainedConfig config(json.object());
  if (models::vision_family_of(config) == models::VisionFamily::resnet) {
    run_network<models::ResNet>(c);
  } else {
    run_network<models::VisionTransformer>(c);
  }
}

// One network in the files of three libraries.
void run_same_vit(const Case& c) {
  const auto config = models::PretrainedConfig::read(c.folder.string());
  const Tensors io = c.io();
  const std::map<std::string, models::VisionLayout> layouts = {
      {"timm", models::VisionLayout::timm},
      {"torchvision", models::VisionLayout::torchvision},
      {"hf", models::VisionLayout::huggingface}};
  for (const auto& [file, layout] : layouts) {
    models::VisionTransformer net(models::VisionTransformerImpl::options_from(config));
    models::load_pretrained(net->weight_layout(layout),
                            (c.folder / (file + ".safetensors")).string());
    net->eval();
    const torch::NoGradGuard no_grad;
    c.close(file, net(io.at("x")), io.at("logits"));
  }
}

// timm's network of the averages, whose tensors are set by formula before every step.
class Averaged {
 public:
  explicit Averaged(std::uint64_t seed) : seed_(seed) {}

  void put(std::int64_t step) {
    const torch::NoGradGuard no_grad;
    const std::string at = "@" + std::to_string(step);
    for (auto& entry : net->weight_layout().tensors) {
      if (entry.tensor.is_floating_point()) {
        entry.tensor.copy_(
            fill_by_formula(entry.name + at, seed_, 0.5, 0.5, entry.tensor.sizes().vec()));
      } else {
        entry.tensor.fill_(step);
      }
    }
  }

  models::ResNet net{models::ResNetOptions{
      .layers = {1, 1}, .widths = {4, 6}, .num_classes = 3, .stem_width = 64}};

 private:
  std::uint64_t seed_;
};

void compare_averages(const Case& c, const Json& want,
                      const std::vector<std::pair<std::string, at::Tensor>>& averages) {
  const std::string which = "seed " + std::to_string(want["seed"].integer()) + ", ";
  const Tensors got(averages.begin(), averages.end());
  for (const auto& [name, sum] : want["after"].object()) {
    const auto found = got.find(name);
    c.check(found != got.end(), which + "there is no average of " + name);
    if (found != got.end()) {
      c.number(which + name, found->second.to(at::kDouble).sum().item<double>(), sum.number(), 1e-5,
               1e-6);
    }
  }
  std::vector<double> bias;
  for (const Json& value : want["fc.bias"].array()) {
    bias.push_back(value.number());
  }
  c.close(which + "fc.bias", got.at("fc.bias"), at::tensor(bias, at::kDouble), 1e-6);
}

// The averages with a step: the policy, whose averaging begins with a copy.
void run_with_step(const Case& c, const Json& want) {
  const Json& args = want["args"];
  const auto number = [&](const char* name, double otherwise) {
    return args.contains(name) ? args[name].number() : otherwise;
  };
  const auto flag = [&](const char* name) { return args.contains(name) && args[name].boolean(); };
  const auto first = static_cast<std::int64_t>(number("update_after_step", 0)) + 1;
  tutti::EMA ema{.smoothing = number("decay", 0.9999),
                 .ema_start = tutti::Time(first, tutti::TimeUnit::batch),
                 .exclude_buffers = flag("exclude_buffers"),
                 .use_warmup = flag("use_warmup"),
                 .warmup_gamma = number("warmup_gamma", 1),
                 .warmup_power = number("warmup_power", 2.0 / 3.0),
                 .min_decay = number("min_decay", 0)};
  ema.validate();
  Averaged averaged(static_cast<std::uint64_t>(want["seed"].integer()));
  averaged.put(0);
  tutti::State state;
  state.model = averaged.net.ptr();
  state.max_duration = "1000ba";
  ema.apply(tutti::Init{}, state);
  for (std::int64_t step = 1; step <= want["steps"].integer(); ++step) {
    averaged.put(step);
    state.timestamp = state.timestamp.to_next_batch(1);
    if (ema.match(tutti::BatchEnd{}, state)) {
      ema.apply(tutti::BatchEnd{}, state);
    }
    const bool copied = !ema.run.started || step <= ema.run.started_at;
    c.number("decay of step " + std::to_string(step), copied ? 0 : ema.factor_at(step),
             want["decays"][static_cast<std::size_t>(step - 1)].number(), 1e-12, 1e-12);
  }
  if (ema.run.started) {
    compare_averages(c, want, ema.averages());
    return;
  }
  std::vector<std::pair<std::string, at::Tensor>> itself;  // what timm copies until then
  for (const auto& entry : averaged.net->weight_layout().tensors) {
    itself.emplace_back(entry.name, entry.tensor);
  }
  compare_averages(c, want, itself);
}

// Without a step timm averages from the weights that the model was made with.
void run_without_step(const Case& c, const Json& want) {
  Averaged averaged(static_cast<std::uint64_t>(want["seed"].integer()));
  averaged.put(0);
  const Json& args = want["args"];
  const bool exclude = args.contains("exclude_buffers") && args["exclude_buffers"].boolean();
  tutti::functional::EMAParameters averages(*averaged.net, exclude);
  for (std::int64_t step = 1; step <= want["steps"].integer(); ++step) {
    averaged.put(step);
    tutti::functional::compute_ema(*averaged.net, averages,
                                   want["decays"][static_cast<std::size_t>(step - 1)].number());
  }
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    named.emplace_back(averages.names()[i], averages.stored()[i]);
  }
  compare_averages(c, want, named);
}

void run_ema(const Case& c) {
  const Json all = c.read("ema.json");
  for (const Json& want : all["cases"].array()) {
    (want["pass_step"].boolean() ? run_with_step : run_without_step)(c, want);
  }
}

const bool registered =
    register_kind("timm", run_vision) && register_kind("timm_resnet", run_vision) &&
    register_kind("torchvision", run_vision) && register_kind("torchvision_vit", run_vision) &&
    register_kind("hf_vision", run_vision) && register_kind("same_vit", run_same_vit) &&
    register_kind("ema", run_ema);

}  // namespace
}  // namespace golden_interop
