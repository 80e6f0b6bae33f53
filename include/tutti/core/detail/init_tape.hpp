// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

// Tensors without memory, and what makes their values when they are wanted.

namespace tutti::detail {

/// While it lives, normal_() and uniform_() of this thread do nothing: tensors keep the values of
/// their memory, and no random number is used.
class WithoutDraws {
 public:
  WithoutDraws();
  ~WithoutDraws();
  WithoutDraws(const WithoutDraws&) = delete;
  WithoutDraws& operator=(const WithoutDraws&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard key_;
};

/// What LibTorch's dispatcher calls for the operators of a thread that has a WithoutDraws or an
/// InitTape::Recording.
void take_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack);

/// The calls that make the values of a model's tensors, in their order. Such a tensor has sizes,
/// strides, type and device, and its storage says on which tape it is; what reads its memory
/// throws.
///
/// LibTorch's operators come here by its dispatch key for this, `DeferredInit`; each runs on the
/// meta device, which says what it makes. What a tensor is a view of is seen by its storage, so
/// that calls that only make views need not be kept.
///
/// Source: PyTorch's torchdistX, `torchdistx.deferred_init`.
class InitTape : public std::enable_shared_from_this<InitTape> {
 public:
  InitTape() = default;
  InitTape(const InitTape&) = delete;
  InitTape& operator=(const InitTape&) = delete;

  /// Of a tensor without memory; null: it has some, or is undefined.
  static std::shared_ptr<InitTape> of(const at::Tensor& tensor);

  /// While it lives, what this thread makes on the CPU has no memory, and what is done to tensors
  /// of the tape is written there. A tensor whose device is given is made as usual. The CPU's
  /// generator is then where it was. tape: null for nothing of this.
  class Recording {
   public:
    explicit Recording(std::shared_ptr<InitTape> tape);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    std::shared_ptr<InitTape> tape_;
    InitTape* before_;
    at::Tensor generator_;  // its state at the start; undefined within another Recording
    c10::impl::IncludeDispatchKeyGuard key_;
  };

  /// Writes a call to the tape and puts what it returns onto the stack; false: it has nothing to do
  /// with it.
  bool take(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

  /// The tape of the innermost Recording of this thread; null: there is none.
  static std::shared_ptr<InitTape> current();

  /// Reads rows of a tensor, from `first` on, as many as `rows` has; all of one without dimensions.
  using Reader = std::function<void(std::int64_t first, const at::Tensor& rows)>;

  /// A tensor of the tape has what `read` reads, from now on.
  void fill(const at::Tensor& tensor, Reader read);

  /// The states of the CPU's generator from which values are drawn: who writes others into them has
  /// others drawn.
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;

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
  void make(const std::vector<at::Tensor>& tensors,
            const std::function<void(std::size_t, const Values&)>& take) const;

 private:
  struct Call;
  struct Taking;
  struct Making;

  // Of a tensor that lies in a storage of the tape.
  struct View {
    std::size_t storage;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset;
    at::ScalarType type;
  };
  struct Memory {
    at::Storage on_meta;
    std::size_t bytes;
    c10::Device device;
  };
  // What a storage without memory knows of itself.
  struct Place {
    std::shared_ptr<InitTape> tape;
    std::size_t storage;
  };

  static void forget(void* place) { delete static_cast<Place*>(place); }
  static const Place* place_of(const at::Tensor& tensor);
  static View view_of(const at::Tensor& tensor, std::size_t storage);

  [[nodiscard]] Taking arguments_of(const c10::OperatorHandle& op,
                                    const std::vector<c10::IValue>& stack) const;
  at::Tensor taken_result(Taking& taking, const at::Tensor& on_meta, std::size_t index);
  at::Storage new_storage(const at::Tensor& on_meta, c10::Device device);
  void note_draw();

  // What to do at a call when values are made.
  struct Step {
    bool runs = false;
    std::vector<std::size_t> gives{};  // storages that have their values then
    std::vector<std::size_t> drops{};  // and that nobody reads any more
  };
  [[nodiscard]] std::vector<Step> plan(std::vector<bool> live) const;

  std::vector<std::shared_ptr<Call>> calls_;
  std::vector<Memory> memories_;
  std::unordered_map<const void*, std::size_t> known_;  // by the storage on the meta device
  at::Tensor generator_;  // its state, if nobody has set it or drawn since the last call that draws
};

/// As many rows of a tensor as `rows` has, from `first` on; all of it where `rows` has its sizes.
inline at::Tensor rows_of(const at::Tensor& whole, std::int64_t first, const at::Tensor& rows) {
  return whole.sizes() == rows.sizes() ? whole : whole.narrow(0, first, rows.size(0));
}

/// Copies values, or has them copied when `to` gets its memory; they must not change until then.
void copy_values(const at::Tensor& to, const at::Tensor& from);

/// Of a module's parameters and buffers, each once, those without memory.
template <class Module>
std::vector<at::Tensor> tensors_without_memory(const Module& module) {
  std::vector<at::Tensor> out;
  std::unordered_map<const void*, bool> seen;
  for (const auto& all : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& one : all) {
      if (InitTape::of(one) != nullptr &&
          seen.try_emplace(one.unsafeGetTensorImpl(), true).second) {
        out.push_back(one);
      }
    }
  }
  return out;
}

}  // namespace tutti::detail

#if TUTTI_BODIES
#include <tutti/core/detail/init_tape.inl.hpp>
#endif
