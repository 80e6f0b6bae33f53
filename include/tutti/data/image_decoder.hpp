// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/jpeg.hpp>
#include <tutti/data/png.hpp>

namespace tutti::data {

/// Decodes JPEG and PNG, told apart by their first bytes: what load_image_folder decodes with
/// unless it is told otherwise. The program links tutti::jpeg, tutti::png or both.
///
///     auto set = tutti::data::load_image_folder(
///         "photos", {.size = 64}, tutti::data::ImageDecoder{.jpeg = {.warnings_are_errors =
///         true}});
struct ImageDecoder {
  JpegOptions jpeg{};

  /// bytes: the whole file. name: what messages call it. reduce: by how much the image may be made
  /// smaller, where its format can be decoded so, as JPEG can; empty: not. Returns uint8 [3, H, W].
  /// Throws c10::Error, naming the file, when it is damaged or of a format that is not linked.
  template <class Bytes>
  at::Tensor operator()(const Bytes& bytes, [[maybe_unused]] const std::string& name,
                        [[maybe_unused]] const ReduceImage& reduce = {}) const {
    [[maybe_unused]] const auto whole = [](std::int64_t, std::int64_t) { return 1; };
    const std::string_view view(bytes);
    [[maybe_unused]] const bool png = view.starts_with("\x89PNG");
#if defined(TUTTI_WITH_PNG) && defined(TUTTI_WITH_JPEG)
    return png ? decode_png(view, name) : decode_jpeg(view, name, jpeg, reduce ? reduce : whole);
#elif defined(TUTTI_WITH_PNG)
    TUTTI_CHECK(!view.starts_with("\xff\xd8"), "'", name,
                "' is a JPEG image, and this program decodes only PNG; link it to tutti::jpeg");
    return decode_png(view, name);
#elif defined(TUTTI_WITH_JPEG)
    TUTTI_CHECK(!png, "'", name,
                "' is a PNG image, and this program decodes only JPEG; link it to tutti::png");
    return decode_jpeg(view, name, jpeg, reduce ? reduce : whole);
#else
    static_assert(sizeof(Bytes) == 0,
                  "tutti: this program reads images without a library for it; install libjpeg-dev "
                  "and libpng-dev, call tutti_find_jpeg() and tutti_find_png() in CMake and link "
                  "the targets tutti::jpeg and tutti::png, one or both.");
    return {};
#endif
  }
};

}  // namespace tutti::data
