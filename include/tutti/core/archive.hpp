// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/archive_leaf.hpp>
#include <tutti/core/detail/archive_path.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti {

class Archive;

namespace detail {

template <class T>
inline constexpr bool is_list = false;
template <class T>
inline constexpr bool is_list<std::vector<T>> = true;

}  // namespace detail

/// What an Archive holds: bool, any integer, float, double, text, at::Tensor, or a std::vector of
/// these.
template <class T>
concept Archivable =
    std::integral<T> || std::same_as<T, float> || std::same_as<T, double> ||
    std::convertible_to<T, std::string_view> || std::same_as<T, at::Tensor> || detail::is_list<T>;

/// A tree of named tensors and scalars: what objects save themselves into, and a checkpoint writes.
///
/// Entries keep their order. A name may be a path, `"optimizers/0/lr"`: what lies between is made
/// by put() and walked by get(). Scalars come back exactly, every bit of a double included. Tensors
/// are kept as handles: one that is changed in place after put() changes here too until the archive
/// is written. Copying copies the tree and shares the tensors. Every error is a c10::Error that
/// names the full path, and what is there instead.
class Archive {
 public:
  using Leaf = ArchiveLeaf;
  class Entry;

  /// Names in a path, at most: each child notes its own, and the tree is walked by recursion.
  static constexpr std::size_t max_depth = 32;
  Archive() = default;

  /// Adds a value under a name that is still free.
  ///
  /// value: see Archivable; a std::vector becomes a child whose entries are named 0, 1, ...
  /// Throws c10::Error when the name is empty or taken or the path has more than max_depth names.
  template <Archivable T>
  void put(std::string_view path, const T& value);

  /// Adds a copy of a whole archive as a child, under a name that is still free.
  void put(std::string_view path, const Archive& value);

  /// The value under a name, as the kind that was put.
  ///
  /// T: as for put(); text as std::string. An integer is returned as any integer type that holds
  /// it. Throws c10::Error when nothing is there, it is of another kind, or does not fit T.
  template <Archivable T>
  T get(std::string_view path) const;

  /// get(), or `fallback` when nothing is under that name. Throws as get() when it is of another
  /// kind.
  template <Archivable T>
  T get_or(std::string_view path, T fallback) const {
    return contains(path) ? get<T>(path) : std::move(fallback);
  }

  /// get<at::Tensor>(): a handle on the tensor in the archive, which is not copied.
  at::Tensor tensor(std::string_view path) const;

  /// Whether a value or a child bears that name.
  bool contains(std::string_view path) const { return find(path) != nullptr; }

  /// The child of that name, made when there is none. Throws c10::Error when a value bears the
  /// name.
  Archive& child(std::string_view path);

  /// The child of that name. Throws c10::Error when there is none, naming what is there.
  const Archive& child(std::string_view path) const;

  /// Removes a value or a child; false when there was none.
  bool erase(std::string_view path);

  /// Entries in the order in which they were put; each is a value or a child.
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return order_.size(); }
  bool empty() const { return size() == 0; }

  /// Names of the direct entries, in order.
  std::vector<std::string> names() const;

  /// Calls `visit(path, leaf)` for every value of the tree, children included, in order; `path` is
  /// joined by slashes and relative to this archive.
  template <class Visit>
  void each_leaf(Visit&& visit) const {
    visit_leaves(visit, "");
  }

  /// Where this archive lies in the tree it was reached through; empty for a root.
  const std::string& path() const { return path_; }

 private:
  const Entry* find(std::string_view path) const;
  const Entry& require(std::string_view path) const;
  void put_leaf(std::string_view path, Leaf leaf);
  Entry& add(std::string_view name);
  std::string full(std::string_view path) const {
    return path_.empty() ? std::string(path) : path_ + '/' + std::string(path);
  }
  std::string inventory() const;
  void require_depth(std::string_view path) const;
  void place(std::string path);
  template <class Visit>
  void visit_leaves(Visit& visit, const std::string& prefix) const;
  template <class T>
  T leaf_as(std::string_view path) const;
  [[noreturn]] void refuse(std::string_view path, const Entry& entry,
                           std::string_view expected) const;

  // The place in order_ of the first entry whose name is not less.
  std::vector<std::size_t>::const_iterator rank_of(std::string_view name) const;
  const Entry* direct(std::string_view name) const;
  std::vector<Entry> entries_;
  std::vector<std::size_t> order_;  // of the entries by their names
  std::string path_;
};

/// A name and the value or child that bears it.
class Archive::Entry {
 public:
  explicit Entry(std::string_view its_name) : name(its_name) {}

  std::string name;

  bool is_child() const { return is_child_; }
  const Archive& child() const { return child_; }  ///< empty for a value
  const Leaf& leaf() const { return leaf_; }       ///< false for a child

  /// As Leaf::kind(), or "a child archive".
  std::string_view kind() const { return is_child() ? "a child archive" : leaf_.kind(); }

 private:
  friend class Archive;

  bool is_child_ = false;
  Leaf leaf_;
  Archive child_;
};

template <Archivable T>
void Archive::put(std::string_view path, const T& value) {
  if constexpr (detail::is_list<T>) {
    TUTTI_CHECK(!contains(path), "archive: '", full(path), "' is saved twice");
    Archive& list = child(path);
    for (std::size_t i = 0; i < value.size(); ++i) {
      list.put(std::to_string(i), static_cast<typename T::value_type>(value[i]));
    }
  } else if constexpr (std::same_as<T, bool>) {
    put_leaf(path, Leaf(value));
  } else if constexpr (std::integral<T>) {
    if (std::in_range<std::int64_t>(value)) {
      put_leaf(path, Leaf(static_cast<std::int64_t>(value)));
    } else {
      put_leaf(path, Leaf(static_cast<std::uint64_t>(value)));
    }
  } else if constexpr (std::floating_point<T>) {
    put_leaf(path, Leaf(static_cast<double>(value)));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    put_leaf(path, Leaf(value));
  } else {
    put_leaf(path, Leaf(std::string(std::string_view(value))));
  }
}

template <class T>
T Archive::leaf_as(std::string_view path) const {
  const Entry& entry = require(path);
  return entry.leaf().visit([&](const auto& value) -> T {
    constexpr bool fits = std::same_as<std::remove_cvref_t<decltype(value)>, T>;
    if constexpr (fits) {
      if (!entry.is_child()) {
        return value;
      }
    }
    refuse(path, entry, detail::leaf_kind<T>());
  });
}

template <Archivable T>
T Archive::get(std::string_view path) const {
  if constexpr (detail::is_list<T>) {
    const Archive& list = child(path);
    T out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      out.push_back(list.get<typename T::value_type>(std::to_string(i)));
    }
    return out;
  } else if constexpr (std::same_as<T, bool>) {
    return leaf_as<bool>(path);
  } else if constexpr (std::integral<T>) {
    const Entry& entry = require(path);
    return entry.leaf().visit([&](const auto& value) -> T {
      using V = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::integral<V> && !std::same_as<V, bool>) {
        TUTTI_CHECK(std::in_range<T>(value), "archive: '", full(path), "' is ", value,
                    ", which the integer it is read into cannot hold");
        return static_cast<T>(value);
      }
      refuse(path, entry, "an integer");
    });
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(leaf_as<double>(path));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return leaf_as<at::Tensor>(path);
  } else {
    static_assert(std::is_same_v<T, std::string>,
                  "tutti: text is read as std::string; write get<std::string>.");
    if constexpr (std::is_same_v<T, std::string>) {
      return leaf_as<std::string>(path);
    }
  }
}

template <class Visit>
void Archive::visit_leaves(Visit& visit, const std::string& prefix) const {
  for (const auto& entry : entries_) {
    const std::string path = prefix.empty() ? entry.name : prefix + '/' + entry.name;
    if (entry.is_child()) {
      entry.child().visit_leaves(visit, path);
    } else {
      visit(path, entry.leaf());
    }
  }
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/core/archive.inl.hpp>
#endif
