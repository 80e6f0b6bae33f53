#include <tutti/checkpoint/torch_pickle.hpp>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/bounded.hpp"
#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"
#include "support/torch_archive.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::checkpoint::stored_in_torch_file;
using tutti::checkpoint::write_torch_file;
namespace archive = torch_archive;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors read(const std::filesystem::path& path) {
  Tensors out;
  for (const auto& tensor : stored_in_torch_file(path)) {
    out[tensor.name] = tensor.view();
  }
  return out;
}

std::string floats(int count) {
  std::string out(static_cast<std::size_t>(count) * sizeof(float), '\0');
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(out.data() + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
  }
  return out;
}

// What reading a file of these bytes says, in little memory.
std::string says(const TemporaryFolder& folder, const std::string& bytes,
                 std::uint64_t most = 32 << 20) {
  write_bytes(folder / "x.pth", bytes);
  return tutti_test::in_bounds(most, [&] { stored_in_torch_file(folder / "x.pth"); });
}

// The same of a pickle, in a sound archive with a storage "0" of 6 floats.
std::string says_pickle(const TemporaryFolder& folder, const std::string& value) {
  return says(folder, archive::file(archive::pickle(value), {{"0", floats(6)}}));
}

const std::string whole = archive::tensor("FloatStorage", "0", 6, 0, {2, 3}, {3, 1});

}  // namespace

TEST_CASE("tensors of a state dict come with their shapes, strides and shared storages",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const std::string ordered = archive::call(archive::global("collections", "OrderedDict"), ")");
  const std::string members =
      "(" + archive::text("w") + whole + archive::text("t") +
      archive::tensor("FloatStorage", "0", 6, 1, {2, 2}, {1, 3}) + archive::text("p") +
      archive::call(archive::global("torch._utils", "_rebuild_parameter"),
                    archive::tuple({whole, "\x88", ordered})) +
      archive::text("scalar") + archive::tensor("LongStorage", "1", 1, 0, {}, {}) +
      archive::text("empty") + archive::tensor("HalfStorage", "2", 0, 0, {0, 3}, {3, 1}) + "u";
  const std::string metadata =
      archive::dict({{"_metadata", ordered + "(" + archive::text("") + archive::dict({}) + "u"}});
  const std::string bytes =
      archive::file(archive::pickle(ordered + members + metadata + "b"),
                    {{"0", floats(6)}, {"1", archive::little(7, 8)}, {"2", ""}});
  write_bytes(folder / "a.pth", bytes);
  const Tensors got = read(folder / "a.pth");
  CHECK(got.size() == 5);
  CHECK(got.at("w").equal(at::arange(6, at::kFloat).reshape({2, 3})));
  CHECK(got.at("p").equal(got.at("w")));
  CHECK(got.at("t").equal(at::tensor({1.F, 4.F, 2.F, 5.F}).reshape({2, 2})));
  CHECK(got.at("t").strides() == at::IntArrayRef{1, 3});
  CHECK(got.at("scalar").item<std::int64_t>() == 7);
  CHECK(got.at("empty").sizes() == at::IntArrayRef{0, 3});
}

TEST_CASE("an archive with fields of 64 bits is read", "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const archive::Entries entries{{"a/data.pkl", archive::pickle(archive::dict({{"w", whole}}))},
                                 {"a/data/0", floats(6)}};
  write_bytes(folder / "a.pth", archive::zip(entries, {.wide = true}));
  CHECK(read(folder / "a.pth").at("w").sum().item<float>() == 15);
}

TEST_CASE("of a training checkpoint the averaged weights are taken, without what wrappers add",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const auto weights = [](const std::string& name, int offset) {
    return archive::dict({{name, archive::tensor("FloatStorage", "0", 6, offset, {1}, {1})}});
  };
  const auto first = [&](const archive::Entries& members) {
    write_bytes(folder / "a.pth",
                archive::file(archive::pickle(archive::dict(members)), {{"0", floats(6)}}));
    const Tensors got = read(folder / "a.pth");
    REQUIRE(got.size() == 1);
    return got.begin()->first + "=" + std::to_string(got.begin()->second.item<int>());
  };
  const archive::Entries others{{"epoch", archive::number(3)},
                                {"arch", archive::text("vit")},
                                {"loss", std::string("G\x3f\xf0\0\0\0\0\0\0", 9)},
                                {"best", "\x88"},
                                {"none", "N"},
                                {"groups", "](" + archive::number(1) + "e"}};
  archive::Entries all = others;
  all.emplace_back("model", weights("fc.w", 1));
  CHECK(first(all) == "fc.w=1");
  all.emplace_back("state_dict", weights("_orig_mod.module.fc.w", 2));
  CHECK(first(all) == "fc.w=2");
  all.emplace_back("model_ema", weights("module._orig_mod.fc.w", 3));
  CHECK(first(all) == "fc.w=3");
  all.emplace_back("state_dict_ema", weights("module.fc.module.w", 4));
  CHECK(first(all) == "fc.module.w=4");
  CHECK(first({{"model", archive::tensor("FloatStorage", "0", 6, 5, {1}, {1})}}) == "model=5");
}

TEST_CASE("a class or function that no state dict has is refused by its name",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const auto call = [&](const std::string& module, const std::string& name) {
    return archive::call(archive::global(module, name), archive::tuple({archive::text("true")}));
  };
  CHECK_THAT(says_pickle(folder, call("os", "system")),
             ContainsSubstring("x.pth' is refused: pickle: it names 'os.system'"));
  CHECK_THAT(says_pickle(folder, archive::dict({{"args", call("argparse", "Namespace")}})),
             ContainsSubstring("it names 'argparse.Namespace'"));
  CHECK_THAT(says_pickle(folder, call("builtins", "eval")), ContainsSubstring("'builtins.eval'"));
  CHECK_THAT(
      says_pickle(folder, archive::dict({{"w", call("torch._utils", "_rebuild_tensor_v3")}})),
      ContainsSubstring("it has a tensor that _rebuild_tensor_v3() makes: of float8"));
  CHECK_THAT(says_pickle(folder, call("torch._utils", "_rebuild_sparse_tensor")),
             ContainsSubstring("convert it, as by .to(torch.float32), .to_dense()"));
  CHECK_THAT(says_pickle(folder, call("torch", "FloatTensor")),
             ContainsSubstring("'torch.FloatTensor'"));
  // the same by the stack, and the name in pieces
  CHECK_THAT(says_pickle(folder, archive::text("os") + archive::text("system") + "\x93"),
             ContainsSubstring("'os.system'"));
  CHECK_THAT(says_pickle(folder, archive::text("torch._utils._rebuild_tensor") +
                                     archive::text("v2.x") + "\x93"),
             ContainsSubstring("it names 'torch._utils._rebuild_tensor.v2.x'"));
  CHECK_THAT(says_pickle(folder, archive::global("collections", "OrderedDict") + ")\x81"),
             ContainsSubstring("it makes an object of a class"));
  CHECK_THAT(says_pickle(folder, archive::call(archive::global("torch", "FloatStorage"), ")")),
             ContainsSubstring("it calls 'torch.FloatStorage'"));
  CHECK_THAT(says_pickle(folder, whole + archive::dict({}) + "b"),
             ContainsSubstring("it gives a tensor a state of its own"));
  CHECK_THAT(says_pickle(folder, "\x8f"), ContainsSubstring("it has the instruction 143"));
}

TEST_CASE("a tensor has to lie inside its storage, and the storage inside the file",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const auto one = [&](std::int64_t size, std::int64_t offset, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> strides) {
    return says_pickle(
        folder, archive::dict({{"w", archive::tensor("FloatStorage", "0", size, offset,
                                                     std::move(shape), std::move(strides))}}));
  };
  constexpr std::int64_t huge = INT64_MAX;
  CHECK(one(6, 0, {2, 3}, {3, 1}) == "nothing");
  CHECK(one(6, 5, {1, 1}, {huge, huge}) == "nothing");
  CHECK(one(6, 0, {1'000'000}, {0}) == "nothing");  // one element, expanded: no memory
  CHECK_THAT(one(6, 0, {100'000'000}, {0}),
             ContainsSubstring("the tensor 'w' would take 381 MiB and its storage has 24 bytes") &&
                 ContainsSubstring("save its contiguous() instead"));
  CHECK_THAT(one(7, 0, {7}, {1}), ContainsSubstring("a storage of 7 elements of 4 bytes, the "
                                                    "archive has 24 bytes"));
  CHECK_THAT(one(6, 1, {2, 3}, {3, 1}), ContainsSubstring("of a storage of 6"));
  CHECK_THAT(one(6, 7, {0}, {1}), ContainsSubstring("of a storage of 6"));
  CHECK_THAT(one(6, 0, {2, 2}, {5, 1}), ContainsSubstring("of a storage of 6"));
  CHECK_THAT(one(6, -1, {1}, {1}), ContainsSubstring("expected an integer of 0 or more"));
  CHECK_THAT(one(6, 0, {2}, {-1}), ContainsSubstring("expected an integer of 0 or more"));
  CHECK_THAT(one(6, 0, {-2}, {1}), ContainsSubstring("expected an integer of 0 or more"));
  CHECK_THAT(one(6, 0, {huge, huge}, {0, 0}), ContainsSubstring("more elements than fit"));
  CHECK_THAT(one(6, 0, {2}, {huge}), ContainsSubstring("more elements than fit"));
  CHECK_THAT(one(huge, 0, {2}, {1}), ContainsSubstring("the archive has 24 bytes"));
  CHECK_THAT(one(6, 0, {2, 3}, {1}), ContainsSubstring("2 dimensions and 1 strides"));
  CHECK_THAT(one(6, 0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)),
             ContainsSubstring("at most 64"));
  CHECK_THAT(
      says_pickle(folder,
                  archive::dict({{"w", archive::tensor("FloatStorage", "9", 6, 0, {1}, {1})}})),
      ContainsSubstring("'w' has the storage 'archive/data/9', which the archive lacks"));
}

TEST_CASE("a file of another kind, cut off or turned round is refused in words",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const std::string pickle = archive::pickle(archive::dict({{"w", whole}}));
  const std::string sound = archive::file(pickle, {{"0", floats(6)}});
  CHECK(says(folder, sound) == "nothing");
  for (std::size_t size = 0; size < sound.size(); size += 7) {
    const std::string words = says(folder, sound.substr(0, size));
    INFO(size);
    REQUIRE_THAT(words, ContainsSubstring("x.pth' is refused: "));
  }
  CHECK_THAT(says(folder, archive::file(pickle, {{"0", floats(6)}}, "big")),
             ContainsSubstring("its numbers are big-endian"));
  CHECK(says(folder, archive::file(pickle, {{"0", floats(6)}}, "")) == "nothing");
  const archive::Entries entries{{"a/data.pkl", pickle}, {"a/data/0", floats(6)}};
  CHECK_THAT(says(folder, archive::zip(entries, {.method = 8})),
             ContainsSubstring("'a/data.pkl' is compressed or encrypted"));
  CHECK_THAT(says(folder, archive::zip(entries, {.flags = 1})),
             ContainsSubstring("compressed or encrypted"));
  CHECK_THAT(says(folder, archive::zip({{"a/data/0", "x"}})),
             ContainsSubstring("a zip archive without a data.pkl"));
  CHECK_THAT(says(folder, archive::zip({entries[0], entries[0]})),
             ContainsSubstring("'a/data.pkl' occurs twice"));
  CHECK_THAT(says(folder, archive::zip({entries[0], {"b/data.pkl", pickle}})),
             ContainsSubstring("two pickles"));
  CHECK_THAT(says(folder, archive::zip({entries[0], {"a/constants.pkl", pickle}})),
             ContainsSubstring("of C++'s torch::save() or of TorchScript"));
  CHECK_THAT(says(folder, archive::zip({entries[0], {"a/constants.pkl", pickle}}, {.method = 8})),
             ContainsSubstring("of C++'s torch::save() or of TorchScript"));  // its code is packed
  CHECK_THAT(says_pickle(folder, whole), ContainsSubstring("it holds a tensor, expected a state"));
  CHECK_THAT(says_pickle(folder, archive::dict({{"lr", archive::number(1)}})),
             ContainsSubstring("has an integer under 'lr', expected tensors"));
  CHECK_THAT(says_pickle(folder, archive::dict({{"w", whole}, {"module.w", whole}})),
             ContainsSubstring("two tensors are named 'w'"));
  CHECK_THAT(says_pickle(folder, archive::dict({{std::string(5000, 'a'), whole}})),
             ContainsSubstring("expected at most 4096"));
}

TEST_CASE("a pickle that is no program of its kind is refused", "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const auto raw = [&](const std::string& pickle) {
    return says(folder, archive::file(pickle, {{"0", floats(6)}}));
  };
  CHECK_THAT(raw(""), ContainsSubstring("does not begin as one of protocol 2"));
  CHECK_THAT(raw("\x80\x07}."), ContainsSubstring("has the protocol 7"));
  CHECK_THAT(raw("\x80\x02}"), ContainsSubstring("ends inside a value"));
  CHECK_THAT(raw("\x80\x02}.x"), ContainsSubstring("something follows"));
  CHECK_THAT(raw("\x80\x02."), ContainsSubstring("a value is missing"));
  CHECK_THAT(raw("\x80\x02t."), ContainsSubstring("a mark is missing"));
  CHECK_THAT(raw("\x80\x02N(0."), ContainsSubstring("a value is missing"));
  CHECK_THAT(raw("\x80\x02h\x05."), ContainsSubstring("recalls the value 5"));
  CHECK_THAT(raw("\x80\x02Nr\xff\xff\xff\x7f."), ContainsSubstring("under the number 2147483647"));
  CHECK_THAT(raw("\x80\x02NNa."), ContainsSubstring("adds to None as if that were a list"));
  CHECK_THAT(raw("\x80\x02}(Nu."), ContainsSubstring("adds to a dict"));
  CHECK_THAT(raw("\x80\x02}N)Qs."), ContainsSubstring("no storage of a tensor"));
  CHECK_THAT(raw("\x80\x02X\xff\xff\xff\xff."), ContainsSubstring("a value of 4294967295 bytes"));
  CHECK_THAT(raw("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
             ContainsSubstring("ends inside a value"));
  CHECK_THAT(raw("\x80\x02"
                 "cos"),
             ContainsSubstring("ends inside a name"));
}

TEST_CASE("a hostile pickle takes memory in proportion to its size", "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const int count = 2'000'000;
  const auto bounded = [&](const std::string& value) {
    const std::string bytes = archive::file(archive::pickle(value), {{"0", floats(6)}});
    return says(folder, bytes, 64 * bytes.size() + (32 << 20));
  };
  std::string nested;
  for (int i = 0; i < count; ++i) {
    nested += ']';
  }
  CHECK_THAT(bounded(nested), ContainsSubstring("too many for its size"));
  std::string deep;  // a list in a list in a list ...
  for (int i = 0; i < count / 4; ++i) {
    deep += "](";
  }
  for (int i = 0; i < count / 4; ++i) {
    deep += "e";
  }
  CHECK_THAT(bounded(deep), ContainsSubstring("it holds a list"));
  // a list of the one before, twice: 2^40 leaves for who walks through them
  std::string doubled = "N";
  for (int i = 0; i < 40; ++i) {
    doubled += std::string("q") + static_cast<char>(i) + "0](h" + static_cast<char>(i) + "h" +
               static_cast<char>(i) + "e";
  }
  CHECK_THAT(bounded(doubled), ContainsSubstring("it holds a list"));
  // a list that holds itself
  CHECK_THAT(bounded("]q\x01h\x01"
                     "a"),
             ContainsSubstring("it holds a list"));
  // one shape of many dimensions for many tensors, by the memo
  std::string shapes = archive::numbers(std::vector<std::int64_t>(64, 1)) + "q\x01" + "0" +
                       archive::global("torch._utils", "_rebuild_tensor_v2") + "q\x02" + "0" +
                       archive::storage("FloatStorage", "0", 6) + "q\x03" + "0]";
  for (int i = 0; i < 100'000; ++i) {
    shapes += "h\x02(h\x03K\x01h\x01h\x01tRa";
  }
  CHECK_THAT(bounded(shapes), ContainsSubstring("too many for its size"));
}

TEST_CASE("a file of Python's torch.save() reads as Python has it", "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const std::string committed = TUTTI_SOURCE_DIR "/tests/checkpoint/files/";
  const Tensors kept = read(committed + "state_dict.pth");
  CHECK(kept.at("fc.weight").equal(at::arange(6, at::kFloat).reshape({2, 3})));
  CHECK(kept.at("fc.bias").equal(at::tensor({0.5, -0.5}).to(at::kBFloat16)));
  CHECK(kept.at("tied").equal(kept.at("fc.weight")));
  CHECK(kept.at("part").equal(at::tensor({1.F, 4.F})));
  CHECK(kept.at("count").item<std::int64_t>() == 3);
  CHECK(kept.at("mask").equal(at::tensor({1, 0}).to(at::kBool)));
  const Tensors ema = read(committed + "timm_checkpoint.pth");
  CHECK(ema.size() == 1);
  CHECK(ema.at("fc.weight").equal(at::ones({1, 2})));

  const std::string python = tutti_test::python_with("torch");
  if (python.empty()) {
    return tutti_test::skip("no Python here has torch");
  }
  const std::string script = R"(
import collections, sys, torch
folder = sys.argv[1]
torch.manual_seed(0)
types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
         torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
state = collections.OrderedDict()
for t in types:
    state[str(t)] = (torch.randn(5, 4) * 3).to(t)
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
for protocol in (2, 4):
    torch.save(net.state_dict(), folder + "/net%d.pth" % protocol, pickle_protocol=protocol)
torch.save({k: v.double().sum() if not v.is_complex() else v.abs().double().sum()
            for k, v in state.items()}, folder + "/sums.pth")
torch.save(state, folder + "/types.pth")
base = torch.arange(24.).reshape(2, 3, 4)
torch.save({"t": base.permute(2, 0, 1), "s": base[1, :, ::2], "e": torch.ones(1).expand(3, 2),
            "p": torch.nn.Parameter(base)}, folder + "/views.pth")
opt = torch.optim.Adam(net.parameters())
net(torch.randn(4, 3)).sum().backward(); opt.step()
torch.save({"epoch": 3, "arch": "x", "name": b"\x00\xff", "big": 2 ** 70, "state_dict":
            net.state_dict(), "optimizer": opt.state_dict()}, folder + "/run.pth")
torch.save(net, folder + "/module.pth")
torch.save(net.state_dict(), folder + "/old.pth", _use_new_zipfile_serialization=False)
)";
  REQUIRE(tutti_test::run_python(python, script, folder.path().string()));
  const Tensors sums = read(folder / "sums.pth");
  const Tensors types = read(folder / "types.pth");
  CHECK(types.size() == 11);
  for (const auto& [name, tensor] : types) {
    INFO(name);
    const at::Tensor real = tensor.is_complex() ? tensor.abs() : tensor;
    CHECK(real.to(at::kDouble).sum().item<double>() == Approx(sums.at(name).item<double>()));
  }
  const at::Tensor base = at::arange(24, at::kFloat).reshape({2, 3, 4});
  const Tensors views = read(folder / "views.pth");
  CHECK(views.at("t").equal(base.permute({2, 0, 1})));
  CHECK(views.at("s").equal(base[1].slice(1, 0, 4, 2)));
  CHECK(views.at("e").equal(at::ones({3, 2})));
  CHECK(views.at("p").equal(base));
  for (const char* name : {"net2.pth", "net4.pth", "run.pth"}) {
    INFO(name);
    CHECK(read(folder / name).size() == 7);
  }
  CHECK_THROWS_WITH(read(folder / "module.pth"),
                    ContainsSubstring("it names 'torch.nn.modules.container.Sequential'"));
}

namespace {

// Of every type, shape and stride that a state dict may have.
std::vector<tutti::checkpoint::NamedTensor> all_kinds() {
  const at::Tensor base = at::arange(24, at::kFloat).reshape({2, 3, 4});
  std::vector<tutti::checkpoint::NamedTensor> out{{"tied.one", base},
                                                  {"tied.two", base},
                                                  {"turned", base.permute({2, 0, 1})},
                                                  {"part", base[1].slice(1, 0, 4, 2)},
                                                  {"spread", at::ones({1}).expand({3, 2})},
                                                  {"number", at::scalar_tensor(41, at::kLong)},
                                                  {"empty", at::empty({0, 3}, at::kDouble)},
                                                  {"wide", at::zeros({70000}, at::kByte)},
                                                  {"n\u00e4me", at::full({300}, 2, at::kShort)},
                                                  {"conj", at::complex(base, base + 1).conj()}};
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    out.emplace_back(c10::toString(type), at::arange(5).sub(2).to(type));
  }
  return out;
}

}  // namespace

TEST_CASE("a state dict that is written is read back bit for bit", "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  write_torch_file(folder / "a.pth", tensors);
  const auto stored = stored_in_torch_file(folder / "a.pth");
  REQUIRE(stored.size() == tensors.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    INFO(tensors[i].first);
    CHECK(stored[i].name == tensors[i].first);
    const at::Tensor read = stored[i].view();
    CHECK(read.scalar_type() == tensors[i].second.scalar_type());
    CHECK(read.sizes() == tensors[i].second.sizes());
    CHECK(read.equal(tensors[i].second));
    CHECK((stored[i].offset % 64 == 0 || read.numel() == 0));
  }
  CHECK(stored[0].offset == stored[1].offset);
  CHECK(stored[0].offset != stored[2].offset);
  write_torch_file(folder / "none.pth", {});
  CHECK(stored_in_torch_file(folder / "none.pth").empty());
}

TEST_CASE("tensors that no state dict has are refused, and nothing is left",
          "[checkpoint][pickle]") {
  const TemporaryFolder folder;
  const at::Tensor one = at::ones({2});
  const auto refuses = [&](const std::vector<tutti::checkpoint::NamedTensor>& tensors,
                           const std::string& says) {
    CHECK_THROWS_WITH(write_torch_file(folder / "b.pth", tensors), ContainsSubstring(says));
    CHECK(sorted_names(folder.path()).empty());
  };
  refuses({{"a", one}, {"a", one}}, "two tensors are named 'a'");
  refuses({{"a", at::Tensor()}}, "the tensor 'a' is not dense");
  refuses({{"a", one.to_sparse()}}, "the tensor 'a' is not dense");
  refuses(
      {{"a", one.to(at::kFloat8_e4m3fn)}},
      "the tensor 'a' is of type Float8_e4m3fn, which files of torch.save() have no storage for");
  refuses({{"\xff", one}}, "a tensor's name is not UTF-8");
  write_torch_file(folder / "c.pth", {{"a", one}});
  CHECK_THROWS_WITH(write_torch_file(folder / "c.pth", {{"a", one}}), ContainsSubstring("exists"));
  CHECK_THROWS_WITH(write_torch_file(folder / "no/c.pth", {{"a", one}}),
                    ContainsSubstring("No such file"));
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"c.pth"});
}

TEST_CASE("Python opens a state dict that is written here, and what it writes of it is read",
          "[checkpoint][pickle][python]") {
  const std::string python = tutti_test::python_with("torch");
  if (python.empty()) {
    return tutti_test::skip("no Python here has torch");
  }
  const TemporaryFolder folder;
  write_torch_file(folder / "a.pth", all_kinds());
  const at::Tensor weight = at::arange(6, at::kFloat).reshape({2, 3});
  write_torch_file(folder / "net.pth", {{"weight", weight}, {"bias", at::ones({2})}});
  const std::string script = R"(
import collections, sys, torch
folder = sys.argv[1]
for options in ({}, {"mmap": True}):
    state = torch.load(folder + "/a.pth", weights_only=True, **options)
    assert type(state) is collections.OrderedDict and len(state) == 22, state.keys()
    base = torch.arange(24.).reshape(2, 3, 4)
    assert torch.equal(state["tied.one"], base)
    assert state["tied.one"].data_ptr() == state["tied.two"].data_ptr()
    assert torch.equal(state["turned"], base.permute(2, 0, 1)) and state["turned"].is_contiguous()
    assert torch.equal(state["part"], base[1, :, ::2])
    assert torch.equal(state["spread"], torch.ones(3, 2))
    assert state["number"].shape == () and state["number"].item() == 41
    assert state["empty"].shape == (0, 3) and state["empty"].dtype == torch.float64
    assert state["wide"].shape == (70000,) and state["n\u00e4me"].sum() == 600
    assert torch.equal(state["conj"], torch.complex(base, -(base + 1)))
    names = {"Float": torch.float32, "Double": torch.float64, "Half": torch.float16,
             "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32,
             "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
             "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128}
    for name, dtype in names.items():
        assert state[name].dtype == dtype, name
        assert torch.equal(state[name], (torch.arange(5) - 2).to(dtype)), name
net = torch.nn.Linear(3, 2)
net.load_state_dict(torch.load(folder + "/net.pth"))
assert net(torch.ones(1, 3)).tolist() == [[4.0, 13.0]]
torch.save(torch.load(folder + "/a.pth"), folder + "/b.pth")
)";
  REQUIRE(tutti_test::run_python(python, script, folder.path().string()));
  const Tensors back = read(folder / "b.pth");
  CHECK(back.size() == 22);
  for (const auto& [name, tensor] : all_kinds()) {
    INFO(name);
    CHECK(back.at(name).equal(tensor));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
