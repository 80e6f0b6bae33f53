// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/split.hpp>

#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include <tutti/data/detail/item_rng.hpp>

namespace tutti::data {

namespace detail {

TUTTI_INLINE void check_fractions(const std::vector<double>& fractions) {
  double sum = 0;
  for (const double fraction : fractions) {
    TUTTI_CHECK_VALUE(fraction >= 0 && std::isfinite(fraction), "split: a fraction is ", fraction,
                      ", expected 0 to 1");
    sum += fraction;
  }
  TUTTI_CHECK_VALUE(!fractions.empty() && sum <= 1 + 1e-9, "split: the sum of ", fractions.size(),
                    " fractions is ", sum, ", expected one or more with a sum of at most 1");
}

// As random_split counts.
TUTTI_INLINE std::vector<std::int64_t> sizes_of_parts(std::int64_t n,
                                                      const std::vector<double>& fractions) {
  std::vector<std::int64_t> sizes;
  double sum = 0;
  for (const double fraction : fractions) {
    sizes.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(n) * fraction)));
    sum += fraction;
  }
  const std::int64_t all =
      sum >= 1 - 1e-9 ? n : static_cast<std::int64_t>(std::floor(static_cast<double>(n) * sum));
  const std::int64_t left = all - std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < left; ++i) {
    ++sizes[static_cast<std::size_t>(i) % sizes.size()];
  }
  return sizes;
}

TUTTI_INLINE std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor order = at::randperm(n, generator, at::TensorOptions().dtype(at::kLong));
  const auto* first = order.const_data_ptr<std::int64_t>();
  return {first, first + n};
}

}  // namespace detail

TUTTI_INLINE std::vector<std::vector<std::int64_t>> split(std::int64_t n,
                                                          const std::vector<double>& fractions,
                                                          std::uint64_t seed) {
  TUTTI_CHECK_VALUE(n >= 0, "split: n is ", n, ", expected 0 or more");
  detail::check_fractions(fractions);
  const std::vector<std::int64_t> order = detail::permutation(n, seed);
  std::vector<std::vector<std::int64_t>> parts;
  auto from = order.begin();
  for (const std::int64_t size : detail::sizes_of_parts(n, fractions)) {
    parts.emplace_back(from, from + size);
    from += size;
  }
  return parts;
}

TUTTI_INLINE std::vector<std::vector<std::int64_t>> split(std::span<const std::int64_t> labels,
                                                          const std::vector<double>& fractions,
                                                          std::uint64_t seed) {
  detail::check_fractions(fractions);
  std::map<std::int64_t, std::vector<std::int64_t>> classes;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    classes[labels[i]].push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::vector<std::int64_t>> parts(fractions.size());
  std::vector<double> owed(fractions.size(), 0.0);  // what rounding took from a part so far
  std::uint64_t stream = 0;
  for (const auto& [label, members] : classes) {
    const auto n = static_cast<double>(members.size());
    const std::vector<std::int64_t> order =
        detail::permutation(std::ssize(members), detail::mix(seed, ++stream));
    std::vector<std::int64_t> sizes;
    double whole = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      sizes.push_back(static_cast<std::int64_t>(std::floor(n * fractions[part] + 1e-9)));
      owed[part] += n * fractions[part] - static_cast<double>(sizes.back());
      whole += n * fractions[part];
    }
    // What is left over goes to the parts that are owed most.
    std::int64_t left = static_cast<std::int64_t>(std::floor(whole + 1e-9)) -
                        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    for (std::vector<bool> given(parts.size(), false); left > 0; --left) {
      std::size_t best = parts.size();
      const auto comes_first = [&](std::size_t a, std::size_t b) {
        const auto key = [&](std::size_t part) {
          const double rest = n * fractions[part] - static_cast<double>(sizes[part]);
          return std::pair(rest > 1e-9, owed[part]);  // one whose share was whole keeps it
        };
        return key(a) > key(b);
      };
      for (std::size_t part = 0; part < parts.size(); ++part) {
        if (!given[part] && (best == parts.size() || comes_first(part, best))) {
          best = part;
        }
      }
      given[best] = true;
      ++sizes[best];
      owed[best] -= 1;
    }
    std::size_t from = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (std::int64_t i = 0; i < sizes[part]; ++i) {
        parts[part].push_back(members[static_cast<std::size_t>(order[from++])]);
      }
    }
  }
  for (std::size_t part = 0; part < parts.size(); ++part) {  // not class by class
    const std::vector<std::int64_t> order =
        detail::permutation(std::ssize(parts[part]), detail::mix(seed, ++stream));
    std::vector<std::int64_t> mixed;
    mixed.reserve(order.size());
    for (const std::int64_t i : order) {
      mixed.push_back(parts[part][static_cast<std::size_t>(i)]);
    }
    parts[part] = std::move(mixed);
  }
  return parts;
}

}  // namespace tutti::data
