#include <tutti/data/instructions.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/data/data_loader.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using data::Instruction;
using data::InstructionSet;
using data::PadSequences;
using data::read_instructions;
using Ids = std::vector<std::int64_t>;

std::string file_of(const TemporaryFolder& folder, const std::string& text) {
  const auto path = folder / "train.jsonl";
  std::ofstream(path) << text;
  return path.string();
}

Ids letters(std::string_view text) {
  return {text.begin(), text.end()};
}

Ids row(const at::Tensor& tensor, std::int64_t index) {
  const at::Tensor one = tensor.dim() == 2 ? tensor.select(0, index).contiguous() : tensor;
  return {one.const_data_ptr<std::int64_t>(), one.const_data_ptr<std::int64_t>() + one.numel()};
}

const std::vector<Instruction> three{{{1, 2}, {3}}, {{4}, {5, 6}}, {{7}, {8}}};

}  // namespace

TEST_CASE("a file of JSON lines has prompts and answers as ids or texts", "[data][instructions]") {
  const TemporaryFolder folder;
  const std::string ids = file_of(folder,
                                  "{\"prompt\": [1, 2], \"answer\": [3], \"more\": 0}\n\n"
                                  "{\"prompt\": [], \"answer\": [4, 5]}");
  const auto found = read_instructions(ids, {.bos_token_id = 100, .eos_token_id = 200});
  REQUIRE(found.size() == 2);
  CHECK(found[0].prompt == Ids{100, 1, 2});
  CHECK(found[0].answer == Ids{3, 200});
  CHECK(found[1].prompt == Ids{100});
  CHECK(found[1].answer == Ids{4, 5, 200});
  const std::string texts = file_of(folder, "{\"question\": \"ab\", \"response\": \"c\"}\n");
  const auto named =
      read_instructions(texts, {.encode = letters, .prompt = "question", .answer = "response"});
  CHECK(named.at(0).prompt == Ids{'a', 'b'});
  CHECK(named.at(0).answer == Ids{'c'});
}

TEST_CASE("what is too long loses the start of its prompt, then the end of its answer",
          "[data][instructions]") {
  const TemporaryFolder folder;
  const std::string path = file_of(folder, "{\"prompt\": [1, 2, 3], \"answer\": [4, 5]}\n");
  const auto shorter = read_instructions(path, {.bos_token_id = 9, .max_length = 4});
  CHECK(shorter.at(0).prompt == Ids{9, 3});
  CHECK(shorter.at(0).answer == Ids{4, 5});
  const auto shortest = read_instructions(path, {.max_length = 2});
  CHECK(shortest.at(0).prompt == Ids{3});
  CHECK(shortest.at(0).answer == Ids{4});

  const std::string both = file_of(
      folder, "{\"prompt\": [1, 2], \"answer\": [3]}\n{\"prompt\": [1], \"answer\": [3]}\n");
  const Warnings warnings;
  CHECK(read_instructions(both, {.max_length = 3}).size() == 2);
  CHECK(warnings.texts.empty());
  CHECK(read_instructions(both, {.max_length = 2}).size() == 2);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("1 of 2 in '" + both + "' are cut to the max_length of 2 "));
  file_of(folder, "{\"prompt\": [], \"answer\": [2, 3]}");
  CHECK(read_instructions(both, {.max_length = 2}).at(0).answer == Ids{2});
  CHECK(warnings.texts.size() == 2);
}

TEST_CASE("a line that cannot be learnt from is named", "[data][instructions]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& line, const std::string& says) {
    const std::string path = file_of(folder, "{\"prompt\": [1], \"answer\": [2]}\n" + line);
    CHECK_THROWS_WITH(read_instructions(path),
                      ContainsSubstring(path + "', line 2: ") && ContainsSubstring(says));
  };
  refused("{", "JSON");
  refused("[1]", "an array, expected an object");
  refused("{\"prompt\": [1]}",
          "no \"answer\"; there are: prompt. Set the options prompt and answer");
  refused("{\"question\": [1], \"reply\": [1]}", "no \"prompt\"; there are: question, reply.");
  refused("[{\"prompt\": [1]}]", "the objects of an array stand in lines of their own");
  CHECK_THROWS_WITH(
      read_instructions(file_of(folder, "[\n  {\"prompt\": [1], \"answer\": [2]}\n]")),
      ContainsSubstring("line 1: JSON") &&
          ContainsSubstring("one array over several lines, expected one object per"));
  refused("{\"prompt\": \"a\", \"answer\": [2]}", "set encode");
  refused("{\"prompt\": [1], \"answer\": 2}", "an integer, expected a text or a list");
  refused("{\"prompt\": [1], \"answer\": [2.5]}", "no token id");
  refused("{\"prompt\": [1], \"answer\": [-2]}", "no token id");
  refused("{\"prompt\": [1], \"answer\": []}", "nothing to learn");
  CHECK_THROWS_WITH(read_instructions("nowhere"), ContainsSubstring("'nowhere' cannot be opened"));
  CHECK_THROWS_WITH(read_instructions(file_of(folder, "\n")), ContainsSubstring("has no line"));
  CHECK_THROWS_AS(read_instructions("nowhere", {.max_length = 1}), c10::ValueError);
}

TEST_CASE("the loss leaves prompts out", "[data][instructions]") {
  const InstructionSet set(three);
  REQUIRE(set.size() == 3);
  CHECK(row(set.get(0)["input_ids"], 0) == Ids{1, 2, 3});
  CHECK(row(set.get(0)["labels"], 0) == Ids{-100, -100, 3});
  const InstructionSet all(three, {.learn_prompts = true});
  CHECK(row(all.get(1)["labels"], 0) == Ids{4, 5, 6});
}

TEST_CASE("packed examples hold as many instructions as fit, apart from each other",
          "[data][instructions]") {
  const InstructionSet set(three, {.packing = true, .max_length = 6});
  REQUIRE(set.size() == 2);
  Batch first = set.get(0);
  CHECK(row(first["input_ids"], 0) == Ids{1, 2, 3, 4, 5, 6});
  CHECK(row(first["labels"], 0) == Ids{-100, -100, 3, -100, 5, 6});
  CHECK(row(first["sequence_id"], 0) == Ids{0, 0, 0, 1, 1, 1});
  CHECK(row(first["position_ids"], 0) == Ids{0, 1, 2, 0, 1, 2});
  CHECK(row(set.get(1)["input_ids"], 0) == Ids{7, 8});
  CHECK(set.lengths() == Ids{6, 2});
  const InstructionSet all(three, {.packing = true, .max_length = 5, .learn_prompts = true});
  CHECK(row(all.get(0)["input_ids"], 0) == Ids{1, 2, 3, 7, 8});
  CHECK(row(all.get(0)["labels"], 0) == Ids{-100, 2, 3, -100, 8});
  CHECK_THROWS_WITH(InstructionSet(three, {.packing = true, .max_length = 2}),
                    ContainsSubstring("number 0 has 3 tokens, but a packed example has 2"));
  CHECK_THROWS_WITH(InstructionSet(std::vector<Instruction>{{{1}, {}}}),
                    ContainsSubstring("number 0 has no answer"));
}

TEST_CASE("the loss counts what the assistant writes in every turn", "[data][instructions]") {
  const std::vector<EncodedChat> chats{{{1, 2, 3, 4, 5}, {0, 1, 1, 0, 1}}, {{6, 7}, {0, 1}}};
  const InstructionSet set(chats);
  REQUIRE(set.size() == 2);
  CHECK(row(set.get(0)["labels"], 0) == Ids{-100, 2, 3, -100, 5});
  CHECK(set.lengths() == Ids{5, 2});
  const InstructionSet packed(chats, {.packing = true, .max_length = 7, .ignore_index = -1});
  REQUIRE(packed.size() == 1);
  CHECK(row(packed.get(0)["input_ids"], 0) == Ids{1, 2, 3, 4, 5, 6, 7});
  CHECK(row(packed.get(0)["labels"], 0) == Ids{-1, 2, 3, -1, 5, -1, 7});
  const InstructionSet all(chats, {.learn_prompts = true});
  CHECK(row(all.get(1)["labels"], 0) == Ids{6, 7});
  CHECK_THROWS_WITH(InstructionSet(std::vector<EncodedChat>{{{1}, {}}}),
                    ContainsSubstring("chat 0 has 1 tokens and a mask of 0"));
}

TEST_CASE("a loader's batches are padded to their longest example", "[data][instructions]") {
  DataLoader loader{InstructionSet(three),
                    {.batch_size = 2, .collate = PadSequences{.pad_token_id = 99}}};
  loader.start(0);
  Batch first = loader.next().value();
  CHECK(first["input_ids"].sizes() == at::IntArrayRef{2, 3});
  CHECK(row(first["attention_mask"], 1) == Ids{1, 1, 1});
  Batch last = loader.next().value();
  CHECK(row(last["input_ids"], 0) == Ids{7, 8});

  const std::vector<Batch> examples{InstructionSet(three).get(0), InstructionSet(three).get(2)};
  Batch right = PadSequences{.pad_token_id = 99, .multiple_of = 4}(examples);
  CHECK(row(right["input_ids"], 1) == Ids{7, 8, 99, 99});
  CHECK(row(right["labels"], 1) == Ids{-100, 8, -100, -100});
  CHECK(row(right["attention_mask"], 1) == Ids{1, 1, 0, 0});
  Batch left = PadSequences{.left = true}(examples);
  CHECK(row(left["input_ids"], 1) == Ids{0, 7, 8});
  CHECK(row(left["attention_mask"], 1) == Ids{0, 1, 1});
  const Batch without{{"input_ids", examples[0].at("input_ids").clone()}};
  CHECK_THROWS_WITH(PadSequences{}({examples[0], without}),
                    ContainsSubstring("example 1 of a batch has no \"labels\""));
  CHECK_THROWS_AS(PadSequences{}({}), c10::ValueError);
}

TEST_CASE("a class or a score of each sequence is stacked, not padded", "[data][instructions]") {
  const auto example = [](const Ids& ids, const at::Tensor& label) {
    return Batch{{"labels", label}, {"input_ids", at::tensor(ids)}};
  };
  const at::Tensor two = at::tensor(std::int64_t{2}).squeeze();
  Batch classes = PadSequences{}({example({5, 6, 7}, two), example({8}, two.sub(1))});
  CHECK(classes["labels"].sizes() == at::IntArrayRef{2});
  CHECK(row(classes["labels"], 0) == Ids{2, 1});
  CHECK(row(classes["input_ids"], 1) == Ids{8, 0, 0});
  CHECK(row(classes["attention_mask"], 1) == Ids{1, 0, 0});
  const Batch scores = PadSequences{}({example({5}, two.to(at::kFloat).div(4))});
  CHECK(scores.at("labels").scalar_type() == at::kFloat);
  CHECK(scores.at("labels")[0].item<float>() == 0.5F);

  CHECK_THROWS_WITH(
      PadSequences{}({example({5}, two), example({5}, two.to(at::kFloat))}),
      ContainsSubstring("\"labels\" of example 1 is Float and that of example 0 Long"));
  CHECK_THROWS_WITH(PadSequences{}({example({5}, two), example({5}, two.view({1}))}),
                    ContainsSubstring("example 1 of a batch has another shape of \"labels\""));
  CHECK_THROWS_WITH(PadSequences{}({example({5}, two.view({1})), example({5}, two)}),
                    ContainsSubstring("has no \"labels\" of one dimension"));
  CHECK_THROWS_WITH(PadSequences{}({Batch{{"labels", two}}}),
                    ContainsSubstring("no tensor of one dimension to pad") &&
                        ContainsSubstring("there are: labels"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
