// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class... Ts>
struct TupleOf : std::type_identity<std::tuple<Ts...>> {};
template <class A, class B>
struct TupleOf<A, B> : std::type_identity<std::pair<A, B>> {};  // input and target of an example
template <class... Ts>
using tuple_of = typename TupleOf<Ts...>::type;

// Steps whose ranges are dealt to ranks, or not, together; calls `open` for each in turn.
template <class... Es>
auto open_alike(const char* step, Pass& pass, const std::tuple<Es...>& ranges) {
  const bool before = pass.dealt;
  int dealt = 0;
  const auto one = [&](const auto& range) {
    pass.dealt = before;
    auto flow = range.open(pass);
    dealt += pass.dealt ? 1 : 0;
    return flow;
  };
  auto flows = std::apply(
      [&](const auto&... range) {
        return std::tuple<decltype(one(range))...>{one(range)...};  // in order, by the braces
      },
      ranges);
  TUTTI_CHECK_VALUE(dealt == 0 || dealt == static_cast<int>(sizeof...(Es)), "views::", step, ": ",
                    dealt, " of its ", sizeof...(Es),
                    " ranges have views::shard, expected all or none");
  return flows;
}

template <class... Ts>
class Zipped final : public Indexed<tuple_of<Ts...>> {
 public:
  explicit Zipped(std::tuple<std::shared_ptr<Indexed<Ts>>...> of) : of_(std::move(of)) {}
  std::int64_t size() const override {
    return std::apply([](const auto&... flow) { return std::min({flow->size()...}); }, of_);
  }
  tuple_of<Ts...> at(std::int64_t i) const override {
    return std::apply([i](const auto&... flow) { return tuple_of<Ts...>{flow->at(i)...}; }, of_);
  }

 private:
  std::tuple<std::shared_ptr<Indexed<Ts>>...> of_;
};

template <class... Ts>
class ZippedStream final : public Stream<tuple_of<Ts...>> {
 public:
  explicit ZippedStream(std::tuple<std::shared_ptr<Stream<Ts>>...> of) : of_(std::move(of)) {}
  std::int64_t size() const override {
    return std::apply([](const auto&... flow) { return std::min({flow->size()...}); }, of_);
  }
  std::optional<tuple_of<Ts...>> next() override {
    return std::apply(
        [](auto&... flow) -> std::optional<tuple_of<Ts...>> {
          std::tuple<std::optional<Ts>...> parts{flow->next()...};
          return std::apply(
              [](auto&... part) -> std::optional<tuple_of<Ts...>> {
                if ((part.has_value() && ...)) {
                  return tuple_of<Ts...>{std::move(*part)...};
                }
                return std::nullopt;
              },
              parts);
        },
        of_);
  }
  std::int64_t skip(std::int64_t n) override {
    return std::apply([n](auto&... flow) { return std::min({flow->skip(n)...}); }, of_);
  }
  void expect_stride(std::int64_t stride) override {
    std::apply([stride](auto&... flow) { (flow->expect_stride(stride), ...); }, of_);
  }
  std::int64_t reads() const override {
    return std::apply([](const auto&... flow) { return (flow->reads() + ...); }, of_);
  }
  std::string reader() const override {
    std::string name;
    std::apply([&](const auto&... flow) { ((name = name.empty() ? flow->reader() : name), ...); },
               of_);
    return name;
  }

 private:
  std::tuple<std::shared_ptr<Stream<Ts>>...> of_;
};

}  // namespace detail

/// The first elements of several ranges together, then the second ones, ...; ends with the
/// shortest. Two ranges give std::pair, which a batch takes for inputs and targets, more give
/// std::tuple.
///
/// Any element is had at once where all ranges are random-access ones with a size.
template <class... Rs>
auto zip(Rs&&... ranges) {
  static_assert(sizeof...(Rs) >= 2, "tutti: views::zip needs two ranges or more.");
  auto of = std::make_tuple(detail::examples(std::forward<Rs>(ranges))...);
  return std::apply(
      [&]<class... Es>(const Es&...) {
        using Made = detail::tuple_of<detail::value_of<Es>...>;
        constexpr bool indexed = (detail::indexed_of<Es> && ...);
        return Examples<Made, indexed>([of](detail::Pass& pass) {
          auto flows = detail::open_alike("zip", pass, of);
          if constexpr (indexed) {
            return std::make_shared<detail::Zipped<detail::value_of<Es>...>>(std::move(flows));
          } else {
            return std::apply(
                [](auto&... flow) {
                  return std::make_shared<detail::ZippedStream<detail::value_of<Es>...>>(
                      std::tuple<std::shared_ptr<detail::Stream<detail::value_of<Es>>>...>(
                          detail::in_turn(std::move(flow))...));
                },
                flows);
          }
        });
      },
      of);
}

}  // namespace tutti::views
