// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITH_JPEG

#include <array>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <jpeglib.h>
// After jpeglib.h, which it needs:
#include <jerror.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// Four inks, [H, W, 4] as Adobe's programs write them, 255 for none, in red, green and blue
// [3, H, W]: Pillow's arithmetic.
inline at::Tensor inks_to_rgb(const at::Tensor& inks) {
  const std::int64_t area = inks.size(0) * inks.size(1);
  at::Tensor out(at::detail::empty_cpu({3, inks.size(0), inks.size(1)}, at::kByte,
                                       /*pin_memory=*/false, std::nullopt));
  const auto* from = inks.const_data_ptr<std::uint8_t>();
  auto* to = out.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < area; ++i, from += 4) {
    const int light = from[3];  // that black leaves
    for (int ink = 0; ink < 3; ++ink) {
      const int product = (255 - from[ink]) * light + 128;
      to[ink * area + i] = static_cast<std::uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
  return out;
}

// One image being decoded. libjpeg's errors come back by longjmp, which must not pass objects with
// destructors: only begin(), begin_rows() and rows(), which have none, are jumped out of.
class JpegReader {
 public:
  JpegReader(std::string_view bytes, std::string name, bool warnings_are_errors)
      : name_(std::move(name)) {
    fault_.warnings_are_errors = warnings_are_errors;
    info_.err = ::jpeg_std_error(&fault_.errors);
    fault_.errors.error_exit = [](::j_common_ptr info) { jump(info); };
    fault_.errors.output_message = [](::j_common_ptr) {};
    fault_.errors.emit_message = [](::j_common_ptr info, int level) {
      const int code = info->err->msg_code;
      const bool cut_off = code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER;
      if (level < 0 && (cut_off || fault_of(info)->warnings_are_errors)) {
        jump(info);  // libjpeg would go on, and make grey what it lacks
      }
    };
    if (!begin(bytes)) {
      fail();
    }
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { ::jpeg_destroy_decompress(&info_); }

  [[nodiscard]] std::int64_t height() const { return info_.image_height; }
  [[nodiscard]] std::int64_t width() const { return info_.image_width; }

  // uint8 [3, H, W], each side divided by 1, 2, 4 or 8 and rounded up.
  at::Tensor pixels(int reduce = 1) {
    constexpr std::int64_t most = std::int64_t{1} << 28U;
    TUTTI_CHECK(height() * width() <= most, "'", name_, "' is ", width(), " x ", height(),
                ", expected at most ", most, " pixels; make it smaller");
    if (!begin_rows(reduce)) {
      fail();
    }
    at::Tensor out(at::detail::empty_cpu({static_cast<std::int64_t>(info_.output_height),
                                          static_cast<std::int64_t>(info_.output_width),
                                          static_cast<std::int64_t>(info_.output_components)},
                                         at::kByte, /*pin_memory=*/false, std::nullopt));
    if (!rows(out.mutable_data_ptr<JSAMPLE>())) {
      fail();
    }
    return in_inks() ? inks_to_rgb(out) : out.permute({2, 0, 1}).contiguous();
  }

 private:
  struct Fault {
    ::jpeg_error_mgr errors{};  // first, so that a pointer to it is one to the whole
    std::jmp_buf back{};
    std::array<char, JMSG_LENGTH_MAX> text{};
    bool warnings_are_errors = false;
  };

  static Fault* fault_of(::j_common_ptr info) { return reinterpret_cast<Fault*>(info->err); }

  [[noreturn]] static void jump(::j_common_ptr info) {
    Fault* fault = fault_of(info);
    info->err->format_message(info, fault->text.data());
    std::longjmp(fault->back, 1);  // NOLINT(cert-err52-cpp): libjpeg knows no other way
  }

  [[nodiscard]] bool begin(std::string_view bytes) {
    if (setjmp(fault_.back) != 0) {  // NOLINT(cert-err52-cpp)
      return false;
    }
    jpeg_create_decompress(&info_);
    ::jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()),
                   static_cast<unsigned long>(bytes.size()));
    ::jpeg_read_header(&info_, TRUE);
    return true;
  }

  [[nodiscard]] bool in_inks() const {
    return info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
  }

  [[nodiscard]] bool begin_rows(int reduce) {
    if (setjmp(fault_.back) != 0) {  // NOLINT(cert-err52-cpp)
      return false;
    }
    info_.out_color_space = in_inks() ? JCS_CMYK : JCS_RGB;
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(reduce);
    ::jpeg_start_decompress(&info_);
    return true;
  }

  [[nodiscard]] bool rows(JSAMPLE* out) {
    if (setjmp(fault_.back) != 0) {  // NOLINT(cert-err52-cpp)
      return false;
    }
    while (info_.output_scanline < info_.output_height) {
      const auto bytes = static_cast<std::size_t>(info_.output_components) * info_.output_width;
      JSAMPROW row = out + bytes * info_.output_scanline;
      ::jpeg_read_scanlines(&info_, &row, 1);
    }
    ::jpeg_finish_decompress(&info_);
    return true;
  }

  // Cleans up as well: the destructor of an object that was not built up does not run.
  [[noreturn]] void fail() {
    ::jpeg_destroy_decompress(&info_);
    TUTTI_CHECK(false, "'", name_, "' cannot be decoded: ", fault_.text.data(),
                "; expected a JPEG image, grey or in colours, that is whole");
  }

  std::string name_;
  ::jpeg_decompress_struct info_{};
  Fault fault_;
};

}  // namespace tutti::data::detail

#endif
