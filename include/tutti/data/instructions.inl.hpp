// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/instructions.hpp>

#include <iterator>

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/packing.hpp>

namespace tutti::data {

namespace detail {

// One line of a file of instructions.
class InstructionLine {
 public:
  InstructionLine(Json line, std::string place, const InstructionsOptions& options)
      : place_(std::move(place)), options_(options), line_(std::move(line)) {
    TUTTI_CHECK(line_.is_object(), place_, "it is ", line_.kind(), ", expected an object with \"",
                options.prompt, "\" and \"", options.answer, "\"",
                line_.is_array() && line_.size() > 0 && line_[0].is_object()
                    ? "; the objects of an array stand in lines of their own (jq -c '.[]')"
                    : "");
  }

  // cut: set where tokens were left out.
  [[nodiscard]] Instruction instruction(bool& cut) const {
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
    cut = out.prompt.size() + out.answer.size() > most || out.answer.size() == most;
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
    if (found == nullptr) {
      std::string names;
      for (const auto& member : line_.object()) {
        names += (names.empty() ? "" : ", ") + member.first;
      }
      TUTTI_CHECK(false, place_, "there is no \"", name, "\"; there are: ", names,
                  ". Set the options prompt and answer to the names of the line");
    }
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
  std::int64_t shortened = 0;
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    bool cut = false;
    const detail::InstructionLine line(lines.value(i), lines.place(i) + ": ", options);
    out.push_back(line.instruction(cut));
    shortened += cut ? 1 : 0;
  }
  if (shortened > 0) {
    TORCH_WARN("instructions: ", shortened, " of ", lines.size(), " in '", path,
               "' are cut to the max_length of ", options.max_length,
               " tokens: the start of the prompt is left out, then the end of the answer; set "
               "max_length higher to learn from all of them");
  }
  return out;
}

TUTTI_INLINE InstructionSet::InstructionSet(const std::vector<Instruction>& instructions,
                                            const InstructionSetOptions& options) {
  for (const Instruction& one : instructions) {
    TUTTI_CHECK_VALUE(!one.answer.empty(), "instructions: number ", texts_->size(),
                      " has no answer");
    Text text{one.prompt, one.prompt};
    if (!options.learn_prompts) {
      std::fill(text.labels.begin(), text.labels.end(), options.ignore_index);
    }
    text.ids.insert(text.ids.end(), one.answer.begin(), one.answer.end());
    text.labels.insert(text.labels.end(), one.answer.begin(), one.answer.end());
    add(std::move(text), options);
  }
  arrange(options);
}

TUTTI_INLINE InstructionSet::InstructionSet(const std::vector<EncodedChat>& chats,
                                            const InstructionSetOptions& options) {
  for (const EncodedChat& chat : chats) {
    TUTTI_CHECK_VALUE(!chat.ids.empty() && chat.ids.size() == chat.assistant_mask.size(),
                      "instructions: chat ", texts_->size(), " has ", chat.ids.size(),
                      " tokens and a mask of ", chat.assistant_mask.size(),
                      ", expected one or more and as many");
    Text text{chat.ids, chat.ids};
    for (std::size_t i = 0; i < text.labels.size() && !options.learn_prompts; ++i) {
      text.labels[i] = chat.assistant_mask[i] != 0 ? text.labels[i] : options.ignore_index;
    }
    add(std::move(text), options);
  }
  arrange(options);
}

TUTTI_INLINE void InstructionSet::add(Text text, const InstructionSetOptions& options) {
  TUTTI_CHECK_VALUE(!options.packing || std::ssize(text.ids) <= options.max_length,
                    "instructions: number ", texts_->size(), " has ", text.ids.size(),
                    " tokens, but a packed example has ", options.max_length);
  texts_->push_back(std::move(text));
}

TUTTI_INLINE void InstructionSet::arrange(const InstructionSetOptions& options) {
  packing_ = options.packing;
  ignore_index_ = options.ignore_index;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < texts_->size(); ++i) {
    lengths.push_back(std::ssize((*texts_)[i].ids));
    if (!packing_) {
      examples_->push_back({i});
    }
  }
  if (packing_) {
    for (const auto& pieces : plan_packing(lengths, {.length = options.max_length})) {
      std::vector<std::size_t>& example = examples_->emplace_back();
      for (const DocumentPiece& piece : pieces) {
        example.push_back(static_cast<std::size_t>(piece.document));
      }
    }
  }
}

TUTTI_INLINE Batch InstructionSet::get(std::int64_t index) const {
  std::vector<Batch> parts;
  for (const std::size_t number : examples_->at(static_cast<std::size_t>(index))) {
    const Text& text = (*texts_)[number];
    parts.push_back(
        {{"input_ids", detail::tensor_of(text.ids)}, {"labels", detail::tensor_of(text.labels)}});
  }
  return packing_ ? join_documents(parts, ignore_index_) : std::move(parts.front());
}

TUTTI_INLINE std::vector<std::int64_t> InstructionSet::lengths() const {
  std::vector<std::int64_t> out;
  for (const std::vector<std::size_t>& example : *examples_) {
    std::int64_t& length = out.emplace_back(0);
    for (const std::size_t number : example) {
      length += std::ssize((*texts_)[number].ids);
    }
  }
  return out;
}

namespace detail {

// The tokens of an example: what is no number, and the other tensors are checked against.
TUTTI_INLINE const at::Tensor& sequence_of(const Batch& example, std::size_t row) {
  for (const auto& [name, tensor] : example) {
    if (tensor.dim() != 0) {
      return tensor;
    }
  }
  ::tutti::detail::raise<c10::ValueError>(
      {__func__, __FILE__, __LINE__},
      "PadSequences: example " + std::to_string(row) +
          " of a batch has no tensor of one dimension to pad, as input_ids [T]; there are: " +
          example.names());
}

// Numbers, one of each example: [N].
TUTTI_INLINE at::Tensor stacked_numbers(const std::vector<Batch>& examples, const std::string& name,
                                        const at::Tensor& first) {
  const auto count = static_cast<std::int64_t>(examples.size());
  at::Tensor out = first.new_zeros({count});
  for (std::int64_t row = 0; row < count; ++row) {
    const Batch& example = examples[static_cast<std::size_t>(row)];
    const bool there = example.contains(name);
    TUTTI_CHECK_VALUE(there && example.at(name).dim() == 0, "PadSequences: example ", row,
                      " of a batch ", there ? "has another shape of \"" : "has no \"", name,
                      "\", expected a number without dimensions, as example 0 has");
    const at::Tensor& value = example.at(name);
    TUTTI_CHECK_VALUE(value.scalar_type() == first.scalar_type(), "PadSequences: \"", name,
                      "\" of example ", row, " is ", value.scalar_type(), " and that of example 0 ",
                      first.scalar_type(), "; give all one type");
    out.select(0, row).copy_(value);
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE Batch PadSequences::operator()(const std::vector<Batch>& examples) const {
  TUTTI_CHECK_VALUE(!examples.empty() && multiple_of >= 1, "PadSequences: there are ",
                    examples.size(), " examples and multiple_of is ", multiple_of,
                    ", expected 1 or more of both");
  std::vector<std::int64_t> lengths;
  for (std::size_t row = 0; row < examples.size(); ++row) {
    lengths.push_back(detail::sequence_of(examples[row], row).numel());
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
    if (first.dim() == 0) {
      out[name] = detail::stacked_numbers(examples, name, first);
      continue;
    }
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
  at::Tensor mask = detail::sequence_of(examples.front(), 0).new_zeros({count, length}, at::kLong);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t size = lengths[static_cast<std::size_t>(row)];
    mask.select(0, row).narrow(0, left ? length - size : 0, size).fill_(1);
  }
  out["attention_mask"] = std::move(mask);
  return out;
}

}  // namespace tutti::data
