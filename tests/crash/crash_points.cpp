#include <tutti/checkpoint/save_job.hpp>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/latest.hpp>
#include <tutti/checkpoint/shard_layout.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>

#include "crash/disk_model.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using checkpoint::Saver;
namespace fs = std::filesystem;

namespace {

State at_batch(std::int64_t batch) {
  State state;
  state.timestamp.batch = batch;
  return state;
}

checkpoint::SnapshotFiles pages(double value) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", "calm-motet");
  snapshot.meta.put("batch", static_cast<std::int64_t>(value));
  snapshot.model.put("weight", at::full({5, 3}, value));
  snapshot.model.put("bias", at::full({3}, value));
  snapshot.state.put("value", value);
  snapshot.state.put("momentum", at::full({5, 3}, value));
  snapshot.state.put("steps", at::full({2}, static_cast<std::int64_t>(value)));
  return checkpoint::to_files(snapshot);
}

void save(Saver& saver, std::int64_t batch, double value) {
  saver.begin(at_batch(batch));
  checkpoint::SaveJob{saver.target(), pages(value)}();
  saver.ended(true);
}

// What one of several ranks has of the same.
checkpoint::ShardedSnapshot part(double value, int rank, int ranks) {
  const auto box = checkpoint::shard_box({5, 3}, rank, ranks);
  const at::Tensor rows = at::full(box.sizes, value);
  checkpoint::ShardedSnapshot out;
  out.meta.put("run_name", "calm-motet");
  out.meta.put("batch", static_cast<std::int64_t>(value));
  out.folders["model"] = {{.name = "weight", .part = rows, .offsets = box.offsets},
                          {.name = "bias", .part = at::full({3}, value), .replicated = true}};
  out.folders["optim"] = {{.name = "momentum", .part = rows, .offsets = box.offsets}};
  out.own = {{"stream", at::full({2}, value)}};
  out.state.put("value", value);
  out.state.put("momentum", rows);
  out.places["momentum"] = "optim/momentum";
  return out;
}

// The steps of train::ShardedJob on all ranks, one rank after the other; `last_first` turns round
// in which order they write.
void save(Saver& saver, std::int64_t batch, double value, int ranks, bool last_first) {
  if (ranks == 0) {
    save(saver, batch, value);
    return;
  }
  saver.begin(at_batch(batch));
  const Saver::Target target = saver.target();
  std::deque<checkpoint::ShardedSnapshot> parts;
  std::deque<checkpoint::detail::ShardedSave> saves;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(part(value, rank, ranks));
    parts.back().meta.put("saver_id", target.id);
    saves.emplace_back(target.path, parts.back(), rank, ranks, /*overwrite=*/true);
  }
  checkpoint::check_target(target);
  const std::string folder = saves.front().open();
  std::vector<std::string> reports(saves.size());
  for (std::size_t i = 0; i < saves.size(); ++i) {
    const std::size_t rank = last_first ? saves.size() - 1 - i : i;
    reports[rank] = saves[rank].write(folder);
  }
  saves.front().commit(reports);
  checkpoint::after_write(target, {});
  saves.clear();
  saver.ended(true);
}

// What is found as a run that resumes would find it: the value, or 0 when there is no checkpoint.
double recovered(const fs::path& folder) {
  const auto found = checkpoint::find_latest(folder, "latest");
  if (!found) {
    return 0;
  }
  const checkpoint::Snapshot snapshot = checkpoint::read_checkpoint(*found);
  const auto value = snapshot.state.get<double>("value");
  CHECK(at::equal(snapshot.model.tensor("weight"), at::full({5, 3}, value)));
  CHECK(at::equal(snapshot.model.tensor("bias"), at::full({3}, value)));
  CHECK(at::equal(snapshot.state.tensor("momentum"), at::full({5, 3}, value)));
  return value;
}

struct Scenario {
  std::string name;
  checkpoint::SaverOptions options;
  bool first = false;      // there is no older checkpoint
  std::int64_t batch = 2;  // of the save that is interrupted; the older one is of batch 1
  bool no_exchange = false;
  bool no_symlink = false;
  bool leftovers = false;  // of a writer that died before
  int ranks = 0;           // that write a sharded one; 0: it is whole
  bool last_first = false;
};

struct Counts {
  std::size_t calls = 0;
  std::size_t points = 0;
  std::size_t states = 0;
};

Counts run(const Scenario& scenario) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "run";
  fs::create_directory(folder);
  checkpoint::SaverOptions options = scenario.options;
  options.folder = folder.string();
  options.filename = "ba{batch}";
  Saver saver(options, at_batch(0));
  if (!scenario.first) {
    save(saver, 1, 1, scenario.ranks, false);
  }
  if (scenario.leftovers) {
    fs::create_directory(folder / ".tmp-ba2-0123456789ab");
    write_bytes(folder / ".tmp-ba2-0123456789ab/model.safetensors", "half a file");
    fs::create_directory(folder / ".old-ba1-0123456789ab");
    write_bytes(folder / ".old-ba1-0123456789ab/manifest.json", "{}");
  }
  crash::Recording recording(folder);
  {
    crash::Watch watch(folder.string(), std::ref(recording));
    watch.no_exchange = scenario.no_exchange;
    watch.no_symlink = scenario.no_symlink;
    save(saver, scenario.batch, 2, scenario.ranks, scenario.last_first);
  }
  Counts counts{.calls = recording.calls()};
  std::set<std::string> known;
  const double old = scenario.first ? 0 : 1;
  counts.points = recording.each_crash([&](const crash::Disk& disk, bool done) {
    if (!known.insert((done ? "done" : "") + disk.text()).second) {
      return;
    }
    const TemporaryFolder after;
    const fs::path crashed = after / "run";
    disk.make(crashed);
    INFO(scenario.name << ": state " << known.size());
    double value = -1;
    CHECK_NOTHROW(value = recovered(crashed));
    CHECK((value == 2 || (value == old && !done)));
    checkpoint::SaverOptions next = options;  // and the run goes on
    next.folder = crashed.string();
    Saver again(next, at_batch(0));
    CHECK_NOTHROW(save(again, 3, 3, scenario.ranks, false));
    CHECK(recovered(crashed) == 3);
  });
  counts.states = known.size();
  return counts;
}

Counts run_all(const std::vector<Scenario>& scenarios) {
  Counts all;
  for (const Scenario& scenario : scenarios) {
    const Counts counts = run(scenario);
    all.calls += counts.calls;
    all.points += counts.points;
    all.states += counts.states;
    std::printf("crash points, %s: %zu in %zu calls, %zu different disks\n", scenario.name.c_str(),
                counts.points, counts.calls, counts.states);
  }
  std::printf("crash points: %zu, %zu different disks\n", all.points, all.states);
  return all;
}

}  // namespace

TEST_CASE("a crash at any point leaves the old or the new checkpoint whole", "[crash]") {
  const Counts all = run_all({
      {.name = "the first", .options = {}, .first = true},
      {.name = "a further one", .options = {}},
      {.name = "a further one, keeping one", .options = {.keep = 1}},
      {.name = "one of the same name", .options = {}, .batch = 1},
      {.name = "one of the same name, without exchange",
       .options = {},
       .batch = 1,
       .no_exchange = true},
      {.name = "without symbolic links", .options = {.keep = 1}, .no_symlink = true},
      {.name = "among leftovers", .options = {.keep = 1}, .leftovers = true},
  });
  CHECK(all.points >= 10000);
}

TEST_CASE("a crash at any point of all ranks' files leaves the old or the new checkpoint whole",
          "[crash][sharded]") {
  std::vector<Scenario> scenarios{
      {.name = "2 ranks, the first", .options = {}, .first = true, .ranks = 2},
      {.name = "2 ranks, keeping one, the last rank first",
       .options = {.keep = 1},
       .ranks = 2,
       .last_first = true},
  };
  if (std::getenv("TUTTI_ALL_CRASH_POINTS") != nullptr) {
    for (const int ranks : {2, 3, 4}) {
      for (const bool last_first : {false, true}) {
        const std::string who =
            std::to_string(ranks) + " ranks" + (last_first ? ", the last first" : "");
        const auto add = [&](const char* name, Scenario scenario) {
          scenario.name = who + ", " + name;
          scenario.ranks = ranks;
          scenario.last_first = last_first;
          scenarios.push_back(scenario);
        };
        add("a further one", {.name = {}, .options = {}});
        add("one of the same name", {.name = {}, .options = {}, .batch = 1});
        add("one of the same name, without exchange",
            {.name = {}, .options = {}, .batch = 1, .no_exchange = true});
        add("without symbolic links", {.name = {}, .options = {.keep = 1}, .no_symlink = true});
        add("among leftovers", {.name = {}, .options = {.keep = 1}, .leftovers = true});
      }
    }
  }
  CHECK(run_all(scenarios).points >= 2000);
}

TEST_CASE("the model of the disk finds a writer that forgets to sync", "[crash]") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "run";
  fs::create_directory(folder);
  write_bytes(folder / "file", "old");
  crash::Recording recording(folder);
  {
    const crash::Watch watch(folder.string(), std::ref(recording));
    checkpoint::detail::File file = checkpoint::detail::File::create(folder / "file.tmp");
    file.write("new", 3);
    file.close();  // no sync before the rename
    checkpoint::detail::rename_path(folder / "file.tmp", folder / "file");
    checkpoint::detail::sync_folder(folder);
  }
  std::set<std::string> found;
  recording.each_crash([&](const crash::Disk& disk, bool) {
    found.insert(disk.nodes.at(static_cast<std::size_t>(disk.nodes[0].names.at("file"))).data);
  });
  CHECK(found.count("old") == 1);
  CHECK(found.count("new") == 1);
  CHECK(found.count("") + found.count(std::string(3, '\0')) > 0);
  CHECK(found.count("n") == 1);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
