// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include <ATen/ATen.h>

#include <tutti/data/jpeg.hpp>

#ifdef TUTTI_WITH_JPEG

/// [H, W, components] bytes as a JPEG file.
inline std::string encode_jpeg(const at::Tensor& pixels, J_COLOR_SPACE space,
                               bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(pixels.size(0));
  info.image_width = static_cast<JDIMENSION>(pixels.size(1));
  info.input_components = static_cast<int>(pixels.size(2));
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) {
    jpeg_simple_progression(&info);
  }
  jpeg_start_compress(&info, TRUE);
  for (std::int64_t y = 0; y < pixels.size(0); ++y) {
    at::Tensor line = pixels[y].contiguous();
    JSAMPROW row = line.mutable_data_ptr<JSAMPLE>();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string out(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return out;
}

/// [16, 24, 3]: red rises to the right, green downwards, blue is even.
inline at::Tensor picture() {
  const at::Tensor red = at::arange(24).mul(10).expand({16, 24});
  const at::Tensor green = at::arange(16).mul(15).unsqueeze(1).expand({16, 24});
  return at::stack({red, green, at::full({16, 24}, 90, at::kLong)}, 2).to(at::kByte).contiguous();
}

#endif
