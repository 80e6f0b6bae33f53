#include <tutti/core/detail/digest.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::digest;

namespace {

struct Known {
  std::string name, of_abc, of_all;
};

}  // namespace

TEST_CASE("digests are those of hashlib and xxhash at every length", "[data][mds]") {
  std::string text;
  for (unsigned i = 0; i < 3000; ++i) {
    text += static_cast<char>(i * 37 + i / 7);
  }
  std::vector<std::size_t> sizes{511, 512, 513, 1023, 1024, 1025, 1088, 2048, 3000};
  for (std::size_t size = 300; size-- > 0;) {
    sizes.insert(sizes.begin(), size);
  }
  // The SHA-256 of all digests one after the other, as Python's libraries give them.
  const std::vector<Known> all{
      {"blake2b",
       "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d17d87c5392aab792dc252d5de453"
       "3cc9518d38aa8dbf1925ab92386edd4009923",
       "96895d7d3207d540aa49b09b8b111c23be97a316281fbe355930f95d6911d95a"},
      {"blake2s", "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982",
       "521653f1d30195faaa2b5d9f85727661552abba8181fc84265ec611d01f25bfa"},
      {"md5", "900150983cd24fb0d6963f7d28e17f72",
       "17cf5f6cfaaf34b832d8fe41453de8007fba6eb86b8f32dd7397b9819bdc335d"},
      {"sha1", "a9993e364706816aba3e25717850c26c9cd0d89d",
       "6d4ec569c723aca858571b3382acc83f568cbe29f6aff3b86fd91e40ef8a7835"},
      {"sha224", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7",
       "63a715b56676579715da95535045affa3e8bb77355d5dbb8b0459a4a21795989"},
      {"sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
       "064ee8f37bc7c46b27cbdcf90025b3b8ee9555bf00259fab32d49ca8e9618f27"},
      {"sha384",
       "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c"
       "825a7",
       "220538eb9e2fabab6eb4379b0deb88ac175de147e3f14a0631722f2284eb83d1"},
      {"sha3_224", "e642824c3f8cf24ad09234ee7d3c766fc9a3a5168d0c94ad73b46fdf",
       "7ac1f8211cf2afdf1a61fe06b9a72d10a72b923aa93aad4eec44218835868b02"},
      {"sha3_256", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
       "c38a163c17130ee513be4ef5a99de1d58e2067f3e79a455a3b5958facabbf109"},
      {"sha3_384",
       "ec01498288516fc926459f58e2c6ad8df9b473cb0fc08c2596da7cf0e49be4b298d88cea927ac7f539f1edf2283"
       "76d25",
       "197bbba04e8f1ef7c12801a43c54ff66eea8e082c19955935ed2ee42751fd3bb"},
      {"sha3_512",
       "b751850b1a57168a5693cd924b6b096e08f621827444f70d884f5d0240d2712e10e116e9192af3c91a7ec57647e"
       "3934057340b4cf408d5a56592f8274eec53f0",
       "506200a1d2c3676685c7b13ea403c1e7706ab671ee8ff48414eb306c57c4a63a"},
      {"sha512",
       "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3f"
       "eebbd454d4423643ce80e2a9ac94fa54ca49f",
       "5f129c0b1d5ef1402e525d86f15d1463f36161b65728ee559e78fe0f71c3c196"},
      {"xxh128", "06b05ab6733a618578af5f94892f3950",
       "4147162afa484d2e8f523274853c2ae6fc98ce825a773a8728242e3c475e0726"},
      {"xxh3_128", "06b05ab6733a618578af5f94892f3950",
       "4147162afa484d2e8f523274853c2ae6fc98ce825a773a8728242e3c475e0726"},
      {"xxh32", "32d153ff", "589ad1c24ab53122e59aca9a2785999cb3c09a9886bbe87729f2860392455439"},
      {"xxh64", "44bc2cf5ad770999",
       "356314f90492105e3aac7f003eeb74d4757b87bbe0749a22de927512b7ed8a85"},
      {"xxh3_64", "78af5f94892f3950",
       "e4ff8bfd5910e76689c797209dffb0f60739522dbeeccac0c3204e54eb8d52c1"}};
  REQUIRE(all.size() == tutti::detail::known_digests.size());
  for (const Known& known : all) {
    INFO(known.name);
    CHECK(digest(known.name, "abc") == known.of_abc);
    std::string together;
    for (const std::size_t size : sizes) {
      together += digest(known.name, std::string_view(text).substr(0, size));
    }
    CHECK(digest("sha256", together) == known.of_all);
  }
}

TEST_CASE("an unknown digest is refused by its name", "[data][mds]") {
  CHECK(message([] { tutti::detail::check_digest("shake_128", "here: "); }) ==
        "here: the hash \"shake_128\" is not known; known are blake2b, blake2s, md5, sha1, sha224, "
        "sha256, sha384, sha3_224, sha3_256, sha3_384, sha3_512, sha512, xxh128, xxh32, xxh3_128, "
        "xxh3_64, xxh64");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
