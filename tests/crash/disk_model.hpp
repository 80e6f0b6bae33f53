// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "crash/file_calls.hpp"
#include "support/temporary_folder.hpp"

// What can be on a disk after a power failure.
//
// Model of Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014: a call's effect
// lasts for certain only once fsync() of the file, or for names of the folder, has returned. Until
// then each effect may be on the disk or not, whatever came before or after it, and a write may be
// there in part, or as zeros of its length. Renames and other changes of names are there whole or
// not at all.

namespace crash {

/// Files, links and folders by inode; 0 is the watched folder.
struct Disk {
  struct Node {
    enum Kind { folder, file, link } kind = folder;
    std::string data{};                  // of a file; where a link leads
    std::map<std::string, int> names{};  // of a folder
    bool operator==(const Node&) const = default;
  };
  std::vector<Node> nodes{1};

  /// All that can be reached, as one text, to tell states apart.
  std::string text(int node = 0) const {
    const Node& at = nodes[static_cast<std::size_t>(node)];
    std::string out = std::to_string(at.kind) + std::to_string(at.data.size()) + ':' + at.data;
    for (const auto& [name, inode] : at.names) {
      out += '{' + name + '=' + text(inode) + '}';
    }
    return out;
  }

  /// Makes it real in a folder that is empty.
  void make(const std::filesystem::path& path, int node = 0) const {
    const Node& at = nodes[static_cast<std::size_t>(node)];
    if (at.kind == Node::file) {
      write_bytes(path, at.data);
    } else if (at.kind == Node::link) {
      std::filesystem::create_symlink(at.data, path);
    } else {
      std::filesystem::create_directory(path);
      for (const auto& [name, inode] : at.names) {
        make(path / name, inode);
      }
    }
  }
};

/// Records the calls of a writer and enumerates what crashes during them can leave.
class Recording {
 public:
  /// folder: what is there already is on the disk for certain.
  explicit Recording(std::filesystem::path folder) : root_(std::move(folder)) {
    read(root_, 0);
    now_ = start_;
  }

  /// Takes one call.
  void operator()(const Call& call) {
    const auto [folder, name] = place(call.path);
    switch (call.kind) {
      case Call::create:
        return enter(folder, name, make(Disk::Node::file, {}));
      case Call::mkdir:
        return enter(folder, name, make(Disk::Node::folder, {}));
      case Call::symlink:
        return enter(folder, name, make(Disk::Node::link, call.other));
      case Call::write:
        return add({.node = find(call.path), .data = call.data, .is_write = true});
      case Call::sync:
        return add({.node = find(call.path), .is_sync = true});
      case Call::unlink:
        return add({.node = folder, .names = {{name, -1}}});
      case Call::rename:
        return add(
            {.node = folder, .names = {{name, -1}, {place(call.other).second, find(call.path)}}});
      case Call::exchange:
        return add(
            {.node = folder,
             .names = {{name, find(call.other)}, {place(call.other).second, find(call.path)}}});
    }
  }

  std::size_t calls() const { return effects_.size(); }

  /// Calls `visit(disk, done)` for every crash point: after each number of calls, every subset of
  /// what is not certain (of more than ten things a selection), with every write that is not
  /// certain also torn at several places. `done`: all calls had returned. Returns how many there
  /// were.
  std::size_t each_crash(const std::function<void(const Disk&, bool done)>& visit) const {
    std::size_t count = 0;
    for (std::size_t end = 0; end <= effects_.size(); ++end) {
      const std::vector<std::size_t> open = uncertain(end);
      for (const std::set<std::size_t>& lost : losses(open)) {
        visit(state(end, lost, effects_.size(), 0), end == effects_.size());
        ++count;
        for (const std::size_t torn : open) {
          if (effects_[torn].is_write && lost.count(torn) == 0) {
            for (const std::size_t cut : cuts(effects_[torn].data.size())) {
              visit(state(end, lost, torn, cut), end == effects_.size());
              ++count;
            }
          }
        }
      }
    }
    return count;
  }

 private:
  static constexpr std::size_t as_zeros = ~std::size_t{0};

  struct Effect {
    int node = 0;
    std::string data{};
    std::vector<std::pair<std::string, int>> names{};  // what becomes of them; -1: gone
    bool is_write = false;
    bool is_sync = false;
  };

  static std::vector<std::size_t> cuts(std::size_t size) {
    std::set<std::size_t> out{1, size / 4, size / 2, size - 1, as_zeros};
    for (std::size_t sector = 512; sector < size; sector += 512) {
      out.insert(sector);
    }
    out.erase(0);
    return {out.begin(), out.end()};
  }

  // Every subset of a few; of many, what is lost is one, all but one, a head or a tail.
  static std::set<std::set<std::size_t>> losses(const std::vector<std::size_t>& open) {
    constexpr std::size_t few = 10;
    std::set<std::set<std::size_t>> out;
    if (open.size() <= few) {
      for (std::size_t subset = 0; subset < std::size_t{1} << open.size(); ++subset) {
        std::set<std::size_t> lost;
        for (std::size_t i = 0; i < open.size(); ++i) {
          if ((subset >> i & 1U) == 0) {
            lost.insert(open[i]);
          }
        }
        out.insert(std::move(lost));
      }
      return out;
    }
    const std::set<std::size_t> all(open.begin(), open.end());
    for (std::size_t i = 0; i <= open.size(); ++i) {
      const auto middle = open.begin() + static_cast<std::ptrdiff_t>(i);
      out.insert(std::set<std::size_t>(open.begin(), middle));
      out.insert(std::set<std::size_t>(middle, open.end()));
      if (i < open.size()) {
        std::set<std::size_t> others = all;
        others.erase(open[i]);
        out.insert(std::move(others));
        out.insert({open[i]});
      }
    }
    return out;
  }

  void add(Effect effect) {
    apply(effect, now_, effect.data.size());
    effects_.push_back(std::move(effect));
  }
  void enter(int folder, const std::string& name, int node) {
    add({.node = folder, .names = {{name, node}}});
  }

  // A new inode, known to the start as well: an inode without a name is nothing.
  int make(Disk::Node::Kind kind, std::string data) {
    start_.nodes.push_back({.kind = kind, .data = data});
    now_.nodes.push_back({.kind = kind, .data = std::move(data)});
    return static_cast<int>(now_.nodes.size()) - 1;
  }

  void read(const std::filesystem::path& folder, int node) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const bool link = entry.is_symlink();
      const int inode = static_cast<int>(start_.nodes.size());
      start_.nodes.push_back(
          {.kind = link                   ? Disk::Node::link
                   : entry.is_directory() ? Disk::Node::folder
                                          : Disk::Node::file,
           .data = link ? std::filesystem::read_symlink(entry.path()).string() : std::string()});
      start_.nodes[static_cast<std::size_t>(node)].names[entry.path().filename()] = inode;
      if (!link && entry.is_directory()) {
        read(entry.path(), inode);
      } else if (!link) {
        start_.nodes.back().data = read_bytes(entry.path());
      }
    }
  }

  int find(const std::filesystem::path& path) const {
    int node = 0;
    for (const auto& part : path.lexically_relative(root_)) {
      if (part != ".") {
        node = now_.nodes[static_cast<std::size_t>(node)].names.at(part);
      }
    }
    return node;
  }
  std::pair<int, std::string> place(const std::filesystem::path& path) const {
    return path == root_ ? std::pair(0, std::string())
                         : std::pair(find(path.parent_path()), path.filename().string());
  }

  // size: how much of a write; as_zeros: all of it as zeros.
  static void apply(const Effect& effect, Disk& disk, std::size_t size) {
    Disk::Node& node = disk.nodes[static_cast<std::size_t>(effect.node)];
    if (effect.is_write) {
      node.data +=
          size == as_zeros ? std::string(effect.data.size(), '\0') : effect.data.substr(0, size);
    }
    for (const auto& [name, inode] : effect.names) {
      if (inode < 0) {
        node.names.erase(name);
      } else {
        node.names[name] = inode;
      }
    }
  }

  // The effects before `end` that no later sync before `end` has made certain.
  std::vector<std::size_t> uncertain(std::size_t end) const {
    std::vector<std::size_t> out;
    std::set<int> synced;
    for (std::size_t i = end; i-- > 0;) {
      if (effects_[i].is_sync) {
        synced.insert(effects_[i].node);
      } else if (synced.count(effects_[i].node) == 0) {
        out.insert(out.begin(), i);
      }
    }
    return out;
  }

  Disk state(std::size_t end, const std::set<std::size_t>& lost, std::size_t torn,
             std::size_t cut) const {
    Disk out = start_;
    std::map<int, std::size_t> holes;  // lost bytes, which read as zeros when more follows them
    for (std::size_t i = 0; i < end; ++i) {
      const Effect& effect = effects_[i];
      std::size_t& hole = holes[effect.node];
      if (lost.count(i) > 0) {
        hole += effect.is_write ? effect.data.size() : 0;
        continue;
      }
      if (effect.is_write) {
        out.nodes[static_cast<std::size_t>(effect.node)].data.append(std::exchange(hole, 0), '\0');
      }
      apply(effect, out, i == torn ? cut : effect.data.size());
    }
    return out;
  }

  std::filesystem::path root_;
  Disk start_;
  Disk now_;
  std::vector<Effect> effects_;
};

}  // namespace crash
