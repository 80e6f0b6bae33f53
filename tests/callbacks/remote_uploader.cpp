#include <tutti/callbacks/remote_uploader.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/checkpoint/command_object_store.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/loggers/csv.hpp>
#include <tutti/loggers/file.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/loggers/tensorboard.hpp>
#include <tutti/profiler/profiler.hpp>
#include <tutti/trainer.hpp>

#include "callbacks/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"
#include "support/wrapped_store.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

static_assert(Callback<RemoteUploader>);

namespace {

TrainerOptions options(const TemporaryFolder& folder, Time length = "4ba") {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false,
          .save_folder = (folder / "checkpoints").string(),
          .save_interval = "2ba",
          .save_num_checkpoints_to_keep = 1};
}

RemoteUploader to(const TemporaryFolder& folder) {
  return {.object_store = LocalObjectStore{(folder / "remote").string()},
          .retry_wait = std::chrono::milliseconds(1)};
}

// A local store whose first uploads of a name fail, and which counts all calls.
struct Unreliable : WrappedStore {
  std::string what;
  int failures = 0;
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);

  void upload_object(const std::string& name, const std::string& file) const {
    if (name.find(what) != std::string::npos && (*calls)++ < failures) {
      throw std::runtime_error("the line is down");
    }
    store.upload_object(name, file);
  }
};

const Names four_batches = {"calm-motet/checkpoints/ep0-ba2/manifest.json",
                            "calm-motet/checkpoints/ep0-ba2/model.safetensors",
                            "calm-motet/checkpoints/ep0-ba2/state.safetensors",
                            "calm-motet/checkpoints/ep0-ba4/manifest.json",
                            "calm-motet/checkpoints/ep0-ba4/model.safetensors",
                            "calm-motet/checkpoints/ep0-ba4/state.safetensors",
                            "calm-motet/checkpoints/latest.symlink"};

}  // namespace

TEST_CASE("every checkpoint is uploaded, also one that its saver removes",
          "[callbacks][remote_uploader]") {
  const bool in_background = GENERATE(false, true);
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.save_async = in_background;
  Trainer trainer(tiny::net(), run, to(folder));
  trainer.fit();
  CHECK(sorted_names(folder / "checkpoints") == Names{"ep0-ba4", "latest"});
  CHECK(LocalObjectStore{(folder / "remote").string()}.list_objects() == four_batches);
  CHECK(read_bytes(folder / "remote/calm-motet/checkpoints/latest.symlink") == "ep0-ba4\n");
  for (const char* file : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const std::string name = std::string("ep0-ba4/") + file;
    CHECK(read_bytes(folder / ("checkpoints/" + name)) ==
          read_bytes(folder / ("remote/calm-motet/checkpoints/" + name)));
  }
}

TEST_CASE("each saver has a folder of its own there, pointers included",
          "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  RemoteUploader uploader = to(folder);
  uploader.remote_folder = "all/{folder}";
  uploader.upload_staging_folder = (folder / "staging").string();
  Trainer trainer(
      tiny::net(), options(folder), std::move(uploader),
      CheckpointSaver{
          .folder = (folder / "weights").string(), .save_interval = "3ba", .weights_only = true});
  trainer.fit();
  CHECK(sorted_names(folder / "remote/all/checkpoints") ==
        Names{"ep0-ba2", "ep0-ba4", "latest.symlink"});
  CHECK(sorted_names(folder / "remote/all/weights") ==
        Names{"ep0-ba3", "ep0-ba4", "latest.symlink"});
  CHECK(sorted_names(folder / "staging").empty());
}

TEST_CASE("a run starts from a checkpoint of the store", "[callbacks][remote_uploader][resume]") {
  const TemporaryFolder folder;
  auto whole = tiny::net();
  TrainerOptions eight = options(folder, "8ba");
  eight.save_folder = "";
  Trainer(whole, eight).fit();
  Trainer(tiny::net(), options(folder), to(folder)).fit();
  const std::string base = "file://" + (folder / "remote/calm-motet/checkpoints/").string();
  const std::string from = base + GENERATE("latest", "ep0-ba4");
  eight.load_path = from;
  auto resumed = tiny::net(2);
  Trainer trainer(resumed, eight, to(folder));
  CHECK(trainer.load_report().path == from);
  CHECK(trainer.state().timestamp.batch == 4);
  trainer.fit();
  CHECK(at::equal(tiny::flat(*resumed), tiny::flat(*whole)));
}

TEST_CASE("autoresume takes what the store has where the save folder is empty",
          "[callbacks][remote_uploader][resume]") {
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.autoresume = true;
  {
    Trainer first(tiny::net(), run, to(folder));  // there is nothing yet, here nor there
    CHECK(first.load_report().path.empty());
    first.fit();
  }
  fs::rename(folder / "checkpoints", folder / "lost");
  run.max_duration = "6ba";
  Trainer trainer(tiny::net(), run, to(folder));
  CHECK(trainer.state().timestamp.batch == 4);
  CHECK(sorted_names(folder / "checkpoints") == Names{".tutti-lock", "ep0-ba4", "latest"});
  trainer.fit();
  CHECK(sorted_names(folder / "checkpoints") == Names{"ep0-ba6", "latest"});
  CHECK(read_bytes(folder / "remote/calm-motet/checkpoints/latest.symlink") == "ep0-ba6\n");
}

TEST_CASE("autoresume takes from the store what the save folder does not keep",
          "[callbacks][remote_uploader][resume]") {
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.autoresume = true;
  run.save_num_checkpoints_to_keep = 0;
  Trainer(tiny::net(), run, to(folder)).fit();
  CHECK(sorted_names(folder / "checkpoints").empty());
  CHECK(LocalObjectStore{(folder / "remote").string()}.list_objects() == four_batches);
  for (const std::int64_t batches : {4, 6}) {  // the second finds a pointer to what is gone
    run.max_duration = Time(batches + 2, TimeUnit::batch);
    Trainer trainer(tiny::net(), run, to(folder));
    CHECK(trainer.state().timestamp.batch == batches);
    trainer.fit();
    CHECK(read_bytes(folder / "remote/calm-motet/checkpoints/latest.symlink") ==
          "ep0-ba" + std::to_string(batches + 2) + "\n");
  }
}

TEST_CASE("a resumed run uploads what the one before it has not",
          "[callbacks][remote_uploader][resume]") {
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.autoresume = true;
  run.save_num_checkpoints_to_keep = -1;
  const LocalObjectStore store{(folder / "remote").string()};
  const std::string pointer = "remote/calm-motet/checkpoints/latest.symlink";
  SECTION("all") {
    Trainer(tiny::net(), run).fit();
  }
  SECTION("the newest") {
    Trainer(tiny::net(), run, to(folder)).fit();
    fs::remove_all(folder / "remote/calm-motet/checkpoints/ep0-ba4");
    write_bytes(folder / pointer, "ep0-ba2\n");
  }
  SECTION("the pointer to it") {
    Trainer(tiny::net(), run, to(folder)).fit();
    write_bytes(folder / pointer, "ep0-ba2\n");
  }
  Trainer(tiny::net(), run, to(folder)).fit();
  CHECK(store.list_objects() == four_batches);
  CHECK(read_bytes(folder / pointer) == "ep0-ba4\n");
}

TEST_CASE("a store that cannot be asked for what it lacks ends the run, or warns",
          "[callbacks][remote_uploader][resume]") {
  struct Silent : WrappedStore {
    void download_object(const std::string& name, const std::string& file) const {
      TORCH_CHECK(!name.ends_with(".symlink"), "the line is down");
      store.download_object(name, file);
    }
  };
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.autoresume = true;
  Trainer(tiny::net(), run).fit();
  run.max_duration = "6ba";
  RemoteUploader uploader = to(folder);
  uploader.object_store = Silent{{{(folder / "remote").string()}}};
  uploader.on_error = GENERATE(OnUploadError::stop, OnUploadError::warn);
  const bool warns = uploader.on_error == OnUploadError::warn;
  const Warnings warnings;
  Trainer trainer(tiny::net(), run, std::move(uploader));
  if (warns) {
    trainer.fit();
    CHECK_THAT(warnings.texts.at(0),
               ContainsSubstring("has not uploaded") && ContainsSubstring("the line is down"));
  } else {
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("has not uploaded") &&
                                         ContainsSubstring("the line is down"));
  }
}

TEST_CASE("a best checkpoint is still the best where a run is resumed on another machine",
          "[callbacks][remote_uploader][resume]") {
  const std::int64_t keep = GENERATE(-1, 1, 2);
  const TemporaryFolder folder;
  TrainerOptions run = options(folder, "6ba");
  run.autoresume = true;
  run.train = tiny::batches(16);
  run.eval = {{"test", tiny::batches(1)}};
  run.eval_interval = "2ba";
  const auto fit = [&](Time until, std::vector<double> grades) {
    run.max_duration = until;
    Trainer trainer(callback_run::metric_net(std::move(grades)), run, to(folder),
                    CheckpointSaver{.folder = (folder / "best").string(),
                                    .num_checkpoints_to_keep = keep,
                                    .monitor = "Accuracy",
                                    .dataloader_label = "test",
                                    .mode = MonitorMode::max});
    trainer.fit();
  };
  fit("6ba", {0.5, 0.9, 0.7});
  CHECK(read_bytes(folder / "remote/calm-motet/best/best.symlink") == "ep0-ba4\n");
  fs::rename(folder / "checkpoints", folder / "lost");
  fs::rename(folder / "best", folder / "lost best");
  fit("8ba", {0.8});
  CHECK(read_bytes(folder / "remote/calm-motet/best/best.symlink") == "ep0-ba4\n");
  CHECK(fs::read_symlink(folder / "best/best") == "ep0-ba4");
  fit("10ba", {0.95});
  CHECK(read_bytes(folder / "remote/calm-motet/best/best.symlink") == "ep0-ba10\n");
  CHECK(fs::read_symlink(folder / "best/best") == "ep0-ba10");
}

TEST_CASE("two savers whose copies would replace each other's are refused",
          "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  const auto with = [&](CheckpointSaver saver) {
    saver.folder = (folder / "other/checkpoints").string();
    Trainer trainer(tiny::net(), options(folder), to(folder), std::move(saver));
  };
  const std::string text = "would both be copied to 'file://" +
                           (folder / "remote/calm-motet/checkpoints").string() + "'";
  CHECK_THROWS_WITH(with({}), ContainsSubstring(text));
  CHECK_THROWS_WITH(with({.filename = "w{batch}"}), ContainsSubstring(text));
  CHECK_THROWS_WITH(with({.latest_filename = "newest"}), ContainsSubstring(text));
  CHECK_NOTHROW(with({.filename = "w{batch}", .latest_filename = "newest"}));
}

TEST_CASE("what fails is tried again", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  RemoteUploader uploader = to(folder);
  const Unreliable store{{{(folder / "remote").string()}}, "state.safetensors", 2};
  uploader.object_store = store;
  Trainer trainer(tiny::net(), options(folder), std::move(uploader));
  trainer.fit();
  CHECK(store.calls->load() == 4);  // two that failed, one that did not, and the second checkpoint
  CHECK(store.store.list_objects() == four_batches);
}

TEST_CASE("an upload that keeps failing ends the run, or warns", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  RemoteUploader uploader = to(folder);
  const Unreliable store{{{(folder / "remote").string()}}, "ep0-ba2/model", 100};
  uploader.object_store = store;
  const std::string reason = "checkpoints/ep0-ba2' could not be uploaded in 3 attempts: the line";
  SECTION("ends it") {
    Trainer trainer(tiny::net(), options(folder), std::move(uploader));
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring(reason));
    CHECK(store.calls->load() == 3);
    CHECK(fs::exists(folder / "checkpoints/latest"));  // what is on disk stays
  }
  SECTION("warns") {
    uploader.on_error = OnUploadError::warn;
    Warnings warnings;
    Trainer trainer(tiny::net(), options(folder), std::move(uploader));
    trainer.fit();
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0], ContainsSubstring(reason));
    CHECK(sorted_names(folder / "remote/calm-motet/checkpoints") ==
          Names{"ep0-ba4", "latest.symlink"});
  }
  SECTION("is told when there is no event any more") {
    uploader.num_attempts = 1;
    TrainerOptions one = options(folder, "2ba");
    Trainer trainer(tiny::net(), one, std::move(uploader));
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("in 1 attempt: the line is down"));
  }
}

TEST_CASE("a damaged checkpoint of the store is refused", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  Trainer(tiny::net(), options(folder), to(folder)).fit();
  const auto model = folder / "remote/calm-motet/checkpoints/ep0-ba4/model.safetensors";
  TrainerOptions run = options(folder);
  run.save_folder = "";
  run.load_path = "file://" + (folder / "remote/calm-motet/checkpoints/latest").string();
  std::string bytes = read_bytes(model);
  const auto load = [&] { Trainer trainer(tiny::net(), run, to(folder)); };
  SECTION("cut short") {
    write_bytes(model, bytes.substr(0, bytes.size() - 1));
    CHECK_THROWS_WITH(load(), ContainsSubstring("bytes, the manifest says"));
  }
  SECTION("changed") {
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(model, bytes);
    CHECK_THROWS_WITH(load(), ContainsSubstring("has the checksum"));
  }
  SECTION("gone") {
    fs::remove(model);
    CHECK_THROWS_WITH(load(), ContainsSubstring("is missing, which the manifest lists"));
    run.load_path = "file://" + (folder / "remote/other").string();
    CHECK_THROWS_WITH(load(), ContainsSubstring("is neither a checkpoint nor a pointer"));
  }
  SECTION("pointer that leads out") {
    write_bytes(folder / "remote/calm-motet/checkpoints/latest.symlink", "../../other\n");
    CHECK_THROWS_WITH(load(), ContainsSubstring("which is no plain name"));
  }
}

TEST_CASE("an address needs an uploader that knows it", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.load_path = "s3://bucket/a/latest";
  const auto without = [&] { Trainer trainer(tiny::net(), run); };
  CHECK_THROWS_WITH(without(), ContainsSubstring("add a tutti::RemoteUploader"));
  const auto other = [&] { Trainer trainer(tiny::net(), run, to(folder)); };
  CHECK_THROWS_WITH(other(), ContainsSubstring("load_path is 's3://bucket/a/latest', but no"));
}

TEST_CASE("an uploader can be switched off, and bad options are refused",
          "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  Trainer off(tiny::net(), options(folder), Switch(to(folder), false));
  off.fit();
  CHECK_FALSE(fs::exists(folder / "remote"));
  const auto refuse = [&](RemoteUploader uploader) {
    Trainer trainer(tiny::net(), options(folder), std::move(uploader));
  };
  CHECK_THROWS_WITH(refuse({}), ContainsSubstring("object_store is not set"));
  RemoteUploader bad = to(folder);
  bad.num_attempts = 0;
  CHECK_THROWS_WITH(refuse(std::move(bad)), ContainsSubstring("num_attempts is 0, expected 1"));
}

TEST_CASE("the files of loggers and profilers go to the store", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  TrainerOptions run = options(folder);
  run.save_folder = "";
  const auto text = [&] {
    return FileLogger{.filename = path("logs.txt"),
                      .capture_stdout = false,
                      .capture_stderr = false,
                      .flush_interval = 1};
  };
  const auto profiler = [&] {
    return Profiler{.schedule = {.warmup = 0, .active = 2, .repeat = 2},
                    .trace_handler = {.folder = path("traces"), .num_traces_to_keep = 0},
                    .sys_prof_cpu = false};
  };
  const auto lines = [&] {
    return JSONLinesLogger{.filename = path("metrics.jsonl"), .remote_file_name = "all/{rank}"};
  };
  SECTION("uploader first, so that it is closed before the others") {
    Trainer(tiny::net(), run, to(folder), text(), profiler(), lines()).fit();
  }
  SECTION("uploader last") {
    Trainer(tiny::net(), run, text(), profiler(), lines(), to(folder)).fit();
  }
  CHECK(LocalObjectStore{path("remote")}.list_objects() ==
        Names{"all/0", "calm-motet/logs-rank0.txt", "calm-motet/traces/ep0-ba2-rank0.json",
              "calm-motet/traces/ep0-ba4-rank0.json", "calm-motet/traces/merged_trace.json"});
  CHECK_THAT(read_bytes(folder / "remote/all/0"), ContainsSubstring("\"type\": \"end\""));
  CHECK(read_bytes(folder / "remote/all/0") == read_bytes(folder / "metrics.jsonl"));
  CHECK(read_bytes(folder / "remote/calm-motet/logs-rank0.txt") == read_bytes(folder / "logs.txt"));
  CHECK(read_bytes(folder / "remote/calm-motet/traces/merged_trace.json") ==
        read_bytes(folder / "traces/merged_trace.json"));
  // Those that are not kept here are there; what waited is gone.
  CHECK(sorted_names(folder / "traces") == Names{"merged_trace.json"});
  CHECK(sorted_names(folder.path()) == Names{"logs.txt", "metrics.jsonl", "remote", "traces"});
}

TEST_CASE("logs go on where a run is resumed on another machine",
          "[callbacks][remote_uploader][resume]") {
  const TemporaryFolder folder;
  std::string machine = "one";
  const auto train = [&](Time length, RemoteUploader uploader) {
    TrainerOptions run = options(folder, length);
    run.save_folder = "";
    run.run_folder = (folder / machine).string();
    run.autoresume = true;
    Trainer(tiny::net(), run, std::move(uploader), JSONLinesLogger{}, CSVLogger{},
            FileLogger{.capture_stdout = false, .capture_stderr = false})
        .fit();
  };
  train("4ba", to(folder));
  const std::string lines = read_bytes(folder / "remote/calm-motet/metrics.jsonl");
  const std::string table = read_bytes(folder / "remote/calm-motet/metrics.csv");
  const std::string text = read_bytes(folder / "remote/calm-motet/logs-rank0.txt");
  REQUIRE(!table.empty());

  machine = "two";
  SECTION("with what the store has") {
    train("6ba", to(folder));
    for (const char* place : {"two/metrics.jsonl", "remote/calm-motet/metrics.jsonl"}) {
      CHECK(read_bytes(folder / place).starts_with(lines + "{\"type\": \"start\", \"step\": 4"));
    }
    const std::string rows = table.substr(0, table.rfind('\n', table.size() - 2) + 1);
    CHECK(
        read_bytes(folder / "remote/calm-motet/metrics.csv").starts_with(rows));  // step 4 goes on
    CHECK(read_bytes(folder / "remote/calm-motet/logs-rank0.txt").starts_with(text));
    CHECK(!fs::exists(folder / "two/metrics.jsonl.from-store"));
  }
  struct Deaf : WrappedStore {
    void download_object(const std::string& name, const std::string& file) const {
      TUTTI_CHECK(name.find("metrics") == std::string::npos, "the line is down");
      store.download_object(name, file);
    }
  };
  RemoteUploader deaf = to(folder);
  deaf.object_store = Deaf{{{(folder / "remote").string()}}};
  SECTION("or not at all where it does not answer") {
    CHECK_THROWS_WITH(train("6ba", std::move(deaf)),
                      ContainsSubstring("cannot bring back 'calm-motet/metrics.") &&
                          ContainsSubstring("would replace it: the line is down"));
    CHECK(read_bytes(folder / "remote/calm-motet/metrics.jsonl") == lines);
  }
  SECTION("or with a warning") {
    deaf.on_error = OnUploadError::warn;
    const Warnings warnings;
    train("6ba", std::move(deaf));
    std::string all;
    for (const std::string& one : warnings.texts) {
      all += one + '\n';
    }
    CHECK_THAT(all, ContainsSubstring("will replace it: the line is down"));
    CHECK(read_bytes(folder / "remote/calm-motet/metrics.jsonl")
              .starts_with("{\"type\": \"start\", "
                           "\"step\": 4"));
  }
}

TEST_CASE("what TensorBoard shows goes to the store in the folders that it needs",
          "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  TrainerOptions run = options(folder);
  run.save_folder = "";
  Trainer(tiny::net(), run, TensorBoardLogger{.log_dir = (folder / "logs").string()}, to(folder))
      .fit();
  const Names files = sorted_names(folder / "logs/calm-motet");
  REQUIRE(files.size() == 1);
  CHECK(sorted_names(folder / "remote/tensorboard_logs/calm-motet") == files);
  CHECK(read_bytes(folder / "logs/calm-motet" / files[0]) ==
        read_bytes(folder / "remote/tensorboard_logs/calm-motet" / files[0]));
}

TEST_CASE("a file that cannot be uploaded ends the run, or warns", "[callbacks][remote_uploader]") {
  const TemporaryFolder folder;
  RemoteUploader uploader = to(folder);
  uploader.object_store = Unreliable{{{(folder / "remote").string()}}, "logs-rank0", 100};
  TrainerOptions run = options(folder);
  run.save_folder = "";
  const auto train = [&] {
    Trainer trainer(tiny::net(), run,
                    FileLogger{.filename = (folder / "logs.txt").string(),
                               .capture_stdout = false,
                               .capture_stderr = false},
                    std::move(uploader));
    trainer.fit();
    trainer.close();
  };
  const std::string reason =
      "logs-rank0.txt' could not be uploaded in 3 attempts: the line is down";
  SECTION("ends it") {
    CHECK_THROWS_WITH(train(), ContainsSubstring(reason));
  }
  SECTION("warns") {
    uploader.on_error = OnUploadError::warn;
    const Warnings warnings;
    train();
    REQUIRE(!warnings.texts.empty());
    CHECK_THAT(warnings.texts[0], ContainsSubstring(reason));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
