// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/data/sampler.hpp>
#include <tutti/views/detail/dealt.hpp>
#include <tutti/views/examples.hpp>

namespace tutti::views {

namespace detail {

template <class T>
class Dealt final : public Indexed<T> {
 public:
  Dealt(std::shared_ptr<Indexed<T>> of, const Pass& pass, bool drop_last)
      : of_(std::move(of)),
        share_(of_->size(),
               {.drop_last = drop_last, .rank = pass.rank, .world_size = pass.world_size}) {}
  std::int64_t size() const override { return share_.size(); }
  T at(std::int64_t i) const override { return of_->at(share_[i]); }

 private:
  std::shared_ptr<Indexed<T>> of_;
  DistributedSampler share_;
};

}  // namespace detail

/// This rank's share of the examples from here on, as DistributedSampler deals them: number rank,
/// rank + world_size, ...; where the ranks do not divide them, some of the beginning again at the
/// end, or with drop_last none of the tail.
///
/// A pipeline without it is dealt where it becomes batches, which suits all but one that shuffles
/// or maps each rank's share apart. Steps behind it that change how many examples there are, such
/// as filter, are refused by their names: ranks would get unequally many batches. Evaluation counts
/// the repeated ones here; leave the dealing of evaluation sets to batch.
/// Throws c10::ValueError when the examples are dealt already.
inline auto shard(bool drop_last = false) {
  return detail::step([drop_last](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    constexpr bool indexed = detail::indexed_of<decltype(of)>;
    return Examples<T, indexed>([of = std::move(of), drop_last](detail::Pass& pass) {
      const detail::Pass before = pass;
      auto flow = of.open(pass);
      TUTTI_CHECK_VALUE(!std::exchange(pass.dealt, true),
                        "views::shard: the examples are dealt to ranks already, by a views::shard "
                        "before; leave one of them out");
      if constexpr (indexed) {
        return std::make_shared<detail::Dealt<T>>(std::move(flow), pass, drop_last);
      } else {
        const auto open = [of](detail::Pass& anew) { return of.open(anew); };
        return std::make_shared<detail::DealtStream<T>>(open, before, std::move(flow), drop_last);
      }
    });
  });
}

}  // namespace tutti::views
