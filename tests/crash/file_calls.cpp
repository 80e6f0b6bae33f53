#include "crash/file_calls.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <map>
#include <utility>

namespace {

struct Watcher {
  std::string folder;
  std::function<void(const crash::Call&)> seen;
  const crash::Watch* options = nullptr;
  std::map<int, std::string> open{};  // what descriptors name
};
thread_local Watcher* watcher = nullptr;

// Tells of a call, without watching what is done meanwhile.
void tell(const crash::Call& call) {
  Watcher* const self = std::exchange(watcher, nullptr);
  self->seen(call);
  watcher = self;
}

bool watched(const char* path) {
  return watcher != nullptr && std::string(path).rfind(watcher->folder + "/", 0) == 0;
}

bool watched(int descriptor) {
  return watcher != nullptr && watcher->open.count(descriptor) > 0;
}

int result(long code) {
  return static_cast<int>(code);
}

}  // namespace

namespace crash {

Watch::Watch(std::string folder, std::function<void(const Call&)> seen) {
  watcher = new Watcher{std::move(folder), std::move(seen), this};
}
Watch::~Watch() {
  delete std::exchange(watcher, nullptr);
}

}  // namespace crash

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    std::va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  const bool seen = watched(path) || (watcher != nullptr && path == watcher->folder);
  if (seen && (flags & O_CREAT) != 0) {
    tell({crash::Call::create, path, {}, {}});
  }
  const int descriptor = result(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (seen && descriptor >= 0) {
    watcher->open[descriptor] = path;
  }
  return descriptor;
}

int close(int descriptor) {
  if (watched(descriptor)) {
    watcher->open.erase(descriptor);
  }
  return result(::syscall(SYS_close, descriptor));
}

ssize_t write(int descriptor, const void* data, size_t size) {
  if (watched(descriptor)) {
    tell({crash::Call::write,
          watcher->open[descriptor],
          {},
          std::string(static_cast<const char*>(data), size)});
  }
  return ::syscall(SYS_write, descriptor, data, size);
}

int fsync(int descriptor) {
  if (watched(descriptor)) {
    tell({crash::Call::sync, watcher->open[descriptor], {}, {}});
    return 0;  // it is the model that decides what lasts
  }
  return result(::syscall(SYS_fsync, descriptor));
}

int mkdir(const char* path, mode_t mode) {
  if (watched(path)) {
    tell({crash::Call::mkdir, path, {}, {}});
  }
  return result(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int symlink(const char* target, const char* path) {
  if (watched(path)) {
    if (watcher->options->no_symlink) {
      errno = EPERM;
      return -1;
    }
    tell({crash::Call::symlink, path, target, {}});
  }
  return result(::syscall(SYS_symlinkat, target, AT_FDCWD, path));
}

int rename(const char* from, const char* to) {
  if (watched(from)) {
    tell({crash::Call::rename, from, to, {}});
  }
  return result(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int, const char* from, int, const char* to, unsigned flags) {
  if (watched(from)) {
    if (watcher->options->no_exchange) {
      errno = EINVAL;
      return -1;
    }
    tell({crash::Call::exchange, from, to, {}});
  }
  return result(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags));
}

int unlink(const char* path) {
  if (watched(path)) {
    tell({crash::Call::unlink, path, {}, {}});
  }
  return result(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int remove(const char* path) {
  if (watched(path)) {
    tell({crash::Call::unlink, path, {}, {}});
  }
  const int code = result(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  return code != 0 && errno == EISDIR
             ? result(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR))
             : code;
}

}  // extern "C"
