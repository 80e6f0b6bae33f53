// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class T, class F>
class Filtered final : public Reading<T> {
 public:
  Filtered(std::shared_ptr<Stream<T>> of, F wanted)
      : Reading<T>(std::move(of), "filter"), wanted_(std::move(wanted)) {}

  std::int64_t size() const override { return -1; }
  std::optional<T> next() override {
    for (;;) {
      std::optional<T> element = this->read();
      if (!element || at_place("views::filter: the answer to element ", this->reads_ - 1, [&] {
            return bool(std::invoke(wanted_, std::as_const(*element)));
          })) {
        return element;
      }
    }
  }

 private:
  F wanted_;
};

// Steps that give another number of examples on each rank cannot stand behind one that deals.
inline void refuse_behind_shard(const char* step, const Pass& pass) {
  TUTTI_CHECK_VALUE(!pass.dealt || pass.world_size == 1, "views::", step,
                    " cannot stand behind views::shard, since ranks would get unequally many "
                    "batches; put shard behind it, or leave it to views::batch");
}

}  // namespace detail

/// The examples that `wanted` says yes to: `bool wanted(const T&)`. Each is made once, where
/// ranges::views::filter asks for it twice.
///
/// How many there are shows only at the end of an epoch, so a run that resumes inside one reads
/// again what comes before its place, and says so.
template <class F>
auto filter(F wanted) {
  return detail::step([wanted = std::move(wanted)](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    static_assert(std::predicate<const F&, const T&>,
                  "tutti: views::filter cannot ask this function; give it bool wanted(const T&), T "
                  "being what the step before gives.");
    return Examples<T, false>([of = std::move(of), wanted](detail::Pass& pass) {
      auto stream = detail::in_turn(of.open(pass));
      detail::refuse_behind_shard("filter", pass);
      return std::make_shared<detail::Filtered<T, F>>(std::move(stream), wanted);
    });
  });
}

}  // namespace tutti::views
