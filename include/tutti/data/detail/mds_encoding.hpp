// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Half.h>

#include <tutti/core/detail/json.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/utf8.hpp>

// How values lie in MDS shards, version 2, of MosaicML Streaming.

namespace tutti::data::detail {

// Bytes that are read from the front; `what` ends the sentence of one that are too few.
class ByteCursor {
 public:
  ByteCursor(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::string_view take(std::uint64_t count, const char* what) {
    TUTTI_CHECK(count <= bytes_.size(), where_, "it ends within ", what, ": ", bytes_.size(),
                " bytes are left, expected ", count);
    const std::string_view out = bytes_.substr(0, static_cast<std::size_t>(count));
    bytes_.remove_prefix(out.size());
    return out;
  }

  std::uint64_t number(std::size_t size, const char* what) {
    const std::string_view bytes = take(size, what);
    std::uint64_t out = 0;
    std::memcpy(&out, bytes.data(), size);  // little-endian, as this machine
    return out;
  }

  std::uint64_t u32(const char* what) { return number(4, what); }

  [[nodiscard]] std::string_view rest() const { return bytes_; }

  void expect_end() const {
    TUTTI_CHECK(bytes_.empty(), where_, bytes_.size(), " bytes follow the value");
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
};

inline void append_number(std::string& out, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

struct MDSNumber {
  std::string_view name;
  std::uint8_t code;  // in front of an ndarray whose type is open
  at::ScalarType type;
  std::size_t size;
};

inline constexpr std::array<MDSNumber, 11> mds_numbers{{{"uint8", 8, at::kByte, 1},
                                                        {"int8", 9, at::kChar, 1},
                                                        {"uint16", 16, at::kUInt16, 2},
                                                        {"int16", 17, at::kShort, 2},
                                                        {"float16", 18, at::kHalf, 2},
                                                        {"uint32", 32, at::kUInt32, 4},
                                                        {"int32", 33, at::kInt, 4},
                                                        {"float32", 34, at::kFloat, 4},
                                                        {"uint64", 64, at::kUInt64, 8},
                                                        {"int64", 65, at::kLong, 8},
                                                        {"float64", 66, at::kDouble, 8}}};

inline const MDSNumber* mds_number(std::string_view name) {
  const auto* found = std::find_if(mds_numbers.begin(), mds_numbers.end(),
                                   [&](const MDSNumber& one) { return one.name == name; });
  return found == mds_numbers.end() ? nullptr : found;
}

// The type of "int64" and of "int", Python's number.
inline const MDSNumber* mds_scalar(std::string_view encoding) {
  return mds_number(encoding == "int" ? "int64" : encoding);
}

// "ndarray[:dtype[:d0,d1,...]]".
struct MDSArray {
  const MDSNumber* number = nullptr;  // null: written with each value
  std::vector<std::int64_t> shape;    // empty: written with each value
};

// A dimension as Python's int() takes it, with spaces around; -1 when it is none.
inline std::int64_t mds_extent(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  std::int64_t out = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? out : -1;
}

// Nothing when it is no ndarray, or not one that can be.
inline std::optional<MDSArray> mds_array(std::string_view encoding) {
  if (encoding != "ndarray" && !encoding.starts_with("ndarray:")) {
    return std::nullopt;
  }
  MDSArray out;
  if (encoding == "ndarray" || encoding == "ndarray:") {
    return out;
  }
  const std::string_view rest = encoding.substr(8);
  const std::size_t colon = std::min(rest.find(':'), rest.size());
  out.number = mds_number(rest.substr(0, colon));
  if (out.number == nullptr) {
    return std::nullopt;
  }
  std::uint64_t count = 1;
  for (std::size_t at = colon; at < rest.size();) {
    const std::size_t end = std::min(rest.find(',', at + 1), rest.size());
    const std::int64_t extent = mds_extent(rest.substr(at + 1, end - at - 1));
    if (extent < 1 || static_cast<std::uint64_t>(extent) > (std::uint64_t{1} << 32) / count) {
      return std::nullopt;
    }
    count *= static_cast<std::uint64_t>(extent);
    out.shape.push_back(extent);
    at = end;
  }
  return out;
}

// Bytes of every value, where they are the same for all.
inline std::optional<std::int64_t> mds_size(std::string_view encoding) {
  if (const MDSNumber* number = mds_scalar(encoding)) {
    return static_cast<std::int64_t>(number->size);
  }
  const auto array = mds_array(encoding);
  if (!array || array->shape.empty()) {
    return std::nullopt;
  }
  auto out = static_cast<std::int64_t>(array->number->size);
  for (const std::int64_t extent : array->shape) {
    out *= extent;
  }
  return out;
}

// The reference has two names for it.
inline bool is_jpeg_array(std::string_view encoding) {
  return encoding == "jpeg_array" || encoding == "jpegarray";
}

// Pickles are known, and refused when they are read.
inline bool is_mds_encoding(std::string_view encoding) {
  constexpr std::array<std::string_view, 13> others{
      "bytes", "str", "str_int", "str_float", "str_decimal", "json",     "pil",
      "jpeg",  "png", "pkl",     "list[pil]", "list[jpeg]",  "list[png]"};
  return mds_scalar(encoding) != nullptr || mds_array(encoding).has_value() ||
         is_jpeg_array(encoding) ||
         std::find(others.begin(), others.end(), encoding) != others.end();
}

inline void check_utf8(std::string_view text, const std::string& where) {
  for (std::size_t at = 0; at < text.size();) {
    const auto next = ::tutti::detail::decode_utf8(text, at);
    TUTTI_CHECK(next.ok, where, "the text is no UTF-8 at byte ", at, " of ", text.size());
    at += next.bytes;
  }
}

// A tensor that owns a copy of the bytes, as many as its values have.
inline at::Tensor tensor_of(std::string_view bytes, at::ScalarType type,
                            const std::vector<std::int64_t>& shape) {
  at::Tensor out = at::detail::empty_cpu(shape, type, /*pin_memory=*/false, std::nullopt);
  if (!bytes.empty()) {
    std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return out;
}

inline at::Tensor read_mds_array(const MDSArray& encoding, std::string_view bytes,
                                 const std::string& where) {
  ByteCursor cursor(bytes, where);
  const MDSNumber* number = encoding.number;
  if (number == nullptr) {
    const std::uint64_t code = cursor.number(1, "the type of an array");
    const auto* found = std::find_if(mds_numbers.begin(), mds_numbers.end(),
                                     [&](const MDSNumber& one) { return one.code == code; });
    TUTTI_CHECK(found != mds_numbers.end(), where, "an array has the type code ", code,
                ", expected one of 8, 9, 16, 17, 18, 32, 33, 34, 64, 65 and 66");
    number = found;
  }
  std::vector<std::int64_t> shape = encoding.shape;
  if (shape.empty()) {
    const std::uint64_t head = cursor.number(1, "the shape of an array");
    TUTTI_CHECK(head >= 4, where, "an array has no dimension, expected 1 to 63");
    for (std::uint64_t i = 0; i < head / 4; ++i) {
      const std::uint64_t extent =
          cursor.number(std::size_t{1} << (head % 4), "the shape of an array");
      TUTTI_CHECK(extent >= 1 && extent < (std::uint64_t{1} << 32), where, "dimension ", i,
                  " of an array is ", extent, ", expected 1 to 2^32 - 1");
      shape.push_back(static_cast<std::int64_t>(extent));
    }
  }
  std::uint64_t count = number->size;
  for (const std::int64_t extent : shape) {
    TUTTI_CHECK(static_cast<std::uint64_t>(extent) <= bytes.size() / count + 1, where,
                "an array of ", at::IntArrayRef(shape), " has more values than ", bytes.size(),
                " bytes");
    count *= static_cast<std::uint64_t>(extent);
  }
  const std::string_view values = cursor.take(count, "the values of an array");
  cursor.expect_end();
  return tensor_of(values, number->type, shape);
}

// The type and shape in front of the values, as far as the encoding leaves them open.
inline std::string mds_array_header(const MDSArray& encoding, const MDSNumber& number,
                                    at::IntArrayRef shape) {
  std::string out;
  if (encoding.number == nullptr) {
    out += static_cast<char>(number.code);
  }
  if (encoding.shape.empty()) {
    const std::int64_t most = *std::max_element(shape.begin(), shape.end());
    const unsigned width = most < (1 << 8) ? 0 : most < (1 << 16) ? 1 : most >> 32 == 0 ? 2 : 3;
    out += static_cast<char>(shape.size() * 4 + width);
    for (const std::int64_t extent : shape) {
      append_number(out, static_cast<std::uint64_t>(extent), std::size_t{1} << width);
    }
  }
  return out;
}

// Channels and type of Pillow's modes; 0 channels: one that is not known.
inline std::pair<std::int64_t, at::ScalarType> pil_mode(std::string_view mode) {
  if (mode == "L" || mode == "P") {
    return {1, at::kByte};
  }
  if (mode == "LA" || mode == "PA" || mode == "La") {
    return {2, at::kByte};
  }
  if (mode == "RGB" || mode == "YCbCr" || mode == "LAB" || mode == "HSV") {
    return {3, at::kByte};
  }
  if (mode == "RGBA" || mode == "RGBa" || mode == "RGBX" || mode == "CMYK") {
    return {4, at::kByte};
  }
  return mode == "I"      ? std::pair{std::int64_t{1}, at::kInt}
         : mode == "F"    ? std::pair{std::int64_t{1}, at::kFloat}
         : mode == "I;16" ? std::pair{std::int64_t{1}, at::kUInt16}
                          : std::pair{std::int64_t{0}, at::kByte};
}

// Pillow's raw image, [C, H, W]; mode "1" becomes 0 and 255.
inline at::Tensor read_pil(std::string_view bytes, const std::string& where) {
  ByteCursor cursor(bytes, where);
  const auto width = static_cast<std::int64_t>(cursor.u32("the width of an image"));
  const auto height = static_cast<std::int64_t>(cursor.u32("the height of an image"));
  const std::uint64_t letters = cursor.u32("the mode of an image");
  const std::string_view mode = cursor.take(letters, "the mode of an image");
  if (mode == "1") {
    const std::int64_t row = (width + 7) / 8;
    const std::string_view bits =
        cursor.take(static_cast<std::uint64_t>(row * height), "the pixels of an image");
    cursor.expect_end();
    at::Tensor out = tensor_of({}, at::kByte, {1, height, width});
    auto* pixel = out.mutable_data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < height * width; ++i) {
      const std::int64_t x = i % width;
      const auto eight =
          static_cast<unsigned char>(bits[static_cast<std::size_t>(i / width * row + x / 8)]);
      pixel[i] = (eight >> (7 - x % 8) & 1) != 0 ? 255 : 0;
    }
    return out;
  }
  const auto [channels, type] = pil_mode(mode);
  TUTTI_CHECK(channels > 0, where, "an image has the mode \"", mode,
              "\", which is not known; known are 1, L, LA, RGB, RGBA, CMYK, YCbCr, HSV, I and F");
  const std::uint64_t size = static_cast<std::uint64_t>(channels * width) *
                             static_cast<std::uint64_t>(height) *
                             at::elementSize(type);  // below 2^68: width * 16 * height
  TUTTI_CHECK(size == 0 || (static_cast<std::uint64_t>(width) <= bytes.size() &&
                            static_cast<std::uint64_t>(height) <= bytes.size()),
              where, "an image of ", width, " x ", height, " pixels has only ", bytes.size(),
              " bytes");
  const std::string_view pixels = cursor.take(size, "the pixels of an image");
  cursor.expect_end();
  return tensor_of(pixels, type, {height, width, channels}).permute({2, 0, 1}).contiguous();
}

// jpeg_array: count, sizes, files; a list has a zero in front of them.
inline std::vector<std::string_view> read_mds_list(std::string_view bytes, bool zero,
                                                   const std::string& where) {
  ByteCursor cursor(bytes, where);
  TUTTI_CHECK(!zero || cursor.u32("a list") == 0, where,
              "a list does not begin with a zero of 4 bytes");
  const std::uint64_t count = cursor.u32("the length of a list");
  ByteCursor sizes(cursor.take(4 * count, "the sizes of a list"), where);
  std::vector<std::string_view> out;
  for (std::uint64_t i = 0; i < count; ++i) {
    out.push_back(cursor.take(sizes.u32("the sizes of a list"), "an element of a list"));
  }
  cursor.expect_end();
  return out;
}

inline std::string write_mds_list(const std::vector<std::string>& elements, bool zero) {
  std::string out;
  if (zero) {
    append_number(out, 0, 4);
  }
  append_number(out, elements.size(), 4);
  for (const std::string& element : elements) {
    append_number(out, element.size(), 4);
  }
  for (const std::string& element : elements) {
    out += element;
  }
  return out;
}

// Rounded once: to a float first, with an odd last digit where that is not exact, so that what is
// cut off still counts.
inline c10::Half half_of(double value) {
  const auto narrow = static_cast<float>(value);
  auto bits = std::bit_cast<std::uint32_t>(narrow);
  if (std::isfinite(narrow) && static_cast<double>(narrow) != value) {
    bits -= std::abs(static_cast<double>(narrow)) > std::abs(value) ? 1 : 0;
    bits |= 1;
  }
  return c10::Half(std::bit_cast<float>(bits));
}

// A real number in a column of floats. Throws c10::ValueError for another column.
inline std::string mds_real(std::string_view encoding, double value, const std::string& where) {
  std::string out(mds_scalar(encoding)->size, '\0');
  if (encoding == "float64") {
    std::memcpy(out.data(), &value, sizeof value);
  } else if (encoding == "float32") {
    const auto narrow = static_cast<float>(value);
    std::memcpy(out.data(), &narrow, sizeof narrow);
  } else if (encoding == "float16") {
    const c10::Half half = half_of(value);
    std::memcpy(out.data(), &half.x, sizeof half.x);
  } else {
    TUTTI_CHECK_VALUE(false, where, "the value is ", value, ", expected an integer");
  }
  return out;
}

// A tensor's values one after the other, row by row.
inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

// An integer in a column of numbers. Throws c10::ValueError when it does not fit.
inline std::string mds_integer(std::string_view encoding, std::int64_t value,
                               const std::string& where) {
  const MDSNumber& number = *mds_scalar(encoding);
  if (number.name.starts_with('f')) {
    return mds_real(encoding, static_cast<double>(value), where);
  }
  const bool is_signed = number.name.starts_with('i');
  const auto bits = static_cast<int>(8 * number.size);
  const std::int64_t above = value >> std::min(bits - (is_signed ? 1 : 0), 63);
  TUTTI_CHECK_VALUE(above == 0 || (is_signed && above == -1), where, value, " does not fit");
  std::string out;
  append_number(out, static_cast<std::uint64_t>(value), number.size);
  return out;
}

// As Python's str() writes a float.
inline std::string python_float(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  std::array<char, 40> buffer{};
  const auto text = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string(buffer.data(), end);
  };
  const std::string scientific = text(std::chars_format::scientific);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (value != 0 && (exponent < -4 || exponent >= 16)) {
    return scientific;
  }
  const std::string fixed = text(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

inline void append_python_string(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  constexpr std::string_view from = "\"\\\b\f\n\r\t";
  constexpr std::string_view to = "\"\\bfnrt";
  const auto unit = [&](unsigned code) {
    out +=
        {'\\', 'u', hex[code >> 12 & 15], hex[code >> 8 & 15], hex[code >> 4 & 15], hex[code & 15]};
  };
  out += '"';
  while (!text.empty()) {
    const auto next = ::tutti::detail::decode_utf8(text);
    const auto code = static_cast<unsigned>(next.code);
    const std::size_t escape = code < 0x80 ? from.find(text[0]) : std::string_view::npos;
    if (escape != std::string_view::npos) {
      out += {'\\', to[escape]};
    } else if (code >= 0x20 && code < 0x80) {
      out += text[0];
    } else if (code < 0x10000) {
      unit(code);
    } else {
      unit(0xD800 + ((code - 0x10000) >> 10));
      unit(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    text.remove_prefix(next.bytes);
  }
  out += '"';
}

// JSON as Python's json.dumps() writes it: a space behind each comma and colon, ASCII alone.
inline void append_python_json(std::string& out, const ::tutti::detail::Json& value) {
  if (value.is_string()) {
    append_python_string(out, value.string());
  } else if (value.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      out += i == 0 ? "" : ", ";
      append_python_json(out, value[i]);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    for (std::size_t i = 0; i < value.size(); ++i) {
      out += i == 0 ? "" : ", ";
      append_python_string(out, value.object()[i].first);
      out += ": ";
      append_python_json(out, value.object()[i].second);
    }
    out += '}';
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else {
    out += value.is_null() ? "null" : value.boolean() ? "true" : "false";
  }
}

}  // namespace tutti::data::detail
