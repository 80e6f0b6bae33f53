// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/mapped_file.hpp>
#include <tutti/data/detail/mds_shard.hpp>
#include <tutti/data/detail/new_file.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/mds.hpp>
#include <tutti/data/streaming_dataset.hpp>

// Shards of several streams that are fetched into folders of this machine.

namespace tutti::data::detail {

// Holds a lock that other processes, and other threads, wait for. It ends with the process.
class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    TUTTI_CHECK(file_ >= 0, "'", path, "' cannot be made: ", std::strerror(errno));
    while (::flock(file_, LOCK_EX) != 0) {
      const int reason = errno;
      if (reason != EINTR) {
        ::close(file_);
        TUTTI_CHECK(false, "'", path, "' cannot be locked: ", std::strerror(reason));
      }
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() { ::close(file_); }

 private:
  int file_;
};

// The bytes of a regular file; -1: it is not there.
inline std::int64_t size_of_file(const std::string& path, ::timespec* used = nullptr) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return -1;
  }
  if (used != nullptr) {
    *used = about.st_mtim;
  }
  return static_cast<std::int64_t>(about.st_size);
}

class ShardCache {
 public:
  ShardCache(std::vector<Stream> streams, std::optional<std::int64_t> limit);

  [[nodiscard]] const std::vector<Stream>& streams() const { return streams_; }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const MDSShard& shard(std::size_t k) const { return *entries_[k].shard; }
  [[nodiscard]] std::size_t stream_of(std::size_t k) const { return entries_[k].stream; }

  [[nodiscard]] bool is_open(std::size_t k) {
    const std::lock_guard lock(mutex_);
    return entries_[k].bytes != nullptr;
  }

  // Shard k, fetched if need be.
  std::shared_ptr<const MDSBytes> open(std::size_t k);

 private:
  struct Entry {
    std::shared_ptr<const MDSShard> shard;
    std::size_t stream;
    std::shared_ptr<const MDSBytes> bytes{};
    std::int64_t used = 0;    // by this process, in nanoseconds since 1970
    std::int64_t marked = 0;  // when the file's time was set, which tells other processes
  };

  [[nodiscard]] std::string folder(std::size_t stream) const { return streams_[stream].folder(); }
  [[nodiscard]] std::string raw_path(std::size_t k) const {
    return folder(entries_[k].stream) + "/" + shard(k).raw.basename;
  }
  void fetch_index(std::size_t stream) const;
  void fetch(std::size_t k);
  void store(std::size_t k);
  void make_room(std::size_t k);
  template <class Check>
  void download(std::size_t stream, const std::string& name, const Check& check) const;
  void keep_open(std::size_t k, std::shared_ptr<const MDSBytes> bytes);
  void use(std::size_t k);

  std::vector<Stream> streams_;
  std::optional<std::int64_t> limit_;
  std::vector<Entry> entries_;
  std::mutex mutex_;           // over what entries have open, and their times
  std::int64_t last_use_ = 0;  // of any shard
  std::int64_t open_bytes_ = 0;
};

inline ShardCache::ShardCache(std::vector<Stream> streams, std::optional<std::int64_t> limit)
    : streams_(std::move(streams)), limit_(limit) {
  std::int64_t largest = 0;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    fetch_index(s);
    for (MDSShard& shard : read_mds_index(folder(s))) {
      if (shard.samples > 0) {  // a sample larger than a shard's limit has an empty one before it
        largest = std::max(largest, shard.raw.bytes + (shard.zip ? shard.zip->bytes : 0));
        entries_.push_back({std::make_shared<const MDSShard>(std::move(shard)), s});
      }
    }
  }
  TUTTI_CHECK_VALUE(!limit_ || *limit_ / 4 >= largest, "StreamingDataset: cache_limit is ", *limit_,
                    ", expected at least four times ", largest,
                    " bytes, which the largest shard takes");
}

// Fetches a file under a name that nobody takes for it, until `check(path)` accepts it; check()
// gives it its name.
template <class Check>
void ShardCache::download(std::size_t stream, const std::string& name, const Check& check) const {
  const Stream& from = streams_[stream];
  const std::string part = folder(stream) + "/." + name + ".part";
  for (std::int64_t left = from.download_retry;; --left) {
    try {
      ::unlink(part.c_str());  // of a process that was killed
      from.remote.download_object(from.remote_name(name), part);
      check(part);
      return;
    } catch (const ObjectNotFound&) {
      ::unlink(part.c_str());
      if (left <= 0 || name == "index.json") {
        throw;  // who gives a wrong address need not wait
      }  // else the index lists it, and the store is mistaken now and then
    } catch (...) {
      ::unlink(part.c_str());
      if (left <= 0) {
        throw_over("'" + from.remote.get_uri(from.remote_name(name)) +
                   "' cannot be fetched, tried " + std::to_string(from.download_retry + 1) +
                   " times: ");
      }
    }
  }
}

inline void ShardCache::fetch_index(std::size_t stream) const {
  const std::string path = folder(stream) + "/index.json";
  if (!streams_[stream].remote || size_of_file(path) >= 0) {
    return;
  }
  make_folders(folder(stream));
  const FileLock lock(folder(stream) + "/.index.json.lock");
  if (size_of_file(path) < 0) {
    download(stream, "index.json", [&](const std::string& part) {
      const MappedFile file(part);
      (void)mds_index(view_of(file), "'" + part + "': ");
      publish_file(part, path);
    });
  }
}

inline std::shared_ptr<const MDSBytes> ShardCache::open(std::size_t k) {
  {
    const std::lock_guard lock(mutex_);
    if (entries_[k].bytes) {
      use(k);
      return entries_[k].bytes;
    }
  }
  const Stream& stream = streams_[entries_[k].stream];
  const bool checks = stream.validate_hash && !stream.remote;  // else when it was fetched
  for (int tries = 0;; ++tries) {
    fetch(k);
    try {
      auto bytes = open_mds_shard(folder(entries_[k].stream), entries_[k].shard, checks);
      keep_open(k, bytes);
      return bytes;
    } catch (const c10::Error&) {  // another process may have made room just now
      if (tries >= 3 || !stream.remote || size_of_file(raw_path(k)) >= 0) {
        throw;
      }
    }
  }
}

inline std::int64_t nanoseconds(const ::timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Notes that shard k is used now. Its file's time follows when it is opened and then, where shards
// are removed, once a second: a call of the system for every sample would be slow.
inline void ShardCache::use(std::size_t k) {
  constexpr std::int64_t second = 1'000'000'000;
  ::timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  last_use_ = std::max(last_use_ + 1, nanoseconds(now));
  Entry& entry = entries_[k];
  entry.used = last_use_;
  if (entry.marked == 0 || (limit_ && entry.used - entry.marked >= second)) {
    ::utimensat(AT_FDCWD, raw_path(k).c_str(), nullptr, 0);
    entry.marked = entry.used;
  }
}

// Maps at most so many shards at a time; what others still use stays mapped until they are done.
inline void ShardCache::keep_open(std::size_t k, std::shared_ptr<const MDSBytes> bytes) {
  constexpr std::size_t most = 4096;
  const std::int64_t limit = limit_.value_or(std::numeric_limits<std::int64_t>::max());
  const std::lock_guard lock(mutex_);
  open_bytes_ += entries_[k].bytes ? 0 : shard(k).raw.bytes;
  entries_[k].bytes = std::move(bytes);
  entries_[k].marked = 0;
  use(k);
  for (;;) {
    std::size_t count = 0;
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      count += entry.bytes ? 1 : 0;
      if (entry.bytes && (oldest == nullptr || entry.used < oldest->used)) {
        oldest = &entry;
      }
    }
    if ((count <= most && open_bytes_ <= limit) || count <= 1) {
      return;
    }
    open_bytes_ -= oldest->shard->raw.bytes;
    oldest->bytes.reset();
  }
}

inline void ShardCache::fetch(std::size_t k) {
  const std::size_t stream = entries_[k].stream;
  const auto is_there = [&] {
    const std::int64_t size = size_of_file(raw_path(k));
    return size == shard(k).raw.bytes || (size >= 0 && !streams_[stream].remote);
  };
  if (is_there()) {
    return;
  }
  make_folders(folder(stream));
  std::optional<FileLock> room;
  if (limit_) {  // one download at a time, so that together they stay within the limit
    room.emplace(folder(0) + "/.cache.lock");
  }
  const FileLock lock(folder(stream) + "/." + shard(k).raw.basename + ".lock");
  if (is_there()) {
    return;
  }
  if (limit_) {
    make_room(k);
  }
  store(k);
}

// Puts the raw file of shard k where it belongs.
inline void ShardCache::store(std::size_t k) {
  const std::size_t s = entries_[k].stream;
  const Stream& stream = streams_[s];
  const MDSShard& one = shard(k);
  const std::string raw = raw_path(k);
  const std::string stored = folder(s) + "/" + one.stored().basename;
  const auto accept = [&](const std::string& path) {
    const MappedFile file(path);
    const std::string where = "'" + path + "': ";
    const std::string_view bytes = view_of(file);
    TUTTI_CHECK(std::ssize(bytes) == one.stored().bytes, where, "it has ", bytes.size(),
                " bytes, and the index says ", one.stored().bytes);
    if (stream.validate_hash) {
      check_mds_hashes(one.stored(), bytes, where);
    }
    if (!one.zip) {
      (void)MDSBytes(entries_[k].shard, nullptr, bytes, where);
      publish_file(path, raw);
      return;
    }
    const std::string whole = unzip_mds(one, bytes, where);
    if (stream.validate_hash) {
      check_mds_hashes(one.raw, whole, where);
    }
    (void)MDSBytes(entries_[k].shard, nullptr, whole, where);
    const std::string temporary = folder(s) + "/." + one.raw.basename + ".tmp";
    write_whole(temporary, whole);
    if (path != stored && stream.keep_zip) {
      publish_file(path, stored);
    } else if (path != stored) {
      ::unlink(path.c_str());
    }
    publish_file(temporary, raw);
  };
  if (one.zip && size_of_file(stored) == one.zip->bytes) {
    try {
      return accept(stored);
    } catch (const c10::Error&) {
      if (!stream.remote) {
        throw;
      }
    }
  }
  TUTTI_CHECK(stream.remote, "'", stored, "' is not there, and the stream has no remote");
  download(s, one.stored().basename, accept);
}

// Removes shards that were not used for the longest until another one fits.
inline void ShardCache::make_room(std::size_t k) {
  struct File {
    std::string path;
    std::int64_t bytes;
    std::int64_t used;
    std::size_t entry;
  };
  std::vector<File> files;
  const MDSShard& comes = shard(k);
  std::int64_t total = comes.raw.bytes + (comes.zip ? comes.zip->bytes : 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::size_t s = entries_[i].stream;
    if (!streams_[s].remote || i == k) {
      continue;  // what cannot be fetched again is kept
    }
    for (const MDSFile* one : {&shard(i).raw, shard(i).zip ? &*shard(i).zip : nullptr}) {
      if (one != nullptr) {
        File file{folder(s) + "/" + one->basename, 0, 0, i};
        ::timespec marked{};
        file.bytes = size_of_file(file.path, &marked);
        total += std::max<std::int64_t>(file.bytes, 0);
        if (file.bytes >= 0) {
          const std::lock_guard lock(mutex_);
          file.used = std::max(nanoseconds(marked), one == &shard(i).raw ? entries_[i].used : 0);
          files.push_back(std::move(file));
        }
      }
    }
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total <= *limit_) {
      return;
    }
    if (::unlink(file.path.c_str()) == 0) {
      total -= file.bytes;
      const std::lock_guard lock(mutex_);
      if (entries_[file.entry].bytes) {
        open_bytes_ -= shard(file.entry).raw.bytes;
        entries_[file.entry].bytes.reset();
      }
    }
  }
}

}  // namespace tutti::data::detail
