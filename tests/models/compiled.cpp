// Models that tutti_export.py has exported (compiled/make.py), against the losses of PyTorch.

#include <tutti/models/compiled.hpp>

#include <torch/torch.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using Catch::Matchers::ContainsSubstring;
using tutti::CompiledModel;
using tutti::load_compiled;

namespace {

std::string package(const std::string& name) {
  return TUTTI_SOURCE_DIR "/tests/models/compiled/" + name;
}

std::map<std::string, at::Tensor> expected(const std::string& name) {
  const auto read = tutti::checkpoint::read_safetensors(package(name) + "/expected.safetensors");
  return {read.begin(), read.end()};
}

// 20 steps of SGD on one batch, as compiled/make.py does them.
void check_losses(const std::string& name, double tolerance) {
  const auto io = expected(name);
  auto net = load_compiled(package(name));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::manual_seed(5);
  for (std::int64_t i = 0; i < io.at("losses").size(0); ++i) {
    optimizer.zero_grad();
    const at::Tensor loss =
        at::cross_entropy_loss(net->forward(std::vector{io.at("x")})[0], io.at("y"));
    loss.backward();
    optimizer.step();
    const double want = io.at("losses")[i].item<double>();
    INFO(name << ", step " << i);
    CHECK(std::abs(loss.item<double>() - want) <= tolerance * want);
  }
  net->eval();
  const at::Tensor out = net->forward(std::vector{io.at("x")})[0];
  CHECK(out.allclose(io.at("eval"), 1e-4, 1e-5));
  CHECK(!out.requires_grad());
}

// A folder with a package whose compiled.json has another text in the place of `from`.
std::string refused(const std::string& from, const std::string& to) {
  const TemporaryFolder folder;
  std::string text = read_bytes(package("dropped") + "/compiled.json");
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  write_bytes(folder / "compiled.json", text);
  write_bytes(folder / "model.safetensors", read_bytes(package("dropped") + "/model.safetensors"));
  try {
    load_compiled(folder.path().string());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

// What compiled/make.py has exported as "dropped", of LibTorch's own layers.
struct DroppedImpl : torch::nn::Module {
  DroppedImpl() {
    const tutti::checkpoint::SafetensorsFile file(package("dropped") + "/model.safetensors");
    for (const auto& each : named_parameters()) {
      each.value().set_data(file.read(each.key()));
    }
    scale = file.read("scale");
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = at::dropout(at::gelu(a(x)), 0.25, is_training());
    return c(at::linear(b(h), b->weight) * scale);
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 8));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(8, 8));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(8, 3));
  at::Tensor scale;
};

template <class Net, class... P>
at::Tensor weights_after(const std::shared_ptr<Net>& net, std::int64_t microbatch, P... policies) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({43, 6}), y = x.slice(1, 0, 3).argmax(1);
  tutti::Classifier model{net, {.num_classes = 3}};
  tutti::Trainer<P...> trainer(
      model,
      {.train = tutti::TensorLoader{x, y, {.batch_size = 8, .shuffle = true}},
       .max_duration = "10ep",
       .optimizer = tutti::SGD{.lr = 0.02, .momentum = 0.9},
       .device_train_microbatch_size = microbatch,
       .device = "cpu",
       .seed = 4,
       .progress_bar = false},
      std::move(policies)...);
  trainer.fit();
  std::vector<at::Tensor> out;
  for (const auto& each : net->named_parameters()) {
    out.push_back(each.value().detach().flatten());
  }
  return at::cat(out);
}

// The exported network after a run is the network of LibTorch's layers after that run.
template <class... P>
void check_run(const char* recipe, std::int64_t microbatch, P... policies) {
  INFO(recipe << ", microbatches of " << microbatch);
  const auto before = load_compiled(package("dropped"));
  const at::Tensor start = before->named_parameters()["a.weight"].detach().flatten().clone();
  const at::Tensor want = weights_after(std::make_shared<DroppedImpl>(), microbatch, policies...);
  const at::Tensor got = weights_after(before, microbatch, policies...);
  CHECK(got.allclose(want, 1e-4, 1e-5));
  CHECK(!got.slice(0, 0, start.numel()).allclose(start, 1e-2, 1e-2));
}

}  // namespace

static_assert(tutti::Model<CompiledModel>);
static_assert(tutti::Model<tutti::Classifier<tutti::CompiledNet>>);
static_assert(tutti::offers<CompiledModel, tutti::takes_images>);
static_assert(!tutti::offers<CompiledModel, tutti::has_attention>);

TEST_CASE("20 losses and the evaluation are those of PyTorch", "[models][compiled][golden]") {
  check_losses("net", 1e-5);
  check_losses("dropped", 1e-5);  // the same draws of dropout
}

TEST_CASE("weights have their names in Python, tied ones are one parameter", "[models][compiled]") {
  auto net = load_compiled(package("dropped"));
  std::vector<std::string> names;
  for (const auto& each : net->named_parameters()) {
    names.push_back(each.key());
  }
  CHECK(names ==
        std::vector<std::string>{"a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"});
  CHECK(net->named_buffers().contains("scale"));
  const TemporaryFolder folder;
  net->save_weights((folder / "w.safetensors").string());
  const tutti::checkpoint::SafetensorsFile file(folder / "w.safetensors");
  CHECK(file.read("tied.weight").equal(net->named_parameters()["b.weight"]));
  CHECK(!file.contains("scale"));
  {
    const at::NoGradGuard no_grad;
    net->named_parameters()["b.weight"].add_(1);
  }
  auto again = load_compiled(package("dropped"), {.weights = (folder / "w.safetensors").string()});
  CHECK(again->named_parameters()["b.weight"].equal(file.read("b.weight")));
}

TEST_CASE("a model gives its outputs by their names and takes its inputs by theirs",
          "[models][compiled]") {
  const auto io = expected("net");
  CompiledModel model{package("net")};
  const tutti::Outputs out = model.forward({{"images", io.at("x")}, {"targets", io.at("y")}});
  CHECK(out.names() == "logits, features");
  CHECK(out.at("features").sizes() == at::IntArrayRef({8, 4}));
  const tutti::Batch batch(io.at("x"), io.at("y"));
  CHECK(model.loss(model.forward(batch), batch).total().requires_grad());
  // A gradient of the second output alone.
  out.at("features").sum().backward();
  CHECK(model.module()->named_parameters()["conv.weight"].grad().abs().sum().item<double>() > 0);
  CHECK_THROWS_WITH(model.module()->forward(io.at("x")), ContainsSubstring("2 outputs"));
}

TEST_CASE("a batch of any size within the range runs, and each row is what it is alone",
          "[models][compiled]") {
  auto net = load_compiled(package("net"));
  net->eval();
  const at::Tensor x = at::randn({5, 1, 8, 8});
  const at::Tensor all = net->forward(std::vector{x})[0];
  CHECK(net->forward(std::vector{x.slice(0, 2, 3)})[0].allclose(all.slice(0, 2, 3), 1e-5, 1e-6));
  CHECK(net->forward(std::vector{x.contiguous(at::MemoryFormat::ChannelsLast)})[0].allclose(all));
}

TEST_CASE("inputs that are not what was exported are refused with both sides",
          "[models][compiled][error]") {
  auto net = load_compiled(package("net"));
  const auto given = [&](const at::Tensor& x) {
    try {
      net->forward(std::vector{x});
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("not refused");
  };
  const std::string want = "float32 [batch, 1, 8, 8]";
  CHECK_THAT(given(at::zeros({2, 1, 8, 8}, at::kDouble)),
             ContainsSubstring("float64 [2, 1, 8, 8]") && ContainsSubstring(want));
  CHECK_THAT(given(at::zeros({2, 8, 8})), ContainsSubstring("[2, 8, 8]"));
  CHECK_THAT(given(at::zeros({2, 1, 8, 9})), ContainsSubstring("[2, 1, 8, 9]"));
  CHECK_THAT(given(at::zeros({0, 1, 8, 8})), ContainsSubstring("batch may be 1 to 4096"));
  CHECK_THAT(given(at::zeros({2, 1, 8, 8}, at::kMeta)), ContainsSubstring("on meta"));
  CHECK_THAT(given(at::zeros({2, 1, 8, 8}).requires_grad_()), ContainsSubstring("detach()"));
  CHECK_THROWS_WITH(net->forward(std::vector<at::Tensor>{}), ContainsSubstring("takes 1 inputs"));
  const tutti::Autocast low(at::kCPU, at::kBFloat16);
  CHECK_THAT(given(at::zeros({2, 1, 8, 8})), ContainsSubstring("--precision amp_bf16"));
}

TEST_CASE("weights of another type or memory order are refused", "[models][compiled][error]") {
  const at::Tensor x = at::zeros({2, 1, 8, 8});
  auto net = load_compiled(package("net"));
  auto& weight = net->named_parameters()["conv.weight"];
  // One input channel: another order of memory needs two dimensions that differ.
  net->named_parameters()["fc.weight"].set_data(at::zeros({4, 10}).t());
  CHECK_THROWS_WITH(net->forward(std::vector{x}), ContainsSubstring("another order of memory"));
  auto other = load_compiled(package("net"));
  other->to(at::kDouble);
  CHECK_THROWS_WITH(other->forward(std::vector{x}), ContainsSubstring("conv.weight is float64"));
  CHECK(weight.defined());
}

TEST_CASE("a second backward and a weight changed before the backward are refused",
          "[models][compiled][error]") {
  auto net = load_compiled(package("dropped"));
  const at::Tensor x = at::randn({4, 6});
  const at::Tensor out = net->forward(x).sum();
  out.backward({}, /*retain_graph=*/true);
  CHECK_THROWS_WITH(out.backward(), ContainsSubstring("walked backward before"));
  const at::Tensor next = net->forward(x).sum();
  {
    const at::NoGradGuard no_grad;
    net->named_parameters()["b.weight"].mul_(2);
  }
  CHECK_THROWS_WITH(next.backward(), ContainsSubstring("changed in place"));
}

TEST_CASE("what compiled.json cannot mean is refused before anything runs",
          "[models][compiled][error]") {
  CHECK_THAT(refused("\"format\":1", "\"format\":2"), ContainsSubstring("its format is 2"));
  CHECK_THAT(refused("aten::addmm", "aten::addmmm"), ContainsSubstring("does not have"));
  CHECK_THAT(refused("aten::addmm", "prim::addmm"), ContainsSubstring("operators of aten"));
  CHECK_THAT(refused("aten::addmm", "aten::from_file"), ContainsSubstring("touch no file"));
  CHECK_THAT(refused("aten::gelu", "aten::gelu_"), ContainsSubstring("changes its arguments"));
  CHECK_THAT(refused("\"args\":[\"%0\"]", "\"args\":[\"%99\"]"), ContainsSubstring("%99"));
  CHECK_THAT(refused("\"args\":[\"%0\"]", "\"args\":[]"), ContainsSubstring("argument self"));
  CHECK_THAT(refused("parameter:a.weight", "parameter:z"), ContainsSubstring("parameter:z"));
  CHECK_THAT(refused("\"out\":[\"output:0\"", "\"out\":[\"saved:0\""),
             ContainsSubstring("in that order"));
  CHECK_THAT(refused("\"float32\",\"shape\":[8,6]", "\"float32\",\"shape\":[6,8]"),
             ContainsSubstring("a.weight"));
  CHECK_THAT(refused("\"float32\"", "\"float31\""), ContainsSubstring("float31"));
  CHECK_THAT(refused("{\"format\"", "{\"format"), ContainsSubstring("JSON"));
  CHECK_THROWS_WITH(load_compiled("/nowhere.tutti"), ContainsSubstring("/nowhere.tutti"));
}

TEST_CASE("the Trainer trains an exported network as one of LibTorch's layers, with each recipe",
          "[models][compiled][trainer]") {
  using namespace tutti;
  check_run("none", 0);
  check_run("none", 3);
  check_run("MixUp, LabelSmoothing, EMA, GradientClipping", 0, MixUp{}, LabelSmoothing{},
            EMA{.half_life = "5ba"},
            GradientClipping{.clipping_type = ClippingType::norm, .clipping_threshold = 1.0});
  check_run("SAM", 0, SAM{});
  check_run("SWA", 0, SWA{.swa_start = "0.5dur", .swa_end = "0.9dur"});
  check_run("SelectiveBackprop", 0, SelectiveBackprop{.start = 0.2, .end = 0.9});
  check_run("LayerFreezing", 0, LayerFreezing{});
}

TEST_CASE("a run that is resumed is the run that was not stopped, with dropout",
          "[models][compiled][resume]") {
  const at::Tensor x = at::randn({40, 6}), y = at::randint(0, 3, {40}, at::kLong);
  const auto run = [&](std::int64_t until, const std::string& save, const std::string& load) {
    tutti::TensorLoader loader{x, y, {.batch_size = 8, .shuffle = true}};
    auto net = load_compiled(package("dropped"));
    tutti::TrainerOptions options{.train = loader,
                                  .max_duration = tutti::Time(until, tutti::TimeUnit::batch),
                                  .optimizer = tutti::SGD{.lr = 0.1, .momentum = 0.9},
                                  .device = "cpu",
                                  .seed = 7,
                                  .progress_bar = false};
    options.save_folder = save;
    options.load_path = load;
    tutti::Trainer trainer(tutti::Classifier{net, {.num_classes = 3}}, options);
    trainer.fit();
    return net->named_parameters()["b.weight"].detach().clone();
  };
  const TemporaryFolder folder;
  const at::Tensor whole = run(12, "", "");
  run(7, (folder / "run").string(), "");
  CHECK(run(12, "", (folder / "run/latest").string()).equal(whole));
}
