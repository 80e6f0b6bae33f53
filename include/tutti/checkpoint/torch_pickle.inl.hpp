// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/torch_pickle.hpp>

namespace tutti::checkpoint {

namespace detail {

// A file of torch.save(): a zip archive with one folder of `data.pkl`, `byteorder`, `data/0`, ...
class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path)
      : file_(std::make_shared<const Mapping>(File::open_for_reading(path))),
        archive_({reinterpret_cast<const char*>(file_->data()), file_->size()},
                 "checkpoint: '" + path.string() + "'") {}

  std::vector<StoredTensor> state_dict() const;

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    TUTTI_CHECK(false, "checkpoint: '", file_->path().string(), "' is refused: ", why);
  }

  std::string folder() const;
  Pickle pickle(const std::string& folder) const;
  std::uint32_t weights_of(const Pickle& pickle) const;
  StoredTensor stored(const std::string& name, const PickledTensor& tensor,
                      const std::string& entry) const;

  std::shared_ptr<const Mapping> file_;
  ::tutti::detail::ZipArchive archive_;
};

// The folder that all entries are in, with its slash.
TUTTI_INLINE std::string TorchFile::folder() const {
  constexpr std::string_view pickle = "data.pkl";
  std::string out;
  for (const auto& [name, entry] : archive_.entries()) {
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos && std::string_view(name).substr(slash + 1) == pickle) {
      if (!out.empty()) {
        refuse("it has two pickles, '" + out + "data.pkl' and '" + name + "'");
      }
      out = name.substr(0, slash + 1);
    }
  }
  if (out.empty()) {
    refuse("it is a zip archive without a data.pkl; expected a safetensors file or one of " +
           std::string("torch.save()"));
  }
  return out;
}

TUTTI_INLINE Pickle TorchFile::pickle(const std::string& folder) const {
  constexpr std::uint64_t most = std::uint64_t{1} << 26;
  const auto& entries = archive_.entries();
  if (entries.count(folder + "constants.pkl") != 0) {
    refuse(
        "it is an archive of C++'s torch::save() or of TorchScript, which can run code when it "
        "is opened; convert it in Python, with safetensors and numpy installed: state = "
        "torch.jit.load(path).state_dict(); safetensors.torch.save_file({k: "
        "v.contiguous().clone() for k, v in state.items()}, 'model.safetensors')");
  }
  for (const auto& [name, entry] : entries) {
    if (entry.method != ::tutti::detail::ZipArchive::stored) {
      refuse("its entry '" + name.substr(0, 64) +
             "' is compressed or encrypted, expected one that is stored as it is, as torch.save() "
             "does");
    }
  }
  if (const auto order = entries.find(folder + "byteorder"); order != entries.end()) {
    const std::string_view text = archive_.bytes(order->second);
    if (text != "little") {
      refuse("its numbers are " + std::string(text.substr(0, 16)) +
             "-endian, expected little-endian; save it again on such a machine");
    }
  }
  const auto entry = entries.at(folder + "data.pkl");
  if (entry.size > most) {
    refuse("its pickle has " + std::to_string(entry.size) + " bytes, expected at most " +
           std::to_string(most));
  }
  try {
    return parse_pickle(archive_.bytes(entry));
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
}

// The dict of weights: the root, or the member of it that timm would take.
TUTTI_INLINE std::uint32_t TorchFile::weights_of(const Pickle& pickle) const {
  using Kind = PickledValue::Kind;
  const PickledValue& root = pickle[pickle.root];
  if (root.kind != Kind::dict) {
    refuse("it holds " + std::string(kind_text(root.kind)) +
           ", expected a state dict: " + "torch.save(model.state_dict(), path)");
  }
  for (const std::string_view member : {"state_dict_ema", "model_ema", "state_dict", "model"}) {
    for (std::size_t i = 0; i + 1 < root.items.size(); i += 2) {
      const PickledValue& key = pickle[root.items[i]];
      if (key.kind == Kind::text && key.text == member &&
          pickle[root.items[i + 1]].kind == Kind::dict) {
        return root.items[i + 1];
      }
    }
  }
  return pickle.root;
}

TUTTI_INLINE StoredTensor TorchFile::stored(const std::string& name, const PickledTensor& tensor,
                                            const std::string& entry) const {
  const auto found = archive_.entries().find(entry);
  if (found == archive_.entries().end()) {
    refuse("the tensor '" + name + "' has the storage '" + entry.substr(0, 64) +
           "', which the archive lacks");
  }
  const std::uint64_t element = c10::elementSize(tensor.dtype);
  if (tensor.storage_size > found->second.size / element) {
    refuse("the tensor '" + name + "' has a storage of " + std::to_string(tensor.storage_size) +
           " elements of " + std::to_string(element) + " bytes, the archive has " +
           std::to_string(found->second.size) + " bytes");
  }
  // A tensor that repeats its storage, as expand() makes it, takes more memory than its file.
  constexpr double more = 1 << 26;
  auto bytes = static_cast<double>(element);
  for (const std::int64_t size : tensor.shape) {
    bytes *= static_cast<double>(size);
  }
  if (bytes > static_cast<double>(found->second.size) + more) {
    refuse("the tensor '" + name + "' would take " +
           std::to_string(std::llround(bytes / (1 << 20))) + " MiB and its storage has " +
           std::to_string(found->second.size) +
           " bytes, which it repeats, as expand() makes it; save its contiguous() instead");
  }
  return {.name = name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .strides = tensor.strides,
          .file = file_,
          .offset = found->second.offset + tensor.offset * element,
          .extent = tensor.extent * element};
}

// Takes off what wrappers put before the names of a model.
TUTTI_INLINE std::string without_wrappers(std::string_view name) {
  for (const std::string_view prefix : {"_orig_mod.", "module.", "_orig_mod."}) {
    name.remove_prefix(name.starts_with(prefix) ? prefix.size() : 0);
  }
  return std::string(name);
}

TUTTI_INLINE std::vector<StoredTensor> TorchFile::state_dict() const {
  const std::string folder = this->folder();
  const Pickle pickle = this->pickle(folder);
  const PickledValue& weights = pickle[weights_of(pickle)];
  std::vector<StoredTensor> out;
  std::map<std::string, int> names;
  for (std::size_t i = 0; i < weights.items.size(); i += 2) {
    const PickledValue& key = pickle[weights.items[i]];
    const PickledValue& value = pickle[weights.items[i + 1]];
    if (key.kind != PickledValue::Kind::text || value.kind != PickledValue::Kind::tensor) {
      refuse("its state dict has " + std::string(kind_text(value.kind)) + " under " +
             (key.kind == PickledValue::Kind::text ? "'" + key.text.substr(0, 64) + "'"
                                                   : std::string(kind_text(key.kind))) +
             ", expected tensors under names");
    }
    const std::string name = without_wrappers(key.text);
    if (const std::string problem = problem_of_name(name); !problem.empty()) {
      refuse("the tensor '" + name.substr(0, 64) + "' " + problem);
    }
    if (++names[name] > 1) {
      refuse("two tensors are named '" + name + "' once the prefixes of wrappers are removed");
    }
    const PickledTensor& tensor = pickle.tensors[static_cast<std::size_t>(value.integer)];
    out.push_back(stored(name, tensor, folder + "data/" + pickle[tensor.storage].text));
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE std::vector<StoredTensor> stored_in_torch_file(const std::filesystem::path& path) {
  return detail::TorchFile(path).state_dict();
}

namespace detail {

// The pickle of a state dict, in protocol 2, as torch.save() writes it but for its memo.
class StateDictPickle {
 public:
  StateDictPickle() {
    out_ = "\x80\x02";
    global("collections", "OrderedDict");
    out_ += ")R(";
  }

  // A tensor in the storage of that number and type, which has `elements`.
  void add(const std::string& name, const at::Tensor& tensor, std::string_view storage_type,
           std::size_t storage, std::int64_t elements) {
    text(name);
    global("torch._utils", "_rebuild_tensor_v2");
    out_ += "((";
    text("storage");
    global("torch", storage_type);
    text(std::to_string(storage));
    text("cpu");
    number(elements);
    out_ += "tQ";
    number(0);  // the first element's place
    tuple(tensor.sizes().vec());
    tuple(contiguous_strides(tensor.sizes().vec()));
    out_ += '\x89';  // needs no gradient
    global("collections", "OrderedDict");
    out_ += ")RtR";  // no hooks
  }

  [[nodiscard]] std::string finish() && { return std::move(out_ += "u."); }

 private:
  void global(std::string_view place, std::string_view what) {
    ((out_ += 'c') += place) += '\n';
    (out_ += what) += '\n';
  }
  void bytes(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      out_ += static_cast<char>(value >> (8 * i) & 0xFFU);
    }
  }
  void text(std::string_view word) {
    out_ += 'X';
    bytes(word.size(), 4);
    out_ += word;
  }
  void number(std::int64_t value) {  // 0 or more
    const auto plain = static_cast<std::uint64_t>(value);
    if (plain < 256) {
      out_ += 'K';
      bytes(plain, 1);
    } else if (plain <= 0x7FFFFFFF) {
      out_ += 'J';
      bytes(plain, 4);
    } else {
      out_ += "\x8a\x08";
      bytes(plain, 8);
    }
  }
  void tuple(const std::vector<std::int64_t>& numbers) {
    out_ += '(';
    for (const std::int64_t one : numbers) {
      number(one);
    }
    out_ += 't';
  }

  std::string out_;
};

TUTTI_INLINE std::string_view storage_type_of(const std::string& name, const at::Tensor& tensor) {
  TUTTI_CHECK(tensor.defined() && tensor.layout() == c10::kStrided && !tensor.is_quantized(),
              "checkpoint: the tensor '", name, "' is not dense, which a state dict's are");
  for (const auto& [storage, type] : storage_types) {
    if (type == tensor.scalar_type()) {
      return storage;
    }
  }
  TUTTI_CHECK(false, "checkpoint: the tensor '", name, "' is of type ", tensor.scalar_type(),
              ", which files of torch.save() have no storage for; write it as safetensors");
}

}  // namespace detail

TUTTI_INLINE void write_torch_file(const std::filesystem::path& path,
                                   const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> storages;
  std::map<std::tuple<const void*, std::int64_t, std::string_view, std::size_t>, std::size_t>
      places;  // of storages
  std::map<std::string_view, int> names;
  detail::StateDictPickle pickle;
  for (const auto& [name, tensor] : tensors) {
    TUTTI_CHECK(tutti::detail::utf8(name) == name && name.size() <= 4096,
                "checkpoint: a tensor's name is not UTF-8, or longer than 4096 bytes");
    TUTTI_CHECK(++names[name] == 1, "checkpoint: two tensors are named '", name, "'");
    const std::string_view type = detail::storage_type_of(name, tensor);
    // Tied weights: the same bytes under several names.
    const bool plain =
        tensor.is_contiguous() && tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg();
    const auto [known, is_new] =
        places.emplace(std::tuple(plain ? tensor.const_data_ptr() : nullptr, tensor.numel(), type,
                                  plain ? std::size_t{0} : storages.size()),
                       storages.size());
    pickle.add(name, tensor, type, known->second, tensor.numel());
    if (is_new) {
      storages.push_back(tensor);
    }
  }
  detail::File file = detail::File::create(path);
  try {
    tutti::detail::ZipWriter archive(
        [&file](std::string_view bytes) { file.write(bytes.data(), bytes.size()); });
    constexpr std::uint64_t alignment = 64;
    archive.add("archive/data.pkl", std::move(pickle).finish(), alignment);
    archive.add("archive/byteorder", "little", alignment);
    for (std::size_t i = 0; i < storages.size(); ++i) {
      const at::Tensor plain = storages[i].detach().resolve_conj().resolve_neg().cpu().contiguous();
      archive.add("archive/data/" + std::to_string(i),
                  {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()}, alignment);
    }
    archive.add("archive/version", "3\n", alignment);
    archive.finish();
    file.sync();
    file.close();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace tutti::checkpoint
