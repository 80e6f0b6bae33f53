// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
class Packed final : public Stream<Batch> {
 public:
  Packed(std::shared_ptr<Stream<T>> of, const data::PackingOptions& options)
      : of_(std::move(of)), packer_(options) {}

  std::int64_t size() const override { return -1; }
  std::optional<Batch> next() override {
    while (place_ == done_.size()) {
      if (over_) {
        return std::nullopt;
      }
      place_ = 0;
      std::optional<T> document = of_->next();
      over_ = !document;
      done_ = over_ ? packer_.finish() : at_place("views::pack: document ", reads_, [&] {
        return packer_.push(tutti::detail::to_batch(std::move(*document)));
      });
      reads_ += over_ ? 0 : 1;
    }
    return std::move(done_[place_++]);
  }
  std::int64_t skip(std::int64_t n) override {
    std::int64_t gone = 0;
    while (gone < n && next()) {
      ++gone;
    }
    return gone;
  }
  std::int64_t reads() const override { return reads_; }
  std::string reader() const override { return "pack"; }

 private:
  std::shared_ptr<Stream<T>> of_;
  data::DocumentPacker packer_;
  std::vector<Batch> done_{};
  std::size_t place_ = 0;
  bool over_ = false;
  std::int64_t reads_ = 0;
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
