// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/packing.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/cat.h>

namespace tutti::data {

namespace detail {

TUTTI_INLINE std::vector<std::vector<DocumentPiece>> plan_wrapped(
    std::span<const std::int64_t> lengths, std::int64_t length) {
  std::vector<std::vector<DocumentPiece>> out;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t begin = 0; begin < lengths[i];) {
      if (room == 0) {
        out.emplace_back();
        room = length;
      }
      const std::int64_t end = std::min(lengths[i], begin + room);
      out.back().push_back({static_cast<std::int64_t>(i), begin, end});
      room -= end - begin;
      begin = end;
    }
  }
  return out;
}

// Pieces of at most `length` tokens.
TUTTI_INLINE std::vector<DocumentPiece> pieces_of(std::int64_t document, std::int64_t tokens,
                                                  const PackingOptions& options) {
  TUTTI_CHECK_VALUE(tokens <= options.length || options.long_documents != LongDocuments::refuse,
                    "packing: document ", document, " has ", tokens, " tokens, but an example has ",
                    options.length,
                    "; set long_documents to LongDocuments::split or LongDocuments::truncate");
  std::vector<DocumentPiece> out;
  for (std::int64_t begin = 0; begin < tokens; begin += options.length) {
    out.push_back({document, begin, std::min(tokens, begin + options.length)});
    if (options.long_documents == LongDocuments::truncate) {
      break;
    }
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE void PackingOptions::validate() const {
  TUTTI_CHECK_VALUE(length >= 1, "packing: length is ", length, ", expected 1 or more");
  TUTTI_CHECK_VALUE(open_examples >= 1, "packing: open_examples is ", open_examples,
                    ", expected 1 or more");
}

TUTTI_INLINE std::vector<std::vector<DocumentPiece>> plan_packing(
    std::span<const std::int64_t> lengths, const PackingOptions& options) {
  options.validate();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    TUTTI_CHECK_VALUE(lengths[i] >= 0, "packing: document ", i, " has the length ", lengths[i],
                      ", expected 0 or more");
  }
  if (options.strategy == PackingStrategy::wrapped) {
    return detail::plan_wrapped(lengths, options.length);
  }
  std::vector<DocumentPiece> pieces;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto some = detail::pieces_of(static_cast<std::int64_t>(i), lengths[i], options);
    pieces.insert(pieces.end(), some.begin(), some.end());
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const DocumentPiece& a, const DocumentPiece& b) {
                     return a.end - a.begin > b.end - b.begin;
                   });
  std::vector<std::vector<DocumentPiece>> out;
  std::set<std::pair<std::int64_t, std::size_t>> open;  // room of examples that are not full
  for (const DocumentPiece& piece : pieces) {
    const std::int64_t size = piece.end - piece.begin;
    std::pair<std::int64_t, std::size_t> best{options.length, out.size()};
    if (const auto found = open.lower_bound({size, 0}); found != open.end()) {
      best = *found;
      open.erase(found);
    } else {
      out.emplace_back();
    }
    const auto [room, which] = best;
    out[which].push_back(piece);
    if (room > size) {
      open.emplace(room - size, which);
    }
  }
  const auto before = [](const DocumentPiece& a, const DocumentPiece& b) {
    return std::pair(a.document, a.begin) < std::pair(b.document, b.begin);
  };
  for (auto& example : out) {
    std::sort(example.begin(), example.end(), before);
  }
  std::sort(out.begin(), out.end(),
            [&](const auto& a, const auto& b) { return before(a.front(), b.front()); });
  return out;
}

TUTTI_INLINE Batch join_documents(const std::vector<Batch>& documents, std::int64_t ignore_index) {
  TUTTI_CHECK_VALUE(!documents.empty(), "packing: there is no document to make an example of");
  const Batch& first = documents.front();
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const Batch& one = documents[i];
    TUTTI_CHECK_VALUE(one.contains("input_ids"), "packing: document ", i,
                      " has no \"input_ids\"; there are: ", one.names());
    lengths.push_back(one.at("input_ids").numel());
    for (const auto& [name, tensor] : one) {
      TUTTI_CHECK_VALUE(first.contains(name) && one.size() == first.size() && tensor.dim() == 1 &&
                            tensor.size(0) == lengths.back(),
                        "packing: \"", name, "\" of document ", i, " is ", tensor.sizes(),
                        ", expected tensors of [", lengths.back(),
                        "] by the names of the first: ", first.names());
    }
  }
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Batch out;
  std::vector<at::Tensor> parts(documents.size());
  for (const auto& [name, unused] : first) {
    if (name != "sequence_id" && name != "position_ids") {
      for (std::size_t i = 0; i < documents.size(); ++i) {
        parts[i] = documents[i].at(name);
      }
      out[name] = at::cat(parts);
    }
  }
  if (!out.contains("labels")) {
    out["labels"] = out.at("input_ids").clone();
  }
  at::Tensor& labels = out.at("labels");
  at::Tensor sequence_id = at::detail::empty_cpu({total}, at::kLong);
  at::Tensor position_ids = at::detail::empty_cpu({total}, at::kLong);
  auto* id = sequence_id.mutable_data_ptr<std::int64_t>();
  auto* position = position_ids.mutable_data_ptr<std::int64_t>();
  std::int64_t at = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (lengths[i] > 0) {
      labels.slice(0, at, at + 1).fill_(ignore_index);
    }
    std::fill_n(id + at, lengths[i], static_cast<std::int64_t>(i));
    std::iota(position + at, position + at + lengths[i], std::int64_t{0});
    at += lengths[i];
  }
  out["sequence_id"] = std::move(sequence_id);
  out["position_ids"] = std::move(position_ids);
  return out;
}

TUTTI_INLINE std::vector<Batch> DocumentPacker::push(const Batch& document) {
  TUTTI_CHECK_VALUE(document.contains("input_ids"),
                    "packing: a document has no \"input_ids\"; there are: ", document.names());
  const std::int64_t tokens = document.at("input_ids").numel();
  const auto cut = [&](std::int64_t begin, std::int64_t end) {
    Batch out = document;
    for (auto& [name, tensor] : out) {
      TUTTI_CHECK_VALUE(tensor.dim() == 1 && tensor.size(0) == tokens, "packing: \"", name,
                        "\" of a document is ", tensor.sizes(), ", expected [", tokens, "]");
      tensor = tensor.slice(0, begin, end);
    }
    return out;
  };
  std::vector<Batch> done;
  if (options_.strategy == PackingStrategy::best_fit) {
    for (const DocumentPiece& piece : detail::pieces_of(0, tokens, options_)) {
      put(cut(piece.begin, piece.end), piece.end - piece.begin, done);
    }
    return done;
  }
  for (std::int64_t begin = 0; begin < tokens;) {
    const std::int64_t room = options_.length - (open_.empty() ? 0 : open_.front().tokens);
    const std::int64_t end = std::min(tokens, begin + room);
    put(cut(begin, end), end - begin, done);
    begin = end;
  }
  return done;
}

TUTTI_INLINE void DocumentPacker::put(Batch piece, std::int64_t tokens, std::vector<Batch>& done) {
  if (tokens == options_.length) {
    done.push_back(join_documents({std::move(piece)}, options_.ignore_index));
    return;
  }
  const auto fits = [&](const Open& open) { return open.tokens + tokens <= options_.length; };
  const auto fuller = [](const Open& a, const Open& b) { return a.tokens < b.tokens; };
  auto best = open_.end();
  for (auto one = open_.begin(); one != open_.end(); ++one) {
    if (fits(*one) && (best == open_.end() || fuller(*best, *one))) {
      best = one;
    }
  }
  if (best == open_.end()) {
    if (std::ssize(open_) == options_.open_examples) {
      give(static_cast<std::size_t>(std::max_element(open_.begin(), open_.end(), fuller) -
                                    open_.begin()),
           done);
    }
    open_.emplace_back();
    best = std::prev(open_.end());
  }
  best->documents.push_back(std::move(piece));
  best->tokens += tokens;
  if (best->tokens == options_.length) {
    give(static_cast<std::size_t>(best - open_.begin()), done);
  }
}

TUTTI_INLINE void DocumentPacker::give(std::size_t which, std::vector<Batch>& done) {
  const auto at = open_.begin() + static_cast<std::ptrdiff_t>(which);
  done.push_back(join_documents(at->documents, options_.ignore_index));
  open_.erase(at);
}

TUTTI_INLINE std::vector<Batch> DocumentPacker::finish() {
  std::vector<Batch> done;
  while (!open_.empty()) {
    give(0, done);
  }
  return done;
}

TUTTI_INLINE std::int64_t DocumentPacker::pending() const {
  return std::accumulate(open_.begin(), open_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Open& one) { return sum + one.tokens; });
}

}  // namespace tutti::data
