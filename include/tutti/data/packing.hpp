// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/to_batch.hpp>

/// Several documents in one example, so that little is padded and none sees another.
namespace tutti::data {

/// How documents are put into examples.
enum class PackingStrategy : std::uint8_t {
  best_fit,  ///< whole ones, the longest first, each where it leaves the least room
  wrapped,   ///< one behind the other; one that does not end with an example goes on in the next
};

/// What best_fit does with a document that is longer than an example.
enum class LongDocuments : std::uint8_t {
  split,     ///< cuts it; no piece sees another
  truncate,  ///< leaves out its end
  refuse,    ///< an error
};

/// Options of packing.
struct PackingOptions {
  std::int64_t length = 2048;  ///< tokens of an example at most; >= 1
  PackingStrategy strategy = PackingStrategy::best_fit;
  LongDocuments long_documents = LongDocuments::split;
  std::int64_t ignore_index = -100;  ///< the label of what the loss leaves out
  /// Of DocumentPacker with best_fit: how many examples are filled at a time; >= 1.
  std::int64_t open_examples = 16;

  /// Throws c10::ValueError naming an option that is out of range.
  void validate() const;
};

/// A part of a document: its tokens `begin` up to, not including, `end`.
struct DocumentPiece {
  std::int64_t document = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const DocumentPiece&) const = default;
};

/// Which pieces stand in which example, for documents of `lengths` tokens (>= 0; those of none are
/// left out).
///
/// best_fit: examples stand in the order of their first documents, and so do pieces in them. It
/// takes n log n steps. wrapped: each example but the last has options.length tokens.
/// Throws c10::ValueError for a length below 0, and, with LongDocuments::refuse, for a document
/// that is too long.
/// Source: Ding et al., "Fewer Truncations Improve Language Modeling", 2024; TRL, `pack_dataset`.
std::vector<std::vector<DocumentPiece>> plan_packing(std::span<const std::int64_t> lengths,
                                                     const PackingOptions& options = {});

/// Documents as one example: each tensor is theirs, one behind the other.
///
/// documents: one or more, of tensors of one dimension, those of a document equally long, with
/// `input_ids`; `labels` are these where there are none. The first label of each document becomes
/// ignore_index, since nothing before it tells it. Joined by the example are `sequence_id`, the
/// number of the document from 0, by which GPT-2, BERT and Llama let a token see those of its own
/// document alone, and `position_ids`, which start anew with each. int64 all.
/// Throws c10::ValueError when documents have other names or lengths.
Batch join_documents(const std::vector<Batch>& documents, std::int64_t ignore_index = -100);

/// Documents in, examples out: packing of what comes one by one, in memory that does not grow.
///
///     tutti::data::DocumentPacker packer({.length = 2048});
///     for (const tutti::Batch& document : documents) {
///       for (tutti::Batch& example : packer.push(document)) { use(example); }
///     }
///     for (tutti::Batch& example : packer.finish()) { use(example); }
///
/// best_fit puts a document where it leaves the least room among the open examples. An example that
/// is full comes out at once; where a document fits in none and all are open, the fullest one does.
/// What comes out depends on the documents and their order alone.
class DocumentPacker {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit DocumentPacker(const PackingOptions& options = {}) : options_(options) {
    options.validate();
  }

  /// Takes a document as join_documents() does; returns the examples that are done.
  std::vector<Batch> push(const Batch& document);

  /// The examples that were not done, the first opened first; the packer is empty then.
  std::vector<Batch> finish();

  /// Tokens that have been taken and not given out.
  [[nodiscard]] std::int64_t pending() const;

 private:
  struct Open {
    std::vector<Batch> documents{};
    std::int64_t tokens = 0;
  };

  void put(Batch piece, std::int64_t tokens, std::vector<Batch>& done);
  void give(std::size_t which, std::vector<Batch>& done);

  PackingOptions options_;
  std::vector<Open> open_{};  // in the order in which they were opened
};

namespace detail {

template <class D>
inline constexpr bool gives_documents = requires(const D& data, std::int64_t index) {
  data.size();
  { data.get(index) } -> ::tutti::detail::BatchLike;
};

}  // namespace detail

/// Refuses what a PackedDataset cannot ask for documents.
template <class D>
struct DocumentsCheck {
  static_assert(detail::gives_documents<D>,
                "tutti: this gives no documents that are the same each time; give it std::int64_t "
                "size() const and Example get(std::int64_t index) const, without random numbers "
                "(an Example is a tutti::Batch with \"input_ids\").");
};

/// A data set whose documents are packed: a data set for DataLoader, which shuffles examples, deals
/// them to ranks and resumes among them at once.
///
///     tutti::DataLoader train{tutti::data::PackedDataset{texts, {.length = 1024}},
///                             {.batch_size = 8, .shuffle = true,
///                              .collate = tutti::data::PadSequences{}}};
///
/// `D` has `size()` and `get(index)` that gives a document as join_documents() takes it, the same
/// each time. Which documents stand together is the same in every epoch and on every rank.
template <class D>
class PackedDataset {
  static_assert(sizeof(DocumentsCheck<D>) > 0);

 public:
  /// lengths: the tokens of each document; without them each is asked for once, and counted.
  /// Throws as plan_packing(), what get() throws, and c10::ValueError when there are not as many
  /// lengths as documents.
  explicit PackedDataset(D documents, const PackingOptions& options = {},
                         std::optional<std::vector<std::int64_t>> lengths = {})
      : documents_(std::make_shared<const D>(std::move(documents))), options_(options) {
    const auto number = static_cast<std::int64_t>(documents_->size());
    if (!lengths) {
      lengths.emplace();
      for (std::int64_t i = 0; i < number; ++i) {
        lengths->push_back(document(i).at("input_ids").numel());
      }
    }
    TUTTI_CHECK_VALUE(std::ssize(*lengths) == number, "PackedDataset: there are ", lengths->size(),
                      " lengths, expected one for each of the ", number, " documents");
    plan_ = std::make_shared<const std::vector<std::vector<DocumentPiece>>>(
        plan_packing(*lengths, options));
  }

  /// Examples.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(plan_->size()); }

  /// Example `index`, 0 .. size() - 1; see join_documents().
  [[nodiscard]] Batch get(std::int64_t index) const {
    TUTTI_CHECK_INDEX(index >= 0 && index < size(), "PackedDataset: index is ", index,
                      ", expected 0 to ", size() - 1);
    std::vector<Batch> pieces;
    for (const DocumentPiece& piece : (*plan_)[static_cast<std::size_t>(index)]) {
      Batch document = this->document(piece.document);
      for (auto& [name, tensor] : document) {
        TUTTI_CHECK_VALUE(tensor.dim() == 1 && tensor.size(0) >= piece.end, "PackedDataset: \"",
                          name, "\" of document ", piece.document, " is ", tensor.sizes(),
                          ", expected one dimension and the length that it had, at least ",
                          piece.end);
        tensor = tensor.slice(0, piece.begin, piece.end);
      }
      pieces.push_back(std::move(document));
    }
    return join_documents(pieces, options_.ignore_index);
  }

  /// The pieces of each example.
  [[nodiscard]] const std::vector<std::vector<DocumentPiece>>& plan() const { return *plan_; }

  [[nodiscard]] const PackingOptions& options() const { return options_; }

 private:
  [[nodiscard]] Batch document(std::int64_t index) const {
    if constexpr (detail::gives_documents<D>) {  // else DocumentsCheck has spoken
      return ::tutti::detail::to_batch(documents_->get(index));
    } else {
      return {};
    }
  }

  std::shared_ptr<const D> documents_;
  std::shared_ptr<const std::vector<std::vector<DocumentPiece>>> plan_;
  PackingOptions options_;
};

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/packing.inl.hpp>
#endif
