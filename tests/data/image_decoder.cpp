#include <tutti/data/image_decoder.hpp>

#include <functional>
#include <string>
#include <string_view>

#include <ATen/ATen.h>

#include "data/encode_jpeg.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

#if defined(TUTTI_WITH_JPEG) || defined(TUTTI_WITH_PNG)

using Catch::Matchers::ContainsSubstring;
using tutti::data::ImageDecoder;

namespace {

// A PNG file of one row: (10, 20, 30), (40, 50, 60).
const std::string png(
    "\x89PNG\r\n\x1a\n"
    "\0\0\0\x0dIHDR\0\0\0\2\0\0\0\1\x08\2\0\0\0\x7b\x40\xe8\xdd"
    "\0\0\0\x12IDAT\x78\1\1\7\0\xf8\xff\0\x0a\x14\x1e\x28\x32\x3c\2\x37\0\xd3\x1d\x22\xd0\xad"
    "\0\0\0\0IEND\xae\x42\x60\x82",
    75);

std::string says(std::string_view bytes) {
  return message([&] { (void)ImageDecoder{}(bytes, "a/1.img"); });
}

}  // namespace

#ifdef TUTTI_WITH_PNG
TEST_CASE("the first bytes make a decoder take an image for a PNG one", "[data][png]") {
  const at::Tensor pixels = at::tensor({10, 40, 20, 50, 30, 60}, at::kByte).view({3, 1, 2});
  CHECK(ImageDecoder{}(png, "photo.jpg").equal(pixels));
  CHECK(ImageDecoder{}(std::string_view(png), "photo").equal(pixels));
  CHECK(says(png.substr(0, 40)).starts_with("'a/1.img' cannot be decoded: "));
  CHECK_THAT(says(png.substr(0, 4)), ContainsSubstring("a PNG image that is whole"));
}
#else
TEST_CASE("a decoder without libpng says what a PNG image needs", "[data][jpeg]") {
  CHECK(says(png) ==
        "'a/1.img' is a PNG image, and this program decodes only JPEG; link it to tutti::png");
}
#endif

#ifdef TUTTI_WITH_JPEG
TEST_CASE("the first bytes make a decoder take an image for a JPEG one", "[data][jpeg]") {
  const std::string file = encode_jpeg(picture(), JCS_RGB);
  const at::Tensor pixels = tutti::data::decode_jpeg(file);
  CHECK(ImageDecoder{}(file, "photo.png").equal(pixels));
  CHECK(ImageDecoder{}(std::string_view(file), "photo").equal(pixels));
  CHECK_THAT(says(file.substr(0, 100)), ContainsSubstring("'a/1.img' cannot be decoded: ") &&
                                            ContainsSubstring("expected a JPEG image"));
  std::string mended = file;
  mended.insert(mended.find("\xff\xdb"), "junk");
  const ImageDecoder strict{.jpeg = {.warnings_are_errors = true}};
  CHECK(ImageDecoder{}(mended, "a.jpg").equal(pixels));
  CHECK_THROWS_WITH(strict(mended, "a.jpg"), ContainsSubstring("4 extraneous bytes"));
}
#else
TEST_CASE("a decoder without libjpeg says what a JPEG image needs", "[data][png]") {
  CHECK(says("\xff\xd8\xff\xe0") ==
        "'a/1.img' is a JPEG image, and this program decodes only PNG; link it to tutti::jpeg");
}
#endif

TEST_CASE("a decoder refuses what is no image with its name", "[data][image_decoder]") {
  for (const std::string_view bytes : {"", "\x89", "\xff", "GIF89a and more", "\x89PN"}) {
    CHECK(says(bytes).starts_with("'a/1.img' cannot be decoded: "));
  }
}

#else

TEST_CASE("images are decoded by what is in them", "[data][image_decoder]") {
  tutti_test::skip("this program was built without libjpeg and libpng");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
