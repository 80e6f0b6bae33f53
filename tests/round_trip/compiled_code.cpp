// The packages of models/compiled/make.py as programs that inductor compiles: what the list of
// operators does and refuses, they do and refuse.

#include "models/compiled_rows.hpp"
#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <tutti/core/detail/digest.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/models/compiled.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

namespace {

// What load_compiled() says of a folder.
std::string said_of(const std::string& folder, const tutti::CompiledOptions& options = {}) {
  try {
    tutti::load_compiled(folder, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

void check_changed_files(const std::string& folder) {
  const std::string json = read_bytes(folder + "/compiled.json");
  const std::string digest = tutti::detail::digest("sha256", json);
  CHECK(said_of(folder, {.expect_sha256 = digest}) == "not refused");
  std::string changed = json;
  changed.replace(changed.find("batch"), 5, "botch");
  write_bytes(folder + "/compiled.json", changed);
  CHECK_THAT(said_of(folder, {.expect_sha256 = digest}), ContainsSubstring(digest));
  write_bytes(folder + "/compiled.json", json);
  std::string program = read_bytes(folder + "/eval.so");
  program[program.size() / 2] = static_cast<char>(program[program.size() / 2] ^ 1);
  // Another file, since the first may be mapped by this process.
  std::filesystem::remove(folder + "/eval.so");
  write_bytes(folder + "/eval.so", program);
  CHECK_THAT(said_of(folder), ContainsSubstring("eval.so' has the XXH64"));
  std::filesystem::remove(folder + "/eval.so");
  CHECK_THAT(said_of(folder), ContainsSubstring("there is no program"));
}

// The weights after a run of the Trainer with dropout, in two parts or in one.
at::Tensor weights_after(const std::string& folder, std::int64_t until, const std::string& save,
                         const std::string& load) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({43, 6}), y = x.slice(1, 0, 3).argmax(1);
  auto net = tutti::load_compiled(folder);
  tutti::TrainerOptions options{
      .train = tutti::TensorLoader{x, y, {.batch_size = 8, .shuffle = true}},
      .max_duration = tutti::Time(until, tutti::TimeUnit::batch),
      .optimizer = tutti::SGD{.lr = 0.05, .momentum = 0.9},
      .device = "cpu",
      .seed = 7,
      .progress_bar = false};
  options.save_folder = save;
  options.load_path = load;
  tutti::Trainer trainer(tutti::Classifier{net, {.num_classes = 3}}, options);
  trainer.fit();
  std::vector<at::Tensor> out;
  for (const auto& each : net->named_parameters()) {
    out.push_back(each.value().detach().flatten());
  }
  return at::cat(out);
}

// Runs a script of this folder, which ends with 0 when all that it says holds.
void check_script(const std::string& name) {
  const std::string python =
      tutti_test::python_with("safetensors, torch._functorch._aot_autograd.descriptors");
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with("torch 2.11 and safetensors"));
  }
  const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/" + name;
  CHECK(std::system((python + " -W ignore '" + script + "'").c_str()) == 0);
}

}  // namespace

TEST_CASE("compiled programs train as PyTorch does, and refuse what they would misread",
          "[round_trip][compiled][python]") {
  const std::string python =
      tutti_test::python_with("safetensors, torch._functorch._aot_autograd.descriptors");
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with("torch 2.11 and safetensors"));
  }
  const TemporaryFolder made;
  const std::string folder = made.path().string();
  const std::string script = TUTTI_SOURCE_DIR "/tests/models/compiled/make.py";
  REQUIRE(std::system((python + " -W ignore '" + script + "' '" + folder + "'").c_str()) == 0);
  if (const std::string said = said_of(folder + "/net");
      said.find("this program has LibTorch") != std::string::npos) {
    return tutti_test::skip("the Python's torch is not of this LibTorch's version: " + said);
  }
  compiled_rows::check_losses(folder + "/net", 2e-4);  // sums in another order
  compiled_rows::check_losses(folder + "/dropped", 1e-5);
  compiled_rows::check_losses(folder + "/pair", 1e-5);
  compiled_rows::check_losses(folder + "/low", 2e-2);  // bfloat16, rounded at fewer places
  compiled_rows::check_losses(folder + "/sized", 1e-5);
  compiled_rows::check_step(folder, 1e-5);
  compiled_rows::check_refused_inputs(folder);
  compiled_rows::check_orders_of_memory(folder);
  compiled_rows::check_refused_weights(folder);
  compiled_rows::check_refused_backwards(folder);
  // A run that is resumed is the whole run, with dropout.
  const at::Tensor whole = weights_after(folder + "/dropped", 12, "", "");
  const std::string run = folder + "/run";
  weights_after(folder + "/dropped", 7, run, "");
  CHECK(weights_after(folder + "/dropped", 12, "", run + "/latest").equal(whole));
  check_changed_files(folder + "/net");
}

TEST_CASE("the exporter's algorithms compute what Composer's do",
          "[round_trip][compiled][python]") {
  check_script("compiled_algorithms.py");
}

TEST_CASE("the exporter takes gradients that round elsewhere, and refuses wrong ones",
          "[round_trip][compiled][python]") {
  check_script("compiled_check.py");
}

TEST_CASE("the exporter orders images as convolutions are fastest",
          "[round_trip][compiled][python]") {
  check_script("compiled_layout.py");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
