// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/archive.hpp>

namespace tutti {

TUTTI_INLINE std::vector<std::size_t>::const_iterator Archive::rank_of(
    std::string_view name) const {
  return std::lower_bound(
      order_.begin(), order_.end(), name,
      [this](std::size_t i, std::string_view other) { return entries_[i].name < other; });
}

TUTTI_INLINE const Archive::Entry* Archive::direct(std::string_view name) const {
  const auto found = rank_of(name);
  return found != order_.end() && entries_[*found].name == name ? &entries_[*found] : nullptr;
}

TUTTI_INLINE Archive::Entry& Archive::add(std::string_view name) {
  TUTTI_CHECK(!name.empty(), "archive: an entry of '", path_, "' has an empty name");
  order_.insert(rank_of(name), entries_.size());
  entries_.push_back(Entry(name));
  return entries_.back();
}

TUTTI_INLINE const Archive::Entry* Archive::find(std::string_view path) const {
  const auto [head, rest] = detail::split_path(path);
  const Entry* entry = direct(head);
  if (entry == nullptr || head.size() == path.size()) {
    return entry;
  }
  return entry->is_child() ? entry->child().find(rest) : nullptr;
}

TUTTI_INLINE const Archive::Entry& Archive::require(std::string_view path) const {
  const auto [head, rest] = detail::split_path(path);
  const Entry* entry = direct(head);
  TUTTI_CHECK(entry != nullptr, "archive: nothing is saved under '", full(head), "'; ",
              path_.empty() ? "the archive" : "'" + path_ + "'", " has ", inventory());
  if (head.size() == path.size()) {
    return *entry;
  }
  TUTTI_CHECK(entry->is_child(), "archive: '", full(head), "' is ", entry->kind(),
              ", expected a child archive with '", rest, "'");
  return entry->child().require(rest);
}

TUTTI_INLINE std::string Archive::inventory() const {
  constexpr std::size_t shown = 20;
  std::string out;
  for (std::size_t i = 0; i < entries_.size() && i < shown; ++i) {
    out += (i == 0 ? "" : ", ") + entries_[i].name;
  }
  if (entries_.size() > shown) {
    out += ", and " + std::to_string(entries_.size() - shown) + " more";
  }
  return out.empty() ? "no entries" : out;
}

TUTTI_INLINE std::vector<std::string> Archive::names() const {
  std::vector<std::string> out;
  for (const auto& entry : entries_) {
    out.push_back(entry.name);
  }
  return out;
}

TUTTI_INLINE void Archive::require_depth(std::string_view path) const {
  const auto depth = detail::count_names(path_) + detail::count_names(path);
  TUTTI_CHECK(depth <= max_depth, "archive: '", full(path).substr(0, 64), "...' has ", depth,
              " names in its path, expected at most ", max_depth);
}

TUTTI_INLINE Archive& Archive::child(std::string_view path) {
  require_depth(path);
  const auto [head, rest] = detail::split_path(path);
  auto* entry = const_cast<Entry*>(direct(head));
  if (entry == nullptr) {
    entry = &add(head);
    entry->is_child_ = true;
    entry->child_.path_ = full(head);
  }
  TUTTI_CHECK(entry->is_child(), "archive: '", full(head), "' is ", entry->kind(),
              ", so it cannot be a child archive too");
  Archive& below = entry->child_;
  return head.size() == path.size() ? below : below.child(rest);
}

TUTTI_INLINE const Archive& Archive::child(std::string_view path) const {
  const Entry& entry = require(path);
  TUTTI_CHECK(entry.is_child(), "archive: '", full(path), "' is ", entry.kind(),
              ", expected a child archive");
  return entry.child();
}

TUTTI_INLINE void Archive::put_leaf(std::string_view path, Leaf leaf) {
  require_depth(path);
  const auto slash = path.rfind('/');
  if (slash != std::string_view::npos) {
    child(path.substr(0, slash)).put_leaf(path.substr(slash + 1), std::move(leaf));
    return;
  }
  TUTTI_CHECK(!contains(path), "archive: '", full(path),
              "' is saved twice; erase() the first or choose "
              "another name");
  add(path).leaf_ = std::move(leaf);
}

TUTTI_INLINE void Archive::place(std::string path) {
  path_ = std::move(path);
  for (auto& entry : entries_) {
    require_depth(entry.name);
    if (entry.is_child()) {
      entry.child_.place(path_ + '/' + entry.name);
    }
  }
}

TUTTI_INLINE void Archive::put(std::string_view path, const Archive& value) {
  TUTTI_CHECK(!contains(path), "archive: '", full(path), "' is saved twice");
  Archive copy = value;
  copy.place(full(path));
  child(path) = std::move(copy);
}

TUTTI_INLINE void Archive::refuse(std::string_view path, const Entry& entry,
                                  std::string_view expected) const {
  TUTTI_CHECK(false, "archive: '", full(path), "' is ", entry.kind(), ", expected ", expected);
}

TUTTI_INLINE at::Tensor Archive::tensor(std::string_view path) const {
  return leaf_as<at::Tensor>(path);
}

TUTTI_INLINE bool Archive::erase(std::string_view path) {
  const auto [head, rest] = detail::split_path(path);
  const auto found = rank_of(head);
  if (found == order_.end() || entries_[*found].name != head) {
    return false;
  }
  const std::size_t gone = *found;
  if (head.size() != path.size()) {
    return entries_[gone].is_child() && entries_[gone].child_.erase(rest);
  }
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(gone));
  order_.erase(found);
  for (std::size_t& position : order_) {
    position -= position > gone ? 1U : 0U;
  }
  return true;
}

}  // namespace tutti
