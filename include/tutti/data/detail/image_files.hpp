// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/data/detail/file_reader.hpp>
#include <tutti/data/detail/tar.hpp>

namespace tutti::data::detail {

// A file of a class, CLASS/NAME or CLASS/FOLDER/NAME.
struct ImageFile {
  std::string class_name;
  std::string name;          // with its folders in the class
  std::uint64_t offset = 0;  // in the tar file
  std::uint64_t size = 0;

  // Its folder in the class, empty or "a/b", and its own name.
  [[nodiscard]] std::pair<std::string_view, std::string_view> place() const {
    const std::string_view whole = name;
    const std::size_t slash = whole.rfind('/');
    return slash == std::string_view::npos
               ? std::pair{std::string_view{}, whole}
               : std::pair{whole.substr(0, slash), whole.substr(slash + 1)};
  }
};

// What a folder or a tar file has under a prefix: folders, one for each class, and files in them
// and in their folders. In torchvision's order: by class, then by folder, then by name.
class ImageFiles {
 public:
  // prefix: "" or "train/"; a slash behind it may be left out.
  ImageFiles(std::string path, std::string prefix)
      : path_(std::move(path)), prefix_(std::move(prefix)) {
    if (!prefix_.empty() && !prefix_.ends_with('/')) {
      prefix_ += '/';
    }
    if (is_folder(path_)) {
      read_folder();
    } else {
      tar_ = std::make_unique<FileReader>(path_);
      read_tar(*tar_, [&](const TarEntry& entry) { add(entry); });
    }
    const auto in_order = [](const ImageFile& a, const ImageFile& b) {
      return a.class_name != b.class_name ? a.class_name < b.class_name : a.place() < b.place();
    };
    std::sort(files_.begin(), files_.end(), in_order);
    std::sort(folders_.begin(), folders_.end());
    folders_.erase(std::unique(folders_.begin(), folders_.end()), folders_.end());
    std::sort(top_.begin(), top_.end());
    top_.erase(std::unique(top_.begin(), top_.end()), top_.end());
  }

  [[nodiscard]] const std::vector<ImageFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<std::string>& folders() const { return folders_; }
  [[nodiscard]] const std::string& prefix() const { return prefix_; }

  // What stands at the top, for messages: "test/, train/".
  [[nodiscard]] std::string top() const {
    constexpr std::size_t most = 12;
    std::string out;
    for (std::size_t i = 0; i < std::min(top_.size(), most); ++i) {
      out += (i == 0 ? "" : ", ") + top_[i];
    }
    return top_.empty() ? "nothing" : top_.size() > most ? out + ", ..." : out;
  }

  [[nodiscard]] std::string full_name(const ImageFile& file) const {
    return path_ + (path_.ends_with('/') ? "" : "/") + prefix_ + file.class_name + "/" + file.name;
  }

  [[nodiscard]] std::string read(const ImageFile& file) const {
    if (tar_) {
      return tar_->read(file.offset, file.size);
    }
    const FileReader reader(full_name(file));
    return reader.read(0, reader.size());
  }

 private:
  void read_folder() {
    for (const auto& [name, inner] : list_folder(path_)) {
      top_.push_back(inner ? name + "/" : name);
    }
    const std::string root = path_ + "/" + prefix_;
    if (!is_folder(root)) {
      return;
    }
    std::vector<FolderId> above{folder_id(root)};
    for (const auto& [class_name, inner] : list_folder(root)) {
      if (inner) {
        folders_.push_back(class_name);
        read_class(root + "/" + class_name, class_name, "", above);
      }
    }
  }

  // folder: in the class, "" or "a/b/". above: those on the way to it, so that a link to one of
  // them, of which all has been seen, does not lead round in circles.
  void read_class(const std::string& path, const std::string& class_name, const std::string& folder,
                  std::vector<FolderId>& above) {
    const FolderId id = folder_id(path);
    if (std::ranges::find(above, id) != above.end()) {
      return;
    }
    above.push_back(id);
    for (const auto& [name, inner] : list_folder(path)) {
      if (inner) {
        read_class(path + "/" + name, class_name, folder + name + "/", above);
      } else {
        files_.push_back({class_name, folder + name});
      }
    }
    above.pop_back();
  }

  void add(const TarEntry& entry) {
    const std::size_t first = entry.name.find('/');
    top_.push_back(first == std::string::npos && !entry.is_folder
                       ? entry.name
                       : entry.name.substr(0, first) + "/");
    if (!entry.name.starts_with(prefix_)) {
      return;
    }
    const std::string rest = entry.name.substr(prefix_.size());
    const std::size_t slash = rest.find('/');
    std::string class_name = rest.substr(0, slash);
    if (class_name.empty() || class_name.starts_with('.')) {
      return;
    }
    if (entry.is_folder || slash != std::string::npos) {
      folders_.push_back(class_name);
    }
    if (!entry.is_folder && slash != std::string::npos) {
      std::string name = rest.substr(slash + 1);
      if (!name.starts_with('.') && name.find("/.") == std::string::npos) {
        files_.push_back({std::move(class_name), std::move(name), entry.offset, entry.size});
      }
    }
  }

  std::string path_;
  std::string prefix_;
  std::unique_ptr<FileReader> tar_;
  std::vector<ImageFile> files_;
  std::vector<std::string> folders_;
  std::vector<std::string> top_;
};

}  // namespace tutti::data::detail
