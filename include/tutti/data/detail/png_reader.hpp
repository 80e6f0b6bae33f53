// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITH_PNG

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <png.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::data::detail {

// One image being decoded. libpng's errors come back by longjmp, which must not pass objects with
// destructors: only begin() and rows(), which have none, are jumped out of.
class PngReader {
 public:
  PngReader(std::string_view bytes, std::string name) : name_(std::move(name)), rest_(bytes) {
    if (!begin()) {
      fail();
    }
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { ::png_destroy_read_struct(&png_, &info_, nullptr); }

  // uint8 [3, H, W]
  at::Tensor pixels() {
    constexpr std::int64_t most = std::int64_t{1} << 28U;
    const auto height = static_cast<std::int64_t>(::png_get_image_height(png_, info_));
    const auto width = static_cast<std::int64_t>(::png_get_image_width(png_, info_));
    if (height * width > most) {
      TUTTI_CHECK(false, "'", name_, "' is ", width, " x ", height, ", expected at most ", most,
                  " pixels; make it smaller");
    }
    at::Tensor out(
        at::detail::empty_cpu({height, width, 3}, at::kByte, /*pin_memory=*/false, std::nullopt));
    if (!rows(out.mutable_data_ptr<png_byte>(), static_cast<std::size_t>(width) * 3)) {
      fail();
    }
    return out.permute({2, 0, 1}).contiguous();
  }

 private:
  [[noreturn]] static void jump(::png_structp png, ::png_const_charp text) {
    auto* reader = static_cast<PngReader*>(::png_get_error_ptr(png));
    std::snprintf(reader->text_.data(), reader->text_.size(), "%s", text);
    std::longjmp(reader->back_, 1);  // NOLINT(cert-err52-cpp): libpng knows no other way
  }

  static void read(::png_structp png, ::png_bytep to, std::size_t bytes) {
    auto* reader = static_cast<PngReader*>(::png_get_io_ptr(png));
    if (bytes > reader->rest_.size()) {
      ::png_error(png, "it ends too soon");
    }
    std::memcpy(to, reader->rest_.data(), bytes);
    reader->rest_.remove_prefix(bytes);
  }

  [[nodiscard]] bool begin() {
    if (setjmp(back_) != 0) {  // NOLINT(cert-err52-cpp)
      return false;
    }
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, jump,
                                    [](::png_structp, ::png_const_charp) {});
    info_ = png_ == nullptr ? nullptr : ::png_create_info_struct(png_);
    if (info_ == nullptr) {
      std::snprintf(text_.data(), text_.size(), "libpng is another one than that compiled for");
      return false;
    }
    ::png_set_read_fn(png_, this, read);
    ::png_read_info(png_, info_);
    ::png_set_expand(png_);  // palettes to colours, fewer than 8 bits to 8
    ::png_set_strip_16(png_);
    ::png_set_strip_alpha(png_);
    ::png_set_gray_to_rgb(png_);
    passes_ = ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    return true;
  }

  [[nodiscard]] bool rows(png_bytep out, std::size_t stride) {
    if (setjmp(back_) != 0) {  // NOLINT(cert-err52-cpp)
      return false;
    }
    if (::png_get_rowbytes(png_, info_) != stride) {
      ::png_error(png_, "its rows have another length than red, green and blue need");
    }
    const std::size_t height = ::png_get_image_height(png_, info_);
    for (int pass = 0; pass < passes_; ++pass) {
      for (std::size_t y = 0; y < height; ++y) {
        ::png_read_row(png_, out + y * stride, nullptr);
      }
    }
    ::png_read_end(png_, nullptr);
    return true;
  }

  // Cleans up as well: the destructor of an object that was not built up does not run.
  [[noreturn]] void fail() {
    ::png_destroy_read_struct(&png_, &info_, nullptr);
    TUTTI_CHECK(false, "'", name_, "' cannot be decoded: ", text_.data(),
                "; expected a PNG image that is whole");
  }

  std::string name_;
  std::string_view rest_;  // bytes not yet read
  ::png_structp png_ = nullptr;
  ::png_infop info_ = nullptr;
  int passes_ = 1;
  std::jmp_buf back_{};
  std::array<char, 200> text_{};
};

}  // namespace tutti::data::detail

#endif
