// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#ifdef TUTTI_WITH_PNG
#include <tutti/data/detail/png_reader.hpp>
#endif

/// PNG images, by libpng, where the program is linked to it: the target tutti::png, which the CMake
/// function tutti_find_png() makes and which defines TUTTI_WITH_PNG.
namespace tutti::data {

#ifdef TUTTI_WITH_PNG

/// The pixels of a PNG image.
///
/// bytes: the whole file. name: what messages call it.
/// Returns uint8 [3, H, W]: red, green, blue; the three are equal where the image is grey. Of 16
/// bits the upper 8 are kept, transparency is dropped, and notes on gamma are not looked at.
/// Throws c10::Error when the bytes are no PNG image, are damaged or cut off.
inline at::Tensor decode_png(std::string_view bytes, const std::string& name = "the image") {
  return detail::PngReader(bytes, name).pixels();
}

#else

template <bool linked = false>
at::Tensor decode_png(std::string_view, const std::string& = {}) {
  static_assert(linked,
                "tutti: this program reads PNG images without a library for it; install "
                "libpng-dev, call tutti_find_png() in CMake and link the target tutti::png "
                "(or compile with -DTUTTI_WITH_PNG=1 and link -lpng).");
  return {};
}

#endif

}  // namespace tutti::data
