// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/filename.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/object_store.hpp>

/// Checkpoints in an object store: one object per file, the manifest last, so that one whose
/// manifest is there is whole. A pointer `latest` is the object `latest.symlink`, which holds a
/// checkpoint's name in one line.
namespace tutti::checkpoint {

namespace detail {

inline constexpr const char* pointer_suffix = ".symlink";

// A file's name and nothing that leads out of its folder.
void check_plain_name(const std::string& name, const std::string& where);

void upload_checked(const AnyObjectStore& store, const std::string& name,
                    const std::filesystem::path& file);

}  // namespace detail

/// Uploads a checkpoint's folder as `name`, or a folder of Hugging Face's, whose
/// config.json, or adapter_config.json, goes last. Throws what the store throws, and c10::Error
/// when an object has another size than its file.
void upload_snapshot(const AnyObjectStore& store, const std::filesystem::path& folder,
                     const std::string& name);

/// Downloads the checkpoint `name`; it appears at `target` whole or not at all, and replaces what
/// is there. Sizes are compared here, checksums when it is read.
///
/// Throws ObjectNotFound when there is no such checkpoint, c10::Error when it is refused.
void download_snapshot(const AnyObjectStore& store, const std::string& name,
                       const std::filesystem::path& target);

/// Lets the pointer `link` ("runs/a/latest") name a checkpoint beside it. scratch: a folder.
void upload_pointer(const AnyObjectStore& store, const std::string& link, const std::string& name,
                    const std::filesystem::path& scratch);

/// The name that the pointer `link` has. scratch: a folder. Throws ObjectNotFound.
std::string download_pointer(const AnyObjectStore& store, const std::string& link,
                             const std::filesystem::path& scratch);

/// The name of the object at an address of the store, "s3://bucket/runs/a"; empty: the address is
/// none of its own.
std::string object_name(const AnyObjectStore& store, const std::string& uri);

/// download_snapshot() of the checkpoint `name`, or of the one that the pointer `name` names.
/// Throws c10::Error when there is neither, or it is refused.
void download_resolved(const AnyObjectStore& store, const std::string& name,
                       const std::filesystem::path& target);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/remote.inl.hpp>
#endif
