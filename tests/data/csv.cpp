// SPDX-License-Identifier: Apache-2.0
#include <tutti/data/csv.hpp>

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/data_loader.hpp>
#include <tutti/data/tensor_loader.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::data::CsvOptions;
using tutti::data::CsvTable;
using tutti::data::MissingValues;
using tutti::data::read_csv;
using Texts = std::vector<std::string>;

namespace {

// A CSV file of one test.
struct CsvFile {
  TemporaryFolder folder;
  std::string path = (folder / "table.csv").string();

  CsvTable read(const std::string& bytes, const CsvOptions& options = {}) const {
    write_bytes(path, bytes);
    return read_csv(path, options);
  }
  // What the error says, behind the name of the file.
  std::string refuses(const std::string& bytes, const CsvOptions& options = {}) const {
    std::string text = message([&] { (void)read(bytes, options); });
    const std::string begin = "'" + path + "'";
    return text.starts_with(begin) ? text.substr(begin.size()) : text;
  }
};

const std::string flowers =
    "width,species,length,year\n"
    "1.5,rose,2,2007\n"
    "-3e1,iris,+.25,2008\n"
    "0,rose,7,2009\n";

}  // namespace

TEST_CASE("a table becomes features and numbered classes", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read(flowers, {.label = "species"});
  CHECK(table.columns == Texts{"width", "length", "year"});
  CHECK(table.classes == Texts{"iris", "rose"});
  CHECK(table.features.scalar_type() == at::kFloat);
  CHECK(table.features.equal(
      at::tensor({1.5, 2.0, 2007.0, -30.0, 0.25, 2008.0, 0.0, 7.0, 2009.0}, at::kFloat)
          .view({3, 3})));
  CHECK(table.labels.equal(at::tensor({1, 0, 1}, at::kLong)));
  CHECK_FALSE(table.targets.defined());
  CHECK(table.dropped == 0);
}

TEST_CASE("the columns that are named are read in their order", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read(flowers, {.columns = {"length", "width"}});
  CHECK(table.columns == Texts{"length", "width"});
  CHECK(
      table.features.equal(at::tensor({2.0, 1.5, 0.25, -30.0, 7.0, 0.0}, at::kFloat).view({3, 2})));
  CHECK_FALSE(table.labels.defined());
  CHECK(file.read(flowers, {.label = "species", .ignore = {"year"}}).columns ==
        Texts{"width", "length"});
}

TEST_CASE("a target is a column of numbers", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read(flowers, {.target = "length", .ignore = {"species"}});
  CHECK(table.columns == Texts{"width", "year"});
  CHECK(table.targets.equal(at::tensor({2.0, 0.25, 7.0}, at::kFloat).view({3, 1})));
  CHECK(table.classes.empty());
}

TEST_CASE("classes that are numbers are sorted as numbers", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read("digit,x\n10,0\n9,0\n2,0\n10,0\n", {.label = "digit"});
  CHECK(table.classes == Texts{"2", "9", "10"});
  CHECK(table.labels.equal(at::tensor({2, 1, 0, 2}, at::kLong)));
  CHECK_THAT(file.refuses("digit,x\n1,0\n1.0,0\n", {.label = "digit"}),
             ContainsSubstring("the classes \"1\" and \"1.0\" are one number"));
}

TEST_CASE("a second file gets the classes and columns of the first", "[data][csv]") {
  const CsvFile file;
  const CsvTable train = file.read("a,b,kind\n1,2,low\n3,4,high\n5,6,mid\n", {.label = "kind"});
  const CsvOptions same{.label = "kind", .columns = train.columns, .classes = train.classes};
  const CsvTable test = file.read("kind,b,extra,a\nmid,8,text,7\n", same);
  CHECK(test.features.equal(at::tensor({7.0, 8.0}, at::kFloat).view({1, 2})));
  CHECK(test.labels.equal(at::tensor({2}, at::kLong)));
  CHECK(test.classes == train.classes);
  CHECK(file.refuses("kind,a,b\nlow,1,2\nodd,3,4\n", same) ==
        ", line 3, column 1 (kind): the class is \"odd\", expected one of {\"high\", \"low\", "
        "\"mid\"}");
}

TEST_CASE("quotes, line ends, blanks and a byte order mark are those of the format",
          "[data][csv][law]") {
  const CsvFile file;
  const std::string bytes =
      "\xef\xbb\xbf x ,\"what, \"\"exactly\"\"\"\r\n"
      "\r\n"
      " 1\t, \" a\nb\" \r\n"
      "\"2\",c\"d\n"
      "\n"
      "3,e";
  const CsvTable table = file.read(bytes, {.label = "what, \"exactly\""});
  CHECK(table.columns == Texts{"x"});
  CHECK(table.features.flatten().equal(at::tensor({1.0, 2.0, 3.0}, at::kFloat)));
  CHECK(table.classes == Texts{" a\nb", "c\"d", "e"});
  CHECK(table.labels.equal(at::arange(3)));
  CHECK(file.refuses(bytes + "\nfour,f", {.label = "what, \"exactly\""})
            .starts_with(", line 8: expected numbers"));
}

TEST_CASE("a tab and a semicolon can separate values", "[data][csv]") {
  const CsvFile file;
  const at::Tensor expected = at::tensor({1.0, 2.0}, at::kFloat).view({1, 2});
  CHECK(file.read("a\tb\n1\t 2\n", {.separator = '\t'}).features.equal(expected));
  CHECK(file.read("a;b\n1;2", {.separator = ';'}).features.equal(expected));
}

TEST_CASE("a file without a header line takes its names from the options", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read("5,0.5\n4,1\n", {.label = "y", .names = {"y", "x"}});
  CHECK(table.features.flatten().equal(at::tensor({0.5, 1.0}, at::kFloat)));
  CHECK(table.labels.equal(at::tensor({1, 0}, at::kLong)));
  CHECK(file.refuses("5,0.5\n4,1\n") ==
        ", line 1 has numbers alone, expected the names of the columns; write them there, or give "
        "them with .names");
}

TEST_CASE("a column without a name is called as in pandas", "[data][csv]") {
  const CsvFile file;
  CHECK(file.read(",x\n0,1\n1,2\n").columns == Texts{"Unnamed: 0", "x"});
  CHECK(file.read(",x\n0,1\n1,2\n", {.ignore = {"Unnamed: 0"}}).columns == Texts{"x"});
}

TEST_CASE("a missing value is refused, dropped with its row or kept, as asked", "[data][csv]") {
  const CsvFile file;
  const std::string bytes = "x,y,kind\n1,NA,a\n2,3,b\n,4,a\n5,6,NaN\n";
  CHECK(file.refuses(bytes, {.label = "kind"}) ==
        ", line 2, column 2 (y): the value is missing (\"NA\"); leave such rows out with .missing "
        "= MissingValues::drop_row, or leave the column out");
  const CsvTable fewer = file.read(bytes, {.label = "kind", .missing = MissingValues::drop_row});
  CHECK(fewer.features.flatten().equal(at::tensor({2.0, 3.0}, at::kFloat)));
  CHECK(fewer.classes == Texts{"b"});
  CHECK(fewer.dropped == 3);
  const CsvTable kept = file.read(bytes, {.ignore = {"kind"}, .missing = MissingValues::keep});
  CHECK(kept.features.isnan().flatten().equal(
      at::tensor({0, 1, 0, 0, 1, 0, 0, 0}, at::kInt).to(at::kBool)));
  CHECK(file.refuses(bytes, {.label = "kind", .missing = MissingValues::keep})
            .starts_with(", line 5, column 3 (kind): the value is missing"));
  CHECK(file.read(bytes, {.columns = {"y"}, .missing = MissingValues::drop_row}).dropped == 1);
  CHECK(file.refuses("x\nNA\nNA\n", {.missing = MissingValues::drop_row}) ==
        " has no row of values: each of its 2 lacks one, expected one or more");
}

TEST_CASE("texts in place of numbers are all named in one error", "[data][csv]") {
  const CsvFile file;
  CHECK(file.refuses("x,island,sex\n1,Dream,male\n") ==
        ", line 2: expected numbers with a decimal point, got \"Dream\" in column 2 (island), "
        "\"male\" in column 3 (sex); leave columns of texts out with .ignore = {\"island\", "
        "\"sex\"}, and name the column of the class with .label");
  for (const char* text : {"1e99", "inf", "-nan", "0x10", "1,5", "+-1", "1 2", "--"}) {
    CHECK_THAT(file.refuses("x\n1\n\"" + std::string(text) + "\"\n"),
               ContainsSubstring(", line 3: expected numbers"));
  }
  CHECK(file.refuses("x,y\n1e39,2\n") ==
        ", line 2: expected numbers that float32 holds, finite and at most 3.4e38, got \"1e39\" in "
        "column 1 (x); correct the file, or leave columns out with .ignore = {\"x\"}");
  CHECK_THAT(file.refuses("x,y\n1,-inf\n", {.target = "y"}),
             ContainsSubstring("the target is \"-inf\", expected a number that float32 holds"));
  CHECK_THAT(file.refuses("x,y\n1,low\n", {.target = "y"}),
             ContainsSubstring("column 2 (y): the target is \"low\", expected a number"));
  CHECK_THAT(file.refuses("x\n" + std::string(1000, 'z') + "\n"),
             ContainsSubstring("got \"" + std::string(40, 'z') + "...\" in"));
}

TEST_CASE("lines of another length and open quotes are named by their line", "[data][csv]") {
  const CsvFile file;
  CHECK(file.refuses("a,b\n1,2\n\n3\n") ==
        ", line 4 has 1 value, expected 2, one for each column, with ',' between them");
  CHECK_THAT(file.refuses("a,b\n1,2,3\n"), ContainsSubstring(", line 2 has 3 values, expected 2"));
  CHECK_THAT(file.refuses("a,b\n1,2,\n"), ContainsSubstring(", line 2 has 3 values"));
  CHECK_THAT(file.refuses("a,b\n1,\"2\n3,4\n"),
             ContainsSubstring(", line 2: a quote begins there that never ends"));
  CHECK_THAT(file.refuses("a,b\n1,\"2\"3\n"),
             ContainsSubstring(", line 2: text follows a closing quote"));
}

TEST_CASE("what is no table is refused with what it is", "[data][csv]") {
  const CsvFile file;
  CHECK_THAT(file.refuses(""), ContainsSubstring("is empty, expected a line with the names"));
  CHECK_THAT(file.refuses("a,b\n"), ContainsSubstring("has no row of values, expected"));
  CHECK_THAT(file.refuses("\x1f\x8b\x08"), ContainsSubstring("gunzip"));
  CHECK_THAT(file.refuses("PK\x03\x04"), ContainsSubstring("Excel"));
  CHECK_THAT(file.refuses("\xff\xfe"
                          "a"),
             ContainsSubstring("UTF-16"));
  CHECK_THAT(file.refuses(std::string("a\n\0", 3)), ContainsSubstring("zero byte at offset 2"));
  CHECK_THAT(file.refuses("a,b,a\n1,2,3\n"),
             ContainsSubstring("columns 1 and 3 are both called \"a\""));
  CHECK_THROWS_WITH(read_csv("/no/such/file"), ContainsSubstring("'/no/such/file' cannot be"));
  CHECK_THROWS_WITH(read_csv("/"), ContainsSubstring("it is a folder"));
}

TEST_CASE("options that contradict the file or each other are refused", "[data][csv]") {
  const CsvFile file;
  CHECK(file.refuses(flowers, {.label = "kind"}) ==
        "read_csv: .label names the column \"kind\", which is not there; the columns are "
        "{\"width\", \"species\", \"length\", \"year\"}");
  CHECK_THAT(file.refuses(flowers, {.label = "species", .columns = {"year", "species"}}),
             ContainsSubstring("the column \"species\" is named twice, the second time by "
                               ".columns"));
  CHECK_THAT(file.refuses(flowers, {.columns = {"year"}, .ignore = {"width"}}),
             ContainsSubstring("both .columns and .ignore are set"));
  CHECK_THAT(file.refuses("kind\na\n", {.label = "kind"}),
             ContainsSubstring("no column is left for the features"));
  CHECK_THAT(file.refuses(flowers, {.classes = {"rose"}}),
             ContainsSubstring(".classes is set but no .label"));
  CHECK_THAT(file.refuses(flowers, {.label = "species", .classes = {"rose", "rose"}}),
             ContainsSubstring(".classes has \"rose\" twice"));
  CHECK_THAT(file.refuses(flowers, {.separator = '"'}), ContainsSubstring(".separator is a quote"));
  CHECK_THROWS_AS(file.read(flowers, {.label = "kind"}), c10::ValueError);
}

TEST_CASE("a table's tensors are what a loader takes", "[data][csv]") {
  const CsvFile file;
  const CsvTable table = file.read(flowers, {.label = "species"});
  tutti::TensorLoader loader{table.features, table.labels, {.batch_size = 2}};
  loader.start(0);
  const auto batch = loader.next();
  REQUIRE(batch.has_value());
  CHECK(batch->inputs().equal(table.features.narrow(0, 0, 2)));
  CHECK(batch->targets().equal(table.labels.narrow(0, 0, 2)));
}

TEST_CASE("missing features are filled with the means, or with what another file had",
          "[data][csv]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a.csv", "a,b,y\n1,NA,0\n,4,1\n5,6,0\n");
  const std::string path = (folder / "a.csv").string();
  const auto train = read_csv(path, {.label = "y", .missing = MissingValues::fill});
  CHECK(train.fill == std::vector<float>{3, 5});
  CHECK(train.features.equal(at::tensor({1.F, 5.F, 3.F, 4.F, 5.F, 6.F}).reshape({3, 2})));
  CHECK(train.dropped == 0);
  write_bytes(folder / "b.csv", "a,b,y\nNA,,1\n");
  const std::string other = (folder / "b.csv").string();
  const auto test = read_csv(other, {.label = "y",
                                     .columns = train.columns,
                                     .classes = train.classes,
                                     .missing = MissingValues::fill,
                                     .fill = train.fill});
  CHECK(test.features.equal(at::tensor({3.F, 5.F}).reshape({1, 2})));
  CHECK_THROWS_WITH(read_csv(other, {.label = "y", .missing = MissingValues::fill}),
                    ContainsSubstring("no row has a value in the column \"a\""));
  CHECK_THROWS_AS(read_csv(other, {.label = "y", .missing = MissingValues::fill, .fill = {1}}),
                  c10::ValueError);
  CHECK_THROWS_AS(read_csv(path, {.label = "y", .fill = {1, 2}}), c10::ValueError);
  write_bytes(folder / "b.csv", "a,y\n1,NA\n");
  CHECK_THROWS_WITH(read_csv(other, {.label = "y", .missing = MissingValues::fill}),
                    ContainsSubstring("the value is missing"));
}

TEST_CASE("a table is a data set of rows", "[data][csv]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a.csv", "a,b,y\n1,2,x\n3,4,z\n");
  const auto table = read_csv((folder / "a.csv").string(), {.label = "y"});
  static_assert(tutti::Dataset<tutti::data::CsvTable>);
  tutti::DataLoader loader{table, {.batch_size = 2}};
  loader.start(0);
  const tutti::Batch batch = loader.next().value();
  CHECK(batch.inputs().equal(table.features));
  CHECK(batch.targets().equal(table.labels));
  CHECK_THROWS_AS(table.get(2), c10::IndexError);
  const auto target = read_csv((folder / "a.csv").string(), {.target = "b", .ignore = {"y"}});
  CHECK(target.get(1).targets().equal(at::tensor({4.F})));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
