// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

// Tensors whose memory comes when it is wanted: as much as those need that may meet one.

namespace tutti::detail {

/// Brings the memory of tensors, and takes it away. Their storages say whose they are, with memory
/// and without.
class Pager {
 public:
  Pager() = default;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;
  virtual ~Pager() = default;

  /// Somebody is about to read the memory, and that of as many other pagers as to make `together`,
  /// all of which have to be there at once. reader: an operator, for messages.
  virtual void bring(std::string_view reader, std::size_t together) = 0;

  /// Of a tensor; null: its memory is always there, or it is undefined.
  static Pager* of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) {
      return nullptr;
    }
    const c10::DataPtr& data =
        tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return data.get_deleter() == &forget ? static_cast<const Page*>(data.get_context())->pager
                                         : nullptr;
  }

  /// `memory`, of which a storage then says that it is of this pager.
  c10::DataPtr page(c10::DataPtr memory) {
    void* const data = memory.get();
    const c10::Device device = memory.device();
    return {data, new Page{this, std::move(memory)}, &forget, device};
  }

  /// That of memory that nobody brings any more, which throws.
  static Pager& gone();

  /// The storage is nobody's from now on.
  static void release(c10::StorageImpl& storage) {
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    if (data.get_deleter() == &forget) {
      c10::DataPtr memory = std::move(static_cast<Page*>(data.get_context())->memory);
      storage.set_data_ptr_noswap(std::move(memory));  // which deletes the page
    }
  }

  /// While it lives, operators of this thread bring nothing.
  struct Aside {
    c10::impl::ExcludeDispatchKeyGuard no_pages{c10::DispatchKey::DeferredInit};
  };

 private:
  struct Page {
    Pager* pager;
    c10::DataPtr memory;
  };
  static void forget(void* page) { delete static_cast<Page*>(page); }
};

/// For who reads memory himself, and not by operators: it is there from now on, until that of
/// others is wanted.
inline void bring_memory(const at::Tensor& tensor) {
  if (Pager* const pager = Pager::of(tensor)) {
    pager->bring("a layer", 1);
  }
}

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE Pager& Pager::gone() {
  struct Gone final : Pager {
    void bring(std::string_view reader, std::size_t /*together*/) override {
      TUTTI_CHECK(
          false, "sharding: ", reader,
          " reads a parameter that has no memory, since what had sharded the model is gone; "
          "read it before, within summon(), or save it in a checkpoint");
    }
  };
  static Pager* const only = new Gone;  // tensors may outlive all else
  return *only;
}

}  // namespace tutti::detail

#endif
