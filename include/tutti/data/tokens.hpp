// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/detail/mapped_file.hpp>

/// Text that has been made into numbers of tokens beforehand, in a file.
namespace tutti::data {

/// How a file of tokens writes each of them, in the machine's byte order.
enum class TokenType {
  uint16,  ///< two bytes, for vocabularies of up to 65,536
  uint32,  ///< four bytes
};

/// Options of TokenBlocks.
struct TokenBlocksOptions {
  std::int64_t length = 1024;          ///< tokens of an example; >= 1
  TokenType type = TokenType::uint16;  ///< of the file
  bool random_offsets = false;         ///< examples begin anywhere; else where the last one ended
  std::int64_t vocab_size = 0;         ///< a token of the file beyond it is an error; 0: unchecked
};

/// A file of tokens, cut into examples for a language model: a data set for DataLoader.
///
///     tutti::DataLoader train{tutti::data::TokenBlocks{"train.bin", {.length = 1024}},
///                             {.batch_size = 8, .shuffle = true}};
///
/// The file is the tokens and nothing else, as nanoGPT writes it. It is mapped: only what is looked
/// at is read, by all processes of a machine once. There are as many examples as blocks without a
/// common token; a rest at the end that fills none is left out. With random_offsets every example
/// of every epoch begins anywhere instead, at a place that seed, epoch and index choose.
/// An example is "input_ids" and "labels", both int64 [length] and equal: the model shifts them.
/// Source: Karpathy, nanoGPT, `data/*/prepare.py` and `train.py`, `get_batch`.
class TokenBlocks {
 public:
  /// Throws c10::Error, naming the file, when it cannot be opened, is no whole number of tokens, or
  /// shorter than one example; ValueError when an option is out of range.
  explicit TokenBlocks(std::string path, const TokenBlocksOptions& options = {})
      : options_(options), file_(std::make_shared<const detail::MappedFile>(std::move(path))) {
    TUTTI_CHECK_VALUE(options.length >= 1, "TokenBlocks: length is ", options.length,
                      ", expected 1 or more");
    TUTTI_CHECK_VALUE(options.vocab_size >= 0, "TokenBlocks: vocab_size is ", options.vocab_size,
                      ", expected 0 (unchecked) or more");
    const std::uint64_t bytes = bytes_of_token();
    TUTTI_CHECK(file_->size() % bytes == 0, "'", file_->path(), "' has ", file_->size(),
                " bytes, expected a multiple of ", bytes,
                ": the file was cut off, or options.type is not that of its tokens");
    num_tokens_ = static_cast<std::int64_t>(file_->size() / bytes);
    TUTTI_CHECK(num_tokens_ >= options.length, "'", file_->path(), "' has ", num_tokens_,
                " tokens, expected at least options.length = ", options.length);
  }

  /// How many examples there are.
  [[nodiscard]] std::int64_t size() const { return num_tokens_ / options_.length; }

  /// Example `index`, 0 .. size() - 1; with random_offsets one that begins where `rng` says.
  /// Throws c10::Error when the index is out of range or a token is not below vocab_size.
  [[nodiscard]] Batch get(std::int64_t index, Rng& rng) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "TokenBlocks: index is ", index,
                      ", expected 0 to ", size() - 1);
    return at(options_.random_offsets ? rng.integer(0, num_tokens_ - options_.length + 1)
                                      : index * options_.length);
  }

  /// The example that begins at token `offset`, 0 .. num_tokens() - length.
  [[nodiscard]] Batch at(std::int64_t offset) const {
    TUTTI_CHECK_INDEX(offset >= 0 && offset <= num_tokens_ - options_.length,
                      "TokenBlocks: offset is ", offset, ", expected 0 to ",
                      num_tokens_ - options_.length);
    at::Tensor ids(at::detail::empty_cpu({options_.length}, at::kLong, /*pin_memory=*/false,
                                         std::nullopt));  // (length), int64
    if (options_.type == TokenType::uint16) {
      copy<std::uint16_t>(offset, ids.mutable_data_ptr<std::int64_t>());
    } else {
      copy<std::uint32_t>(offset, ids.mutable_data_ptr<std::int64_t>());
    }
    return Batch{{"input_ids", ids}, {"labels", ids}};
  }

  /// Tokens in the file.
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }

  [[nodiscard]] const TokenBlocksOptions& options() const { return options_; }

 private:
  [[nodiscard]] std::uint64_t bytes_of_token() const {
    return options_.type == TokenType::uint16 ? 2 : 4;
  }

  template <class T>
  void copy(std::int64_t offset, std::int64_t* to) const {
    const T* from = static_cast<const T*>(file_->bytes()) + offset;
    for (std::int64_t i = 0; i < options_.length; ++i) {
      to[i] = static_cast<std::int64_t>(from[i]);
      TUTTI_CHECK(options_.vocab_size == 0 || to[i] < options_.vocab_size, "'", file_->path(),
                  "' has the token ", to[i], " at place ", offset + i,
                  ", expected less than vocab_size = ", options_.vocab_size,
                  " (is options.type that of the file?)");
    }
  }

  TokenBlocksOptions options_;
  std::shared_ptr<const detail::MappedFile> file_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace tutti::data
