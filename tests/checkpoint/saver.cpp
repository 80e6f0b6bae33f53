#include <tutti/checkpoint/saver.hpp>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/save_job.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using checkpoint::Saver;
using checkpoint::SaverOptions;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

State at_batch(std::int64_t batch) {
  State state;
  state.run_name = "quiet-etude";
  state.max_duration = "100ba";
  state.timestamp.batch = batch;
  state.previous_timestamp.batch = batch - 1;
  return state;
}

checkpoint::SnapshotFiles pages() {
  checkpoint::Snapshot snapshot;
  snapshot.model.put("weight", at::ones({2}));
  return checkpoint::to_files(snapshot);
}

SaverOptions in(const TemporaryFolder& folder) {
  return {.folder = (folder / "{run_name}").string(), .filename = "ba{batch}", .interval = "2ba"};
}

SaverOptions by_accuracy(const TemporaryFolder& folder) {
  SaverOptions options = in(folder);
  options.monitor = "Accuracy";
  options.dataloader_label = "test";
  return options;
}

// After an evaluation of that set.
State graded(std::int64_t batch, double accuracy, const std::string& set = "test") {
  State state = at_batch(batch);
  state.dataloader_label = set;
  state.eval_metric_values[set]["Accuracy"] = accuracy;
  return state;
}

// What a trainer does after an event, when the saver asks for it.
bool offer(Saver& saver, std::int64_t batch) {
  const State state = at_batch(batch);
  if (!saver.due(BatchCheckpoint{}, state)) {
    return false;
  }
  saver.begin(state);
  checkpoint::SaveJob{saver.target(), pages()}();
  saver.ended(true);
  return true;
}

bool offer(Saver& saver, std::int64_t batch, double accuracy) {
  saver.evaluated(graded(batch, accuracy));
  return offer(saver, batch);
}

Names names_of(const Saver& saver) {
  Names out;
  for (const std::string& path : saver.saved()) {
    out.push_back(fs::path(path).filename().string());
  }
  return out;
}

Names on_disk(const Saver& saver) {
  Names out;
  for (const auto& entry : fs::directory_iterator(saver.folder())) {
    out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("names that would hide checkpoints or leave the folder are refused",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& filename, const std::string& latest = "latest") {
    SaverOptions options = in(folder);
    options.filename = filename;
    options.latest_filename = latest;
    Saver(options, at_batch(1));
  };
  CHECK_NOTHROW(make("the one", ""));
  CHECK_THROWS_WITH(make("ba{batches}"), ContainsSubstring("\"{batches}\" in \"ba{batches}\""));
  CHECK_THROWS_WITH(make("ep{epoch}/ba{batch}"), ContainsSubstring("a name without slashes"));
  CHECK_THROWS_WITH(make("ba{batch}", "../latest"), ContainsSubstring("a name without slashes"));
  CHECK_THROWS_WITH(make(""), ContainsSubstring("the filename is \"\", expected a name"));
  CHECK_THROWS_WITH(make("latest"), ContainsSubstring("another one than the pointer's"));
  SaverOptions never = in(folder);
  never.interval = 0;
  CHECK_THROWS_WITH(Saver(never, at_batch(1)), ContainsSubstring("the save interval is 0ep") &&
                                                   ContainsSubstring("expected more than 0"));
  never.monitor = "Accuracy";
  CHECK_NOTHROW(Saver(never, at_batch(1)));
}

TEST_CASE("a saver asks a function at the events of saving, once for each batch that it saves",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  std::vector<std::string> asked;
  SaverOptions options = in(folder);
  options.interval = [&](const tutti::State& state, std::string_view event) {
    asked.emplace_back(event);
    return state.timestamp.batch % 3 == 0;
  };
  Saver saver(options, at_batch(0));
  CHECK_FALSE(offer(saver, 2));
  CHECK(offer(saver, 3));
  CHECK_FALSE(saver.due(EpochCheckpoint{}, at_batch(3)));  // saved already
  CHECK_FALSE(saver.due(FitEnd{}, at_batch(6)));
  CHECK(saver.due(EpochCheckpoint{}, at_batch(6)));
  CHECK(saver.due(BatchCheckpoint{}, at_batch(7), true));  // the run is stopping
  CHECK(asked == std::vector<std::string>{"batch_checkpoint", "batch_checkpoint",
                                          "epoch_checkpoint", "epoch_checkpoint",
                                          "batch_checkpoint"});
}

TEST_CASE("a saver writes at its interval and keeps the newest", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.keep = 2;
  Saver saver(options, at_batch(0));
  CHECK(saver.folder() == (folder / "quiet-etude").string());
  CHECK_FALSE(offer(saver, 1));
  CHECK(offer(saver, 2));
  CHECK_FALSE(saver.due(BatchCheckpoint{}, at_batch(2)));  // once per batch
  CHECK_FALSE(saver.due(BatchCheckpoint{}, at_batch(2), true));
  CHECK(offer(saver, 4));
  CHECK(offer(saver, 6));
  CHECK(saver.due(BatchCheckpoint{}, at_batch(7), true));  // the run is stopping
  CHECK(names_of(saver) == Names{"ba4", "ba6"});
  CHECK(on_disk(saver) == Names{"ba4", "ba6", "latest"});
  CHECK(fs::read_symlink(folder / "quiet-etude/latest") == "ba6");
}

TEST_CASE("a checkpoint that could not be written changes nothing", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.keep = 1;
  Saver saver(options, at_batch(0));
  CHECK(offer(saver, 2));
  REQUIRE(saver.due(BatchCheckpoint{}, at_batch(4)));
  CHECK(saver.begin(at_batch(4)) == "ba4");
  CHECK(names_of(saver) == Names{"ba2", "ba4"});  // it lists itself
  static_cast<void>(saver.target());
  CHECK(names_of(saver) == Names{"ba4"});
  saver.ended(false, false);
  CHECK(saver.failed());
  CHECK(names_of(saver) == Names{"ba2"});
  CHECK(on_disk(saver) == Names{"ba2", "latest"});
  CHECK(offer(saver, 4));
  CHECK_FALSE(saver.failed());
  CHECK(on_disk(saver) == Names{"ba4", "latest"});
  const auto fail = [&](std::int64_t batch) {
    REQUIRE(saver.due(BatchCheckpoint{}, at_batch(batch)));
    saver.begin(at_batch(batch));
    static_cast<void>(saver.target());
    saver.ended(false, batch == 8);  // that was written, but not pointed to
    return names_of(saver);
  };
  CHECK(fail(6) == Names{"ba4"});  // ba2, which has made room for it, does not come back
  CHECK(fail(8) == Names{"ba4", "ba8"});
}

TEST_CASE("a saver keeps none when told so, and one of a name", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.keep = 0;
  Saver none(options, at_batch(0));
  CHECK(offer(none, 2));
  CHECK(names_of(none).empty());
  CHECK(on_disk(none).empty());
  options.keep = -1;
  options.filename = "the one";
  Saver one(options, at_batch(0));
  CHECK(offer(one, 2));
  CHECK(fs::remove_all(one.folder() + "/the one") > 0);  // what a writer replaces
  CHECK(offer(one, 4));
  CHECK(names_of(one) == Names{"the one"});
}

TEST_CASE("with a monitor the best values are kept and pointed to", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = by_accuracy(folder);
  options.latest_filename = "best";
  options.maximize = true;
  options.keep = 2;
  Saver saver(options, at_batch(0));
  const auto best = [&] { return fs::read_symlink(saver.folder() + "/best"); };
  CHECK_FALSE(offer(saver, 2));  // nothing was evaluated
  CHECK(offer(saver, 3, 0.5));
  CHECK(offer(saver, 4, 0.3));
  CHECK(best() == "ba3");
  CHECK(offer(saver, 5, 0.7));
  CHECK(names_of(saver) == Names{"ba3", "ba5"});
  CHECK(best() == "ba5");
  CHECK_FALSE(offer(saver, 6, 0.5));  // as good as the worst is not better
  CHECK_FALSE(offer(saver, 7, std::numeric_limits<double>::quiet_NaN()));
  CHECK_FALSE(offer(saver, 8));  // that evaluation has had its say
  CHECK(offer(saver, 9, 0.6));
  CHECK(on_disk(saver) == Names{"ba5", "ba9", "best"});
  CHECK(best() == "ba5");
  CHECK(saver.values() == std::vector<double>{0.7, 0.6});

  Archive archive;
  saver.save(archive.child("saver"));
  Saver resumed(options, at_batch(0));
  resumed.load(archive.child("saver"));
  CHECK(names_of(resumed).empty());
  resumed.adopt(checkpoint::claim(resumed), 9);
  CHECK(names_of(resumed) == Names{"ba5", "ba9"});
  CHECK_FALSE(offer(resumed, 10, 0.55));
  CHECK(offer(resumed, 11, 0.65));
  CHECK(on_disk(resumed) == Names{"ba11", "ba5", "best"});
}

TEST_CASE("a value is that of the weights that were evaluated, and of none after them",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  Saver saver(by_accuracy(folder), at_batch(0));
  saver.evaluated(graded(3, 0.5));  // on its own, between two runs
  saver.evaluated(graded(4, 0.1, "other"));
  CHECK_FALSE(saver.due(BatchCheckpoint{}, at_batch(4)));
  CHECK_FALSE(saver.due(BatchCheckpoint{}, at_batch(5), true));
  CHECK(offer(saver, 6, 0.9));
  CHECK(names_of(saver) == Names{"ba6"});
}

TEST_CASE("less is better unless said otherwise", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = by_accuracy(folder);
  options.keep = 1;
  Saver saver(options, at_batch(0));
  CHECK(offer(saver, 1, 0.5));
  CHECK_FALSE(offer(saver, 2, 0.6));
  CHECK(offer(saver, 3, 0.4));
  CHECK(on_disk(saver) == Names{"ba3", "latest"});
}

TEST_CASE("a saver knows its best checkpoint, the newest of equal ones, when it has a monitor",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = by_accuracy(folder);
  options.maximize = true;
  Saver saver(options, at_batch(0));
  CHECK(saver.best().empty());
  CHECK(offer(saver, 1, 0.5));
  CHECK(offer(saver, 2, 0.7));
  CHECK(offer(saver, 3, 0.7));
  CHECK(offer(saver, 4, 0.6));
  CHECK(saver.best() == saver.folder() + "/ba3");
  Saver without(in(folder), at_batch(0));
  CHECK(offer(without, 6));
  CHECK(without.best().empty());
}

TEST_CASE("a monitor of a metric that is not there is refused with those that are",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = by_accuracy(folder);
  options.monitor = "Acuracy";
  Saver saver(options, at_batch(0));
  CHECK_THROWS_WITH(offer(saver, 1, 0.5),
                    ContainsSubstring("monitor is \"Acuracy\", but the set \"test\" has Accuracy"));
}

TEST_CASE("numbers and names that cannot be meant are refused", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const SaverOptions& options, const std::string& text,
                           const std::string& run_name = "quiet-etude") {
    State state = at_batch(1);
    state.run_name = run_name;
    CHECK_THROWS_AS(Saver(options, state), c10::ValueError);
    CHECK_THROWS_WITH(Saver(options, state), ContainsSubstring(text));
  };
  SaverOptions bad = in(folder);
  bad.keep = -2;
  refusal(bad, "the number of checkpoints to keep is -2, expected -1 to keep all, 0 to keep none");
  bad = in(folder);
  bad.folder = "run/{epoch}";
  refusal(bad, "the folder is \"run/{epoch}\", but {epoch} changes during a run");
  bad = in(folder);
  bad.latest_filename = "latest-{total_wct}";
  refusal(bad, "but {total_wct} changes during a run");
  bad.latest_filename = ".tmp-latest";
  refusal(bad, "expected a name without slashes and without a dot at its start");
  bad.latest_filename = "{run_name}";
  bad.filename = "quiet-etude";
  refusal(bad, "another one than the pointer's");
  bad = in(folder);
  bad.filename = "{run_name}-ba{batch}";
  refusal(bad, "is \"team/a-ba1\" in this run, expected a name without slashes", "team/a");
  for (const char* name : {"../../elsewhere", "/etc", "a/../../b", "..", "."}) {
    refusal(in(folder), "expected a name that stays in the folders", name);
  }
}

TEST_CASE("the pointer's name is filled in, with the rank that writes", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.latest_filename = "latest-{run_name}-rank{rank}";
  options.filename = "ba{batch}-rank{rank}";
  State other = at_batch(2);
  other.rank = 1;
  other.world_size = 2;
  Saver elsewhere(options, other);
  CHECK(elsewhere.latest() == "latest-quiet-etude-rank0");
  CHECK(elsewhere.begin(other) == "ba2-rank0");
  Saver saver(options, at_batch(0));
  CHECK(offer(saver, 2));
  CHECK(on_disk(saver) == Names{"ba2-rank0", "latest-quiet-etude-rank0"});
}

namespace {

// What a checkpoint keeps of a saver.
Archive list_of(const Saver& saver) {
  Archive archive;
  saver.save(archive);
  return archive;
}

// A saver of a run that goes on, with what is its own of that list.
void resume(Saver& saver, const Archive& list, std::int64_t batch, const std::string& from = {}) {
  saver.load(list);
  saver.adopt(checkpoint::claim(saver, from), batch);
}

Archive forged(const Saver& saver, const Names& names) {
  Archive archive = list_of(saver);
  archive.erase("names");
  archive.erase("values");
  archive.put("names", names);
  archive.put("values", std::vector<double>(names.size(), 0));
  return archive;
}

}  // namespace

TEST_CASE("a list from a stranger cannot make a saver remove what it did not write",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  Saver before(options, at_batch(0));
  CHECK(offer(before, 2));
  for (const char* name : {"precious", "quiet-etude/notes"}) {
    fs::create_directory(folder / name);
  }
  options.keep = 1;
  Saver saver(options, at_batch(2));
  resume(saver, forged(before, {"../precious", "notes", "..", "ba1/../../precious", "ba1", "ba2"}),
         2);
  CHECK(names_of(saver) == Names{"ba2"});
  CHECK(offer(saver, 4));
  CHECK(fs::exists(folder / "precious"));
  CHECK(on_disk(saver) == Names{"ba4", "latest", "notes"});
}

TEST_CASE("what a list names and another wrote, a link leads to, or nobody finished stays",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  Saver before(options, at_batch(0));
  CHECK(offer(before, 2));
  const fs::path here = before.folder();
  Saver foreign(options, at_batch(2));  // of another run
  CHECK(offer(foreign, 4));
  checkpoint::write_files(here / "ba6", pages());  // by hand, or by an older release
  fs::create_directory(here / "ba8");
  write_bytes(here / "ba8/model.safetensors", "half a file");
  fs::create_directory(folder / "elsewhere");
  checkpoint::SaveJob{{.path = (folder / "elsewhere/ba10").string(), .id = before.id()}, pages()}();
  fs::create_symlink(folder / "elsewhere/ba10", here / "ba10");
  write_bytes(here / "ba12", "a file");
  const Names all{"ba2", "ba4", "ba6", "ba8", "ba10", "ba12"};
  options.keep = 0;
  Saver saver(options, at_batch(12));
  resume(saver, forged(before, all), 12);
  CHECK(names_of(saver) == Names{"ba2"});
  CHECK(offer(saver, 14));
  CHECK(on_disk(saver) == Names{"ba10", "ba12", "ba4", "ba6", "ba8", "latest"});
  CHECK(fs::exists(folder / "elsewhere/ba10/manifest.json"));

  // The same when they get a name while the saver lives.
  options.keep = 1;
  Saver living(options, at_batch(14));
  CHECK(offer(living, 16));
  fs::rename(here / "ba16", here / "mine");
  fs::rename(here / "ba6", here / "ba16");
  CHECK(offer(living, 18));
  CHECK(fs::exists(here / "ba16/manifest.json"));
}

TEST_CASE("a list is about the folder that it was written for", "[checkpoint][saver]") {
  const TemporaryFolder folder;
  const auto at = [&](const std::string& name) {
    SaverOptions options = in(folder);
    options.folder = (folder / name).string();
    return options;
  };
  Saver first(at("a"), at_batch(0));
  CHECK(offer(first, 2));
  CHECK(offer(first, 4));
  const Archive list = list_of(first);
  fs::create_directory(folder / "copy");
  for (const char* name : {"ba2", "ba4"}) {
    fs::create_directory(folder / "copy" / name);
    for (const std::string& file : sorted_names(folder / "a" / name)) {
      fs::copy_file(folder / "a" / name / file, folder / "copy" / name / file);
    }
  }
  const auto kept = [&](const std::string& name, const std::string& from) {
    Saver saver(at(name), at_batch(4));
    resume(saver, list, 4, from.empty() ? from : (folder / from).string());
    return names_of(saver);
  };
  CHECK(kept("a", "") == Names{"ba2", "ba4"});
  CHECK(kept("a/../a/", "a/ba4") == Names{"ba2", "ba4"});
  CHECK(kept("copy", "").empty());
  CHECK(kept("copy", "a/ba4").empty());
  CHECK(kept("copy", "copy/ba4") == Names{"ba2", "ba4"});  // it goes on in the copy itself
  fs::create_symlink("../a/ba4", folder / "copy/latest");
  CHECK(kept("copy", "copy/latest").empty());
  fs::rename(folder / "a", folder / "moved");
  CHECK(kept("moved", "") == Names{"ba2", "ba4"});
  CHECK(kept("a", "").empty());
}

TEST_CASE("what was saved at a batch is not saved again when the run goes on there",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  Saver before(in(folder), at_batch(0));
  CHECK(offer(before, 2));
  const auto due = [&](std::int64_t batch, const Archive& list) {
    Saver saver(in(folder), at_batch(batch));
    resume(saver, list, batch);
    return saver.due(BatchCheckpoint{}, at_batch(batch), true);
  };
  CHECK_FALSE(due(2, list_of(before)));
  CHECK(due(3, list_of(before)));
  CHECK(due(2, forged(before, {"ba2", "ba4"})));  // the last one is not there
}

TEST_CASE("a name that another has is not taken from it, unless that is allowed",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.filename = "the one";
  Saver first(options, at_batch(0));
  CHECK(offer(first, 2));
  CHECK(offer(first, 4));  // its own
  Saver second(options, at_batch(0));
  CHECK_THROWS_WITH(offer(second, 2), ContainsSubstring("the one' is there already and is not this "
                                                        "run's; move it"));
  options.overwrite = true;
  Saver third(options, at_batch(0));
  CHECK(offer(third, 2));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
