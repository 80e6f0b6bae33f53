#include <tutti/checkpoint/saver.hpp>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/save_job.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

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

checkpoint::Pages pages() {
  checkpoint::Snapshot snapshot;
  snapshot.model.put("weight", at::ones({2}));
  return checkpoint::make_pages(snapshot);
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
  saver.ended(false);
  CHECK(names_of(saver) == Names{"ba2"});
  CHECK(on_disk(saver) == Names{"ba2", "latest"});
  CHECK(offer(saver, 4));
  CHECK(on_disk(saver) == Names{"ba4", "latest"});
  const auto fail = [&](std::int64_t batch) {
    REQUIRE(saver.due(BatchCheckpoint{}, at_batch(batch)));
    saver.begin(at_batch(batch));
    const std::string path = saver.target().path;
    if (batch == 8) {
      fs::create_directory(path);  // it was written, but not pointed to
    }
    saver.ended(false);
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

TEST_CASE("a monitor of a metric that is not there is refused with those that are",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = by_accuracy(folder);
  options.monitor = "Acuracy";
  Saver saver(options, at_batch(0));
  CHECK_THROWS_WITH(offer(saver, 1, 0.5),
                    ContainsSubstring("monitor is \"Acuracy\", but the set \"test\" has Accuracy"));
}

TEST_CASE("a list from a stranger cannot make a saver remove what it did not write",
          "[checkpoint][saver]") {
  const TemporaryFolder folder;
  SaverOptions options = in(folder);
  options.keep = 1;
  Saver saver(options, at_batch(0));
  fs::create_directories(saver.folder());
  for (const char* name : {"precious", "quiet-etude/notes"}) {
    fs::create_directory(folder / name);
  }
  Archive archive;
  archive.put("names", Names{"../precious", "notes", "..", "ba1/../../precious", "ba1"});
  archive.put("values", std::vector<double>{0, 0, 0, 0, 0});
  saver.load(archive);
  CHECK(names_of(saver) == Names{"ba1"});
  CHECK(offer(saver, 2));
  CHECK(fs::exists(folder / "precious"));
  CHECK(on_disk(saver) == Names{"ba2", "latest", "notes"});
}
