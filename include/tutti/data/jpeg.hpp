// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#ifdef TUTTI_WITH_JPEG
#include <tutti/data/detail/jpeg_reader.hpp>
#endif

/// JPEG images, by libjpeg-turbo, where the program is linked to it: the target tutti::jpeg, which
/// the CMake function tutti_find_jpeg() makes and which defines TUTTI_WITH_JPEG.
namespace tutti::data {

/// Options of decode_jpeg.
struct JpegOptions {
  bool warnings_are_errors = false;  ///< refuse what libjpeg mends as well as it can
};

/// By how much an image of that size is made smaller while it is decoded: 1, 2, 4 or 8. Called
/// once, before any pixel is decoded.
using ReduceImage = std::function<int(std::int64_t height, std::int64_t width)>;

#ifdef TUTTI_WITH_JPEG

/// The pixels of a JPEG image.
///
/// bytes: the whole file. name: what messages call it.
/// Returns uint8 [3, H, W]: red, green, blue; the three are equal where the image is grey. Of
/// four inks (CMYK and YCCK) they are what Pillow makes of them: the inks are taken as inverted, as
/// Adobe's programs write them, and a profile of their colours is not looked at. Notes
/// that a camera makes about which side is up are not looked at.
/// Throws c10::Error when the bytes are no JPEG image, are cut off, or have other colours, and with
/// options.warnings_are_errors when libjpeg warns, as of colours that do not fit the format or of
/// bytes between its parts. The format has no checksums: most changed bits give other pixels, of
/// which no decoder can tell.
inline at::Tensor decode_jpeg(std::string_view bytes, const std::string& name = "the image",
                              const JpegOptions& options = {}) {
  return detail::JpegReader(bytes, name, options.warnings_are_errors).pixels();
}

/// The same, made smaller by libjpeg: at 1/8 it takes a fraction of the time. Sides are rounded up.
/// Throws c10::Error (ValueError) when reduce gives another number.
inline at::Tensor decode_jpeg(std::string_view bytes, const std::string& name,
                              const JpegOptions& options, const ReduceImage& reduce) {
  detail::JpegReader reader(bytes, name, options.warnings_are_errors);
  const int by = reduce(reader.height(), reader.width());
  TUTTI_CHECK_VALUE(by == 1 || by == 2 || by == 4 || by == 8, "decode_jpeg: reduce is ", by,
                    ", expected 1, 2, 4 or 8");
  return reader.pixels(by);
}

#else

template <bool linked = false>
at::Tensor decode_jpeg(std::string_view, const std::string& = {}, const JpegOptions& = {},
                       const ReduceImage& = {}) {
  static_assert(linked,
                "tutti: this program reads JPEG images without a library for it; install "
                "libjpeg-dev, call tutti_find_jpeg() in CMake and link the target tutti::jpeg "
                "(or compile with -DTUTTI_WITH_JPEG=1 and link -ljpeg).");
  return {};
}

#endif

}  // namespace tutti::data
