// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/text/detail/subwords.hpp>

#ifdef TUTTI_WITH_UTF8PROC

// What is done to tokens behind the model: white space leaves the offsets, special tokens come in.

namespace tutti::text::detail {

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

  bool trims_offsets() const { return trim_; }
  bool prefix_space() const { return prefix_space_; }

  /// The template for one text, or for two; empty: what is there stays as it is.
  const std::vector<TemplatePart>& parts(bool pair) const { return pair ? pair_ : single_; }

 private:
  void add(const Json& step, const std::string& type) {
    if (type == "ByteLevel") {
      trim_ = flag(step, "trim_offsets", true);
      prefix_space_ = flag(step, "add_prefix_space", true);
    } else if (type == "TemplateProcessing") {
      single_ = read(step, "single");
      pair_ = read(step, "pair");
    } else if (type == "BertProcessing") {
      const auto special = [&](const char* key, std::int64_t type_id) {
        return TemplatePart{-1, {step.at(key)[1].integer()}, type_id};
      };
      single_ = {special("cls", 0), {0, {}, 0}, special("sep", 0)};
      pair_ = {special("cls", 0), {0, {}, 0}, special("sep", 0), {1, {}, 1}, special("sep", 1)};
    } else {
      refuse_step("post_processor", type,
                  "ByteLevel, TemplateProcessing, BertProcessing or Sequence");
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

  bool trim_ = false;
  bool prefix_space_ = false;
  std::vector<TemplatePart> single_;
  std::vector<TemplatePart> pair_;
};

}  // namespace tutti::text::detail

#endif
