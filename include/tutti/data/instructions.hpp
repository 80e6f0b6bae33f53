// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/data/lines.hpp>

/// Prompts and their answers, to fine-tune a language model with.
namespace tutti::data {

/// Tokens that a model reads and those that it shall answer with.
struct Instruction {
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> answer;
};

/// Options of read_instructions().
struct InstructionsOptions {
  /// Text to tokens; empty: the file has lists of token ids.
  std::function<std::vector<std::int64_t>(std::string_view)> encode{};
  std::string prompt = "prompt";               ///< the name of the prompt in a line
  std::string answer = "answer";               ///< and that of the answer
  std::optional<std::int64_t> bos_token_id{};  ///< stands before each prompt
  std::optional<std::int64_t> eos_token_id{};  ///< stands behind each answer, and is learnt
  std::int64_t max_length = 2048;  ///< tokens of prompt and answer; >= 2. The start of a prompt is
                                   ///< left out where they are too many, then the answer's end.
};

/// The prompts and answers of a file of JSON lines, each `{"prompt": ..., "answer": ...}`, both
/// texts or both lists of token ids. Other names in a line are left alone, empty lines too.
///
/// Throws c10::Error that names the file and the line: the file cannot be read, a line is no JSON
/// object, lacks a name, has neither texts nor ids, or has no answer.
std::vector<Instruction> read_instructions(const std::string& path,
                                           const InstructionsOptions& options = {});

/// Options of InstructionSet.
struct InstructionSetOptions {
  /// Puts as many as fit into each example of max_length, in their order, so that little is
  /// padding. A position then attends to what stands before its own prompt as well.
  bool packing = false;
  std::int64_t max_length = 2048;    ///< of a packed example; >= the longest instruction
  bool learn_prompts = false;        ///< the loss counts the tokens of prompts, too
  std::int64_t ignore_index = -100;  ///< the label of what the loss leaves out
};

/// A data set for DataLoader: an example is `input_ids` and `labels`, both int64 [T], of a length
/// of its own; the labels of prompts are left out of the loss. Collate with PadSequences.
///
///     data::InstructionSet train{data::read_instructions("train.jsonl", {.encode = encode})};
///     DataLoader loader{train, {.batch_size = 8, .shuffle = true, .collate =
///     data::PadSequences{}}};
class InstructionSet {
 public:
  /// Throws c10::ValueError when an instruction has no tokens, or is longer than a packed example.
  explicit InstructionSet(std::vector<Instruction> instructions,
                          const InstructionSetOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(examples_->size()); }
  [[nodiscard]] Batch get(std::int64_t index) const;

 private:
  struct Example {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> labels;
  };
  std::shared_ptr<std::vector<Example>> examples_ = std::make_shared<std::vector<Example>>();
};

/// Makes a batch of sequences of different lengths: each tensor is padded to the longest, and
/// `attention_mask`, int64 [N, T], is 0 for padding.
struct PadSequences {
  std::int64_t pad_token_id = 0;  ///< of `input_ids`
  std::int64_t ignore_index =
      -100;                      ///< of `labels`; `sequence_id` is padded with -1, others with 0
  std::int64_t multiple_of = 1;  ///< the length of a batch is a multiple; >= 1
  bool left = false;             ///< pads on the left, as for generation

  /// examples: of one-dimensional tensors, all of an example equally long.
  /// Throws c10::ValueError when an example has other names or lengths than that.
  Batch operator()(const std::vector<Batch>& examples) const;
};

}  // namespace tutti::data

#if TUTTI_BODIES

#include <ATen/EmptyTensor.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data {

namespace detail {

// One line of a file of instructions.
class InstructionLine {
 public:
  InstructionLine(Json line, std::string place, const InstructionsOptions& options)
      : place_(std::move(place)), options_(options), line_(std::move(line)) {
    TUTTI_CHECK(line_.is_object(), place_, "it is ", line_.kind(), ", expected an object with \"",
                options.prompt, "\" and \"", options.answer, "\"");
  }

  [[nodiscard]] Instruction instruction() const {
    Instruction out{tokens(options_.prompt), tokens(options_.answer)};
    TUTTI_CHECK(!out.answer.empty(), place_, "\"", options_.answer,
                "\" has no tokens, so that there is nothing to learn");
    if (options_.bos_token_id) {
      out.prompt.insert(out.prompt.begin(), *options_.bos_token_id);
    }
    if (options_.eos_token_id) {
      out.answer.push_back(*options_.eos_token_id);
    }
    const auto most = static_cast<std::size_t>(options_.max_length);
    out.answer.resize(std::min(out.answer.size(), most - 1));
    if (const std::size_t room = most - out.answer.size(); out.prompt.size() > room) {
      const auto first = options_.bos_token_id ? 1 : 0;  // it stays
      const auto extra = static_cast<std::ptrdiff_t>(out.prompt.size() - room);
      out.prompt.erase(out.prompt.begin() + first, out.prompt.begin() + first + extra);
    }
    return out;
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> tokens(const std::string& name) const {
    const auto* found = line_.find(name);
    TUTTI_CHECK(found != nullptr, place_, "there is no \"", name, "\"");
    if (found->is_string()) {
      TUTTI_CHECK(options_.encode, place_, "\"", name,
                  "\" is a text; set encode to the function of the model's tokenizer");
      return options_.encode(found->string());
    }
    TUTTI_CHECK(found->is_array(), place_, "\"", name, "\" is ", found->kind(),
                ", expected a text or a list of token ids");
    std::vector<std::int64_t> out;
    for (const auto& id : found->array()) {
      TUTTI_CHECK(id.is_int() && id.integer() >= 0, place_, "\"", name,
                  "\" has an element that is no token id, expected integers of 0 or more");
      out.push_back(id.integer());
    }
    return out;
  }

  std::string place_;
  const InstructionsOptions& options_;
  Json line_;
};

TUTTI_INLINE at::Tensor tensor_of(const std::vector<std::int64_t>& values) {
  at::Tensor out = at::detail::empty_cpu({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace detail

TUTTI_INLINE std::vector<Instruction> read_instructions(const std::string& path,
                                                        const InstructionsOptions& options) {
  TUTTI_CHECK_VALUE(options.max_length >= 2, "instructions: max_length is ", options.max_length,
                    ", expected 2 or more");
  const JsonLines lines(path, {.empty_lines = EmptyLines::skip});
  std::vector<Instruction> out;
  out.reserve(static_cast<std::size_t>(lines.size()));
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    out.push_back(
        detail::InstructionLine(lines.value(i), lines.place(i) + ": ", options).instruction());
  }
  return out;
}

TUTTI_INLINE InstructionSet::InstructionSet(std::vector<Instruction> instructions,
                                            const InstructionSetOptions& options) {
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& one = instructions[i];
    const std::size_t size = one.prompt.size() + one.answer.size();
    TUTTI_CHECK_VALUE(!one.answer.empty(), "instructions: number ", i, " has no answer");
    TUTTI_CHECK_VALUE(!options.packing || size <= static_cast<std::size_t>(options.max_length),
                      "instructions: number ", i, " has ", size,
                      " tokens, but a packed example has ", options.max_length);
    const bool fits =
        options.packing && !examples_->empty() &&
        examples_->back().ids.size() + size <= static_cast<std::size_t>(options.max_length);
    if (!fits) {
      examples_->emplace_back();
    }
    Example& to = examples_->back();
    to.ids.insert(to.ids.end(), one.prompt.begin(), one.prompt.end());
    to.ids.insert(to.ids.end(), one.answer.begin(), one.answer.end());
    if (options.learn_prompts) {
      to.labels.insert(to.labels.end(), one.prompt.begin(), one.prompt.end());
    } else {
      to.labels.insert(to.labels.end(), one.prompt.size(), options.ignore_index);
    }
    to.labels.insert(to.labels.end(), one.answer.begin(), one.answer.end());
  }
}

TUTTI_INLINE Batch InstructionSet::get(std::int64_t index) const {
  const Example& example = examples_->at(static_cast<std::size_t>(index));
  return Batch{{"input_ids", detail::tensor_of(example.ids)},
               {"labels", detail::tensor_of(example.labels)}};
}

TUTTI_INLINE Batch PadSequences::operator()(const std::vector<Batch>& examples) const {
  TUTTI_CHECK_VALUE(!examples.empty() && multiple_of >= 1, "PadSequences: there are ",
                    examples.size(), " examples and multiple_of is ", multiple_of,
                    ", expected 1 or more of both");
  std::vector<std::int64_t> lengths;
  for (const Batch& example : examples) {
    lengths.push_back(example.begin()->second.numel());
  }
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const std::int64_t length = (longest + multiple_of - 1) / multiple_of * multiple_of;
  const auto count = static_cast<std::int64_t>(examples.size());
  const auto put = [&](at::Tensor& into, std::int64_t row, const at::Tensor& values) {
    const std::int64_t start = left ? length - values.numel() : 0;
    into.select(0, row).narrow(0, start, values.numel()).copy_(values);
  };
  Batch out;
  for (const auto& [name, first] : examples.front()) {
    const std::int64_t pad = name == "input_ids"     ? pad_token_id
                             : name == "labels"      ? ignore_index
                             : name == "sequence_id" ? -1
                                                     : 0;
    at::Tensor padded = first.new_full({count, length}, pad);
    for (std::int64_t row = 0; row < count; ++row) {
      const Batch& example = examples[static_cast<std::size_t>(row)];
      const bool there = example.contains(name);
      TUTTI_CHECK_VALUE(there && example.at(name).dim() == 1 &&
                            example.at(name).numel() == lengths[static_cast<std::size_t>(row)],
                        "PadSequences: example ", row, " of a batch has no \"", name,
                        "\" of one dimension and its own length, ",
                        lengths[static_cast<std::size_t>(row)]);
      put(padded, row, example.at(name));
    }
    out[name] = std::move(padded);
  }
  at::Tensor mask = examples.front().begin()->second.new_zeros({count, length}, at::kLong);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t size = lengths[static_cast<std::size_t>(row)];
    mask.select(0, row).narrow(0, left ? length - size : 0, size).fill_(1);
  }
  out["attention_mask"] = std::move(mask);
  return out;
}

}  // namespace tutti::data

#endif
