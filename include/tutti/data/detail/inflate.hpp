// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>

/// Deflate, the compression of zip archives, in the direction of reading.
/// Source: RFC 1951, "DEFLATE Compressed Data Format Specification version 1.3".
namespace tutti::data::detail {

/// The `size` bytes that a deflated text stands for.
/// Throws std::invalid_argument when the text is damaged, cut off, or stands for another number.
std::string inflate(std::string_view deflated, std::size_t size);

// A set of prefix codes: the code that the next bits begin with, found by one look into a table.
class PrefixCodes {
 public:
  // lengths: of each symbol's code, 0 for none, at most 15.
  explicit PrefixCodes(std::span<const std::uint8_t> lengths);

  static constexpr unsigned most_bits = 15;

  struct Code {
    std::uint16_t symbol = 0;
    std::uint16_t bits = 0;  // 0: there is no such code
  };

  [[nodiscard]] Code find(std::uint64_t next_bits) const {
    return table_[next_bits & (table_.size() - 1)];
  }

 private:
  std::vector<Code> table_;
};

class Inflater {
 public:
  Inflater(std::string_view in, std::string& out) : in_(in), out_(out) {}
  void run();

 private:
  [[noreturn]] static void fail(const char* what) {
    throw std::invalid_argument(std::string("deflated data are damaged: ") + what);
  }

  void fill() {
    while (count_ <= 56 && at_ < in_.size()) {
      bits_ |= std::uint64_t{static_cast<unsigned char>(in_[at_++])} << count_;
      count_ += 8;
    }
  }
  void drop(unsigned n) {
    if (n > count_) {
      fail("they end too soon");
    }
    bits_ >>= n;
    count_ -= n;
  }
  unsigned take(unsigned n) {
    fill();
    const auto value = static_cast<unsigned>(bits_ & ((std::uint64_t{1} << n) - 1));
    drop(n);
    return value;
  }
  unsigned symbol(const PrefixCodes& codes) {
    fill();
    const PrefixCodes::Code code = codes.find(bits_);
    if (code.bits == 0) {
      fail("a code that is none");
    }
    drop(code.bits);
    return code.symbol;
  }

  void stored_block();
  void fixed_block();
  void dynamic_block();
  void block(const PrefixCodes& literals, const PrefixCodes& distances);
  void copy(std::size_t length, std::size_t distance);

  std::string_view in_;
  std::string& out_;
  std::size_t at_ = 0;       // in in_
  std::size_t written_ = 0;  // in out_
  std::uint64_t bits_ = 0;
  unsigned count_ = 0;  // of bits in bits_
};

}  // namespace tutti::data::detail

#if TUTTI_BODIES

namespace tutti::data::detail {

TUTTI_INLINE PrefixCodes::PrefixCodes(std::span<const std::uint8_t> lengths) {
  std::array<unsigned, most_bits + 1> count{};
  for (const std::uint8_t length : lengths) {
    ++count[length];
  }
  count[0] = 0;
  unsigned longest = 1;
  int left = 1;  // codes of this length that are free
  std::array<unsigned, most_bits + 2> next{};
  for (unsigned length = 1; length <= most_bits; ++length) {
    left = 2 * left - static_cast<int>(count[length]);
    if (left < 0) {
      throw std::invalid_argument("deflated data are damaged: too many codes");
    }
    longest = count[length] > 0 ? length : longest;
    next[length + 1] = (next[length] + count[length]) << 1U;
  }
  table_.resize(std::size_t{1} << longest);
  for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
    const unsigned length = lengths[symbol];
    if (length == 0) {
      continue;
    }
    const unsigned code = next[length]++;
    unsigned reversed = 0;  // the first bit of a code is the lowest that is read
    for (unsigned bit = 0; bit < length; ++bit) {
      reversed |= (code >> bit & 1U) << (length - 1 - bit);
    }
    for (std::size_t place = reversed; place < table_.size(); place += std::size_t{1} << length) {
      table_[place] = {static_cast<std::uint16_t>(symbol), static_cast<std::uint16_t>(length)};
    }
  }
}

TUTTI_INLINE void Inflater::run() {
  bool last = false;
  while (!last) {
    last = take(1) == 1;
    switch (take(2)) {
      case 0:
        stored_block();
        break;
      case 1:
        fixed_block();
        break;
      case 2:
        dynamic_block();
        break;
      default:
        fail("a block of an unknown kind");
    }
  }
  if (written_ != out_.size()) {
    fail("they stand for fewer bytes than announced");
  }
}

TUTTI_INLINE void Inflater::stored_block() {
  drop(count_ % 8);
  const unsigned length = take(16);
  if ((length ^ take(16)) != 0xFFFFU) {
    fail("the length of a stored block");
  }
  at_ -= count_ / 8;  // whole bytes that were looked at ahead
  bits_ = 0;
  count_ = 0;
  if (length > in_.size() - at_ || length > out_.size() - written_) {
    fail("a stored block is too long");
  }
  std::memcpy(out_.data() + written_, in_.data() + at_, length);
  at_ += length;
  written_ += length;
}

TUTTI_INLINE void Inflater::fixed_block() {
  static const PrefixCodes literals = [] {
    std::array<std::uint8_t, 288> lengths{};
    std::fill(lengths.begin(), lengths.begin() + 144, std::uint8_t{8});
    std::fill(lengths.begin() + 144, lengths.begin() + 256, std::uint8_t{9});
    std::fill(lengths.begin() + 256, lengths.begin() + 280, std::uint8_t{7});
    std::fill(lengths.begin() + 280, lengths.end(), std::uint8_t{8});
    return PrefixCodes(lengths);
  }();
  static const PrefixCodes distances = [] {
    std::array<std::uint8_t, 30> lengths{};
    lengths.fill(5);
    return PrefixCodes(lengths);
  }();
  block(literals, distances);
}

TUTTI_INLINE void Inflater::dynamic_block() {
  constexpr std::array<std::uint8_t, 19> order{16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                               11, 4,  12, 3, 13, 2, 14, 1, 15};
  const std::size_t literals = take(5) + 257;
  const std::size_t distances = take(5) + 1;
  const std::size_t code_lengths = take(4) + 4;
  if (literals > 286 || distances > 30) {
    fail("too many codes");
  }
  std::array<std::uint8_t, 19> first{};
  for (std::size_t i = 0; i < code_lengths; ++i) {
    first[order[i]] = static_cast<std::uint8_t>(take(3));
  }
  const PrefixCodes lengths_by(first);
  std::array<std::uint8_t, 286 + 30> lengths{};
  for (std::size_t i = 0; i < literals + distances;) {
    const unsigned symbol = this->symbol(lengths_by);
    std::size_t repeat = 1;
    std::uint8_t value = static_cast<std::uint8_t>(symbol);
    if (symbol >= 16) {
      if (symbol == 16 && i == 0) {
        fail("a repetition of nothing");
      }
      value = symbol == 16 ? lengths[i - 1] : std::uint8_t{0};
      repeat = symbol == 16 ? 3 + take(2) : symbol == 17 ? 3 + take(3) : 11 + take(7);
    }
    if (repeat > literals + distances - i) {
      fail("too many codes");
    }
    std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(i), repeat, value);
    i += repeat;
  }
  const std::span<const std::uint8_t> all(lengths.data(), literals + distances);
  block(PrefixCodes(all.first(literals)), PrefixCodes(all.subspan(literals)));
}

TUTTI_INLINE void Inflater::block(const PrefixCodes& literals, const PrefixCodes& distances) {
  constexpr std::array<std::uint16_t, 29> lengths{3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                  15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                  67, 83, 99, 115, 131, 163, 195, 227, 258};
  constexpr std::array<std::uint8_t, 29> length_bits{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                     2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  constexpr std::array<std::uint16_t, 30> starts{
      1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
      193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  for (unsigned next = symbol(literals); next != 256; next = symbol(literals)) {
    if (next < 256) {
      if (written_ == out_.size()) {
        fail("they stand for more bytes than announced");
      }
      out_[written_++] = static_cast<char>(next);
      continue;
    }
    if (next > 285) {
      fail("a length that is none");
    }
    const std::size_t length = lengths[next - 257] + take(length_bits[next - 257]);
    const unsigned code = symbol(distances);
    if (code >= starts.size()) {
      fail("a distance that is none");
    }
    copy(length, starts[code] + take(code < 2 ? 0 : code / 2 - 1));
  }
}

// The bytes may lie one over the other: what is written is read again.
TUTTI_INLINE void Inflater::copy(std::size_t length, std::size_t distance) {
  if (distance > written_) {
    fail("a distance in front of the first byte");
  }
  if (length > out_.size() - written_) {
    fail("they stand for more bytes than announced");
  }
  char* const to = out_.data() + written_;
  for (std::size_t i = 0; i < length; ++i) {
    to[i] = to[static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(distance)];
  }
  written_ += length;
}

TUTTI_INLINE std::string inflate(std::string_view deflated, std::size_t size) {
  constexpr std::size_t most_for_a_byte = 1032;
  if (size / most_for_a_byte > deflated.size()) {
    throw std::invalid_argument("deflated data are damaged: " + std::to_string(deflated.size()) +
                                " bytes cannot stand for " + std::to_string(size));
  }
  std::string out(size, '\0');
  Inflater(deflated, out).run();
  return out;
}

}  // namespace tutti::data::detail

#endif
