// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>

/// Parts of a data set: for training, validation and test.
namespace tutti::data {

/// The numbers 0 .. n-1 in parts, at random: {0.8, 0.2} gives four fifths and the rest.
///
/// n: >= 0. fractions: >= 0, with the sum 1 or less; where it is less, some are in no part. Each
/// part has floor(n * fraction) numbers, and what rounding left over goes to the first parts, one
/// to each. seed: the same numbers for the same seed, bit for bit those of PyTorch's random_split
/// with torch.Generator().manual_seed(seed) where the sum is 1.
/// Throws c10::ValueError when n or a fraction is out of range.
/// Source: PyTorch, `torch.utils.data.random_split`.
std::vector<std::vector<std::int64_t>> split(std::int64_t n, const std::vector<double>& fractions,
                                             std::uint64_t seed);

/// The same with the share of every class in each part that it has in the whole, to within one
/// example: each class is split on its own, and parts are mixed again.
///
/// labels: the class of each example, any numbers.
/// Throws c10::ValueError when a fraction is out of range.
/// Source: scikit-learn, `train_test_split(stratify=labels)`; not the same numbers.
std::vector<std::vector<std::int64_t>> split(std::span<const std::int64_t> labels,
                                             const std::vector<double>& fractions,
                                             std::uint64_t seed);

/// Some examples of a data set with numbered examples, as a data set: number i is number
/// `indices[i]` there. Copies share both.
template <class D>
class Subset {
 public:
  /// indices: of `dataset`, in any order; one may stand there more than once.
  /// Throws c10::IndexError when one is no number of an example.
  Subset(std::shared_ptr<const D> dataset, std::vector<std::int64_t> indices)
      : dataset_(std::move(dataset)),
        indices_(std::make_shared<const std::vector<std::int64_t>>(std::move(indices))) {
    const auto n = static_cast<std::int64_t>(dataset_->size());
    for (const std::int64_t i : *indices_) {
      TUTTI_CHECK_INDEX(i >= 0 && i < n, "Subset: the data set has no example ", i,
                        "; it has examples 0 to ", n - 1);
    }
  }
  Subset(D dataset, std::vector<std::int64_t> indices)
      : Subset(std::make_shared<const D>(std::move(dataset)), std::move(indices)) {}

  [[nodiscard]] std::int64_t size() const { return std::ssize(*indices_); }

  auto get(std::int64_t i) const
    requires requires(const D& data) { data.get(i); }
  {
    return dataset_->get((*indices_)[static_cast<std::size_t>(i)]);
  }
  auto get(std::int64_t i, Rng& rng) const
    requires requires(const D& data) { data.get(i, rng); }
  {
    return dataset_->get((*indices_)[static_cast<std::size_t>(i)], rng);
  }

  [[nodiscard]] const D& dataset() const { return *dataset_; }
  [[nodiscard]] const std::vector<std::int64_t>& indices() const { return *indices_; }

 private:
  std::shared_ptr<const D> dataset_;
  std::shared_ptr<const std::vector<std::int64_t>> indices_;
};

namespace detail {

template <class D>
concept Splittable = requires(const D& data) {
  data.size();
}
&&(
    requires(const D& data) { data.get(std::int64_t{}); } ||
    requires(const D& data, Rng& rng) { data.get(std::int64_t{}, rng); });

template <class D>
std::vector<Subset<D>> subsets(D dataset, std::vector<std::vector<std::int64_t>> parts) {
  const auto shared = std::make_shared<const D>(std::move(dataset));
  std::vector<Subset<D>> out;
  out.reserve(parts.size());
  for (auto& part : parts) {
    out.emplace_back(shared, std::move(part));
  }
  return out;
}

}  // namespace detail

/// A data set in parts, at random, each a data set for DataLoader; see split(n, fractions, seed).
template <detail::Splittable D>
std::vector<Subset<D>> split(D dataset, const std::vector<double>& fractions, std::uint64_t seed) {
  const auto n = static_cast<std::int64_t>(dataset.size());
  return detail::subsets(std::move(dataset), split(n, fractions, seed));
}

/// The same with the share of every class in each part.
///
/// labels: the class of each example. Throws c10::ValueError when there are not as many.
template <detail::Splittable D>
std::vector<Subset<D>> split(D dataset, const std::vector<double>& fractions, std::uint64_t seed,
                             std::span<const std::int64_t> labels) {
  const auto n = static_cast<std::int64_t>(dataset.size());
  TUTTI_CHECK_VALUE(std::ssize(labels) == n, "split: there are ", labels.size(), " labels and ", n,
                    " examples, expected as many");
  return detail::subsets(std::move(dataset), split(labels, fractions, seed));
}

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/split.inl.hpp>
#endif
