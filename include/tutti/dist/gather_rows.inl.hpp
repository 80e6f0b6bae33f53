// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/gather_rows.hpp>

namespace tutti::dist {

namespace detail {

/// A tensor's type and sizes.
struct RowLayout {
  at::ScalarType type;
  std::vector<std::int64_t> sizes;

  [[nodiscard]] std::string bytes() const {
    std::vector<std::int64_t> numbers{static_cast<std::int64_t>(type)};
    numbers.insert(numbers.end(), sizes.begin(), sizes.end());
    std::string out(numbers.size() * sizeof(std::int64_t), '\0');
    std::memcpy(out.data(), numbers.data(), out.size());
    return out;
  }

  static RowLayout of(const std::string& bytes) {
    std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
    TUTTI_CHECK(numbers.size() > 1, "gather_rows: a rank sent ", bytes.size(),
                " bytes, expected the type and the sizes of its rows");
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::int64_t));
    return {static_cast<at::ScalarType>(numbers[0]), {numbers.begin() + 1, numbers.end()}};
  }

  [[nodiscard]] bool same_rows(const RowLayout& other) const {
    return type == other.type && sizes.size() == other.sizes.size() &&
           std::equal(sizes.begin() + 1, sizes.end(), other.sizes.begin() + 1);
  }
};

}  // namespace detail

TUTTI_INLINE at::Tensor gather_rows(Communicator& group, const at::Tensor& rows) {
  TUTTI_CHECK(rows.dim() > 0, "gather_rows: got a tensor without dimensions, expected rows");
  std::vector<detail::RowLayout> layouts;
  const detail::RowLayout own{rows.scalar_type(), rows.sizes().vec()};
  for (const std::string& bytes : group.all_gather_bytes(own.bytes())) {
    layouts.push_back(detail::RowLayout::of(bytes));
  }
  const auto has_rows = [](const detail::RowLayout& layout) { return layout.sizes[0] > 0; };
  const auto like = std::find_if(layouts.begin(), layouts.end(), has_rows);
  if (like == layouts.end()) {
    return rows;
  }
  std::vector<std::int64_t> sizes = like->sizes;
  for (const auto& layout : layouts) {
    TUTTI_CHECK(!has_rows(layout) || layout.same_rows(*like), "gather_rows: rank ",
                &layout - layouts.data(), " has ", layout.type, " ", at::IntArrayRef(layout.sizes),
                " and rank ", &*like - layouts.data(), " has ", like->type, " ",
                at::IntArrayRef(like->sizes), ", expected rows of one type and size");
    sizes[0] = std::max(sizes[0], layout.sizes[0]);
  }
  at::Tensor padded = rows.new_zeros(sizes, rows.options().dtype(like->type));
  if (rows.size(0) > 0) {
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
  }
  std::vector<at::Tensor> parts = group.all_gather(padded);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    parts[rank] = parts[rank].narrow(0, 0, layouts[rank].sizes[0]);
  }
  return at::cat(parts);
}

}  // namespace tutti::dist
