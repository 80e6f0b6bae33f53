// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

// Tensors without memory, and who makes their values when they are wanted: as much as those need
// that may meet one. recorded_init.hpp has the rest.

namespace tutti::detail {

/// Makes the values of a model's tensors. Such a tensor has sizes, strides, type and device, and
/// its storage says whose it is; what reads its memory throws.
class InitTape : public std::enable_shared_from_this<InitTape> {
 public:
  InitTape() = default;
  InitTape(const InitTape&) = delete;
  InitTape& operator=(const InitTape&) = delete;
  virtual ~InitTape() = default;

  /// Of a tensor without memory; null: it has some, or is undefined.
  static std::shared_ptr<InitTape> of(const at::Tensor& tensor) {
    const Place* const place = place_of(tensor);
    return place == nullptr ? nullptr : place->tape;
  }

  /// While it lives, what this thread makes on the CPU has no memory, and what is done to tensors
  /// of the tape is written there. A tensor whose device is given is made as usual. The CPU's
  /// generator is then where it was. tape: null for nothing of this.
  class Recording {
   public:
    explicit Recording(std::shared_ptr<InitTape> tape) : tape_(std::move(tape)) {
      if (tape_ != nullptr) {
        tape_->begin();
      }
    }
    ~Recording() {
      if (tape_ != nullptr) {
        tape_->end();
      }
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    std::shared_ptr<InitTape> tape_;
  };

  /// Reads rows of a tensor, from `first` on, as many as `rows` has; all of one without dimensions.
  using Reader = std::function<void(std::int64_t first, const at::Tensor& rows)>;

  /// A tensor of the tape has what `read` reads, from now on.
  virtual void fill(const at::Tensor& tensor, Reader read) = 0;

  /// The states of the CPU's generator from which values are drawn: who writes others into them has
  /// others drawn.
  [[nodiscard]] virtual std::vector<at::Tensor> generator_states() const = 0;

  /// The values of a tensor.
  class Values {
   public:
    explicit Values(std::function<at::Tensor()> whole, const Reader* read = nullptr)
        : whole_(std::move(whole)), read_(read) {}

    /// All of them, with the strides that the tensor has.
    [[nodiscard]] at::Tensor whole() const { return whole_(); }
    /// Puts rows from `first` on into `rows`; reads no others where they are in a file.
    void rows(std::int64_t first, const at::Tensor& rows) const {
      if (read_ != nullptr) {
        (*read_)(first, rows);
      } else {
        rows.copy_(whole_().narrow(0, first, rows.size(0)));
      }
    }

   private:
    std::function<at::Tensor()> whole_;
    const Reader* read_;
  };

  /// Makes the values of these tensors of the tape, in the order of its calls and with no more
  /// memory than those need, and hands each over, by its place in `tensors`: the same bits as
  /// without a tape. The generator is then where it was. Throws c10::Error for a tensor of another
  /// tape.
  virtual void make(const std::vector<at::Tensor>& tensors,
                    const std::function<void(std::size_t, const Values&)>& take) const = 0;

 protected:
  /// What a storage without memory knows of itself.
  struct Place {
    std::shared_ptr<InitTape> tape;
    std::size_t storage;
  };
  static void forget(void* place) { delete static_cast<Place*>(place); }
  static const Place* place_of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) {
      return nullptr;
    }
    const c10::DataPtr& data =
        tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return data.get_deleter() == &forget ? static_cast<const Place*>(data.get_context()) : nullptr;
  }

 private:
  virtual void begin() = 0;
  virtual void end() = 0;
};

/// As many rows of a tensor as `rows` has, from `first` on; all of it where `rows` has its sizes.
inline at::Tensor rows_of(const at::Tensor& whole, std::int64_t first, const at::Tensor& rows) {
  return whole.sizes() == rows.sizes() ? whole : whole.narrow(0, first, rows.size(0));
}

/// Copies values, or has them copied when `to` gets its memory; they must not change until then.
inline void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (const auto tape = InitTape::of(to)) {
    tape->fill(to, [from](std::int64_t first, const at::Tensor& rows) {
      rows.copy_(rows_of(from, first, rows));
    });
  } else {
    to.copy_(from);
  }
}

/// Of a module's parameters and buffers, each once, those without memory.
template <class Module>
std::vector<at::Tensor> tensors_without_memory(const Module& module) {
  std::vector<at::Tensor> out;
  std::unordered_set<const void*> seen;
  for (const auto& all : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& one : all) {
      if (InitTape::of(one) != nullptr && seen.insert(one.unsafeGetTensorImpl()).second) {
        out.push_back(one);
      }
    }
  }
  return out;
}

/// Gives them memory and their values.
template <class Module>
void materialize(Module& module) {
  std::vector<at::Tensor> tensors = tensors_without_memory(module);
  if (!tensors.empty()) {
    InitTape::of(tensors.front())->make(tensors, [&](std::size_t i, const auto& values) {
      tensors[i].set_data(values.whole());
    });
  }
}

}  // namespace tutti::detail
