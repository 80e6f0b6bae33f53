// Models that tutti_export.py has exported (compiled/make.py), against the losses of PyTorch.

#include <tutti/models/compiled.hpp>

#include <sys/utsname.h>

#include <filesystem>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/selective_backprop.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/detail/digest.hpp>
#include <tutti/core/on.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "models/compiled_rows.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::CompiledModel;
using tutti::load_compiled;

namespace {

const std::string packages = compiled_rows::source("");

std::string package(const std::string& name) {
  return compiled_rows::source(name);
}

// What load_compiled() says of a folder, without where it was thrown.
std::string said_of(const std::string& folder, const tutti::CompiledOptions& options = {}) {
  try {
    load_compiled(folder, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// The package "net" as if it were compiled programs, whose files are no programs.
struct Code {
  TemporaryFolder folder;
  std::string text = replaced(
      read_bytes(package("net") + "/compiled.json"), R"("kind":"data")",
      head + R"("device":"cpu","architecture":")" + machine() + R"(","isa":"avx2","cpu":[])");

  Code() {
    write_bytes(folder / "model.safetensors", read_bytes(package("net") + "/model.safetensors"));
    for (const char* name : {"forward.so", "backward.so", "eval.so"}) {
      write_bytes(folder / name, "no program");
    }
    text = replaced(text, R"("torch":"2.11.0")", torch);
    text = replaced(text, R"({"in":)",
                    R"({"xxh64":")" + digest("xxh64", "no program") + R"(","sha256":")" +
                        digest("sha256", "no program") + R"(","in":)");
  }

  std::string said(const std::string& from = "", const std::string& to = "") const {
    write_bytes(folder / "compiled.json", from.empty() ? text : replaced(text, from, to));
    return said_of(folder.path().string());
  }

  static std::string digest(const char* name, const std::string& of) {
    return tutti::detail::digest(name, of);
  }

  static std::string machine() {
    ::utsname system{};
    ::uname(&system);
    return system.machine;
  }

  static inline const std::string head = R"("kind":"code",)";
  static inline const std::string torch = R"("torch":")" TORCH_VERSION R"(")";
};

// A folder with a package whose compiled.json has another text in the place of `from`.
std::string refused(const std::string& from, const std::string& to,
                    const std::string& name = "dropped") {
  const TemporaryFolder folder;
  std::string text = read_bytes(package(name) + "/compiled.json");
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  write_bytes(folder / "compiled.json", text);
  write_bytes(folder / "model.safetensors", read_bytes(package(name) + "/model.safetensors"));
  return said_of(folder.path().string());
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
  compiled_rows::check_losses(package("net"), 1e-5);
  compiled_rows::check_losses(package("dropped"), 1e-5);  // the same draws of dropout
  compiled_rows::check_losses(package("pair"), 1e-5);
  compiled_rows::check_losses(package("low"),
                              1e-2);  // bfloat16, whose products a CPU may sum apart
  compiled_rows::check_losses(package("sized"), 1e-5);  // a batch of another size than the export's
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
  const auto io = compiled_rows::expected(package("net"));
  CompiledModel model{package("net")};
  const tutti::Outputs out = model.forward({{"images", io.at("x0")}, {"targets", io.at("y")}});
  CHECK(out.names() == "logits, features");
  CHECK(out.at("features").sizes() == at::IntArrayRef({8, 4}));
  const tutti::Batch batch(io.at("x0"), io.at("y"));
  CHECK(model.loss(model.forward(batch), batch).total().requires_grad());
  // A gradient of the second output alone.
  out.at("features").sum().backward();
  CHECK(model.module()->named_parameters()["conv.weight"].grad().abs().sum().item<double>() > 0);
  CHECK_THROWS_WITH(model.module()->forward(io.at("x0")), ContainsSubstring("2 outputs"));
}

TEST_CASE("a batch of any size within the range runs, and each row is what it is alone",
          "[models][compiled]") {
  auto net = load_compiled(package("net"));
  net->eval();
  const at::Tensor x = at::randn({5, 2, 8, 8});
  const at::Tensor all = net->forward(std::vector{x})[0];
  CHECK(net->forward(std::vector{x.slice(0, 2, 3)})[0].allclose(all.slice(0, 2, 3), 1e-5, 1e-6));
  compiled_rows::check_orders_of_memory(packages);
}

TEST_CASE("inputs that are not what was exported are refused with both sides",
          "[models][compiled][error]") {
  compiled_rows::check_refused_inputs(packages);
}

TEST_CASE("weights of another type, size or memory order are refused",
          "[models][compiled][error]") {
  compiled_rows::check_refused_weights(packages);
}

TEST_CASE("a second backward and a weight changed before the backward are refused",
          "[models][compiled][error]") {
  compiled_rows::check_refused_backwards(packages);
}

TEST_CASE("programs of another torch, machine or export are refused before they are loaded",
          "[models][compiled][error]") {
  const Code code;
  CHECK_THAT(
      code.said(Code::torch, R"("torch":"2.1.3")"),
      ContainsSubstring("compiled with torch 2.1.3, and this program has LibTorch " TORCH_VERSION));
  CHECK_THAT(code.said(R"("architecture":")" + Code::machine(), R"("architecture":"vax)"),
             ContainsSubstring("compiled for vax, and this machine is " + Code::machine()));
  CHECK_THAT(code.said(R"("cpu":[])", R"("cpu":["avx9999","other"])"),
             ContainsSubstring("compiled for avx2, and this processor lacks avx9999, other"));
  CHECK_THAT(code.said(R"("device":"cpu")", R"("device":"tpu")"),
             ContainsSubstring("its device is \"tpu\""));
  CHECK_THAT(code.said(R"("xxh64":")", R"("xxh64":"0)"),
             ContainsSubstring("/forward.so' has the XXH64 " + Code::digest("xxh64", "no program") +
                               ", and compiled.json says 0" + Code::digest("xxh64", "no program")));
  CHECK_THAT(said_of(package("net"), {.expect_sha256 = "00"}),
             ContainsSubstring("and expect_sha256 is 00"));
  CHECK(said_of(package("net"), {.expect_sha256 = Code::digest(
                                     "sha256", read_bytes(package("net") + "/compiled.json"))}) ==
        "not refused");
  if (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11) {
    CHECK_THAT(code.said(), ContainsSubstring("forward.so' does not load"));
    write_bytes(code.folder / "eval.so", "another");
    CHECK_THAT(code.said(), ContainsSubstring("eval.so' has the XXH64"));
    std::filesystem::remove(code.folder / "backward.so");
    CHECK_THAT(code.said(),
               ContainsSubstring("there is no program") && ContainsSubstring("backward.so"));
  } else {
    CHECK_THAT(code.said(), ContainsSubstring("needs LibTorch 2.11 or newer"));
  }
  CHECK(tutti::models::detail::processor_flags("processor : 0\nflags\t\t: fpu avx2\n") ==
        std::set<std::string>{"avx2", "fpu"});
  CHECK(tutti::models::detail::processor_flags("").empty());
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
  CHECK_THAT(refused("\"loss:0\"", "\"loss:1\"", "whole"), ContainsSubstring("loss:1"));
  CHECK_THAT(refused("\"loss:0\"", "\"saved:0\"", "whole"),
             ContainsSubstring("the program step does not give"));
  CHECK_THAT(refused("\"target:0\"", "\"tangent:0\"", "whole"),
             ContainsSubstring("the program step takes what is no"));
  CHECK_THAT(refused("\"below\":3", "\"below\":0", "whole"), ContainsSubstring("a table of 0"));
  CHECK_THAT(refused("[1,4096]", "[1,4096,0]"), ContainsSubstring("the size batch is empty"));
  CHECK_THAT(refused("_training\":{\"batch\"", "_training\":{\"rows\"", "whole"),
             ContainsSubstring("a size rows that \"symbols\" does not have"));
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

TEST_CASE("forward, loss and backward in one program are what the three are",
          "[models][compiled][golden]") {
  compiled_rows::check_step(packages, 1e-5);
}

TEST_CASE("the Trainer takes the one program where no policy acts between forward and backward",
          "[models][compiled][trainer]") {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({43, 6}), y = x.slice(1, 0, 3).argmax(1);
  std::string last;  // what has computed the last loss
  const auto run = [&](const std::string& folder, const at::Tensor& targets,
                       std::int64_t microbatch, auto... policies) {
    const auto net = load_compiled(folder);
    tutti::Trainer trainer(tutti::Classifier{net, {.num_classes = 3}},
                           {.train = tutti::TensorLoader{x, targets, {.batch_size = 8}},
                            .max_duration = "3ep",
                            .optimizer = tutti::SGD{.lr = 0.02, .momentum = 0.9},
                            .device_train_microbatch_size = microbatch,
                            .device = "cpu",
                            .seed = 4,
                            .progress_bar = false},
                           tutti::on<tutti::AfterBackward>([&last](const tutti::State& state) {
                             last = state.loss.grad_fn()->name();
                           }),
                           policies...);
    trainer.fit();
    return net->named_parameters()["0.weight"].detach().clone();
  };
  const TemporaryFolder folder;
  const std::string text = read_bytes(package("whole") + "/compiled.json");
  write_bytes(folder / "compiled.json", replaced(text, "\"step\":", "\"unknown\":"));
  write_bytes(folder / "model.safetensors", read_bytes(package("whole") + "/model.safetensors"));
  for (const std::int64_t microbatch : {0, 3}) {
    const at::Tensor got = run(package("whole"), y, microbatch);
    CHECK(last == "CompiledStep");
    const at::Tensor want = run(folder.path().string(), y, microbatch);
    CHECK(last == "NllLossBackward0");
    CHECK(got.allclose(want, 1e-4, 1e-6));
  }
  run(package("whole"), at::one_hot(y, 3).to(at::kFloat), 0);  // dense targets
  CHECK(last != "CompiledStep");
  run(package("whole"), y, 0, tutti::LabelSmoothing{});
  CHECK(last != "CompiledStep");
}

TEST_CASE("one row is refused in training where batch normalisation would make NaN of it",
          "[models][compiled][error]") {
  const auto net = load_compiled(package("whole"));
  const auto why = ContainsSubstring(
      "batch is 1 in training, where batch normalisation needs 2 or more to have more than one "
      "value per channel; set drop_last");
  const at::Tensor x = at::randn({1, 6}), y = at::zeros({1}, at::kLong);
  CHECK_THROWS_WITH(net->forward(x), why);
  CHECK_THROWS_WITH(net->forward_and_loss({x}, y), why);
  CHECK(net->named_buffers()["1.running_var"].isfinite().all().item<bool>());
  net->eval();
  CHECK(net->forward(x).isfinite().all().item<bool>());
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

}  // namespace UNITY_BUILD_UNIQUE_ID
