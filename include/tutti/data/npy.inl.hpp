// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/npy.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <system_error>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include <tutti/core/detail/crc.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/zip_archive.hpp>
#include <tutti/core/detail/zip_writer.hpp>
#include <tutti/data/detail/inflate.hpp>
#include <tutti/data/detail/mapped_file.hpp>

namespace tutti::data {

namespace detail {

static_assert(std::endian::native == std::endian::little, "tutti: the machine is big-endian.");

struct NpyType {
  std::string_view code;
  at::ScalarType type;
};
TUTTI_INLINE constexpr std::array<NpyType, 14> npy_types{{{"b1", at::kBool},
                                                          {"i1", at::kChar},
                                                          {"i2", at::kShort},
                                                          {"i4", at::kInt},
                                                          {"i8", at::kLong},
                                                          {"u1", at::kByte},
                                                          {"u2", at::kUInt16},
                                                          {"u4", at::kUInt32},
                                                          {"u8", at::kUInt64},
                                                          {"f2", at::kHalf},
                                                          {"f4", at::kFloat},
                                                          {"f8", at::kDouble},
                                                          {"c8", at::kComplexFloat},
                                                          {"c16", at::kComplexDouble}}};

// Reads the literal of Python that is the header: {'descr': '<f4', 'fortran_order': False,
// 'shape': (3, 4), }.
class NpyHeaderParser {
 public:
  NpyHeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  NpyHeader parse();

 private:
  template <class... Words>
  [[noreturn]] void refuse(const Words&... words) const {
    TUTTI_CHECK(false, name_, " is no .npy file that can be read: ", words...);
  }
  [[nodiscard]] char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    const bool there = peek() == c;
    at_ += there ? 1U : 0U;
    return there;
  }
  void expect(char c) {
    if (!take(c)) {
      refuse("its header has no '", c, "' at byte ", at_, ": ", text_.substr(0, 80));
    }
  }
  std::string_view string();
  void type(NpyHeader& out);
  bool boolean();
  std::vector<std::int64_t> shape();
  void member(NpyHeader& out);

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  unsigned seen_ = 0;  // members, a bit for each
};

TUTTI_INLINE std::string_view NpyHeaderParser::string() {
  const char quote = peek();
  if (quote != '\'' && quote != '"') {
    refuse("its header has no text at byte ", at_, ": ", text_.substr(0, 80));
  }
  const std::size_t end = text_.find(quote, at_ + 1);
  if (end == std::string_view::npos) {
    refuse("a text of its header does not end");
  }
  const std::string_view out = text_.substr(at_ + 1, end - at_ - 1);
  at_ = end + 1;
  return out;
}

TUTTI_INLINE void NpyHeaderParser::type(NpyHeader& out) {
  if (peek() == '[') {
    refuse("it holds records (a structured type), expected numbers; save each field as an array");
  }
  const std::string_view descr = string();
  const char order = descr.empty() ? '\0' : descr.front();
  const bool has_order = std::string_view("<>|=").find(order) != std::string_view::npos;
  const std::string_view code = descr.substr(!descr.empty() && has_order ? 1 : 0);
  if (code == "O") {
    refuse(
        "it holds pickled Python objects, which are not read, since they can run code; save "
        "numbers with numpy.save(path, array, allow_pickle=False)");
  }
  const auto* const found = std::find_if(npy_types.begin(), npy_types.end(),
                                         [&](const NpyType& one) { return one.code == code; });
  if (found == npy_types.end()) {
    refuse("its type is '", descr, "', expected bool, int8 to int64, uint8 to uint64, float16 to ",
           "float64, complex64 or complex128; convert it with array.astype()");
  }
  out.type = found->type;
  out.swapped = order == '>' && c10::elementSize(found->type) > 1;
}

TUTTI_INLINE bool NpyHeaderParser::boolean() {
  static_cast<void>(peek());
  for (const bool value : {true, false}) {
    const std::string_view word = value ? "True" : "False";
    if (text_.substr(at_).starts_with(word)) {
      at_ += word.size();
      return value;
    }
  }
  refuse("fortran_order of its header is neither True nor False");
}

TUTTI_INLINE std::vector<std::int64_t> NpyHeaderParser::shape() {
  constexpr std::size_t most = 64;
  std::vector<std::int64_t> out;
  expect('(');
  while (!take(')')) {
    static_cast<void>(peek());
    std::int64_t extent = 0;
    const char* const end = text_.data() + text_.size();
    const auto [next, error] = std::from_chars(text_.data() + at_, end, extent);
    if (error != std::errc() || extent < 0) {
      refuse("its shape has no number from 0 to 2^63 - 1 at byte ", at_, " of the header");
    }
    at_ = static_cast<std::size_t>(next - text_.data());
    static_cast<void>(take('L'));  // as Python 2 wrote it
    out.push_back(extent);
    if (out.size() > most) {
      refuse("it has more than ", most, " dimensions");
    }
    if (!take(',') && peek() != ')') {
      refuse("its shape has no ',' or ')' at byte ", at_, " of the header");
    }
  }
  return out;
}

TUTTI_INLINE void NpyHeaderParser::member(NpyHeader& out) {
  const std::string_view key = string();
  expect(':');
  const unsigned bit = key == "descr" ? 1U : key == "fortran_order" ? 2U : key == "shape" ? 4U : 0U;
  if (bit == 0 || (seen_ & bit) != 0) {
    refuse("its header has the member '", key.substr(0, 40), bit == 0 ? "'" : "' twice",
           ", expected descr, fortran_order and shape");
  }
  seen_ |= bit;
  if (bit == 1) {
    type(out);
  } else if (bit == 2) {
    out.fortran_order = boolean();
  } else {
    out.shape = shape();
  }
}

TUTTI_INLINE NpyHeader NpyHeaderParser::parse() {
  NpyHeader out;
  expect('{');
  while (!take('}')) {
    member(out);
    if (!take(',') && peek() != '}') {
      refuse("its header has no ',' or '}' at byte ", at_, ": ", text_.substr(0, 80));
    }
  }
  if (seen_ != 7 || peek() != '\0' || at_ != text_.size()) {
    refuse("its header is not {'descr': ..., 'fortran_order': ..., 'shape': ...}: ",
           text_.substr(0, 80));
  }
  return out;
}

TUTTI_INLINE NpyHeader npy_header(std::string_view bytes, const std::string& name) {
  constexpr std::uint64_t most = 1U << 20U;
  TUTTI_CHECK(!bytes.starts_with("PK"), name,
              " is a zip archive, expected one array; read it with load_npz()");
  TUTTI_CHECK(!bytes.starts_with("\x80"), name,
              " is a pickle, which is not read, since it can run code; save it with "
              "numpy.save(path, array, allow_pickle=False)");
  TUTTI_CHECK(bytes.size() >= 10 && bytes.starts_with("\x93NUMPY"), name,
              " is no .npy file: it does not begin with \\x93NUMPY and a version");
  const auto byte = [&](std::size_t i) {
    return std::uint64_t{static_cast<unsigned char>(bytes[i])};
  };
  TUTTI_CHECK(byte(6) >= 1 && byte(6) <= 3 && byte(7) == 0, name, " has version ", byte(6), ".",
              byte(7), " of the format, expected 1.0, 2.0 or 3.0");
  const std::uint64_t start = byte(6) == 1 ? 10 : 12;
  TUTTI_CHECK(bytes.size() >= start, name, " is cut off inside its header");
  const std::uint64_t length =
      byte(8) | byte(9) << 8U | (start == 12 ? byte(10) << 16U | byte(11) << 24U : 0U);
  TUTTI_CHECK(length <= most, name, " has a header of ", length, " bytes, expected at most ", most);
  TUTTI_CHECK(length <= bytes.size() - start, name, " is cut off: it has ", bytes.size(),
              " bytes, and its header alone ", length);
  NpyHeader out = NpyHeaderParser(bytes.substr(start, length), name).parse();
  out.begin = start + length;
  std::int64_t all = static_cast<std::int64_t>(c10::elementSize(out.type));
  std::int64_t not_empty = all;
  bool fits = true;
  for (const std::int64_t extent : out.shape) {
    fits =
        fits && !__builtin_mul_overflow(not_empty, std::max<std::int64_t>(extent, 1), &not_empty);
    all = fits ? all * extent : all;
  }
  TUTTI_CHECK(fits, name, " is damaged: an array ", at::IntArrayRef(out.shape),
              " does not fit into memory");
  out.bytes = static_cast<std::uint64_t>(all);
  TUTTI_CHECK(
      bytes.size() - out.begin == out.bytes, name, " has ", bytes.size() - out.begin,
      " bytes of values, and its header announces ", out.bytes, " for ", out.type,
      at::IntArrayRef(out.shape), "; it is ",
      bytes.size() - out.begin < out.bytes ? "cut off" : "damaged or holds more than an array");
  return out;
}

// Bytes of a number that change places when its byte order does: half of a complex number.
TUTTI_INLINE std::size_t npy_width(at::ScalarType type) {
  return c10::elementSize(type) / (c10::isComplexType(type) ? 2 : 1);
}

TUTTI_INLINE at::Tensor in_file_order(at::Tensor values, const NpyHeader& header) {
  if (!header.fortran_order || header.shape.size() < 2) {
    return values.view(header.shape);
  }
  const std::vector<std::int64_t> reversed(header.shape.rbegin(), header.shape.rend());
  std::vector<std::int64_t> order(reversed.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int64_t>(order.size() - 1 - i);
  }
  return values.view(reversed).permute(order);
}

TUTTI_INLINE at::Tensor npy_tensor(std::string_view bytes, const std::string& name) {
  const NpyHeader header = npy_header(bytes, name);
  const auto count = static_cast<std::int64_t>(header.bytes / c10::elementSize(header.type));
  at::Tensor out(at::detail::empty_cpu({count}, header.type, /*pin_memory=*/false, std::nullopt));
  auto* const to = static_cast<char*>(out.mutable_data_ptr());
  const std::string_view values = bytes.substr(header.begin);
  if (header.bytes > 0) {
    std::memcpy(to, values.data(), header.bytes);
  }
  if (header.type == at::kBool) {
    const auto bad =
        std::find_if(values.begin(), values.end(), [](char c) { return c != '\0' && c != '\1'; });
    TUTTI_CHECK(bad == values.end(), name, " is damaged: element ", bad - values.begin(),
                " of an array of bool is neither 0 nor 1");
  }
  if (header.swapped) {
    const std::size_t width = npy_width(header.type);
    for (std::uint64_t i = 0; i < header.bytes; i += width) {
      std::reverse(to + i, to + i + width);
    }
  }
  return in_file_order(std::move(out), header).contiguous();
}

TUTTI_INLINE std::string npy_bytes(const at::Tensor& tensor, const std::string& name) {
  TUTTI_CHECK(tensor.defined(), name, ": the tensor is undefined, expected values");
  const auto* const found =
      std::find_if(npy_types.begin(), npy_types.end(),
                   [&](const NpyType& one) { return one.type == tensor.scalar_type(); });
  TUTTI_CHECK(found != npy_types.end(), name, ": the tensor is ", tensor.scalar_type(),
              ", which NumPy has not; convert it, for instance with .to(at::kFloat)");
  std::string shape = "(";
  for (const std::int64_t extent : tensor.sizes()) {
    shape += (shape.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  shape += tensor.dim() == 1 ? ",)" : ")";
  std::string header = std::string("{'descr': '") +
                       (c10::elementSize(found->type) > 1 ? "<" : "|") + std::string(found->code) +
                       "', 'fortran_order': False, 'shape': " + shape + ", }";
  if (tensor.dim() > 0) {  // NumPy's room for a dimension that grows
    header.append(21 - std::to_string(tensor.size(0)).size(), ' ');
  }
  constexpr std::size_t alignment = 64;
  const bool wide = header.size() + 11 + alignment > 0xFFFF;
  const std::size_t before = wide ? 12 : 10;
  header.append(alignment - (before + header.size() + 1) % alignment, ' ');
  header += '\n';
  std::string out = std::string("\x93NUMPY") + static_cast<char>(wide ? 2 : 1) + '\0';
  for (std::size_t i = 0; i < before - 8; ++i) {
    out += static_cast<char>(header.size() >> (8 * i) & 0xFFU);
  }
  out += header;
  const at::Tensor plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
  out.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  return out;
}

TUTTI_INLINE void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TUTTI_CHECK(file, "'", path, "' cannot be written: ", std::strerror(errno));
}

}  // namespace detail

TUTTI_INLINE at::Tensor load_npy(const std::string& path, const NpyOptions& options) {
  const auto file = std::make_shared<detail::MappedFile>(path, options.mmap);
  const std::string name = "'" + path + "'";
  const detail::NpyHeader header = detail::npy_header(file->text(), name);
  const bool as_it_is = !header.swapped && header.type != at::kBool && header.bytes > 0 &&
                        header.begin % c10::elementSize(header.type) == 0;
  if (!options.mmap || !as_it_is) {
    return detail::npy_tensor(file->text(), name);
  }
  const auto count = static_cast<std::int64_t>(header.bytes / c10::elementSize(header.type));
  auto* const values = static_cast<char*>(const_cast<void*>(file->bytes())) + header.begin;
  at::Tensor out =
      at::from_blob(values, {count}, [file](void*) {}, at::TensorOptions().dtype(header.type));
  return detail::in_file_order(std::move(out), header);
}

TUTTI_INLINE void save_npy(const std::string& path, const at::Tensor& tensor) {
  detail::write_file(path, detail::npy_bytes(tensor, "save_npy"));
}

TUTTI_INLINE NamedTensors load_npz(const std::string& path) {
  const detail::MappedFile file(path);
  const tutti::detail::ZipArchive archive(file.text(), "'" + path + "'");
  NamedTensors out;
  for (const auto& [name, entry] : archive.entries()) {
    const std::string place = "'" + path + "', entry '" + name.substr(0, 64) + "'";
    TUTTI_CHECK(name.ends_with(".npy"), place, " is no .npy file, expected arrays alone");
    std::string unpacked;
    std::string_view bytes = archive.bytes(entry);
    if (entry.method == tutti::detail::ZipArchive::deflated) {
      try {
        unpacked = detail::inflate(bytes, entry.size);
      } catch (const std::invalid_argument& error) {
        TUTTI_CHECK(false, place, " is refused: ", error.what());
      }
      bytes = unpacked;
    }
    TUTTI_CHECK(tutti::detail::crc32_png(bytes) == entry.crc, place,
                " is damaged: its checksum does not fit");
    out[name.substr(0, name.size() - 4)] = detail::npy_tensor(bytes, place);
  }
  return out;
}

TUTTI_INLINE void save_npz(const std::string& path, const NamedTensors& tensors) {
  std::string bytes;
  tutti::detail::ZipWriter archive([&bytes](std::string_view part) { bytes += part; });
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    TUTTI_CHECK(!name.empty() && name.size() < 60000 && name.find('/') == std::string::npos,
                "save_npz: an array is called '", name.substr(0, 64),
                "', expected a name without a slash");
    TUTTI_CHECK(std::find(names.begin(), names.end(), name) == names.end(),
                "save_npz: two arrays are called '", name, "'");
    names.push_back(name);
    archive.add(name + ".npy", detail::npy_bytes(tensor, "save_npz: '" + name + "'"));
  }
  archive.finish();
  detail::write_file(path, bytes);
}

TUTTI_INLINE NpyDataset::NpyDataset(const std::vector<std::pair<std::string, std::string>>& files) {
  TUTTI_CHECK_VALUE(!files.empty(), "NpyDataset: there is no file, expected one or more");
  for (const auto& [name, path] : files) {
    at::Tensor array = load_npy(path, {.mmap = true});
    TUTTI_CHECK(array.dim() > 0, "'", path, "' is one number, expected [N, ...], an example a row");
    const bool first = arrays_.empty();
    TUTTI_CHECK(first || array.size(0) == size_, "'", path, "' has ", array.size(0),
                " examples and '", files.front().second, "' ", size_, ", expected equally many");
    TUTTI_CHECK_VALUE(!arrays_.contains(name), "NpyDataset: two files are called \"", name, "\"");
    size_ = array.size(0);
    arrays_[name] = std::move(array);
  }
}

TUTTI_INLINE Batch NpyDataset::get(std::int64_t index) const {
  TUTTI_CHECK_INDEX(index >= 0 && index < size_, "NpyDataset: index is ", index, ", expected 0 to ",
                    size_ - 1);
  Batch out;
  for (const auto& [name, array] : arrays_) {
    out[name] = array.select(0, index).clone(at::MemoryFormat::Contiguous);
  }
  return out;
}

}  // namespace tutti::data
