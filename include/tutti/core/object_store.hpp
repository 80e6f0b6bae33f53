// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti {

/// An object that a store does not have; other failures of a store may be gone when tried again.
struct ObjectNotFound : c10::Error {
  explicit ObjectNotFound(const std::string& text)
      : c10::Error(
            c10::SourceLocation{"ObjectStore", __FILE__, static_cast<std::uint32_t>(__LINE__)},
            text) {}
};

/// `S` keeps files under names, "runs/a/latest.symlink":
///
///     std::string get_uri(const std::string& name) const            "s3://bucket/runs/a/..."
///     void upload_object(const std::string& name, const std::string& file) const
///     void download_object(const std::string& name, const std::string& file) const
///     std::int64_t get_object_size(const std::string& name) const   bytes; -1: it cannot tell
///     std::vector<std::string> list_objects(const std::string& prefix) const      whole names
///
/// An upload replaces what has that name; a download's file is a new one. What fails throws:
/// ObjectNotFound for a name that is not there, any other exception for the rest. A thread of its
/// own may call them.
/// Source: MosaicML Composer, `composer.utils.ObjectStore`.
template <class S>
concept ObjectStore =
    std::copy_constructible<S> && requires(const S& store, const std::string& text) {
      { store.get_uri(text) } -> std::convertible_to<std::string>;
      store.upload_object(text, text);
      store.download_object(text, text);
      { store.get_object_size(text) } -> std::convertible_to<std::int64_t>;
      { store.list_objects(text) } -> std::convertible_to<std::vector<std::string>>;
    };

/// An object store of whatever type; copies share it. Members as those of ObjectStore, which throw
/// c10::ValueError when there is no store.
class AnyObjectStore {
 public:
  AnyObjectStore() = default;
  template <class S>
    requires(!std::same_as<std::remove_cvref_t<S>, AnyObjectStore> && ObjectStore<S>)
  AnyObjectStore(S store) : held_(std::make_shared<Held<S>>(std::move(store))) {}

  /// There is a store.
  explicit operator bool() const noexcept { return held_ != nullptr; }

  [[nodiscard]] std::string get_uri(const std::string& name) const { return held().get_uri(name); }
  void upload_object(const std::string& name, const std::string& file) const {
    held().upload_object(name, file);
  }
  void download_object(const std::string& name, const std::string& file) const {
    held().download_object(name, file);
  }
  [[nodiscard]] std::int64_t get_object_size(const std::string& name) const {
    return held().get_object_size(name);
  }
  [[nodiscard]] std::vector<std::string> list_objects(const std::string& prefix) const {
    return held().list_objects(prefix);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual std::string get_uri(const std::string&) const = 0;
    virtual void upload_object(const std::string&, const std::string&) const = 0;
    virtual void download_object(const std::string&, const std::string&) const = 0;
    virtual std::int64_t get_object_size(const std::string&) const = 0;
    virtual std::vector<std::string> list_objects(const std::string&) const = 0;
  };
  template <class S>
  struct Held final : Base {
    explicit Held(S s) : store(std::move(s)) {}
    std::string get_uri(const std::string& name) const override { return store.get_uri(name); }
    void upload_object(const std::string& name, const std::string& file) const override {
      store.upload_object(name, file);
    }
    void download_object(const std::string& name, const std::string& file) const override {
      store.download_object(name, file);
    }
    std::int64_t get_object_size(const std::string& name) const override {
      return store.get_object_size(name);
    }
    std::vector<std::string> list_objects(const std::string& prefix) const override {
      return store.list_objects(prefix);
    }
    S store;
  };

  const Base& held() const {
    TUTTI_CHECK_VALUE(held_,
                      "AnyObjectStore: there is no store, expected one such as "
                      "tutti::LocalObjectStore");
    return *held_;
  }

  std::shared_ptr<const Base> held_;
};

}  // namespace tutti
