#include <tutti/data/npy.hpp>

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

#include <tutti/data/data_loader.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::data;

// A .npy file by hand: NumPy pads the header with blanks, which is not needed to read it.
std::string npy(const std::string& header, const std::string& values, char version = 1) {
  std::string out = std::string("\x93NUMPY") + version + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    out += static_cast<char>(header.size() >> (8 * i) & 0xFFU);
  }
  return out + header + values;
}

std::string header_of(const std::string& descr, const std::string& shape,
                      const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

at::Tensor read(const TemporaryFolder& folder, const std::string& bytes, bool mmap = false) {
  write_bytes(folder / "a.npy", bytes);
  return load_npy((folder / "a.npy").string(), {.mmap = mmap});
}

}  // namespace

static_assert(tutti::Dataset<NpyDataset>);

TEST_CASE("npy: every type comes back as it was written, mapped or not", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.npy").string();
  const at::Tensor numbers = at::arange(24).reshape({2, 3, 4});
  for (const at::ScalarType type :
       {at::kBool, at::kChar, at::kShort, at::kInt, at::kLong, at::kByte, at::kUInt16, at::kUInt32,
        at::kUInt64, at::kHalf, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    INFO(c10::toString(type));
    const at::Tensor want = numbers.to(type);
    save_npy(path, want);
    for (const bool mmap : {false, true}) {
      const at::Tensor got = load_npy(path, {.mmap = mmap});
      CHECK(got.scalar_type() == type);
      CHECK(got.sizes() == want.sizes());
      CHECK(got.is_contiguous());
      CHECK(std::memcmp(got.const_data_ptr(), want.const_data_ptr(), want.nbytes()) == 0);
    }
  }
  for (const at::Tensor& odd : {at::scalar_tensor(3.5), at::empty({0, 5}), at::arange(7),
                                numbers.to(at::kFloat).transpose(0, 2)}) {
    save_npy(path, odd);
    CHECK(load_npy(path).equal(odd));
    CHECK(load_npy(path, {.mmap = true}).equal(odd));
  }
  CHECK_THROWS_WITH(save_npy(path, numbers.to(at::kBFloat16)),
                    ContainsSubstring("BFloat16, which NumPy has not"));
  CHECK_THROWS_WITH(save_npy((folder / "no" / "x.npy").string(), numbers),
                    ContainsSubstring("cannot be written"));
}

TEST_CASE("npy: a file has the bytes of numpy.save", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.npy").string();
  save_npy(path, at::tensor({1, 2, 3}, at::kInt));
  const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  CHECK(read_bytes(path) ==
        npy(header + std::string(117 - header.size(), ' ') + "\n", raw<std::int32_t>({1, 2, 3})));
}

TEST_CASE("npy: both byte orders and both orders of dimensions are read", "[data][npy]") {
  const TemporaryFolder folder;
  const at::Tensor want = at::tensor({1, 2, 3, 4, 5, 6}, at::kInt).reshape({2, 3});
  for (const bool mmap : {false, true}) {
    CHECK(read(folder,
               npy(header_of(">i4", "(2, 3)"),
                   std::string("\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6", 24)),
               mmap)
              .equal(want));
    CHECK(read(folder,
               npy(header_of("<i4", "(2, 3)", "True"), raw<std::int32_t>({1, 4, 2, 5, 3, 6})), mmap)
              .equal(want));
    CHECK(read(folder, npy(header_of("=i4", "(2L, 3L)"), raw<std::int32_t>({1, 2, 3, 4, 5, 6}), 2),
               mmap)
              .equal(want));
    CHECK(read(folder,
               npy("{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<i4\"}",
                   raw<std::int32_t>({1, 2, 3, 4, 5, 6}), 3),
               mmap)
              .equal(want));
    const at::Tensor complex =
        read(folder, npy(header_of(">c8", "(1,)"), std::string("\x3f\x80\0\0\x40\0\0\0", 8)), mmap);
    CHECK(at::view_as_real(complex).equal(at::tensor({1.0F, 2.0F}).reshape({1, 2})));
  }
}

TEST_CASE("npy: writing into a mapped array leaves the file alone", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.npy").string();
  save_npy(path, at::zeros({4}));
  at::Tensor mapped = load_npy(path, {.mmap = true});
  mapped.fill_(1);
  CHECK(mapped.sum().item<double>() == 4);
  CHECK(load_npy(path).sum().item<double>() == 0);
}

TEST_CASE("npy: what is no array of numbers is refused with the reason", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string four = raw<std::int32_t>({1, 2, 3, 4});
  const auto refused = [&](const std::string& bytes, const std::string& says) {
    INFO(says);
    for (const bool mmap : {false, true}) {
      CHECK_THROWS_WITH(read(folder, bytes, mmap),
                        ContainsSubstring("a.npy'") && ContainsSubstring(says));
    }
  };
  refused("", "is no .npy file");
  refused("\x93NUMPY", "is no .npy file");
  refused("PK\3\4", "load_npz()");
  refused("\x80\4K\1.", "is a pickle");
  refused(npy(header_of("<i4", "(4,)"), four, 9), "version 9.0");
  refused(npy(header_of("|O", "(1,)"), "x"), "pickled Python objects");
  refused(npy(header_of("<U3", "(1,)"), "x"), "its type is '<U3'");
  refused(npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", "x"), "records");
  refused(npy(header_of("<i4", "(5,)"), four), "announces 20 for Int[5]; it is cut off");
  refused(npy(header_of("<i4", "(3,)"), four), "damaged or holds more than an array");
  refused(npy(header_of("<i4", "(4611686018427387904, 4)"), four), "does not fit into memory");
  refused(npy(header_of("<i4", "(0, 4611686018427387904, 4)"), ""), "does not fit into memory");
  refused(npy(header_of("<i4", "(-4,)"), four), "its shape has no number");
  refused(npy(header_of("<i4", "(99999999999999999999,)"), four), "its shape has no number");
  refused(npy(header_of("<i4", "(4 4)"), four), "its shape has no ',' or ')'");
  refused(npy("{'descr': '<i4', 'shape': (4,)}", four), "its header is not");
  refused(npy("{'descr': '<i4', 'descr': '<i4'}", four), "'descr' twice");
  refused(npy("{'other': '<i4'}", four), "the member 'other'");
  refused(npy(header_of("<i4", "(4,)", "None"), four), "neither True nor False");
  refused(npy(header_of("<i4", "(4,)") + "x", four), "its header is not");
  refused(npy(header_of("|b1", "(2,)"), "\1\2"), "element 1 of an array of bool");
  std::string many = "(";
  for (int i = 0; i < 100; ++i) {
    many += "1, ";
  }
  refused(npy(header_of("<i4", many + ")"), four), "more than 64 dimensions");
  const std::string whole = npy(header_of("<i4", "(4,)"), four);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_THROWS_AS(read(folder, whole.substr(0, size)), c10::Error);
  }
}

TEST_CASE("npz: arrays come back by name", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x.npz").string();
  const at::Tensor a = at::arange(10, at::kFloat);
  const at::Tensor b = at::ones({2, 2}, at::kLong);
  save_npz(path, {{"b", b}, {"a", a}});
  const tutti::NamedTensors got = load_npz(path);
  REQUIRE(got.size() == 2);
  CHECK(got.names() == "a, b");
  CHECK(got.at("a").equal(a));
  CHECK(got.at("b").equal(b));
  CHECK_THROWS_WITH(save_npz(path, {{"a/b", a}}), ContainsSubstring("without a slash"));
  CHECK_THROWS_WITH(save_npz(path, {{"a", a}, {"a", a}}), ContainsSubstring("two arrays"));

  std::string bytes = read_bytes(path);
  const auto refused = [&](const std::string& changed, const std::string& says) {
    write_bytes(path, changed);
    CHECK_THROWS_WITH(load_npz(path), ContainsSubstring(says));
  };
  for (std::size_t cut = 0; cut < bytes.size(); cut += 7) {
    refused(bytes.substr(0, cut), "x.npz'");
  }
  std::string flipped = bytes;
  flipped[300] = static_cast<char>(flipped[300] ^ 1);
  refused(flipped, "its checksum does not fit");
}

TEST_CASE("NpyDataset: rows of mapped files are examples", "[data][npy]") {
  const TemporaryFolder folder;
  const std::string x = (folder / "x.npy").string();
  const std::string y = (folder / "y.npy").string();
  save_npy(x, at::arange(20, at::kFloat).reshape({10, 2}));
  save_npy(y, at::arange(10));
  tutti::DataLoader loader{NpyDataset{{{"inputs", x}, {"targets", y}}},
                           {.batch_size = 4, .shuffle = true, .seed = 5, .num_workers = 2}};
  loader.start(0);
  std::int64_t seen = 0;
  while (const auto batch = loader.next()) {
    CHECK(batch->inputs().select(1, 0).equal(2 * batch->targets()));
    seen += batch->targets().sum().item<std::int64_t>();
  }
  CHECK(seen == 45);
  save_npy(y, at::arange(9));
  CHECK_THROWS_WITH((NpyDataset{{{"inputs", x}, {"targets", y}}}),
                    ContainsSubstring("has 9 examples and '" + x + "' 10"));
  save_npy(y, at::scalar_tensor(1));
  CHECK_THROWS_WITH((NpyDataset{{{"targets", y}}}), ContainsSubstring("is one number"));
  CHECK_THROWS_AS((NpyDataset{{{"inputs", x}}}).get(10), c10::IndexError);
}

TEST_CASE("npy and npz go to NumPy and back", "[data][npy][python]") {
  const std::string python = tutti_test::python_with("numpy");
  if (python.empty()) {
    return tutti_test::skip("no Python with numpy; name one in TUTTI_TEST_PYTHON");
  }
  const TemporaryFolder folder;
  const at::Tensor a = at::arange(6, at::kDouble).reshape({2, 3});
  save_npy((folder / "a.npy").string(), a);
  save_npz((folder / "ours.npz").string(), {{"x", a}, {"y", at::ones({3}, at::kBool)}});
  REQUIRE(tutti_test::run_python(python, R"(
import sys, numpy as np
f = sys.argv[1] + "/"
a = np.load(f + "a.npy")
assert a.dtype == np.float64 and (a == np.arange(6).reshape(2, 3)).all()
z = np.load(f + "ours.npz")
assert sorted(z.files) == ["x", "y"] and (z["x"] == a).all()
assert z["y"].dtype == np.bool_ and z["y"].all()
np.save(f + "same.npy", a)
assert open(f + "same.npy", "rb").read() == open(f + "a.npy", "rb").read()
r = np.random.default_rng(1)
small = r.integers(0, 4, 100000)
np.savez_compressed(f + "theirs.npz", small=small, noise=r.random(5000),
                    runs=np.zeros(300000, np.int16), none=np.zeros((0, 3)),
                    fortran=np.asfortranarray(np.arange(12).reshape(3, 4)),
                    big=np.arange(5).astype(">f8"))
np.savez(f + "stored.npz", small=small)
np.save(f + "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
)",
                                 "'" + folder.path().string() + "'"));
  const tutti::NamedTensors theirs = load_npz((folder / "theirs.npz").string());
  CHECK(theirs.names() == "big, fortran, noise, none, runs, small");
  CHECK(theirs.at("small").equal(load_npz((folder / "stored.npz").string()).at("small")));
  CHECK(theirs.at("small").max().item<std::int64_t>() == 3);
  CHECK(theirs.at("fortran").equal(at::arange(12).reshape({3, 4})));
  CHECK(theirs.at("big").equal(at::arange(5, at::kDouble)));
  CHECK(theirs.at("noise").sizes() == at::IntArrayRef{5000});
  CHECK(theirs.at("runs").equal(at::zeros({300000}, at::kShort)));
  CHECK_THROWS_WITH(load_npy((folder / "objects.npy").string()),
                    ContainsSubstring("pickled Python objects"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
