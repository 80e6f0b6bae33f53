// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/comparison.hpp>

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace tutti::detail {

// `word`, in lower case, stands in `name` as a whole word: words end at what is no letter, and
// begin at a capital behind a small letter or ahead of one, as in "valMAEOfAge".
TUTTI_INLINE bool has_word(std::string_view name, std::string_view word) {
  const auto is = [&](std::size_t at, int (*kind)(int)) {
    return at < name.size() && kind(static_cast<unsigned char>(name[at])) != 0;
  };
  const auto ends_before = [&](std::size_t at) {
    return at == 0 || !is(at - 1, std::isalpha) || !is(at, std::isalpha) ||
           (is(at, std::isupper) && (is(at - 1, std::islower) || is(at + 1, std::islower)));
  };
  for (std::size_t at = 0; at + word.size() <= name.size(); ++at) {
    const bool same =
        std::equal(word.begin(), word.end(), name.begin() + static_cast<std::ptrdiff_t>(at),
                   [](char a, char b) {
                     return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
                   });
    if (same && ends_before(at) && ends_before(at + word.size())) {
      return true;
    }
  }
  return false;
}

TUTTI_INLINE Comparison named_direction(std::string_view metric) {
  std::string name(metric);
  std::transform(name.begin(), name.end(), name.begin(), [](char letter) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  });
  for (const char* part : {"loss", "error", "perplexity", "entropy"}) {
    if (name.find(part) != std::string::npos) {
      return Comparison::less;
    }
  }
  for (const char* word :
       {"mae", "mse", "rmse", "msle", "rmsle", "mape", "smape", "nll", "wer", "cer", "ter", "fid",
        "brier", "distance", "divergence", "deviance", "deviation", "hinge"}) {
    if (has_word(metric, word)) {
      return Comparison::less;
    }
  }
  for (const char* part : {"accuracy", "precision", "recall", "specificity", "sensitivity", "auroc",
                           "correlation", "explained", "throughput"}) {
    if (name.find(part) != std::string::npos) {
      return Comparison::greater;
    }
  }
  for (const char* word :
       {"acc",        "f1",       "fbeta",   "auc",      "auprc", "ap",    "map",
        "mar",        "iou",      "miou",    "jaccard",  "dice",  "r2",    "corr",
        "pearson",    "spearman", "kendall", "matthews", "mcc",   "kappa", "bleu",
        "rouge",      "meteor",   "chrf",    "score",    "psnr",  "ssim",  "cosine",
        "similarity", "ndcg",     "mrr",     "reward",   "speed"}) {
    if (has_word(metric, word)) {
      return Comparison::greater;
    }
  }
  return Comparison::by_name;
}

TUTTI_INLINE std::string unknown_direction(std::string_view who, std::string_view option,
                                           Comparison comparison, std::string_view metric,
                                           std::string_view less, std::string_view greater) {
  if (comparison != Comparison::by_name || named_direction(metric) != Comparison::by_name) {
    return {};
  }
  const std::string set = std::string(option) + "::";
  return std::string(who) + ": the name \"" + std::string(metric) +
         "\" does not say which value is better, so greater is taken to be; set " + set +
         std::string(greater) + " if it is, or " + set + std::string(less) + " if it is not";
}

}  // namespace tutti::detail
