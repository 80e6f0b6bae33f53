#include <tutti/data/parquet.hpp>

#ifdef TUTTI_WITH_ARROW

#include "support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>

#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::ParquetDataset;
using Names = std::vector<std::string>;

namespace {

// Written by make.py there.
std::string file(const std::string& name) {
  return std::string(TUTTI_SOURCE_DIR) + "/tests/data/files/parquet/" + name;
}

const Names train{file("train-0.parquet"), file("train-1.parquet")};
const Names numbers{"id", "small", "half", "x", "even", "ids", "box", "grid"};

void check_row(const ParquetDataset& rows, std::int64_t i) {
  INFO("row " << i);
  const Batch row = rows.get(i);
  CHECK(row.at("id").scalar_type() == at::kLong);
  CHECK(row.at("id").dim() == 0);
  CHECK(row.at("id").item<std::int64_t>() == i);
  CHECK(row.at("small").scalar_type() == at::kLong);
  CHECK(row.at("small").item<std::int64_t>() == i % 100);
  CHECK(row.at("half").scalar_type() == at::kHalf);
  CHECK(row.at("half").item<double>() == static_cast<double>(i) / 4);
  CHECK(row.at("x").scalar_type() == at::kFloat);
  CHECK(row.at("x").item<double>() == static_cast<double>(i) / 8);
  CHECK(row.at("even").scalar_type() == at::kBool);
  CHECK(row.at("even").item<bool>() == (i % 2 == 0));
  CHECK(row.at("ids").scalar_type() == at::kInt);
  CHECK(row.at("ids").equal(at::arange(i % 4, at::kInt)));
  CHECK(row.at("box").equal(at::arange(3).to(at::kDouble) / 2 + i));
  CHECK(row.at("grid").equal(
      at::tensor({i, std::int64_t(1), std::int64_t(2), std::int64_t(3)}).view({2, 2})));
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("rows of Parquet files are tensors of their columns' types", "[data][parquet]") {
  const ParquetDataset rows(train, {.columns = numbers});
  REQUIRE(rows.size() == 32);
  CHECK(rows.columns() == numbers);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    check_row(rows, i);
  }
  CHECK(rows.place(24) == "'" + train[0] + "', row 25");
  CHECK(rows.place(25) == "'" + train[1] + "', row 1");
  CHECK_THROWS_WITH(rows.get(32), ContainsSubstring("index is 32, expected 0 to 31"));
}

TEST_CASE("Arrow files and streams are read as Parquet is", "[data][parquet]") {
  for (const char* name : {"file.arrow", "stream.arrow"}) {
    const ParquetDataset rows(file(name), {.columns = numbers});
    REQUIRE(rows.size() == 25);
    for (const std::int64_t i : {0, 9, 10, 24}) {
      check_row(rows, i);
    }
  }
}

TEST_CASE("a row is an object of whatever its columns hold", "[data][parquet]") {
  for (const Names& paths : {train, Names{file("stream.arrow")}}) {
    const ParquetDataset rows(paths);
    CHECK(rows.columns().size() == 12);
    const auto row = rows.value(13);
    CHECK(row["id"].integer() == 13);
    CHECK(row["half"].number() == 3.25);
    CHECK(row["x"].number() == 1.625);
    CHECK_FALSE(row["even"].boolean());
    CHECK(row["ids"].size() == 1);
    CHECK(row["grid"][0][0].integer() == 13);
    CHECK(row["text"].string() == "row 13");
    CHECK(row["kind"].string() == "dog");
    CHECK(row["image"]["bytes"].string() == std::string("\x0d\x00\xff", 3));
    CHECK(row["image"]["path"].string() == "13.png");
    CHECK(row["day"].string() == "2026-01-14");
    CHECK(rows.value(19)["text"].kind() == "null");
    CHECK_THROWS_WITH(rows.get(3),
                      ContainsSubstring("row 4, \"text\" is string, expected numbers"));
    CHECK_THROWS_WITH(rows.get(9), ContainsSubstring("row 10, \"text\" is null"));
  }
}

TEST_CASE("a folder's rows are shuffled, batched and made examples of", "[data][parquet]") {
  const TemporaryFolder folder;
  for (const char* name : {"train-1.parquet", "train-0.parquet"}) {
    std::ofstream(folder / name, std::ios::binary) << bytes_of(file(name));
  }
  std::ofstream(folder / "README.md") << "no rows";
  const ParquetDataset rows(
      folder.path().string(),
      {.columns = {"id", "image"}, .row_groups_in_memory = 1, .example = [](const auto& row) {
         return Batch{at::tensor(row["id"].integer()),
                      at::tensor(static_cast<std::int64_t>(row["image"]["bytes"].string().size()))};
       }});
  CHECK(rows.place(25) == "'" + (folder / "train-1.parquet").string() + "', row 1");
  DataLoader loader{rows, {.batch_size = 8, .shuffle = true, .seed = 3, .num_workers = 2}};
  std::vector<std::int64_t> seen;
  loader.start(0, 0);
  while (const auto batch = loader.next()) {
    CHECK(batch->targets().eq(3).all().item<bool>());
    for (std::int64_t i = 0; i < batch->inputs().size(0); ++i) {
      seen.push_back(batch->inputs()[i].item<std::int64_t>());
    }
  }
  CHECK_FALSE(std::is_sorted(seen.begin(), seen.end()));
  std::sort(seen.begin(), seen.end());
  REQUIRE(seen.size() == 32);
  CHECK((seen.front() == 0 && seen.back() == 31));
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("threads that read one file see their own rows", "[data][parquet]") {
  const ParquetDataset rows(train, {.columns = {"id"}, .row_groups_in_memory = 1});
  std::vector<std::int64_t> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 320; ++i) {
        const std::int64_t at = (i * 7 + static_cast<std::int64_t>(t) * 11) % 32;
        wrong[t] += rows.get(at).at("id").item<std::int64_t>() != at;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == std::vector<std::int64_t>(4));
}

TEST_CASE("what cannot be read is refused by its name", "[data][parquet][failure]") {
  const TemporaryFolder folder;
  const auto refused = [](const Names& paths, const std::string& why,
                          data::ParquetOptions options = {}) {
    CHECK_THROWS_WITH(ParquetDataset(paths, options), ContainsSubstring(why));
  };
  refused({}, "there is no file");
  refused({file("make.py")}, "is no Parquet or Arrow file");
  refused({(folder / "none.parquet").string()}, "cannot be opened");
  refused({file("empty.parquet")}, "has no row");
  refused({train[0]}, "has no column \"label\"", {.columns = {"label"}});
  refused({train[0], file("other.parquet")}, "the column \"id\" is int32, but in",
          {.columns = {"id"}});
  refused({train[0]}, "the column \"id\" is named twice", {.columns = {"id", "x", "id"}});
  refused({train[0]}, "row_groups_in_memory is -1", {.row_groups_in_memory = -1});
  CHECK_THROWS_WITH(ParquetDataset(folder.path().string()), ContainsSubstring("has no file that"));

  const auto broken = [&](const std::string& name, auto&& change) {
    std::string bytes = bytes_of(file(name));
    change(bytes);
    const std::string path = (folder / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  };
  for (const char* name : {"train-0.parquet", "file.arrow", "stream.arrow"}) {
    const std::string path = broken(name, [](std::string& b) { b.resize(b.size() / 2); });
    CHECK_THROWS_WITH(
        [&] {
          const ParquetDataset rows(path);
          for (std::int64_t i = 0; i < rows.size(); ++i) {
            static_cast<void>(rows.value(i));
          }
          // A stream without its end has the batches that are whole.
          TUTTI_CHECK(rows.size() == 25, "'", path, "' lacks rows");
        }(),
        ContainsSubstring(path));
  }
  // Bytes that changed give an error or other values, and never a crash.
  std::int64_t errors = 0;
  for (const char* name : {"train-1.parquet", "file.arrow", "stream.arrow"}) {
    for (std::size_t i = 0; i < 60; ++i) {
      const std::string path = broken(name, [i](std::string& b) {
        b[(i * 131) % b.size()] = static_cast<char>(b[(i * 131) % b.size()] ^ (1 << i % 8));
      });
      try {
        const ParquetDataset rows(path);
        for (std::int64_t row = 0; row < rows.size(); ++row) {
          static_cast<void>(rows.value(row));
        }
      } catch (const c10::Error&) {
        ++errors;
      }
    }
  }
  CHECK(errors > 30);
}

}  // namespace UNITY_BUILD_UNIQUE_ID

#endif
