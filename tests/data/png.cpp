#include <tutti/data/png.hpp>

#ifdef TUTTI_WITH_PNG

#include "support/catch.hpp"
#include "support/message.hpp"

#include <array>
#include <csetjmp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <tutti/data/image_folder.hpp>

#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::data::decode_png;
using tutti::data::load_image_folder;

struct Format {
  int type = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  int interlace = PNG_INTERLACE_NONE;
};

// A PNG file of `height` rows of bytes, as the format packs them.
std::string encode_png(const std::string& pixels, int width, int height, Format format = {}) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string out;
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep bytes, std::size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(bytes), n);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               format.bits, format.type, format.interlace, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette{{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {7, 8, 9}};
  std::array<png_byte, 2> transparent{0, 128};
  if (format.type == PNG_COLOR_TYPE_PALETTE) {
    png_set_PLTE(png, info, palette.data(), 4);
    png_set_tRNS(png, info, transparent.data(), 2, nullptr);
  }
  png_set_gAMA(png, info, 0.3);  // to be left alone
  png_write_info(png, info);
  const std::size_t stride = pixels.size() / static_cast<std::size_t>(height);
  std::vector<png_bytep> rows;
  std::string copy = pixels;
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    rows.push_back(reinterpret_cast<png_bytep>(copy.data() + y * stride));
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

// 5 x 3 pixels of `channels` bytes: 0, 3, 6, ...
std::string bytes(int channels) {
  std::string out;
  for (int i = 0; i < 15 * channels; ++i) {
    out += static_cast<char>(3 * i);
  }
  return out;
}

at::Tensor planes(int channels) {  // [channels, 3, 5]
  return at::arange(15 * channels, at::kLong)
      .mul(3)
      .remainder(256)
      .to(at::kByte)
      .view({3, 5, channels})
      .permute({2, 0, 1});
}

at::Tensor gray(const at::Tensor& plane) {
  return plane.expand({3, plane.size(-2), plane.size(-1)});
}

}  // namespace

TEST_CASE("PNG images come back exactly, as planes of red, green and blue", "[data][png]") {
  for (const int interlace : {PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7}) {
    const auto decode = [&](int type, int bits, const std::string& pixels) {
      return decode_png(encode_png(pixels, 5, 3, {type, bits, interlace}));
    };
    CHECK(decode(PNG_COLOR_TYPE_RGB, 8, bytes(3)).equal(planes(3)));
    CHECK(decode(PNG_COLOR_TYPE_RGBA, 8, bytes(4)).equal(planes(4).slice(0, 0, 3)));
    CHECK(decode(PNG_COLOR_TYPE_GRAY, 8, bytes(1)).equal(gray(planes(1))));
    CHECK(decode(PNG_COLOR_TYPE_GRAY_ALPHA, 8, bytes(2)).equal(gray(planes(2).slice(0, 0, 1))));
    // Of 16 bits, big end first, the upper 8.
    CHECK(decode(PNG_COLOR_TYPE_GRAY, 16, bytes(2)).equal(gray(planes(2).slice(0, 0, 1))));
    CHECK(decode(PNG_COLOR_TYPE_RGB, 16, bytes(6)).equal(planes(6).slice(0, 0, 6, 2)));
  }
}

TEST_CASE("PNG images of few bits and with a palette are spread out", "[data][png]") {
  const Format bit{PNG_COLOR_TYPE_GRAY, 1};
  CHECK(decode_png(encode_png("\xa0", 3, 1, bit))[0].equal(
      at::tensor({255, 0, 255}, at::kByte).view({1, 3})));
  const Format two{PNG_COLOR_TYPE_GRAY, 2};
  CHECK(decode_png(encode_png("\x1b", 4, 1, two))[2].equal(
      at::tensor({0, 85, 170, 255}, at::kByte).view({1, 4})));
  for (const auto& [bits, pixels] :
       std::vector<std::pair<int, std::string>>{{2, "\x1b"}, {8, std::string("\0\1\2\3", 4)}}) {
    const at::Tensor colours = decode_png(encode_png(pixels, 4, 1, {PNG_COLOR_TYPE_PALETTE, bits}));
    CHECK(colours.equal(
        at::tensor({255, 0, 0, 7, 0, 255, 0, 8, 0, 0, 255, 9}, at::kByte).view({3, 1, 4})));
  }
}

TEST_CASE("bytes that are no whole PNG image are refused with a name", "[data][png]") {
  const auto says = [](const std::string& file) {
    return message([&] { (void)decode_png(file, "a/1.png"); });
  };
  const std::string good = encode_png(bytes(3), 5, 3);
  CHECK(says(good) == "nothing");
  CHECK(says("GIF89a, and more") ==
        "'a/1.png' cannot be decoded: Not a PNG file; expected a PNG image that is whole");
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_THAT(says(good.substr(0, size)), ContainsSubstring("'a/1.png' cannot be decoded: "));
  }
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    refused += says(bad) == "nothing" ? 0 : 1;  // all but what does not change the pixels
  }
  CHECK(refused > static_cast<int>(good.size()) * 2 / 3);
  std::string huge = good;  // 65536 x 65536, with the checksum that fits
  huge.replace(16, 8, std::string("\0\1\0\0\0\1\0\0", 8)).replace(29, 4, "\xe3\xe6\xa7\xb4");
  CHECK_THAT(says(huge), ContainsSubstring("'a/1.png' is 65536 x 65536, expected at most"));
}

TEST_CASE("folders and tar files take PNG images by what is in them", "[data][png]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  std::filesystem::create_directory(folder / "b");
  write_bytes(folder / "a/1.png", encode_png(bytes(3), 5, 3));
  write_bytes(folder / "b/2.PNG", encode_png(bytes(1), 5, 3, {PNG_COLOR_TYPE_GRAY}));
  write_bytes(folder / "b/3.jpg", encode_png(bytes(3), 5, 3));  // misnamed, as many are
  const auto set = load_image_folder(folder.path().string());
  REQUIRE(set.images.sizes() == at::IntArrayRef({3, 3, 3, 5}));
  CHECK(set.images[0].equal(planes(3)));
  CHECK(set.images[1].equal(gray(planes(1))));
  CHECK(set.images[2].equal(planes(3)));
  CHECK(set.labels.equal(at::tensor({0, 1, 1}, at::kLong)));

  write_bytes(folder / "b/2.PNG", encode_png(bytes(3), 5, 3).substr(0, 60));
  const std::string name = (folder / "b/2.PNG").string();
  CHECK_THAT(message([&] { (void)load_image_folder(folder.path().string()); }),
             ContainsSubstring("'" + name + "' cannot be decoded: "));
}

}  // namespace UNITY_BUILD_UNIQUE_ID

#else

#include "support/catch.hpp"

TEST_CASE("PNG images are decoded", "[data][png]") {
  tutti_test::skip("this program was built without libpng, TUTTI_WITH_PNG");
}

#endif
