// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/checkpoint/local_object_store.hpp>

/// A local store. A test derives from it and hides what is to go otherwise.
struct WrappedStore {
  tutti::LocalObjectStore store;

  std::string get_uri(const std::string& name) const { return store.get_uri(name); }
  void upload_object(const std::string& name, const std::string& file) const {
    store.upload_object(name, file);
  }
  void download_object(const std::string& name, const std::string& file) const {
    store.download_object(name, file);
  }
  std::int64_t get_object_size(const std::string& name) const {
    return store.get_object_size(name);
  }
  std::vector<std::string> list_objects(const std::string& prefix) const {
    return store.list_objects(prefix);
  }
};
