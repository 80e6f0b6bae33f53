// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/json_text.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/tar.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/detail/web_shard.hpp>
#include <tutti/data/lines.hpp>
#include <tutti/data/npy.hpp>

namespace tutti::data {

/// The value of a field of a sample: bytes or text as they are, a whole number in digits, JSON as
/// text, a tensor as the bytes of a .npy file.
class WebValue {
 public:
  WebValue(std::string bytes) : bytes_(std::move(bytes)) {}  // NOLINT: converts by design
  WebValue(std::string_view bytes) : bytes_(bytes) {}        // NOLINT: converts by design
  WebValue(const char* text) : bytes_(text) {}               // NOLINT: converts by design
  WebValue(const Json& value)                                // NOLINT: converts by design
      : bytes_(tutti::detail::to_text(value)) {}
  WebValue(const at::Tensor& tensor)  // NOLINT: converts by design
      : bytes_(detail::npy_bytes(tensor, "ShardWriter")), is_tensor_(true) {}
  template <std::integral T>
  WebValue(T number) : bytes_(std::to_string(number)) {}  // NOLINT: converts by design

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] bool is_tensor() const { return is_tensor_; }

 private:
  std::string bytes_;
  bool is_tensor_ = false;
};

/// Options of ShardWriter.
struct ShardWriterOptions {
  std::int64_t maxcount = 100'000;  ///< samples of a shard; >= 1
  double maxsize = 3e9;             ///< bytes of its samples; the last one may go beyond; > 0
  std::int64_t start_shard = 0;     ///< number of the first shard; >= 0
};

/// Writes samples into tar files that Python's webdataset reads, and WebDataset.
///
///     tutti::data::ShardWriter writer{"train-%06d.tar", {.maxcount = 10'000}};
///     writer.write("0001", {{"jpg", bytes}, {"cls", 3}, {"json", R"({"by": "me"})"}});
///     writer.close();
///
/// The same samples make the same bytes: times are 0. A shard has the name NAME.partial until it is
/// whole. Source: webdataset 1.0.2, `ShardWriter`, `TarWriter`.
class ShardWriter {
 public:
  using Fields = std::vector<std::pair<std::string, WebValue>>;

  /// pattern: a path with `%06d` or another width, or `%d`, where the number of the shard stands; a
  /// path without one is a single shard. Throws c10::ValueError when an option is out of range.
  explicit ShardWriter(std::string pattern, const ShardWriterOptions& options = {});
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  /// As close(); an error is only warned of.
  ~ShardWriter();

  /// Adds a sample; its fields are written in alphabetical order. key: a path without a dot in its
  /// last part, other than that of the sample before. fields: extensions such as "jpg" or
  /// "seg.png", in lower case.
  /// Throws c10::ValueError for a key or field that would be read otherwise, and c10::Error when
  /// the shard cannot be written.
  void write(const std::string& key, const Fields& fields);

  /// Finishes the last shard. Throws c10::Error when it cannot be written.
  void close();

  /// The paths of the shards that are finished.
  [[nodiscard]] const std::vector<std::string>& shards() const { return shards_; }

 private:
  void begin_shard();
  void check_names(const std::string& key, const Fields& fields) const;
  void add_member(const std::string& name, std::string_view bytes);
  void add_header(std::string_view name, std::string_view prefix, std::uint64_t size, char type);
  void pad(std::uint64_t size);
  [[nodiscard]] std::string partial() const { return path_ + ".partial"; }

  std::string before_;  // of the pattern
  std::string after_;
  int width_ = -1;  // -1: the pattern has no number
  ShardWriterOptions options_;
  std::ofstream file_;
  std::string path_;  // of the open shard; empty: none is open
  std::string last_key_;
  std::int64_t count_ = 0;
  double size_ = 0;
  std::vector<std::string> shards_;
};

inline ShardWriter::ShardWriter(std::string pattern, const ShardWriterOptions& options)
    : before_(std::move(pattern)), options_(options) {
  TUTTI_CHECK_VALUE(options.maxcount >= 1 && options.maxsize > 0 && options.start_shard >= 0,
                    "ShardWriter: maxcount is ", options.maxcount, ", maxsize ", options.maxsize,
                    " and start_shard ", options.start_shard,
                    ", expected 1 or more, more than 0 and 0 or more");
  const std::size_t percent = before_.find('%');
  if (percent == std::string::npos) {
    return;
  }
  const std::size_t d = before_.find_first_not_of("0123456789", percent + 1);
  TUTTI_CHECK_VALUE(d != std::string::npos && before_[d] == 'd' && d - percent <= 3 &&
                        (d == percent + 1 || before_[percent + 1] == '0') &&
                        before_.find('%', d) == std::string::npos,
                    "ShardWriter: the pattern is \"", before_,
                    "\", expected one number such as %06d or %d");
  width_ = d == percent + 1 ? 0 : std::stoi(before_.substr(percent + 1, d - percent - 1));
  after_ = before_.substr(d + 1);
  before_.resize(percent);
}

inline ShardWriter::~ShardWriter() {
  try {
    close();
  } catch (...) {
    TORCH_WARN("ShardWriter: the last shard is lost: ", detail::thrown());
  }
}

inline void ShardWriter::begin_shard() {
  close();
  TUTTI_CHECK_VALUE(width_ >= 0 || shards_.empty(), "ShardWriter: '", before_,
                    "' is full, and its name has no place for a number, such as %06d");
  path_ = before_;
  if (width_ >= 0) {
    const std::string number =
        std::to_string(options_.start_shard + static_cast<std::int64_t>(shards_.size()));
    const std::size_t zeros =
        static_cast<std::size_t>(width_) -
        std::min<std::size_t>(number.size(), static_cast<std::size_t>(width_));
    path_ += std::string(zeros, '0') + number + after_;
  }
  file_.open(partial(), std::ios::binary | std::ios::trunc);
  const bool is_open = file_.is_open();
  const std::string path = is_open ? path_ : std::exchange(path_, {});
  TUTTI_CHECK(is_open, "'", path, ".partial' cannot be written: ", std::strerror(errno));
  last_key_.clear();
  count_ = 0;
  size_ = 0;
}

inline void ShardWriter::check_names(const std::string& key, const Fields& fields) const {
  const auto name = key.empty() ? std::nullopt : detail::web_name(key + ".x");
  TUTTI_CHECK_VALUE(name && name->key == key && !detail::leaves(key) && !key.ends_with('/') &&
                        key.find('\0') == std::string::npos,
                    "ShardWriter: the key is \"", key,
                    "\", expected a path inside the tar file whose last part has no dot");
  TUTTI_CHECK_VALUE(key != last_key_, "ShardWriter: two samples in a row have the key \"", key,
                    "\", and would be read as one");
  TUTTI_CHECK_VALUE(!fields.empty(), "ShardWriter: the sample \"", key, "\" has no field");
  std::vector<std::string_view> seen;
  for (const auto& [field, value] : fields) {
    const bool plain = !field.empty() && field.find('/') == std::string::npos &&
                       field.find('\0') == std::string::npos &&
                       !field.starts_with("__") &&  // as webdataset calls what it adds itself
                       detail::lower_ascii(field) == field;
    TUTTI_CHECK_VALUE(plain, "ShardWriter: the sample \"", key, "\" has the field \"", field,
                      "\", expected an extension in lower case, such as jpg");
    TUTTI_CHECK_VALUE(std::find(seen.begin(), seen.end(), field) == seen.end(),
                      "ShardWriter: the sample \"", key, "\" has the field \"", field, "\" twice");
    TUTTI_CHECK_VALUE(!value.is_tensor() || field == "npy" || field.ends_with(".npy"),
                      "ShardWriter: the field \"", field, "\" of the sample \"", key,
                      "\" is a tensor, which is written as npy; call the field npy");
    seen.push_back(field);
  }
}

inline void ShardWriter::write(const std::string& key, const Fields& fields) {
  if (path_.empty() || count_ >= options_.maxcount || size_ >= options_.maxsize) {
    begin_shard();
  }
  check_names(key, fields);
  std::vector<const Fields::value_type*> sorted;
  for (const auto& field : fields) {
    sorted.push_back(&field);
  }
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
  for (const auto* field : sorted) {
    add_member(key + "." + field->first, field->second.bytes());
    size_ += static_cast<double>(field->second.bytes().size());
  }
  TUTTI_CHECK(file_, "'", partial(), "' cannot be written: ", std::strerror(errno));
  last_key_ = key;
  ++count_;
}

// A long name is cut where a tar header has a prefix, else it stands in a header of pax.
inline void ShardWriter::add_member(const std::string& name, std::string_view bytes) {
  constexpr std::size_t most_name = 100;
  constexpr std::size_t most_prefix = 155;
  std::size_t slash = name.size() <= most_name ? 0 : name.find('/', name.size() - most_name - 1);
  if (slash == std::string::npos || slash > most_prefix ||
      (slash == 0 && name.size() > most_name)) {
    const std::string record = " path=" + name + "\n";
    std::size_t length = record.size() + 1;  // with the digits of itself
    while (length != record.size() + std::to_string(length).size()) {
      length = record.size() + std::to_string(length).size();
    }
    add_header("././@PaxHeader", {}, length, 'x');
    file_ << length << record;
    pad(length);
    add_header(std::string_view(name).substr(0, most_name), {}, bytes.size(), '0');
  } else if (slash > 0) {
    add_header(std::string_view(name).substr(slash + 1), std::string_view(name).substr(0, slash),
               bytes.size(), '0');
  } else {
    add_header(name, {}, bytes.size(), '0');
  }
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  pad(bytes.size());
}

inline void ShardWriter::add_header(std::string_view name, std::string_view prefix,
                                    std::uint64_t size, char type) {
  constexpr std::uint64_t most = std::uint64_t{1} << 33U;
  TUTTI_CHECK_VALUE(size < most, "ShardWriter: '", name, "' has ", size,
                    " bytes, expected less than 8 GiB");
  detail::TarHeader header{};
  const auto put = [&](std::size_t at, std::string_view text) {
    text.copy(header.data() + at, text.size());
  };
  put(0, name);
  put(100, "0000444");
  put(108, "0000000");
  put(116, "0000000");
  std::array<char, 12> digits{};
  std::snprintf(digits.data(), digits.size(), "%011llo", static_cast<unsigned long long>(size));
  put(124, {digits.data(), 11});
  put(136, "00000000000");
  put(148, "        ");
  header[156] = type;
  put(257, std::string_view("ustar\0"
                            "00",
                            8));
  put(265, "bigdata");
  put(297, "bigdata");
  put(345, prefix);
  unsigned sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned char>(c);
  }
  std::snprintf(digits.data(), digits.size(), "%06o", sum);
  put(148, {digits.data(), 7});  // with its zero byte; a space follows
  file_.write(header.data(), static_cast<std::streamsize>(header.size()));
}

inline void ShardWriter::pad(std::uint64_t size) {
  const std::string zeros((detail::tar_block - size % detail::tar_block) % detail::tar_block, '\0');
  file_ << zeros;
}

inline void ShardWriter::close() {
  if (path_.empty()) {
    return;
  }
  const std::string path = std::exchange(path_, {});
  file_ << std::string(2 * detail::tar_block, '\0');
  file_.close();
  const bool written = !file_.fail() && std::rename((path + ".partial").c_str(), path.c_str()) == 0;
  TUTTI_CHECK(written, "'", path, "' cannot be written: ", std::strerror(errno));
  shards_.push_back(path);
}

}  // namespace tutti::data
