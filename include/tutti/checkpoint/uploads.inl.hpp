// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/uploads.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE void Uploads::written(const std::string& path, const std::string& link) noexcept {
  take(path, [&] { return staged(path, link); });
}

TUTTI_INLINE void Uploads::take_file(const std::string& path, const std::string& name) noexcept {
  take(path, [&] { return staged_file(path, name); });
}

TUTTI_INLINE void Uploads::check() {
  std::string errors;
  {
    const std::lock_guard lock(mutex_);
    errors = std::exchange(errors_, {});
    failed_.store(false, std::memory_order_release);
  }
  TUTTI_CHECK(errors.empty() || options_.warn, "RemoteUploader: ", errors);
  if (!errors.empty()) {
    TORCH_WARN("RemoteUploader: ", errors, "; training goes on");
  }
}

TUTTI_INLINE bool Uploads::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return queue_.empty(); });
}

TUTTI_INLINE bool Uploads::fetch_latest(const std::string& folder, const std::string& latest) {
  const std::string remote = remote_of(folder);
  make_folder(folder);
  const detail::Staging scratch(std::filesystem::absolute(folder) / latest);
  std::string name;
  try {
    name = download_pointer(options_.store, remote + '/' + latest, scratch.path());
  } catch (const ObjectNotFound&) {
    return false;
  }
  download_snapshot(options_.store, remote + '/' + name, std::filesystem::path(folder) / name);
  point_latest(std::filesystem::path(folder) / latest, name);
  return true;
}

TUTTI_INLINE bool Uploads::fetch(const std::string& uri, const std::string& target) {
  const std::string name = object_name(options_.store, uri);
  if (name.empty()) {
    return false;
  }
  download_resolved(options_.store, name, target);
  return true;
}

TUTTI_INLINE bool Uploads::fetch_named(const std::string& folder, const std::string& name) {
  const auto target = std::filesystem::path(folder) / name;
  try {
    download_snapshot(options_.store, remote_of(folder) + '/' + name, target);
    return true;
  } catch (const ObjectNotFound&) {
    return false;
  }
}

TUTTI_INLINE void Uploads::catch_up(const std::vector<std::string>& saved,
                                    const std::string& link) noexcept {
  try {
    for (const auto& [path, pointer] : missing(saved, link)) {
      written(path, pointer);
    }
  } catch (const std::exception& error) {
    remember("what an earlier process has not uploaded of '" + link +
             "' cannot be told: " + text_of(error));
  }
}

TUTTI_INLINE bool Uploads::has(const std::filesystem::path& path) const {
  std::string last = "manifest.json";
  for (const char* config : {"adapter_config.json", "config.json"}) {
    if (!detail::path_exists(path / "manifest.json") && detail::path_exists(path / config)) {
      last = config;
    }
  }
  const std::string name = remote_of(path.parent_path()) + '/' + path.filename().string();
  try {
    static_cast<void>(options_.store.get_object_size(name + '/' + last));
    return true;
  } catch (const ObjectNotFound&) {
    return false;
  }
}

TUTTI_INLINE std::vector<std::pair<std::string, std::string>> Uploads::missing(
    const std::vector<std::string>& saved, const std::string& link) const {
  namespace fs = std::filesystem;
  if (saved.empty()) {
    return {};
  }
  const auto name_of = [](const std::string& path) { return fs::path(path).filename().string(); };
  std::string pointed;  // what the pointer names here, and is to name there
  if (!link.empty()) {
    const std::string here = name_of(resolve(link).string());
    const detail::Staging scratch(fs::absolute(link));
    try {
      const std::string remote = remote_of(fs::path(link).parent_path());
      pointed = download_pointer(options_.store, remote + '/' + name_of(link), scratch.path());
      pointed = pointed == here ? std::string() : here;
    } catch (const ObjectNotFound&) {
      pointed = here;
    }
  }
  std::size_t first = saved.size();  // they go there in order, so the newest are missing
  while (first > 0 && !has(saved[first - 1])) {
    --first;
  }
  std::vector<std::pair<std::string, std::string>> out;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const bool wanted = name_of(saved[i]) == pointed;
    if (i >= first || wanted) {
      out.emplace_back(saved[i], wanted ? link : std::string());
    }
  }
  return out;
}

TUTTI_INLINE std::string Uploads::text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

TUTTI_INLINE std::string Uploads::remote_of(const std::filesystem::path& folder) const {
  constexpr std::string_view placeholder = "{folder}";
  const auto whole = std::filesystem::absolute(folder).lexically_normal();
  const auto last = whole.filename().empty() ? whole.parent_path().filename() : whole.filename();
  std::string out = options_.remote_folder;
  for (std::size_t at = 0; (at = out.find(placeholder, at)) != std::string::npos;) {
    out.replace(at, placeholder.size(), last.string());
    at += last.string().size();
  }
  return out;
}

TUTTI_INLINE Uploads::Job Uploads::staged(const std::filesystem::path& path,
                                          const std::filesystem::path& link) const {
  namespace fs = std::filesystem;
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path folder =
      options_.staging_folder.empty() ? whole.parent_path() : fs::absolute(options_.staging_folder);
  make_folder(folder);
  Job job{.files = std::make_unique<detail::Staging>(folder / whole.filename()),
          .remote = remote_of(whole.parent_path()),
          .name = whole.filename().string(),
          .pointer = link.filename().string()};
  for (const auto& entry : fs::recursive_directory_iterator(whole)) {
    const auto copy = job.files->path() / entry.path().lexically_relative(whole);
    if (entry.is_directory()) {  // of a sharded checkpoint
      make_folder(copy);
    } else if (::link(entry.path().c_str(), copy.c_str()) != 0) {
      detail::copy_file(entry.path(), copy);
    }
  }
  return job;
}

TUTTI_INLINE Uploads::Job Uploads::staged_file(const std::filesystem::path& path,
                                               const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path folder =
      options_.staging_folder.empty() ? whole.parent_path() : fs::absolute(options_.staging_folder);
  make_folder(folder);
  if (cleaned_.insert(folder.string()).second) {
    detail::clean_staging(folder);
  }
  Job job;
  job.files = std::make_unique<detail::Staging>(folder / whole.filename());
  job.remote = name;
  job.is_file = true;
  const fs::path link = job.files->path() / taken;
  if (::link(whole.c_str(), link.c_str()) != 0) {
    detail::copy_file(whole, link);
  }
  return job;
}

TUTTI_INLINE void Uploads::upload_file(const Job& job) const {
  const auto copy = job.files->path() / "copy";
  detail::copy_file(job.files->path() / taken, copy);
  detail::upload_checked(options_.store, job.remote, copy);
}

TUTTI_INLINE void Uploads::remember(const std::string& error) noexcept {
  const std::lock_guard lock(mutex_);
  errors_ += (errors_.empty() ? "" : "; ") + error;
  failed_.store(true, std::memory_order_release);
}

TUTTI_INLINE void Uploads::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (closing_) {
      return;
    }
    Job& job = queue_.front();  // stays until it is done, so that wait() knows of it
    lock.unlock();
    upload(job);
    job.files.reset();
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

TUTTI_INLINE void Uploads::upload(const Job& job) {
  const std::string name = job.is_file ? job.remote : job.remote + '/' + job.name;
  std::chrono::milliseconds wait = options_.first_wait;
  for (int attempt = 1;; ++attempt) {
    try {
      if (job.is_file) {
        upload_file(job);
        return;
      }
      upload_snapshot(options_.store, job.files->path(), name);
      if (!job.pointer.empty()) {
        upload_pointer(options_.store, job.remote + '/' + job.pointer, job.name, job.files->path());
      }
      return;
    } catch (const std::exception& error) {
      if (attempt == options_.num_attempts || !pause(wait)) {
        remember("'" + options_.store.get_uri(name) + "' could not be uploaded in " +
                 std::to_string(attempt) + (attempt == 1 ? " attempt: " : " attempts: ") +
                 text_of(error));
        return;
      }
      wait *= 2;
    }
  }
}

TUTTI_INLINE bool Uploads::pause(std::chrono::milliseconds time) {
  std::uniform_int_distribution<int> more(0, 500);
  time += std::min(time, std::chrono::milliseconds(more(random_)));
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [&] { return closing_; });
}

}  // namespace tutti::checkpoint
