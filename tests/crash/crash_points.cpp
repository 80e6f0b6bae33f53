#include <tutti/checkpoint/save_job.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include <ATen/ATen.h>

#include <tutti/checkpoint/latest.hpp>

#include "crash/disk_model.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace tutti;
using checkpoint::Saver;
namespace fs = std::filesystem;

namespace {

// Memory is faster than a disk, and what lasts is decided by the model.
struct InMemory {
  InMemory() {
    if (::access("/dev/shm", W_OK) == 0) {
      ::setenv("TMPDIR", "/dev/shm", 1);
    }
  }
  ~InMemory() { ::unsetenv("TMPDIR"); }
};

State at_batch(std::int64_t batch) {
  State state;
  state.timestamp.batch = batch;
  return state;
}

checkpoint::Pages pages(double value) {
  checkpoint::Snapshot snapshot;
  snapshot.meta.put("run_name", "calm-motet");
  snapshot.meta.put("batch", static_cast<std::int64_t>(value));
  snapshot.model.put("weight", at::full({5, 3}, value));
  snapshot.model.put("bias", at::full({3}, value));
  snapshot.state.put("value", value);
  snapshot.state.put("momentum", at::full({5, 3}, value));
  snapshot.state.put("steps", at::full({2}, static_cast<std::int64_t>(value)));
  return checkpoint::make_pages(snapshot);
}

void save(Saver& saver, std::int64_t batch, double value) {
  saver.begin(at_batch(batch));
  checkpoint::SaveJob{saver.target(), pages(value)}();
  saver.ended(true);
}

// What is found as a run that resumes would find it: the value, or 0 when there is no checkpoint.
double recovered(const fs::path& folder) {
  const auto found = checkpoint::find_latest(folder, "latest");
  if (!found) {
    return 0;
  }
  const checkpoint::Snapshot snapshot = checkpoint::read_snapshot(*found);
  const auto value = snapshot.state.get<double>("value");
  CHECK(at::equal(snapshot.model.tensor("weight"), at::full({5, 3}, value)));
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
    save(saver, 1, 1);
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
    save(saver, scenario.batch, 2);
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
    CHECK_NOTHROW(save(again, 3, 3));
    CHECK(recovered(crashed) == 3);
  });
  counts.states = known.size();
  return counts;
}

}  // namespace

TEST_CASE("a crash at any point leaves the old or the new checkpoint whole", "[crash]") {
  const InMemory in_memory;
  const Scenario scenarios[] = {
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
  };
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
  CHECK(all.points >= 10000);
}

TEST_CASE("the model of the disk finds a writer that forgets to sync", "[crash]") {
  const InMemory in_memory;
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
