// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/mds_encoding.hpp>
#include <tutti/data/detail/python_json.hpp>

#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)
#include <tutti/data/image_decoder.hpp>
#endif

/// Shards in the format MDS of MosaicML Streaming: reading. mds_writer.hpp writes them,
/// streaming_dataset.hpp fetches them from elsewhere.
///
/// What compressed them is read where the program is linked to its library: the targets
/// tutti::zstd, tutti::zlib (gz), tutti::bzip2, tutti::brotli and tutti::snappy, which the CMake
/// functions tutti_find_zstd() and so on make. Images need tutti::jpeg or tutti::png.
/// Source: mosaicml-streaming 0.13, `streaming.base.format.mds`.
namespace tutti::data {

/// One column of a shard.
struct MDSColumn {
  std::string name;
  std::string encoding;              ///< "int", "str", "ndarray:float32:2,3", ...
  std::optional<std::int64_t> size;  ///< bytes of every value; nothing: they differ

  friend bool operator==(const MDSColumn&, const MDSColumn&) = default;
};

/// A file of a shard, as the index describes it.
struct MDSFile {
  std::string basename;
  std::int64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> hashes;  ///< name and hexadecimal digits
};

/// A shard, as the index describes it.
struct MDSShard {
  std::vector<MDSColumn> columns;  ///< sorted by name
  std::string compression;         ///< "zstd", "gz:9"; empty: none
  MDSFile raw;
  std::optional<MDSFile> zip;  ///< the compressed file, when there is one
  std::int64_t samples = 0;

  /// The file that was written: the compressed one when there is one.
  [[nodiscard]] const MDSFile& stored() const { return zip ? *zip : raw; }
};

/// The shards that `folder`/index.json lists, in order.
///
/// Throws c10::Error, naming the file and what is wrong: it cannot be read, is no JSON or nested
/// too deep, has another version, lacks a member, names a file outside the folder, or contradicts
/// itself.
std::vector<MDSShard> read_mds_index(const std::string& folder);

namespace detail {

// The bytes of a shard: a mapped file, or what was decompressed into memory.
class MDSBytes {
 public:
  // where: begins messages, "'folder/shard.00000.mds': ".
  MDSBytes(std::shared_ptr<const MDSShard> shard, std::shared_ptr<const void> owner,
           std::string_view bytes, std::string where);

  [[nodiscard]] const MDSShard& shard() const { return *shard_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] std::string_view sample(std::int64_t index) const {
    const std::uint64_t begin = offset(index);
    return bytes_.substr(begin, offset(index + 1) - begin);
  }

 private:
  [[nodiscard]] std::uint64_t offset(std::int64_t index) const {
    std::uint32_t out = 0;
    std::memcpy(&out, bytes_.data() + 4 + 4 * static_cast<std::size_t>(index), sizeof out);
    return out;
  }
  void check_offsets() const;
  void check_config() const;

  std::shared_ptr<const MDSShard> shard_;
  std::shared_ptr<const void> owner_;
  std::string_view bytes_;
  std::string where_;
};

// Opens a shard of a folder: its raw file, or the compressed one if that alone is there.
std::shared_ptr<const MDSBytes> open_mds_shard(const std::string& folder,
                                               std::shared_ptr<const MDSShard> shard,
                                               bool validate_hash);

}  // namespace detail

/// One sample: its values by the names of columns. Cheap to copy; its bytes live as long as it.
class MDSSample {
 public:
  /// The columns, sorted by name.
  [[nodiscard]] const std::vector<MDSColumn>& columns() const { return bytes_->shard().columns; }

  /// The value as it lies in the shard, whatever its encoding.
  /// Throws c10::Error, as all of these do, with the names that exist when there is no such column.
  [[nodiscard]] std::string_view bytes(std::string_view column) const {
    return values_[index_of(column)];
  }

  /// A value of `str`, `str_int`, `str_float`, `str_decimal` or `json`: UTF-8, and for `json` one
  /// JSON value as Python's json module takes it (NaN and Infinity too, no deeper than 1000); else
  /// throws c10::Error with the place.
  [[nodiscard]] std::string text(std::string_view column) const;

  /// A value of an encoding with integers. Throws c10::Error when it does not fit.
  [[nodiscard]] std::int64_t integer(std::string_view column) const;

  /// A value of an encoding with numbers, rounded where it has more digits than a double.
  [[nodiscard]] double number(std::string_view column) const;

  /// A tensor that owns its values: of a number without dimensions, of `ndarray` with its type and
  /// shape, of `bytes` uint8 [N]; of `pil`, `jpeg` and `png` [C, H, W], mostly uint8.
  [[nodiscard]] at::Tensor tensor(std::string_view column) const;

  /// The images of `jpeg_array` (or `jpegarray`), `list[jpeg]`, `list[png]` and `list[pil]`, as
  /// tensor() gives one.
  [[nodiscard]] std::vector<at::Tensor> tensors(std::string_view column) const;

  /// Every column as tensor(), by name. Throws c10::Error for a column of texts or lists.
  [[nodiscard]] Batch batch() const;

  /// "'folder/shard.00000.mds': sample 3: ", for messages.
  [[nodiscard]] std::string where() const {
    return bytes_->where() + "sample " + std::to_string(index_) + ": ";
  }

  /// index: in the shard, 0 .. samples - 1.
  MDSSample(std::shared_ptr<const detail::MDSBytes> bytes, std::int64_t index);

 private:
  [[nodiscard]] std::size_t index_of(std::string_view column) const;
  [[nodiscard]] std::string where(const MDSColumn& column) const {
    return where() + "column '" + column.name + "' (" + column.encoding + "): ";
  }
  [[noreturn]] void refuse(const MDSColumn& column, const char* wanted) const;

  std::shared_ptr<const detail::MDSBytes> bytes_;
  std::int64_t index_;
  std::vector<std::string_view> values_;
};

/// Options of MDSReader.
struct MDSReaderOptions {
  bool validate_hash = true;  ///< compare the hashes of the index when a shard is opened
  std::function<Batch(const MDSSample& sample)> transform{};  ///< empty: MDSSample::batch
};

/// The samples of a folder of shards, as a data set for DataLoader.
///
///     tutti::DataLoader train{tutti::data::MDSReader{"tokens"}, {.batch_size = 8}};
///
/// Shards are mapped into memory when they are first used; compressed ones are decompressed into
/// memory and stay there (StreamingDataset has files for them). Copies share them.
class MDSReader {
 public:
  /// Throws c10::Error when the index cannot be read.
  explicit MDSReader(const std::string& folder, MDSReaderOptions options = {});

  [[nodiscard]] std::int64_t size() const { return shared_->starts.back(); }

  /// Sample `index`, 0 .. size() - 1, of all shards. Throws c10::IndexError for another, c10::Error
  /// when its shard is damaged.
  [[nodiscard]] MDSSample sample(std::int64_t index) const;

  /// The sample as `transform` makes it, or MDSSample::batch.
  [[nodiscard]] Batch get(std::int64_t index) const {
    const MDSSample one = sample(index);
    return shared_->options.transform ? shared_->options.transform(one) : one.batch();
  }

  [[nodiscard]] const std::vector<std::shared_ptr<const MDSShard>>& shards() const {
    return shared_->shards;
  }

 private:
  struct Shared {
    std::string folder;
    MDSReaderOptions options;
    std::vector<std::shared_ptr<const MDSShard>> shards{};
    std::vector<std::int64_t> starts{0};  // of each shard, and the end
    std::mutex mutex{};
    std::vector<std::shared_ptr<const detail::MDSBytes>> open{};
  };

  std::shared_ptr<Shared> shared_;
};

}  // namespace tutti::data

#include <tutti/data/detail/mds_shard.hpp>

namespace tutti::data {

namespace detail {

// An image file's pixels.
inline at::Tensor decode_mds_image(std::string_view bytes, const std::string& where) {
#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)
  return ImageDecoder{}(bytes, where);
#else
  (void)bytes;
  TUTTI_CHECK_NOT_IMPLEMENTED(false, where,
                              "it is an image, and this program is linked to no library for it; "
                              "link tutti::jpeg, tutti::png or both");
  return {};
#endif
}

template <class Number>
Number parse_mds_number(std::string_view text, const std::string& where) {
  Number out{};
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  TUTTI_CHECK(read.ec == std::errc() && read.ptr == end, where, "\"", text.substr(0, 100),
              "\" is no number that fits");
  return out;
}

// An integer that int64 may not hold.
inline bool is_long_integer(std::string_view text) {
  text.remove_prefix(text.starts_with('-') ? 1 : 0);
  return text.size() > 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace detail

inline std::vector<MDSShard> read_mds_index(const std::string& folder) {
  const std::string path = folder + "/index.json";
  std::string problem;
  const auto text = ::tutti::detail::read_regular_file(path, problem);
  TUTTI_CHECK(text, "'", path, "' cannot be read: ", problem,
              "; expected the index of a folder of MDS shards");
  return detail::mds_index(*text, "'" + path + "': ");
}

inline MDSSample::MDSSample(std::shared_ptr<const detail::MDSBytes> bytes, std::int64_t index)
    : bytes_(std::move(bytes)), index_(index) {
  const std::string_view sample = bytes_->sample(index);
  std::uint64_t sizes = 0;
  std::uint64_t values = 0;
  values_.reserve(columns().size());
  for (const MDSColumn& column : columns()) {  // values_ has lengths alone at first
    std::uint64_t size = 0;
    if (column.size) {
      size = static_cast<std::uint64_t>(*column.size);
    } else {
      std::uint32_t written = 0;
      TUTTI_CHECK(sizes + sizeof written <= sample.size(), where(), "it has ", sample.size(),
                  " bytes and ends within the sizes of its columns");
      std::memcpy(&written, sample.data() + sizes, sizeof written);
      sizes += sizeof written;
      size = written;
    }
    values += size;
    values_.emplace_back(sample.data(), static_cast<std::size_t>(size));
  }
  TUTTI_CHECK(sizes + values == sample.size(), where(), "its columns have ", sizes + values,
              " bytes, and the offsets of the shard give it ", sample.size());
  std::size_t at = static_cast<std::size_t>(sizes);
  for (std::string_view& value : values_) {
    value = sample.substr(at, value.size());
    at += value.size();
  }
}

inline std::size_t MDSSample::index_of(std::string_view column) const {
  std::string names;
  for (std::size_t i = 0; i < columns().size(); ++i) {
    if (columns()[i].name == column) {
      return i;
    }
  }
  for (const MDSColumn& one : columns()) {
    names += (names.empty() ? "" : ", ") + one.name;
  }
  TUTTI_CHECK(false, where(), "there is no column '", column, "'; there are: ", names);
  return 0;
}

inline void MDSSample::refuse(const MDSColumn& column, const char* wanted) const {
  TUTTI_CHECK_NOT_IMPLEMENTED(column.encoding != "pkl", where(column),
                              "a pickle may run any code when it is read, so it is refused; write "
                              "the column as ndarray or json");
  TUTTI_CHECK(detail::is_mds_encoding(column.encoding), where(column),
              "the encoding is not known; bytes() gives the value as it is");
  ::tutti::detail::raise<c10::Error>({__func__, __FILE__, __LINE__},
                                     where(column) + "it is " + wanted);
}

inline std::string MDSSample::text(std::string_view name) const {
  const std::size_t i = index_of(name);
  const MDSColumn& column = columns()[i];
  const std::string& encoding = column.encoding;
  if (encoding != "str" && encoding != "json" && !encoding.starts_with("str_")) {
    refuse(column, "no text; take bytes() or tensor()");
  }
  const std::string place = where(column);
  detail::check_utf8(values_[i], place);
  if (encoding == "json") {
    try {
      detail::PythonJson(values_[i]).check();
    } catch (const std::invalid_argument& error) {
      TUTTI_CHECK(false, place, error.what());
    }
  }
  return std::string(values_[i]);
}

inline std::int64_t MDSSample::integer(std::string_view name) const {
  const std::size_t i = index_of(name);
  const MDSColumn& column = columns()[i];
  if (column.encoding == "str_int") {
    return detail::parse_mds_number<std::int64_t>(values_[i], where(column));
  }
  const detail::MDSNumber* number = detail::mds_scalar(column.encoding);
  if (number == nullptr || column.encoding.starts_with("float")) {
    refuse(column, "no integer");
  }
  std::uint64_t raw = 0;
  std::memcpy(&raw, values_[i].data(), number->size);
  const bool is_signed = !number->name.starts_with('u');
  TUTTI_CHECK(is_signed || raw >> 63 == 0, where(column), raw, " does not fit into int64");
  const auto shift = static_cast<unsigned>(64 - 8 * number->size);
  return is_signed ? static_cast<std::int64_t>(raw << shift) >> shift
                   : static_cast<std::int64_t>(raw);
}

inline double MDSSample::number(std::string_view name) const {
  const std::size_t i = index_of(name);
  const MDSColumn& column = columns()[i];
  if (column.encoding == "str_float") {
    return detail::parse_mds_number<double>(values_[i], where(column));
  }
  if (column.encoding.starts_with("float")) {
    return tensor(name).to(at::kDouble).template item<double>();
  }
  if (column.encoding == "uint64") {
    std::uint64_t raw = 0;
    std::memcpy(&raw, values_[i].data(), sizeof raw);
    return static_cast<double>(raw);
  }
  if (column.encoding == "str_int" && detail::is_long_integer(values_[i])) {
    return detail::parse_mds_number<double>(values_[i], where(column));
  }
  return static_cast<double>(integer(name));
}

inline at::Tensor MDSSample::tensor(std::string_view name) const {
  const std::size_t i = index_of(name);
  const MDSColumn& column = columns()[i];
  const std::string& encoding = column.encoding;
  const std::string_view value = values_[i];
  if (const detail::MDSNumber* number = detail::mds_scalar(encoding)) {
    return detail::tensor_of(value, number->type, {});
  }
  if (encoding == "bytes") {
    return detail::tensor_of(value, at::kByte, {static_cast<std::int64_t>(value.size())});
  }
  if (const auto array = detail::mds_array(encoding)) {
    return detail::read_mds_array(*array, value, where(column));
  }
  if (encoding == "pil") {
    return detail::read_pil(value, where(column));
  }
  if (encoding == "jpeg" || encoding == "png") {
    return detail::decode_mds_image(value, where(column));
  }
  if (encoding == "str_int" || encoding == "str_float") {
    const std::int64_t whole = encoding == "str_int" ? integer(name) : 0;
    const double real = encoding == "str_float" ? number(name) : 0;
    const void* from = encoding == "str_int" ? static_cast<const void*>(&whole) : &real;
    return detail::tensor_of({static_cast<const char*>(from), 8},
                             encoding == "str_int" ? at::kLong : at::kDouble, {});
  }
  refuse(column, "no tensor; make one of it in the option transform, from text() or tensors()");
}

inline std::vector<at::Tensor> MDSSample::tensors(std::string_view name) const {
  const std::size_t i = index_of(name);
  const MDSColumn& column = columns()[i];
  const bool is_list = column.encoding.starts_with("list[");
  if (!is_list && !detail::is_jpeg_array(column.encoding)) {
    refuse(column, "no list of images");
  }
  const std::string place = where(column);
  std::vector<at::Tensor> out;
  for (const std::string_view element : detail::read_mds_list(values_[i], is_list, place)) {
    out.push_back(column.encoding == "list[pil]" ? detail::read_pil(element, place)
                                                 : detail::decode_mds_image(element, place));
  }
  return out;
}

inline Batch MDSSample::batch() const {
  Batch out;
  for (const MDSColumn& column : columns()) {
    out[column.name] = tensor(column.name);
  }
  return out;
}

inline MDSReader::MDSReader(const std::string& folder, MDSReaderOptions options)
    : shared_(std::make_shared<Shared>()) {
  shared_->folder = folder;
  shared_->options = std::move(options);
  for (MDSShard& shard : read_mds_index(folder)) {
    shared_->starts.push_back(shared_->starts.back() + shard.samples);
    shared_->shards.push_back(std::make_shared<const MDSShard>(std::move(shard)));
  }
  shared_->open.resize(shared_->shards.size());
}

inline MDSSample MDSReader::sample(std::int64_t index) const {
  TUTTI_CHECK_INDEX(index >= 0 && index < size(), "MDSReader: index is ", index, ", expected 0 to ",
                    size() - 1);
  const auto& starts = shared_->starts;
  const auto above = std::upper_bound(starts.begin(), starts.end(), index);
  const auto number = static_cast<std::size_t>(above - starts.begin() - 1);
  std::shared_ptr<const detail::MDSBytes> bytes;
  {
    const std::lock_guard lock(shared_->mutex);
    auto& open = shared_->open[number];
    if (!open) {
      open = detail::open_mds_shard(shared_->folder, shared_->shards[number],
                                    shared_->options.validate_hash);
    }
    bytes = open;
  }
  return MDSSample(std::move(bytes), index - starts[number]);
}

}  // namespace tutti::data
