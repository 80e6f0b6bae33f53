// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/core/detail/throw.hpp>

#ifdef TUTTI_WITH_ZLIB
#include <zlib.h>
#endif
#ifdef TUTTI_WITH_ZSTD
#include <zstd.h>
#endif
#ifdef TUTTI_WITH_BZIP2
#include <bzlib.h>
#endif
#ifdef TUTTI_WITH_BROTLI
#include <brotli/decode.h>
#include <brotli/encode.h>
#endif
#ifdef TUTTI_WITH_SNAPPY
#include <snappy-c.h>
#endif

// Compressions of whole files, each where the program is linked to its library: the targets that
// tutti_find_zstd() and its neighbours in CMake make define TUTTI_WITH_ZSTD and so on.

namespace tutti::data::detail {

// What "zstd:7" says.
struct Compression {
  std::string_view name;  // "br", "bz2", "gz", "snappy" or "zstd"; empty: none
  int level = 0;
};

// A compression, and what it takes to have it.
struct KnownCompression {
  std::string_view name;
  int least, most, usual;  // levels
  bool linked;
  std::string_view find, package;
};

inline constexpr bool has_zlib =
#ifdef TUTTI_WITH_ZLIB
    true;
#else
    false;
#endif
inline constexpr bool has_zstd =
#ifdef TUTTI_WITH_ZSTD
    true;
#else
    false;
#endif
inline constexpr bool has_bzip2 =
#ifdef TUTTI_WITH_BZIP2
    true;
#else
    false;
#endif
inline constexpr bool has_brotli =
#ifdef TUTTI_WITH_BROTLI
    true;
#else
    false;
#endif
inline constexpr bool has_snappy =
#ifdef TUTTI_WITH_SNAPPY
    true;
#else
    false;
#endif

inline constexpr std::array<KnownCompression, 5> known_compressions{
    {{"br", 0, 11, 11, has_brotli, "brotli", "libbrotli-dev"},
     {"bz2", 1, 9, 9, has_bzip2, "bzip2", "libbz2-dev"},
     {"gz", 0, 9, 9, has_zlib, "zlib", "zlib1g-dev"},
     {"snappy", 0, 0, 0, has_snappy, "snappy", "libsnappy-dev"},
     {"zstd", 1, 22, 3, has_zstd, "zstd", "libzstd-dev"}}};

// Throws c10::ValueError for another name or a level out of range, c10::NotImplementedError where
// the program is not linked to the library. where: begins the sentence.
inline Compression compression_of(std::string_view text, const std::string& where) {
  if (text.empty()) {
    return {};
  }
  const std::string_view name = text.substr(0, text.find(':'));
  const auto* const known = std::find_if(known_compressions.begin(), known_compressions.end(),
                                         [&](const KnownCompression& k) { return k.name == name; });
  TUTTI_CHECK_VALUE(known != known_compressions.end(), where, "the compression is \"", text,
                    "\", expected br, bz2, gz, snappy or zstd, and a level behind a colon");
  TUTTI_CHECK_NOT_IMPLEMENTED(known->linked, where, "the compression is ", name,
                              ", and this program is not linked to ", known->find, "; install ",
                              known->package, ", call tutti_find_", known->find,
                              "() in CMake and link the target tutti::", known->find);
  Compression out{known->name, known->usual};
  if (name.size() < text.size()) {
    const std::string_view level = text.substr(name.size() + 1);
    const char* end = level.data() + level.size();
    const auto read = std::from_chars(level.data(), end, out.level);
    TUTTI_CHECK_VALUE(read.ec == std::errc() && read.ptr == end && out.level >= known->least &&
                          out.level <= known->most,
                      where, "the compression is \"", text, "\", expected a level from ",
                      known->least, " to ", known->most);
  }
  return out;
}

#ifdef TUTTI_WITH_ZLIB
// Both: bytes that came out, or npos.
inline std::size_t unzip_gz(std::string_view bytes, std::string& out) {
  ::z_stream stream{};
  if (::inflateInit2(&stream, 15 + 16) != Z_OK) {
    return std::string::npos;
  }
  stream.next_in = reinterpret_cast<::Bytef*>(const_cast<char*>(bytes.data()));
  stream.next_out = reinterpret_cast<::Bytef*>(out.data());
  std::size_t in_left = bytes.size();
  std::size_t out_left = out.size();
  int code = Z_OK;
  constexpr std::size_t step = std::numeric_limits<::uInt>::max();
  while (code == Z_OK) {
    stream.avail_in = static_cast<::uInt>(std::min(in_left, step));
    stream.avail_out = static_cast<::uInt>(std::min(out_left, step));
    in_left -= stream.avail_in;
    out_left -= stream.avail_out;
    code = ::inflate(&stream, Z_NO_FLUSH);
    in_left += stream.avail_in;
    out_left += stream.avail_out;
  }
  ::inflateEnd(&stream);
  return code == Z_STREAM_END && in_left == 0 ? out.size() - out_left : std::string::npos;
}

inline std::string zip_gz(std::string_view bytes, int level) {
  ::z_stream stream{};
  TUTTI_CHECK(::deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK,
              "gz: zlib has no memory");
  std::string out(::deflateBound(&stream, static_cast<::uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<::Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<::uInt>(bytes.size());  // shards are below 2^32 bytes
  stream.next_out = reinterpret_cast<::Bytef*>(out.data());
  stream.avail_out = static_cast<::uInt>(out.size());
  const int code = ::deflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  ::deflateEnd(&stream);
  TUTTI_CHECK(code == Z_STREAM_END, "gz: zlib ends with code ", code);
  return out;
}
#endif

#ifdef TUTTI_WITH_ZSTD
inline std::string zip_zstd(std::string_view bytes, int level) {
  std::string out(::ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t got =
      ::ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level);
  TUTTI_CHECK(::ZSTD_isError(got) == 0, "zstd: ", ::ZSTD_getErrorName(got));
  out.resize(got);
  return out;
}
#endif

#ifdef TUTTI_WITH_BZIP2
inline std::string zip_bz2(std::string_view bytes, int level) {
  std::string out(bytes.size() + bytes.size() / 100 + 600, '\0');
  auto size = static_cast<unsigned>(out.size());
  const int code = ::BZ2_bzBuffToBuffCompress(out.data(), &size, const_cast<char*>(bytes.data()),
                                              static_cast<unsigned>(bytes.size()), level, 0, 0);
  TUTTI_CHECK(code == BZ_OK, "bz2: libbz2 ends with code ", code);
  out.resize(size);
  return out;
}
#endif

#ifdef TUTTI_WITH_BROTLI
inline std::string zip_br(std::string_view bytes, int level) {
  std::size_t size = ::BrotliEncoderMaxCompressedSize(bytes.size()) + 1024;
  std::string out(size, '\0');
  TUTTI_CHECK(
      ::BrotliEncoderCompress(level, BROTLI_DEFAULT_WINDOW, BROTLI_MODE_GENERIC, bytes.size(),
                              reinterpret_cast<const std::uint8_t*>(bytes.data()), &size,
                              reinterpret_cast<std::uint8_t*>(out.data())) != 0,
      "br: brotli fails");
  out.resize(size);
  return out;
}
#endif

#ifdef TUTTI_WITH_SNAPPY
inline std::string zip_snappy(std::string_view bytes) {
  std::size_t size = ::snappy_max_compressed_length(bytes.size());
  std::string out(size, '\0');
  TUTTI_CHECK(::snappy_compress(bytes.data(), bytes.size(), out.data(), &size) == SNAPPY_OK,
              "snappy fails");
  out.resize(size);
  return out;
}
#endif

// Fills `out`, as long as the bytes are to be; returns how many there were, or npos when they are
// damaged or more.
inline std::size_t unzip_into([[maybe_unused]] std::string_view name,
                              [[maybe_unused]] std::string_view bytes,
                              [[maybe_unused]] std::string& out) {
#ifdef TUTTI_WITH_ZSTD
  if (name == "zstd") {
    const std::size_t got = ::ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size());
    return ::ZSTD_isError(got) != 0 ? std::string::npos : got;
  }
#endif
#ifdef TUTTI_WITH_ZLIB
  if (name == "gz") {
    return unzip_gz(bytes, out);
  }
#endif
#ifdef TUTTI_WITH_BZIP2
  if (name == "bz2") {
    auto size = static_cast<unsigned>(out.size());
    return ::BZ2_bzBuffToBuffDecompress(out.data(), &size, const_cast<char*>(bytes.data()),
                                        static_cast<unsigned>(bytes.size()), 0, 0) == BZ_OK
               ? size
               : std::string::npos;
  }
#endif
#ifdef TUTTI_WITH_BROTLI
  if (name == "br") {
    std::size_t size = out.size();
    return ::BrotliDecoderDecompress(
               bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()), &size,
               reinterpret_cast<std::uint8_t*>(out.data())) == BROTLI_DECODER_RESULT_SUCCESS
               ? size
               : std::string::npos;
  }
#endif
#ifdef TUTTI_WITH_SNAPPY
  if (name == "snappy") {
    std::size_t size = out.size();
    return ::snappy_uncompress(bytes.data(), bytes.size(), out.data(), &size) == SNAPPY_OK
               ? size
               : std::string::npos;
  }
#endif
  return std::string::npos;
}

// size: bytes that come out. Throws c10::Error when it is another number or they are damaged.
inline std::string unzip(const Compression& by, std::string_view bytes, std::uint64_t size,
                         const std::string& where) {
  constexpr std::uint64_t most = std::uint64_t{1} << 32;  // offsets of shards have 32 bits
  TUTTI_CHECK(size < most, where, "the file has ", size,
              " bytes when it is decompressed, expected less than 2^32");
  std::string out(static_cast<std::size_t>(size), '\0');
  const std::size_t got = unzip_into(by.name, bytes, out);
  TUTTI_CHECK(got == size, where, "the file of ", bytes.size(), " bytes is not ", size,
              " bytes that were compressed by ", by.name, "; it is damaged or cut off");
  return out;
}

inline std::string zip(const Compression& by, std::string_view bytes) {
#ifdef TUTTI_WITH_ZSTD
  if (by.name == "zstd") {
    return zip_zstd(bytes, by.level);
  }
#endif
#ifdef TUTTI_WITH_ZLIB
  if (by.name == "gz") {
    return zip_gz(bytes, by.level);
  }
#endif
#ifdef TUTTI_WITH_BZIP2
  if (by.name == "bz2") {
    return zip_bz2(bytes, by.level);
  }
#endif
#ifdef TUTTI_WITH_BROTLI
  if (by.name == "br") {
    return zip_br(bytes, by.level);
  }
#endif
#ifdef TUTTI_WITH_SNAPPY
  if (by.name == "snappy") {
    return zip_snappy(bytes);
  }
#endif
  TUTTI_CHECK(by.name.empty(), "the compression ", by.name, " is not linked");
  return std::string(bytes);
}

}  // namespace tutti::data::detail
