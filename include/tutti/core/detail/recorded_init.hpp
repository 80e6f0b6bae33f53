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
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

// What stands behind LibTorch's key for putting off how tensors are made: what the dispatcher asks
// before each operator.

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

/// Has LibTorch's dispatcher ask take_or_call() where a thread, or an operator's tensor, has the
/// key for it.
void install_calls();

/// What LibTorch's dispatcher calls for the operators of a thread that has a WithoutDraws or an
/// InitTape::Recording, and for those that get a tensor that is watched().
void take_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack);

/// The calls that make the values of a model's tensors, in their order.
///
/// LibTorch's operators come here by its dispatch key for this, `DeferredInit`; each runs on the
/// meta device, which says what it makes. What a tensor is a view of is seen by its storage, so
/// that calls that only make views need not be kept.
///
/// Source: PyTorch's torchdistX, `torchdistx.deferred_init`.
class RecordedInit final : public InitTape {
 public:
  RecordedInit();
  ~RecordedInit() override;

  /// That of this thread's innermost Recording; null: there is none.
  static std::shared_ptr<InitTape> current();

  void fill(const at::Tensor& tensor, Reader read) override;
  [[nodiscard]] std::vector<at::Tensor> generator_states() const override;
  void make(const std::vector<at::Tensor>& tensors,
            const std::function<void(std::size_t, const Values&)>& take) const override;

  /// Writes a call to the tape and puts what it returns onto the stack; false: it has nothing to do
  /// with it.
  bool take(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

 private:
  struct Call;
  struct Taking;
  struct Making;
  struct Scope;

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

  void begin() override;
  void end() override;
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
  std::vector<std::unique_ptr<Scope>> scopes_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES
#include <tutti/core/detail/recorded_init.inl.hpp>
#endif
