#include <tutti/callbacks/load_checkpoint.hpp>

#include <filesystem>

#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/checkpoint/remote.hpp>

#include "callbacks/run.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<LoadCheckpoint> == Role::callback);

namespace {

// The weights of another run, as a checkpoint; returns them too.
at::Tensor save_other(const std::string& path) {
  auto other = tiny::net(99);
  Trainer<> trainer(other, callback_run::options());
  trainer.fit();
  trainer.save_checkpoint(path, /*weights_only=*/true);
  return tiny::flat(*other);
}

}  // namespace

TEST_CASE("a run starts from the weights of another one", "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  const at::Tensor expected = save_other(path);
  auto net = tiny::net();
  Trainer trainer{net, callback_run::options(), LoadCheckpoint{.load_path = path}};
  CHECK(tiny::flat(*net).equal(expected));
  CHECK(trainer.state().timestamp.batch == 0);
  trainer.fit();
  CHECK_FALSE(tiny::flat(*net).equal(expected));
  auto named = callback_run::options();
  named.run_name = "other";
  Trainer again{net, named, LoadCheckpoint{.load_path = (folder / "{run_name}").string()}};
  CHECK(tiny::flat(*net).equal(expected));
}

TEST_CASE("before_load lets this run's own checkpoint win and after_load does not",
          "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  const std::string own = (folder / "own").string();
  const at::Tensor others = save_other(path);
  auto first = tiny::net();
  Trainer<> saved(first, callback_run::options());
  saved.fit();
  saved.save_checkpoint(own);
  for (const auto when : {LoadCheckpoint::When::before_load, LoadCheckpoint::When::after_load}) {
    auto options = callback_run::options(3, "9ep");
    options.load_path = own;
    auto net = tiny::net(5);
    Trainer trainer{net, options, LoadCheckpoint{.load_path = path, .event = when}};
    CHECK(trainer.state().timestamp.epoch == 2);
    const bool before = when == LoadCheckpoint::When::before_load;
    CHECK(tiny::flat(*net).equal(before ? tiny::flat(*first) : others));
  }
}

TEST_CASE("weights that are named by a glob are left out", "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  save_other(path);
  auto net = tiny::net();
  const at::Tensor head = net->out->weight.detach().clone();
  const at::Tensor stem = net->in->weight.detach().clone();
  Trainer trainer{net, callback_run::options(),
                  LoadCheckpoint{.load_path = path, .ignore_keys = {"state/model/out.*"}}};
  CHECK(net->out->weight.equal(head));
  CHECK_FALSE(net->in->weight.equal(stem));
  const Warnings warnings;  // of what matches nothing, such as a name without its path
  Trainer other{net, callback_run::options(),
                LoadCheckpoint{.load_path = path, .ignore_keys = {"out.*"}}};
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("LoadCheckpoint::ignore_keys: nothing in the "
                                                  "checkpoint matches \"out.*\"; paths look like "
                                                  "state/model/fc.weight"));
}

TEST_CASE("weights that do not fit are refused with what to set", "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  save_other(path);
  auto wide = tiny::net();
  wide->out = wide->replace_module("out", torch::nn::Linear(8, 3));
  const auto load = [&] {
    Trainer trainer{wide, callback_run::options(), LoadCheckpoint{.load_path = path}};
  };
  CHECK_THROWS_WITH(
      load(),
      ContainsSubstring("out.weight: shape [2, 8] in the file, [3, 8] in the model") &&
          ContainsSubstring("They are those of " + path +
                            ". In LoadCheckpoint: "
                            "strict_model_weights = false, or ignore_keys = {\"state/model/fc.*"));
}

TEST_CASE("a checkpoint that is missing or not named is refused", "[callbacks][load_checkpoint]") {
  const auto load = [](LoadCheckpoint policy) {
    Trainer trainer{tiny::net(), callback_run::options(), std::move(policy)};
  };
  CHECK_THROWS_WITH(load({}), ContainsSubstring("LoadCheckpoint: load_path is empty"));
  CHECK_THROWS_WITH(load({.load_path = "/nowhere/at/all"}),
                    ContainsSubstring("there is no checkpoint '/nowhere/at/all'"));
}

TEST_CASE("a run starts from the weights of a checkpoint in an object store",
          "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  const at::Tensor expected = save_other(path);
  const LocalObjectStore store{(folder / "remote").string()};
  checkpoint::upload_snapshot(store, path, "runs/a/ep2-ba6");
  checkpoint::upload_pointer(store, "runs/a/latest", "ep2-ba6", folder.path());
  const TemporaryFolder downloads;
  const EnvironmentVariable temporary("TMPDIR", downloads.path().c_str());
  const std::string from = GENERATE("runs/a/ep2-ba6", "runs/a/latest");
  const std::string load_path = GENERATE(true, false) ? from : store.get_uri(from);
  CAPTURE(load_path);
  auto net = tiny::net();
  Trainer trainer{net, callback_run::options(),
                  LoadCheckpoint{.load_path = load_path, .object_store = store}};
  CHECK(tiny::flat(*net).equal(expected));
  CHECK(trainer.state().timestamp.batch == 0);
  CHECK(std::filesystem::is_empty(downloads.path()));
}

TEST_CASE("damaged weights are refused by their address in the store",
          "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "other").string();
  save_other(path);
  const LocalObjectStore store{(folder / "remote").string()};
  checkpoint::upload_snapshot(store, path, "runs/a");
  const auto weights = folder / "remote" / "runs/a/model.safetensors";
  std::string bytes = read_bytes(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(weights, bytes);
  const auto load = [&] {
    Trainer trainer{tiny::net(), callback_run::options(),
                    LoadCheckpoint{.load_path = "runs/a", .object_store = store}};
  };
  CHECK_THROWS_WITH(load(), ContainsSubstring("'" + store.get_uri("runs/a/model.safetensors") +
                                              "' has the checksum"));
}

TEST_CASE("an address that the object store does not have is refused",
          "[callbacks][load_checkpoint]") {
  const TemporaryFolder folder;
  const LocalObjectStore store{(folder / "remote").string()};
  const auto load = [](LoadCheckpoint policy) {
    Trainer trainer{tiny::net(), callback_run::options(), std::move(policy)};
  };
  CHECK_THROWS_WITH(load({.load_path = "s3://bucket/a"}),
                    ContainsSubstring("load_path is an address, but object_store is not set"));
  CHECK_THROWS_WITH(load({.load_path = "s3://bucket/a", .object_store = store}),
                    ContainsSubstring("load_path is s3://bucket/a, expected an address in") &&
                        ContainsSubstring("remote/name"));
  CHECK_THROWS_WITH(load({.load_path = "runs/latest", .object_store = store}),
                    ContainsSubstring("remote/runs/latest' is neither a checkpoint nor a pointer"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
