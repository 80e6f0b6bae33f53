// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/core/batch.hpp>
#include <tutti/data/detail/to_batch.hpp>
#include <tutti/data/packing.hpp>
#include <tutti/views/examples.hpp>
#include <tutti/views/filter.hpp>

namespace tutti::views {

namespace detail {

template <class T>
class Packed final : public Gathering<Batch, T> {
 public:
  Packed(std::shared_ptr<Stream<T>> of, const data::PackingOptions& options)
      : Gathering<Batch, T>(std::move(of), "pack"), packer_(options) {}

  std::int64_t size() const override { return -1; }

 private:
  std::vector<Batch> push(T document) override {
    return at_place("views::pack: document ", this->reads_ - 1,
                    [&] { return packer_.push(tutti::detail::to_batch(std::move(document))); });
  }
  std::vector<Batch> finish() override { return packer_.finish(); }

  data::DocumentPacker packer_;
};

}  // namespace detail

/// Several documents in one example, as data::DocumentPacker puts them together.
///
///     auto train = texts | tutti::views::shuffle() | tutti::views::map(tokens) |
///                  tutti::views::pack({.length = 2048}) |
///                  tutti::views::batch({.size = 8, .collate = tutti::data::PadSequences{}});
///
/// A document is what data::join_documents() takes: a Batch of tensors of one dimension with
/// `input_ids`. An example has `labels`, `sequence_id` and `position_ids` besides.
/// How many there are shows only at the end of an epoch, so a run that resumes inside one reads
/// again what comes before its place; data::PackedDataset goes on at once.
/// Throws c10::ValueError when an option is out of range.
inline auto pack(const data::PackingOptions& options) {
  options.validate();
  return detail::step([options](auto&& range) {
    auto of = detail::examples(std::forward<decltype(range)>(range));
    using T = detail::value_of<decltype(of)>;
    static_assert(tutti::detail::BatchLike<T>,
                  "tutti: views::pack cannot pack these elements; map them to a tutti::Batch with "
                  "\"input_ids\".");
    return Examples<Batch, false>([of = std::move(of), options](detail::Pass& pass) {
      auto stream = detail::in_turn(of.open(pass));
      detail::refuse_behind_shard("pack", pass);
      return std::make_shared<detail::Packed<T>>(std::move(stream), options);
    });
  });
}

/// The same with a length alone.
inline auto pack(std::int64_t length) {
  return pack(data::PackingOptions{.length = length});
}

}  // namespace tutti::views
