#include <tutti/train/checkpointing.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Noise final {
  Rng rng{};
  int count = 0;
  void apply(BeforeForward, State& state) {
    state.batch.inputs() = state.batch.inputs() + rng.uniform();
    ++count;
  }
  void save(Archive& archive) const { archive.put("count", count); }
  void load(const Archive& archive) { count = archive.get<int>("count"); }
};

TrainerOptions options() {
  return {.train = tiny::batches(3),
          .max_duration = "2ep",
          .optimizer = DecoupledSGDW{.lr = 0.1, .momentum = 0.9},
          .schedule = CosineAnnealing{},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

const std::array<std::string, 3> files{"manifest.json", "model.safetensors", "state.safetensors"};

// A checkpoint of a run, its bytes, and what loading it gives.
struct Sample {
  TemporaryFolder folder;
  std::string path = (folder / "ep0-ba2").string();
  std::vector<std::string> bytes;
  at::Tensor weights;

  Sample() {
    TrainerOptions saving = options();
    saving.save_folder = folder.path().string();
    saving.save_interval = "2ba";
    Trainer trainer(tiny::net(), saving, Noise{});
    trainer.fit();
    for (const std::string& name : files) {
      bytes.push_back(read_bytes(path + "/" + name));
    }
    weights = load();
  }

  // The weights after loading, and after two more batches.
  at::Tensor load() const {
    TrainerOptions loading = options();
    loading.load_path = path;
    loading.max_duration = "4ba";
    auto model = tiny::net(5);
    Trainer trainer(model, loading, Noise{});
    const at::Tensor loaded = tiny::flat(*model);
    if (trainer.state().timestamp.batch == 2) {
      trainer.fit();
    }
    return at::cat({loaded, tiny::flat(*model)});
  }

  // Whether a changed file is refused, with an exception that names the file, or gives the same.
  void check(std::size_t file, const std::string& changed) const {
    write_bytes(path + "/" + files[file], changed);
    try {
      const at::Tensor got = load();
      CHECK(at::equal(got, weights));
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what_without_backtrace(), ContainsSubstring(files[file]));
    }
    write_bytes(path + "/" + files[file], bytes[file]);
  }
};

// The manifest with a checksum that fits it: what somebody makes who means harm.
std::string sealed(const std::string& text) {
  const std::string_view seal = checkpoint::detail::seal;
  tutti::detail::Xxh64 hash;
  const auto cut = text.rfind(seal);
  hash.update(text.data(), cut);
  return text.substr(0, cut) + std::string(seal) + hash.text() +
         std::string(checkpoint::detail::seal_end);
}

}  // namespace

TEST_CASE("a run's checkpoint that is cut short anywhere is refused", "[train][damage]") {
  const Sample sample;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (std::size_t size = 0; size < sample.bytes[file].size(); size += 512) {
      INFO(files[file] << " cut to " << size << " of " << sample.bytes[file].size());
      write_bytes(sample.path + "/" + files[file], sample.bytes[file].substr(0, size));
      CHECK_THROWS_WITH(sample.load(),
                        ContainsSubstring(files[file]) && ContainsSubstring("truncated"));
    }
    write_bytes(sample.path + "/" + files[file], sample.bytes[file]);
  }
}

TEST_CASE("a run's checkpoint with a flipped bit is refused", "[train][damage]") {
  const Sample sample;
  Rng random(11, 0);
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (int i = 0; i < 300; ++i) {
      std::string changed = sample.bytes[file];
      const auto bit =
          static_cast<std::size_t>(random.uniform() * static_cast<double>(8 * changed.size()));
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
      INFO(files[file] << " bit " << bit);
      sample.check(file, changed);
    }
  }
}

TEST_CASE("a manifest that was changed and sealed again is refused or loads", "[train][damage]") {
  const Sample sample;
  const Warnings warnings;
  Rng random(12, 0);
  int refused = 0;
  const std::string& whole = sample.bytes[0];
  const std::string_view letters = "0123456789-{}[],:\"aefnrtu.";
  for (int i = 0; i < 1500; ++i) {
    std::string changed = whole;
    const auto at = static_cast<std::size_t>(random.uniform() * static_cast<double>(whole.size()));
    const auto letter = static_cast<std::size_t>(random.uniform() * 26);
    if (i % 3 == 0) {
      changed.erase(at, static_cast<std::size_t>(1 + i % 7));
    } else {
      changed[at] = letters[letter];
    }
    if (changed.rfind(checkpoint::detail::seal) == std::string::npos) {
      continue;
    }
    INFO("byte " << at << ": " << changed.substr(at < 20 ? 0 : at - 20, 40));
    write_bytes(sample.path + "/manifest.json", sealed(changed));
    try {
      const at::Tensor weights = sample.load();
      CHECK(weights.numel() == sample.weights.numel());
    } catch (const c10::Error& error) {
      ++refused;
      CHECK(error.what_without_backtrace() != std::string());
    }
  }
  CHECK(refused > 500);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
