#include <tutti/loggers/tensorboard.hpp>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::TensorBoardLogger;
namespace tensorboard = tutti::detail::tensorboard;

static_assert(tutti::Recipe<TensorBoardLogger>::valid);
static_assert(tutti::role_of<TensorBoardLogger> == tutti::Role::logger);
// RFC 3720, B.4, and the check values of the catalogue of CRCs.
static_assert(tutti::detail::crc32c("123456789") == 0xE3069283);
static_assert(tutti::detail::crc32c(std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                                                     "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                                                     32)) == 0x8A9136AA);
static_assert(tutti::detail::crc32_png("123456789") == 0xCBF43926);

namespace {

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

// The data of every record; lengths and sums are checked.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  const std::string file = read_bytes(path);
  std::vector<std::string> out;
  const auto check = [](std::string_view data, std::string_view sum) {
    const std::uint32_t crc = tutti::detail::crc32c(data);
    CHECK(little_endian(sum) == ((crc >> 15 | crc << 17) + 0xA282EAD8U));
  };
  for (std::size_t at = 0; at < file.size();) {
    REQUIRE(file.size() - at >= 16);
    const auto size = static_cast<std::size_t>(little_endian(file.substr(at, 8)));
    REQUIRE(file.size() - at >= 16 + size);
    check(file.substr(at, 8), file.substr(at + 8, 4));
    out.push_back(file.substr(at + 12, size));
    check(out.back(), file.substr(at + 12 + size, 4));
    at += 16 + size;
  }
  return out;
}

// A message's fields by number, numbers as text.
std::multimap<unsigned, std::string> fields_of(std::string_view bytes) {
  std::multimap<unsigned, std::string> out;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  };
  const auto take = [&](std::size_t size) {
    REQUIRE(size <= bytes.size());
    const auto taken = bytes.substr(0, size);
    bytes.remove_prefix(size);
    return std::string(taken);
  };
  while (!bytes.empty()) {
    const std::uint64_t key = varint();
    const auto field = static_cast<unsigned>(key >> 3);
    switch (key & 7) {
      case 0:
        out.emplace(field, std::to_string(varint()));
        break;
      case 1:
        out.emplace(field, std::to_string(std::bit_cast<double>(little_endian(take(8)))));
        break;
      case 5:
        out.emplace(field, std::to_string(std::bit_cast<float>(
                               static_cast<std::uint32_t>(little_endian(take(4))))));
        break;
      default:
        REQUIRE((key & 7) == 2);
        out.emplace(field, take(varint()));
    }
  }
  return out;
}

std::string field(const std::multimap<unsigned, std::string>& fields, unsigned number) {
  const auto found = fields.find(number);
  return found == fields.end() ? "" : found->second;
}

// "7: loss=0.500000, ...": what the events of a file hold, one line each.
std::string outline(const std::filesystem::path& path) {
  std::string out;
  for (const std::string& data : records_of(path)) {
    const auto event = fields_of(data);
    CHECK(std::stod(field(event, 1)) > 1.7e9);
    out += (event.contains(2) ? field(event, 2) : "0") + ":";
    if (event.contains(3)) {
      out += " " + field(event, 3);
    }
    if (event.contains(7)) {
      out += " session " + field(fields_of(field(event, 7)), 1);
    }
    const auto summary = fields_of(field(event, 5));
    for (auto [value, end] = summary.equal_range(1); value != end; ++value) {
      const auto fields = fields_of(value->second);
      out += " " + field(fields, 1) + (fields.contains(2) ? "=" + field(fields, 2) : "");
    }
    out += "\n";
  }
  return out;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Everything that the logger can write, in two files of one run.
void write_everything(const std::string& folder) {
  TensorBoardLogger logger{.log_dir = folder};
  FakeRun run{logger, "2ep"};
  run.state.logger.log_hyperparameters({{"layers", std::int64_t{3}}, {"fused", true}});
  run.fire(tutti::AfterLoad{});
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  const at::Tensor images = at::zeros({9, 3, 4, 5});
  images.select(0, 8).select(0, 1).fill_(1.0);  // the last one is green
  run.state.logger.log_images({.name = "inputs", .images = images}, 1);
  const std::vector<std::string> columns{"prompt", "text"};
  const std::vector<std::vector<std::string>> rows{{"a|b", "x\ny\xFF"}};
  run.state.logger.log_table({.name = "generations", .columns = columns, .rows = rows}, 1);
  logger.close(run.state);

  TensorBoardLogger resumed{.log_dir = folder};
  FakeRun again{resumed, "2ep"};
  again.state.timestamp = again.state.timestamp.to_next_batch(16).to_next_batch(16);
  again.fire(tutti::AfterLoad{});
  again.batch();
  resumed.close(again.state);
}

}  // namespace

TEST_CASE("a step is one event, an evaluation adds the page HParams", "[loggers][trace]") {
  const TemporaryFolder folder;
  write_everything((folder / "logs").string());
  const auto files = files_in(folder.path());
  REQUIRE(files.size() == 2);
  CHECK_THAT(files[0].string(), ContainsSubstring("/logs//events.out.tfevents.") ||
                                    ContainsSubstring("/logs/events.out.tfevents."));
  CHECK(outline(files[0]) ==
        "0: brain.Event:2\n"
        "0: hyperparameters/text_summary _hparams_/session_start_info "
        "loss/train/total=1.000000 time/batch=0.000000\n"
        "1: loss/train/total=0.500000 time/batch=1.000000\n"
        "2: loss/train/total=0.333333 time/batch=2.000000\n"
        "3: metrics/test/MulticlassAccuracy=0.984375 hparams/loss/train/total=0.333333 "
        "hparams/metrics/test/MulticlassAccuracy=0.984375\n"
        "1: inputs generations/text_summary\n"
        "3: _hparams_/session_end_info\n");
  CHECK(outline(files[1]) ==
        "0: brain.Event:2\n"
        "2: session 1\n"
        "2: loss/train/total=0.333333 time/batch=2.000000\n"
        "3: hyperparameters/text_summary _hparams_/session_start_info "
        "_hparams_/session_end_info\n");
}

TEST_CASE("what was logged at a checkpoint's step is in the resumed run's file too",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  tutti::Archive saved;
  {
    TensorBoardLogger logger{.log_dir = (folder / "first").string()};
    FakeRun run{logger, "2ep"};
    run.fire(tutti::AfterLoad{});
    run.batch();
    run.state.log_metrics({{"lr", 0.5}});
    logger.save(saved);
    run.batch();  // behind the checkpoint: the resumed run does that again
  }
  for (const int rank : {0, 1}) {  // the checkpoint has rank 0's
    const auto name = std::string("second") + std::to_string(rank);
    TensorBoardLogger resumed{.log_dir = (folder / name).string(), .rank_zero_only = false};
    FakeRun run{resumed, "2ep", rank};
    run.state.timestamp = run.state.timestamp.to_next_batch(16);
    resumed.load(saved);
    run.fire(tutti::AfterLoad{});
    run.batch();
    resumed.close(run.state);
    INFO(rank);
    CHECK(outline(files_in(folder / name).at(0)) ==
          std::string("0: brain.Event:2\n"
                      "1: session 1\n"
                      "1: ") +
              (rank == 0 ? "lr=0.500000 " : "") +
              "loss/train/total=0.500000 time/batch=1.000000\n"
              "2: hyperparameters/text_summary _hparams_/session_start_info "
              "_hparams_/session_end_info\n");
  }
}

TEST_CASE("a record has its length, two sums and the data", "[loggers][golden]") {
  // What tensorboard 2.21's own RecordWriter makes of b"abc".
  CHECK(tensorboard::record("abc") ==
        std::string("\x03\0\0\0\0\0\0\0", 8) + "\xb0\x99\x49\x0e" + "abc" + "\x6e\x57\xf1\x21");
}

TEST_CASE("a table's cells stay cells whatever stands in them", "[loggers][law]") {
  const std::vector<std::string> columns{"text", "length"};
  const std::vector<std::vector<std::string>> rows{{R"(\|x\|)", "1"}, {"two\r\nlines", "2"}};
  CHECK(tensorboard::markdown({.name = "t", .columns = columns, .rows = rows}) ==
        "| text | length |\n|---|---|\n"
        R"(| \\\|x\\\| | 1 |)"
        "\n| two<br>lines | 2 |\n");
}

// The numbers are those of TensorBoard's summary.proto, tensor.proto and hparams'
// plugin_data.proto.
TEST_CASE("a text is a tensor of one string, with its plugin's name", "[loggers][golden]") {
  const auto value = fields_of(tensorboard::text("t", "a *b*").bytes());
  CHECK(field(value, 1) == "t");
  CHECK(field(fields_of(field(fields_of(field(value, 9)), 1)), 1) == "text");
  const auto tensor = fields_of(field(value, 8));
  CHECK(field(tensor, 1) == "7");  // DT_STRING
  CHECK(field(fields_of(field(fields_of(field(tensor, 2)), 2)), 1) == "1");
  CHECK(field(tensor, 8) == "a *b*");
}

TEST_CASE("the page HParams is told of every value and how the run ended", "[loggers][golden]") {
  const auto content = [](const tutti::detail::Message& message) {
    const auto plugin = fields_of(field(fields_of(field(fields_of(message.bytes()), 9)), 1));
    CHECK(field(plugin, 1) == "hparams");
    return fields_of(field(plugin, 2));
  };
  const auto begun = fields_of(field(
      content(tensorboard::session_start(
          {{"fused", true}, {"layers", std::int64_t{3}}, {"lr", 0.5}, {"name", std::string("x")}},
          12.5)),
      3));
  CHECK(field(begun, 5) == "12.500000");
  std::string values;
  for (auto [entry, end] = begun.equal_range(1); entry != end; ++entry) {
    const auto parts = fields_of(entry->second);
    for (const auto& [kind, value] : fields_of(field(parts, 2))) {
      values += field(parts, 1) + " " + std::to_string(kind) + " " + value + ", ";
    }
  }
  CHECK(values == "fused 4 1, layers 2 3.000000, lr 2 0.500000, name 3 x, ");
  const auto ended = [&](bool failed) {
    const auto fields = fields_of(field(content(tensorboard::session_end(failed, 20)), 4));
    return field(fields, 1) + " at " + field(fields, 2);
  };
  CHECK(ended(false) == "1 at 20.000000");
  CHECK(ended(true) == "2 at 20.000000");
}

TEST_CASE("names of metrics are made UTF-8, without which the file could not be read",
          "[loggers][law]") {
  const auto name = [](std::string_view tag) {
    return field(fields_of(tensorboard::scalar(tag, 1).bytes()), 1);
  };
  CHECK(name("loss/train/total") == "loss/train/total");
  CHECK(name("\xC3\xA9") == "\xC3\xA9");
  CHECK(name("caf\xE9") == "caf\xEF\xBF\xBD");
}

TEST_CASE("a picture becomes a PNG with stored pixels", "[loggers][golden]") {
  // Python: zlib.compress(b"\0\x01\x02\x03", 0) between the chunks of a 1 x 1 RGB picture.
  const std::string file = tutti::detail::png(
      {.height = 1, .width = 1, .channels = 3, .pixels = std::string("\x01\x02\x03")});
  CHECK(file == std::string("\x89PNG\r\n\x1A\n", 8) + std::string("\0\0\0\x0DIHDR", 8) +
                    std::string("\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0", 13) + "\x90\x77\x53\xDE" +
                    std::string("\0\0\0\x0FIDAT", 8) +
                    std::string("\x78\x01\x01\x04\0\xFB\xFF\0\x01\x02\x03\0\x0E\0\x07", 15) +
                    "\x2D\xA2\x33\xEC" + std::string("\0\0\0\0IEND\xAE\x42\x60\x82", 12));
}

TEST_CASE("pictures are tiled eight in a row, clamped and rounded", "[loggers][law]") {
  at::Tensor images = at::zeros({9, 1, 2, 3});
  images.select(0, 1).fill_(0.5);
  images.select(0, 8).fill_(7);
  const auto grid = tutti::detail::picture_grid({.name = "i", .images = images});
  CHECK(grid.height == 2 * 2 + 2);
  CHECK(grid.width == 8 * 3 + 7 * 2);
  CHECK(grid.channels == 1);
  CHECK(static_cast<unsigned char>(grid.pixels.at(5)) == 128);  // the second's first pixel
  CHECK(static_cast<unsigned char>(grid.pixels.at(4 * 38)) == 255);
  const at::Tensor bytes = at::full({2, 3, 4}, 9, at::kByte);
  const auto one =
      tutti::detail::picture_grid({.name = "i", .images = bytes, .channels_last = true});
  CHECK(one.height == 2);
  CHECK(one.channels == 4);
  CHECK(one.pixels == std::string(24, '\x09'));
  CHECK_THROWS_WITH(tutti::detail::picture_grid({.name = "i", .images = at::zeros({4, 7, 2, 2})}),
                    ContainsSubstring("images \"i\" are [4, 7, 2, 2], expected [N, C, H, W]"));
}

TEST_CASE("a picture of the wrong shape warns and does not stop the run", "[loggers]") {
  const TemporaryFolder folder;
  TensorBoardLogger logger{.log_dir = folder.path().string()};
  FakeRun run{logger, "1ep"};
  CHECK_NOTHROW(run.state.logger.log_images({.name = "i", .images = at::zeros({2})}, 0));
  logger.close(run.state);
}

TEST_CASE("only rank 0 writes, unless every rank has a folder of its own", "[loggers][dist]") {
  const TemporaryFolder folder;
  for (const bool only : {true, false}) {
    TensorBoardLogger logger{.log_dir = folder.path().string(), .rank_zero_only = only};
    FakeRun run{logger, "1ep", 2};
    run.fire(tutti::AfterLoad{});
    run.epoch();
    logger.close(run.state);
    CHECK(files_in(folder.path()).size() == (only ? 0 : 1));
  }
  CHECK_THAT(files_in(folder.path())[0].string(), ContainsSubstring("/rank2/events.out"));
}

TEST_CASE("a folder that cannot be made is refused at once", "[loggers]") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  TensorBoardLogger logger{.log_dir = (folder / "file").string()};
  using Run = FakeRun<TensorBoardLogger>;
  CHECK_THROWS_WITH(Run(logger, "1ep"), ContainsSubstring("TensorBoardLogger: cannot write '") &&
                                            ContainsSubstring("; set log_dir to a place"));
  CHECK_NOTHROW(TensorBoardLogger{.flush_interval = 1}.validate());
  CHECK_THROWS_WITH(TensorBoardLogger{.flush_interval = 0}.validate(),
                    ContainsSubstring("flush_interval is 0"));
}

// Not run by itself: tensorboard_real.py names the folder and reads what is in it.
TEST_CASE("events for the real TensorBoard to read", "[.][writer]") {
  const char* folder = std::getenv("TUTTI_TENSORBOARD_FOLDER");
  REQUIRE(folder != nullptr);
  write_everything(folder);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
