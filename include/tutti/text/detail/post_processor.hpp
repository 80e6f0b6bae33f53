// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/subwords.hpp>

#ifdef TUTTI_WITH_UTF8PROC

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What is done to tokens behind the model: too many are cut off, white space leaves the offsets,
// special tokens come in.

namespace tutti::text::detail {

// How long an encoding may be, as the file says.
struct Truncation {
  std::int64_t max_length = 0;
  bool left = false;
  std::string strategy = "LongestFirst";

  // Leaves `most` of the tokens; none where it is negative.
  void cut(std::vector<Token>& tokens, std::int64_t most) const {
    const auto keep =
        std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(most, 0)));
    if (left) {
      tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(keep));
    } else {
      tokens.resize(keep);
    }
  }

  // Leaves `room` of both texts together by cutting one of them alone.
  void cut_one(std::vector<Token>& first, std::vector<Token>& second, std::int64_t room) const {
    const bool of_first = strategy == "OnlyFirst";
    const auto other = static_cast<std::int64_t>((of_first ? second : first).size());
    TUTTI_CHECK_VALUE(room > other, "tokenizer: the ", of_first ? "pair" : "text", " has ", other,
                      " tokens and the truncation's max_length is ", max_length,
                      ", so that nothing is left of the other; use the strategy "
                      "\"LongestFirst\"");
    cut(of_first ? first : second, room - other);
  }

  // Leaves `room` of both texts together by cutting the longer one first.
  void cut_both(std::vector<Token>& first, std::vector<Token>& second, std::int64_t room) const {
    const auto n1 = static_cast<std::int64_t>(first.size());
    const auto n2 = static_cast<std::int64_t>(second.size());
    std::int64_t shorter = std::min(n1, n2);
    std::int64_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
    if (shorter + longer > room) {
      shorter = room / 2;
      longer = shorter + room % 2;
    }
    cut(first, n1 > n2 ? longer : shorter);
    cut(second, n1 > n2 ? shorter : longer);
  }
};

struct Padding {
  std::int64_t fixed = 0;  // 0: as long as the longest of a batch
  std::int64_t multiple_of = 0;
  std::int64_t id = 0;
  std::int64_t type_id = 0;
  bool left = false;
};

inline std::int64_t length_of(const Json& from, const char* key) {
  const Json* found = from.find(key);
  const std::int64_t value = found == nullptr || found->is_null() ? 0 : found->integer();
  TUTTI_CHECK_VALUE(value >= 0 && value < (std::int64_t{1} << 31), "tokenizer: \"", key, "\" is ",
                    value);
  return value;
}

inline bool is_left(const Json& from) {
  const Json* found = from.find("direction");
  return found != nullptr && found->string() == "Left";
}

inline std::optional<Truncation> truncation_of(const Json& file) {
  const Json* found = file.find("truncation");
  if (found == nullptr || found->is_null()) {
    return std::nullopt;
  }
  Truncation truncation{length_of(*found, "max_length"), is_left(*found), "LongestFirst"};
  if (const Json* strategy = found->find("strategy")) {
    truncation.strategy = strategy->string();
  }
  return truncation;
}

inline std::optional<Padding> padding_of(const Json& file) {
  const Json* found = file.find("padding");
  if (found == nullptr || found->is_null()) {
    return std::nullopt;
  }
  // A small file must not ask for all memory: every text is padded, and a token takes 48 bytes.
  const auto length = [](const Json& from, const char* key) {
    constexpr std::int64_t most = std::int64_t{1} << 22;
    const std::int64_t value = length_of(from, key);
    TUTTI_CHECK_VALUE(value <= most, "tokenizer: \"", key, "\" of the padding is ", value,
                      ", expected at most ", most, " tokens; set \"padding\" to null");
    return value;
  };
  const Json* strategy = found->find("strategy");
  return Padding{strategy != nullptr && strategy->is_object() ? length(*strategy, "Fixed") : 0,
                 length(*found, "pad_to_multiple_of"), length_of(*found, "pad_id"),
                 length_of(*found, "pad_type_id"), is_left(*found)};
}

/// One part of what a TemplateProcessing writes.
struct TemplatePart {
  int sequence = -1;              // 0: the text, 1: its pair, -1: special tokens
  std::vector<std::int64_t> ids;  // of the special tokens
  std::int64_t type_id = 0;
};

class PostProcessor {
 public:
  PostProcessor() = default;
  /// Throws c10::ValueError for a kind that is not known, by its name.
  explicit PostProcessor(const Json& step) {
    if (step.is_null()) {
      return;
    }
    const std::string& type = type_of(step, "the post_processor");
    if (type == "Sequence") {
      for (const Json& inner : step.at("processors").array()) {
        add(inner, type_of(inner, "the post_processor"));
      }
    } else {
      add(step, type);
    }
  }

  /// For each time that white space leaves the offsets: whether a space may have been put in front.
  const std::vector<bool>& trims() const { return trims_; }

  /// The template for one text, or for two; without special tokens, what is left of it.
  std::vector<TemplatePart> parts(bool pair, bool add_special_tokens) const {
    std::vector<TemplatePart> out = pair ? pair_ : single_;
    if (!add_special_tokens) {
      std::erase_if(out, [](const TemplatePart& part) { return part.sequence < 0; });
    }
    return out;
  }

 private:
  void add(const Json& step, const std::string& type) {
    if (type == "ByteLevel") {
      add_trim(step);
    } else if (type == "TemplateProcessing") {
      single_ = read(step, "single");
      pair_ = read(step, "pair");
    } else if (type == "RobertaProcessing") {
      add_trim(step);
      const TemplatePart cls{-1, {step.at("cls")[1].integer()}, 0};
      const TemplatePart sep{-1, {step.at("sep")[1].integer()}, 0};
      single_ = {cls, {0, {}, 0}, sep};
      pair_ = {cls, {0, {}, 0}, sep, sep, {1, {}, 0}, sep};
    } else if (type == "BertProcessing") {
      const auto special = [&](const char* key, std::int64_t type_id) {
        return TemplatePart{-1, {step.at(key)[1].integer()}, type_id};
      };
      single_ = {special("cls", 0), {0, {}, 0}, special("sep", 0)};
      pair_ = {special("cls", 0), {0, {}, 0}, special("sep", 0), {1, {}, 1}, special("sep", 1)};
    } else {
      refuse_step("post_processor", type,
                  "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or Sequence");
    }
  }

  void add_trim(const Json& step) {
    if (flag(step, "trim_offsets", true)) {
      trims_.push_back(flag(step, "add_prefix_space", true));
    }
  }

  static std::vector<TemplatePart> read(const Json& step, const char* which) {
    std::vector<TemplatePart> out;
    for (const Json& piece : step.at(which).array()) {
      if (const Json* sequence = piece.find("Sequence")) {
        const std::string& id = sequence->at("id").string();
        TUTTI_CHECK_VALUE(id == "A" || id == "B", "tokenizer: a template has the sequence \"", id,
                          "\", expected \"A\" or \"B\"");
        out.push_back({id == "A" ? 0 : 1, {}, sequence->at("type_id").integer()});
        continue;
      }
      const Json& special = piece.at("SpecialToken");
      TemplatePart part{-1, {}, special.at("type_id").integer()};
      for (const Json& id :
           step.at("special_tokens").at(special.at("id").string()).at("ids").array()) {
        part.ids.push_back(id.integer());
      }
      out.push_back(std::move(part));
    }
    return out;
  }

  std::vector<bool> trims_;
  std::vector<TemplatePart> single_ = {{0, {}, 0}};
  std::vector<TemplatePart> pair_ = {{0, {}, 0}, {1, {}, 1}};
};

}  // namespace tutti::text::detail

#endif
