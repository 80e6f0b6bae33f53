#include <tutti/data/jpeg.hpp>

#include <functional>
#include <string>
#include <string_view>

#include <ATen/ATen.h>

#include "data/encode_jpeg.hpp"
#include "data/vision_golden.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

#ifdef TUTTI_WITH_JPEG

using Catch::Matchers::ContainsSubstring;
using tutti::data::decode_jpeg;

TEST_CASE("JPEG images come back as planes of red, green and blue", "[data][jpeg]") {
  for (const bool progressive : {false, true}) {
    const at::Tensor back = decode_jpeg(encode_jpeg(picture(), JCS_RGB, progressive));
    CHECK(back.sizes() == at::IntArrayRef({3, 16, 24}));
    const at::Tensor error = back.to(at::kFloat) - picture().permute({2, 0, 1}).to(at::kFloat);
    CHECK(error.abs().mean().item<double>() < 4);  // quality 95, colours at half the resolution
  }
}

TEST_CASE("a grey JPEG image has three equal planes", "[data][jpeg]") {
  const at::Tensor line = at::arange(0, 256, 8).to(at::kByte).expand({8, 32}).unsqueeze(2);
  const at::Tensor back = decode_jpeg(encode_jpeg(line, JCS_GRAYSCALE));
  CHECK(back.sizes() == at::IntArrayRef({3, 8, 32}));
  CHECK(back[0].equal(back[1]));
  CHECK(back[0].equal(back[2]));
  CHECK((back[0].to(at::kInt) - line.squeeze(2).to(at::kInt)).abs().max().item<int>() < 8);
}

TEST_CASE("four inks become red, green and blue as Pillow makes them", "[data][jpeg][golden]") {
  for (const std::string kind : {"cmyk", "ycck", "no_marker"}) {
    const at::Tensor file = vision_golden::golden("jpeg." + kind);
    const auto* bytes = reinterpret_cast<const char*>(file.const_data_ptr<std::uint8_t>());
    const std::string_view jpeg(bytes, static_cast<std::size_t>(file.numel()));
    CHECK(vision_golden::furthest(decode_jpeg(jpeg), "jpeg." + kind + ".rgb") <= 1);
    const auto half = [](std::int64_t, std::int64_t) { return 2; };
    CHECK(decode_jpeg(jpeg, "1.jpg", {}, half).sizes() == at::IntArrayRef({3, 5, 6}));
  }
  // No black, then half of it; 255 for none.
  const at::Tensor inks = at::tensor({255, 128, 0, 255, 255, 128, 0, 128}, at::kByte);
  CHECK(tutti::data::detail::inks_to_rgb(inks.view({1, 2, 4}))
            .equal(at::tensor({255, 128, 128, 64, 0, 0}, at::kByte).view({3, 1, 2})));
}

TEST_CASE("bytes that are no whole JPEG image are refused with a name", "[data][jpeg]") {
  const auto says = [](const std::string& bytes) {
    return message([&] { (void)decode_jpeg(bytes, "a/1.jpg"); });
  };
  const std::string good = encode_jpeg(picture(), JCS_RGB);
  CHECK(says(good) == "nothing");
  CHECK_THAT(says("GIF89a"), ContainsSubstring("'a/1.jpg' cannot be decoded: Not a JPEG file"));
  CHECK_THAT(says(""), ContainsSubstring("'a/1.jpg' cannot be decoded"));
  CHECK_THAT(says(good.substr(0, good.size() / 2)), ContainsSubstring("cannot be decoded: "));
  const std::string most = good.substr(0, good.size() - 20);  // within the pixels
  CHECK_THAT(says(most), ContainsSubstring("'a/1.jpg' cannot be decoded: Premature end of JPEG"));
  CHECK_THAT(says(most + "\xff\xd9"), ContainsSubstring("'a/1.jpg' cannot be decoded: "));
  CHECK_THAT(says(encode_jpeg(at::zeros({8, 8, 2}, at::kByte), JCS_UNKNOWN)),
             ContainsSubstring("cannot be decoded: Unsupported color conversion") &&
                 ContainsSubstring("expected a JPEG image, grey or in colours"));
  for (std::size_t bytes = 0; bytes < good.size(); bytes += 7) {
    (void)says(good.substr(0, bytes));  // whatever it says, it does not crash
  }
  std::string wide = good;
  const std::size_t frame = wide.find("\xff\xc0");
  wide.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  CHECK_THAT(says(wide), ContainsSubstring("is 65500 x 65500, expected at most"));
}

TEST_CASE("what libjpeg mends is refused where warnings are errors", "[data][jpeg]") {
  const std::string good = encode_jpeg(picture(), JCS_RGB);
  std::string mended = good;
  mended.insert(mended.find("\xff\xdb"), "junk");  // between two parts, which libjpeg passes over
  const auto says = [](const std::string& bytes, bool warnings_are_errors) {
    return message(
        [&] { (void)decode_jpeg(bytes, "a/1.jpg", {.warnings_are_errors = warnings_are_errors}); });
  };
  CHECK(says(good, true) == "nothing");
  CHECK(decode_jpeg(mended).equal(decode_jpeg(good)));
  CHECK_THAT(says(mended, true),
             ContainsSubstring("'a/1.jpg' cannot be decoded: Corrupt JPEG data: 4 extraneous"));

  // The format has no checksums: of a changed bit within the pixels little can be told.
  int told = 0;
  const std::size_t pixels = good.find("\xff\xda") + 14;
  for (std::size_t at = pixels; at < good.size() - 2; ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const bool strict = says(changed, true) != "nothing";
    CHECK((strict || says(changed, false) == "nothing"));
    told += strict ? 1 : 0;
  }
  CHECK(told < static_cast<int>(good.size() - pixels));
}

TEST_CASE("JPEG images of any size fill their tensor", "[data][jpeg]") {
  for (const auto& [height, width] : {std::pair{1, 1}, {1, 17}, {9, 1}, {15, 33}}) {
    const at::Tensor even = at::full({height, width, 3}, 90, at::kByte);
    const at::Tensor back = decode_jpeg(encode_jpeg(even, JCS_RGB));
    CHECK(back.sizes() == at::IntArrayRef({3, height, width}));
    CHECK(back.scalar_type() == at::kByte);
    CHECK(back.is_contiguous());
    CHECK((back.to(at::kInt) - 90).abs().max().item<int>() <= 2);
  }
}

TEST_CASE("what stands beside the pixels of a JPEG image changes nothing", "[data][jpeg]") {
  const std::string good = encode_jpeg(picture(), JCS_RGB);
  const at::Tensor pixels = decode_jpeg(good);
  // A camera that was held upright: Exif, big end first, one entry, orientation 6.
  const std::string_view exif(
      "\xff\xe1\0\x22"
      "Exif\0\0"
      "MM\0\x2a\0\0\0\x08"
      "\0\1\1\x12\0\3\0\0\0\1\0\6\0\0"
      "\0\0\0\0",
      36);
  CHECK(decode_jpeg(good.substr(0, 2) + std::string(exif) + good.substr(2)).equal(pixels));
  CHECK(decode_jpeg(good + "and more").equal(pixels));
}

TEST_CASE("a JPEG image without a name is called the image", "[data][jpeg]") {
  CHECK(message([] { (void)decode_jpeg("BM, a bitmap"); }) ==
        "'the image' cannot be decoded: Not a JPEG file: starts with 0x42 0x4d; expected a JPEG "
        "image, grey or in colours, that is whole");
}

#else

TEST_CASE("JPEG images are decoded", "[data][jpeg]") {
  tutti_test::skip("this program was built without libjpeg, TUTTI_WITH_JPEG");
}

#endif

}  // namespace UNITY_BUILD_UNIQUE_ID
