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
#include <tutti/core/chat.hpp>
#include <tutti/data/lines.hpp>

/// Prompts and their answers, or chats, to fine-tune a language model with.
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
/// texts or both lists of token ids. Other names in a line are left alone, empty lines too. Warns
/// once of how many were longer than max_length and are cut.
///
/// Throws c10::Error that names the file and the line: the file cannot be read, a line is no JSON
/// object, lacks a name, has neither texts nor ids, or has no answer.
std::vector<Instruction> read_instructions(const std::string& path,
                                           const InstructionsOptions& options = {});

/// Options of InstructionSet.
struct InstructionSetOptions {
  /// Puts several into each example, so that little is padded and none sees another, see
  /// plan_packing() and join_documents().
  bool packing = false;
  std::int64_t max_length = 2048;    ///< of a packed example; >= the longest instruction
  bool learn_prompts = false;        ///< the loss counts the tokens of prompts, too
  std::int64_t ignore_index = -100;  ///< the label of what the loss leaves out
};

/// A data set for DataLoader: an example is `input_ids` and `labels`, both int64 [T], of a length
/// of its own; the labels of what the model does not write are left out of the loss. Packed
/// examples have `sequence_id` and `position_ids`, too. Collate with PadSequences.
///
///     data::InstructionSet train{data::read_instructions("train.jsonl", {.encode = encode})};
///     DataLoader loader{train, {.batch_size = 8, .shuffle = true,
///                               .collate = data::PadSequences{}, .lengths = train.lengths()}};
class InstructionSet {
 public:
  /// Throws c10::ValueError when an instruction has no tokens, or is longer than a packed example.
  explicit InstructionSet(const std::vector<Instruction>& instructions,
                          const InstructionSetOptions& options = {});

  /// chats: what the assistant writes is learnt, in every turn; see read_chats(). Throws likewise.
  explicit InstructionSet(const std::vector<EncodedChat>& chats,
                          const InstructionSetOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(examples_->size()); }
  [[nodiscard]] Batch get(std::int64_t index) const;

  /// The tokens of each example, for DataLoaderOptions::lengths.
  [[nodiscard]] std::vector<std::int64_t> lengths() const;

 private:
  struct Text {
    std::vector<std::int64_t> ids{};
    std::vector<std::int64_t> labels{};
  };

  void add(Text text, const InstructionSetOptions& options);
  void arrange(const InstructionSetOptions& options);

  // An example is the texts of these numbers.
  std::shared_ptr<std::vector<Text>> texts_ = std::make_shared<std::vector<Text>>();
  std::shared_ptr<std::vector<std::vector<std::size_t>>> examples_ =
      std::make_shared<std::vector<std::vector<std::size_t>>>();
  bool packing_ = false;
  std::int64_t ignore_index_ = -100;
};

/// Makes a batch of sequences of different lengths: each tensor is padded to the longest, and
/// `attention_mask`, int64 [N, T], is 0 for padding. Numbers, as the class or the score of a
/// sequence, become [N].
struct PadSequences {
  std::int64_t pad_token_id = 0;  ///< of `input_ids`
  std::int64_t ignore_index =
      -100;                      ///< of `labels`; `sequence_id` is padded with -1, others with 0
  std::int64_t multiple_of = 1;  ///< the length of a batch is a multiple; >= 1
  bool left = false;             ///< pads on the left, as for generation

  /// examples: of one-dimensional tensors, all of an example equally long, and of tensors without
  /// dimensions.
  /// Throws c10::ValueError when an example has other names, shapes or lengths than that, or a
  /// number has another type than the first example's.
  Batch operator()(const std::vector<Batch>& examples) const;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/instructions.inl.hpp>
#endif
