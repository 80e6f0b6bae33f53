// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/views/zip.hpp>

namespace tutti::views {

namespace detail {

// Whose turn it is: the range that lacks most of its share, the first of several.
class Turns {
 public:
  explicit Turns(std::vector<double> shares)
      : shares_(std::move(shares)), given_(shares_.size(), 0) {}

  [[nodiscard]] std::size_t next() const {
    std::size_t best = 0;
    for (std::size_t s = 1; s < shares_.size(); ++s) {
      if (lacks(s) > lacks(best)) {
        best = s;
      }
    }
    return best;
  }
  // Returns how many it had been given.
  std::int64_t give(std::size_t range) {
    ++place_;
    return given_[range]++;
  }

 private:
  [[nodiscard]] double lacks(std::size_t s) const {
    return shares_[s] * static_cast<double>(place_ + 1) - static_cast<double>(given_[s]);
  }

  std::vector<double> shares_;
  std::vector<std::int64_t> given_;
  std::int64_t place_ = 0;
};

// Turns until a range has nothing left to give.
struct Interleaving {
  struct Turn {
    std::uint32_t range;
    std::int64_t element;
  };
  std::vector<Turn> turns{};

  Interleaving(const std::vector<double>& shares, const std::vector<std::int64_t>& sizes) {
    Turns turn(shares);
    for (std::size_t s = turn.next();; s = turn.next()) {
      const std::int64_t element = turn.give(s);
      if (element >= sizes[s]) {
        return;
      }
      turns.push_back({static_cast<std::uint32_t>(s), element});
    }
  }
};

template <class T>
class Interleaved final : public Indexed<T> {
 public:
  Interleaved(std::vector<std::shared_ptr<Indexed<T>>> of, const std::vector<double>& shares)
      : of_(std::move(of)), order_(shares, sizes()) {}
  std::int64_t size() const override { return std::ssize(order_.turns); }
  T at(std::int64_t i) const override {
    const auto [range, element] = order_.turns[static_cast<std::size_t>(i)];
    return of_[range]->at(element);
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> out;
    for (const auto& flow : of_) {
      out.push_back(flow->size());
    }
    return out;
  }

  std::vector<std::shared_ptr<Indexed<T>>> of_;
  Interleaving order_;
};

template <class T>
class InterleavedStream final : public Stream<T> {
 public:
  InterleavedStream(std::vector<std::shared_ptr<Stream<T>>> of, const std::vector<double>& shares)
      : of_(std::move(of)), turns_(shares) {
    std::vector<std::int64_t> sizes;
    for (const auto& flow : of_) {
      sizes.push_back(flow->size());
    }
    if (*std::min_element(sizes.begin(), sizes.end()) >= 0) {
      size_ = std::ssize(Interleaving(shares, sizes).turns);
    }
  }

  std::int64_t size() const override { return size_; }
  std::optional<T> next() override {
    if (over_) {
      return std::nullopt;
    }
    const std::size_t range = turns_.next();
    turns_.give(range);
    std::optional<T> element = of_[range]->next();
    over_ = !element;
    return element;
  }
  std::int64_t skip(std::int64_t n) override {
    std::int64_t gone = 0;
    for (; gone < n && !over_; ++gone) {
      const std::size_t range = turns_.next();
      turns_.give(range);
      over_ = of_[range]->skip(1) == 0;
      gone -= over_ ? 1 : 0;
    }
    return gone;
  }
  std::int64_t reads() const override {
    return std::accumulate(of_.begin(), of_.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& flow) { return sum + flow->reads(); });
  }
  std::string reader() const override {
    for (const auto& flow : of_) {
      if (std::string name = flow->reader(); !name.empty()) {
        return name;
      }
    }
    return {};
  }

 private:
  std::vector<std::shared_ptr<Stream<T>>> of_;
  Turns turns_;
  std::int64_t size_ = -1;
  bool over_ = false;
};

}  // namespace detail

/// The elements of several ranges in turn, each range as often as its weight says: at any place of
/// the epoch a range has had its share to within one element or two. An epoch ends when the range
/// whose turn it is has none left, so repeat short ones.
///
/// weights: > 0 and finite, one for each range. The ranges give one type. Nothing is drawn: shuffle
/// the ranges, and any element is had at once where all are random-access ones with a size.
/// Throws c10::ValueError when the weights are not such.
template <class... Rs>
auto interleave(std::vector<double> weights, Rs&&... ranges) {
  static_assert(sizeof...(Rs) >= 1, "tutti: views::interleave needs a range or more.");
  TUTTI_CHECK_VALUE(weights.size() == sizeof...(Rs), "views::interleave: there are ",
                    weights.size(), " weights and ", sizeof...(Rs),
                    " ranges, expected a weight for each range");
  for (const double weight : weights) {
    TUTTI_CHECK_VALUE(weight > 0 && std::isfinite(weight), "views::interleave: a weight is ",
                      weight, ", expected a finite number above 0");
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) {
    weight /= sum;
  }
  auto of = std::make_tuple(detail::examples(std::forward<Rs>(ranges))...);
  return std::apply(
      [&]<class First, class... Es>(const First&, const Es&...) {
        using T = detail::value_of<First>;
        static_assert(
            (std::same_as<T, detail::value_of<Es>> && ...),
            "tutti: views::interleave: the ranges give different types; map them to one.");
        constexpr bool indexed = detail::indexed_of<First> && (detail::indexed_of<Es> && ...);
        using Made =
            std::conditional_t<indexed, detail::Interleaved<T>, detail::InterleavedStream<T>>;
        return Examples<T, indexed>([of, weights](detail::Pass& pass) {
          auto flows = detail::open_alike("interleave", pass, of);
          std::vector<std::shared_ptr<detail::Flow<T, indexed>>> all;
          std::apply(
              [&](auto&... flow) {
                if constexpr (indexed) {
                  (all.push_back(std::move(flow)), ...);
                } else {
                  (all.push_back(detail::in_turn(std::move(flow))), ...);
                }
              },
              flows);
          return std::make_shared<Made>(std::move(all), weights);
        });
      },
      of);
}

}  // namespace tutti::views
