#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

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
concept Archivable = std::integral<T> || std::same_as<T, float> || std::same_as<T, double> ||
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
  /// One value. std::uint64_t holds only what is too large for std::int64_t.
  using Leaf = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, at::Tensor>;
  struct Entry;

  Archive() = default;

  /// Adds a value under a name that is still free.
  ///
  /// value: see Archivable; a std::vector becomes a child whose entries are named 0, 1, ...
  /// Throws c10::Error when the name is empty or taken.
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
  std::size_t size() const;
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
  void place(std::string path);
  template <class Visit>
  void visit_leaves(Visit& visit, const std::string& prefix) const;
  template <class T>
  const T& leaf_as(std::string_view path) const;

  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::string path_;
};

/// A name and the value or child that bears it.
struct Archive::Entry {
  std::string name;
  std::variant<Leaf, Archive> value;

  bool is_child() const { return std::holds_alternative<Archive>(value); }
  const Archive& child() const { return std::get<Archive>(value); }
  const Leaf& leaf() const { return std::get<Leaf>(value); }

  /// "a bool", "an integer", "a double", "text", "a tensor" or "a child archive".
  std::string_view kind() const {
    constexpr std::string_view names[] = {"a bool",   "an integer", "an integer",
                                          "a double", "text",       "a tensor"};
    return is_child() ? "a child archive" : names[leaf().index()];
  }
};

namespace detail {

/// "a/b/c" as "a" and "b/c".
inline std::pair<std::string_view, std::string_view> split_path(std::string_view path) {
  const auto slash = path.find('/');
  return slash == std::string_view::npos ? std::pair(path, std::string_view())
                                         : std::pair(path.substr(0, slash), path.substr(slash + 1));
}

template <class T>
constexpr std::string_view leaf_kind() {
  if constexpr (std::same_as<T, bool>) {
    return "a bool";
  } else if constexpr (std::integral<T>) {
    return "an integer";
  } else if constexpr (std::floating_point<T>) {
    return "a double";
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return "a tensor";
  } else {
    return "text";
  }
}

}  // namespace detail

inline Archive::Entry& Archive::add(std::string_view name) {
  TORCH_CHECK(!name.empty(), "archive: an entry of '", path_, "' has an empty name");
  index_.emplace(std::string(name), entries_.size());
  return entries_.emplace_back(Entry{std::string(name), Leaf(false)});
}

inline const Archive::Entry* Archive::find(std::string_view path) const {
  const auto [head, rest] = detail::split_path(path);
  const auto found = index_.find(head);
  if (found == index_.end()) {
    return nullptr;
  }
  const Entry& entry = entries_[found->second];
  if (head.size() == path.size()) {
    return &entry;
  }
  return entry.is_child() ? entry.child().find(rest) : nullptr;
}

inline const Archive::Entry& Archive::require(std::string_view path) const {
  const auto [head, rest] = detail::split_path(path);
  const auto found = index_.find(head);
  TORCH_CHECK(found != index_.end(), "archive: nothing is saved under '", full(head), "'; ",
              path_.empty() ? "the archive" : "'" + path_ + "'", " has ", inventory());
  const Entry& entry = entries_[found->second];
  if (head.size() == path.size()) {
    return entry;
  }
  TORCH_CHECK(entry.is_child(), "archive: '", full(head), "' is ", entry.kind(),
              ", expected a child archive with '", rest, "'");
  return entry.child().require(rest);
}

inline std::string Archive::inventory() const {
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

inline std::size_t Archive::size() const {
  return entries_.size();
}

inline std::vector<std::string> Archive::names() const {
  std::vector<std::string> out;
  for (const auto& entry : entries_) {
    out.push_back(entry.name);
  }
  return out;
}

inline Archive& Archive::child(std::string_view path) {
  const auto [head, rest] = detail::split_path(path);
  const auto found = index_.find(head);
  Entry* entry = found == index_.end() ? nullptr : &entries_[found->second];
  if (entry == nullptr) {
    entry = &add(head);
    entry->value.emplace<Archive>().path_ = full(head);
  }
  TORCH_CHECK(entry->is_child(), "archive: '", full(head), "' is ", entry->kind(),
              ", so it cannot be a child archive too");
  auto& below = std::get<Archive>(entry->value);
  return head.size() == path.size() ? below : below.child(rest);
}

inline const Archive& Archive::child(std::string_view path) const {
  const Entry& entry = require(path);
  TORCH_CHECK(entry.is_child(), "archive: '", full(path), "' is ", entry.kind(),
              ", expected a child archive");
  return entry.child();
}

inline void Archive::put_leaf(std::string_view path, Leaf leaf) {
  const auto slash = path.rfind('/');
  if (slash != std::string_view::npos) {
    child(path.substr(0, slash)).put_leaf(path.substr(slash + 1), std::move(leaf));
    return;
  }
  TORCH_CHECK(!contains(path), "archive: '", full(path),
              "' is saved twice; erase() the first or choose "
              "another name");
  add(path).value = std::move(leaf);
}

template <Archivable T>
void Archive::put(std::string_view path, const T& value) {
  if constexpr (detail::is_list<T>) {
    TORCH_CHECK(!contains(path), "archive: '", full(path), "' is saved twice");
    Archive& list = child(path);
    for (std::size_t i = 0; i < value.size(); ++i) {
      list.put(std::to_string(i), static_cast<typename T::value_type>(value[i]));
    }
  } else if constexpr (std::same_as<T, bool>) {
    put_leaf(path, value);
  } else if constexpr (std::integral<T>) {
    if (std::in_range<std::int64_t>(value)) {
      put_leaf(path, static_cast<std::int64_t>(value));
    } else {
      put_leaf(path, static_cast<std::uint64_t>(value));
    }
  } else if constexpr (std::floating_point<T>) {
    put_leaf(path, static_cast<double>(value));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    put_leaf(path, value);
  } else {
    put_leaf(path, std::string(std::string_view(value)));
  }
}

inline void Archive::place(std::string path) {
  path_ = std::move(path);
  for (auto& entry : entries_) {
    if (entry.is_child()) {
      std::get<Archive>(entry.value).place(path_ + '/' + entry.name);
    }
  }
}

inline void Archive::put(std::string_view path, const Archive& value) {
  TORCH_CHECK(!contains(path), "archive: '", full(path), "' is saved twice");
  Archive copy = value;
  copy.place(full(path));
  child(path) = std::move(copy);
}

template <class T>
const T& Archive::leaf_as(std::string_view path) const {
  const Entry& entry = require(path);
  const T* value = entry.is_child() ? nullptr : std::get_if<T>(&entry.leaf());
  TORCH_CHECK(value != nullptr, "archive: '", full(path), "' is ", entry.kind(), ", expected ",
              detail::leaf_kind<T>());
  return *value;
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
    const auto convert = [&](auto value) {
      TORCH_CHECK(std::in_range<T>(value), "archive: '", full(path), "' is ", value,
                  ", which the integer it is read into cannot hold");
      return static_cast<T>(value);
    };
    const auto* large = entry.is_child() ? nullptr : std::get_if<std::uint64_t>(&entry.leaf());
    return large != nullptr ? convert(*large) : convert(leaf_as<std::int64_t>(path));
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(leaf_as<double>(path));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return leaf_as<at::Tensor>(path);
  } else {
    static_assert(std::same_as<T, std::string>,
                  "tutti: text is read as std::string; write get<std::string>.");
    return leaf_as<std::string>(path);
  }
}

inline at::Tensor Archive::tensor(std::string_view path) const {
  return leaf_as<at::Tensor>(path);
}

inline bool Archive::erase(std::string_view path) {
  const auto [head, rest] = detail::split_path(path);
  const auto found = index_.find(head);
  if (found == index_.end()) {
    return false;
  }
  Entry& entry = entries_[found->second];
  if (head.size() != path.size()) {
    return entry.is_child() && std::get<Archive>(entry.value).erase(rest);
  }
  const std::size_t gone = found->second;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(gone));
  index_.erase(found);
  for (auto& [name, position] : index_) {
    position -= position > gone ? 1U : 0U;
  }
  return true;
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
