// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/detail/listen.hpp>
#include <tutti/dist/environment.hpp>

// Where rank 0 serves the store. LibTorch's TCPStore would listen on all interfaces, and it has no
// password: who reaches the port can change its keys.

namespace tutti::dist::detail {

/// A socket that listens, closed unless release() gave it away.
class ListeningSocket {
 public:
  explicit ListeningSocket(int descriptor) : descriptor_(descriptor) {}
  ListeningSocket(ListeningSocket&& other) noexcept : descriptor_(other.release()) {}
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  int release() noexcept { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

/// The address at which the store is met: 127.0.0.1 when all ranks are on this machine, whatever
/// its name resolves to; else MASTER_ADDR. A launcher that serves it says itself where.
inline std::string store_host(const Environment& environment) {
  const bool loopback = environment.single_node() && !environment.agent_store;
  return loopback && environment.master_addr != "::1" ? "127.0.0.1" : environment.master_addr;
}

/// A socket that listens at the store's host and port alone, or at TUTTI_STORE_ADDRESS where that
/// is set.
///
/// With several machines, an address that none of this machine's interfaces has (that of a port
/// that is forwarded), or a name that is a loopback address here and something else elsewhere (as
/// Debian's /etc/hosts has it), cannot be listened at: then all interfaces are, with a warning.
/// Throws c10::Error when the port is in use or the name is unknown.
ListeningSocket listen_for_store(const Environment& environment);

/// Warns when a store without a token listens where other machines come: at an address that is not
/// loopback. descriptor: its socket.
void warn_of_open_store(int descriptor);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE ListeningSocket listen_for_store(const Environment& environment) {
  const char* given = std::getenv("TUTTI_STORE_ADDRESS");
  const bool chosen = given != nullptr && *given != 0;
  const std::string host = chosen ? given : store_host(environment);
  const int port = environment.master_port;
  ::addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  TUTTI_CHECK(problem == 0, chosen ? "TUTTI_STORE_ADDRESS" : "MASTER_ADDR", " is '", host,
              "', which is no address: ", ::gai_strerror(problem));
  const bool others_come = !chosen && !environment.single_node();
  int descriptor = -1;
  int reason = EADDRNOTAVAIL;
  for (const ::addrinfo* one = addresses.get(); one != nullptr && descriptor < 0;
       one = one->ai_next) {
    if (others_come && is_loopback(*one->ai_addr)) {
      continue;  // where no other machine comes
    }
    descriptor = listen_at(one->ai_addr, one->ai_addrlen);
    reason = descriptor < 0 ? errno : 0;
  }
  if (descriptor < 0 && others_come && reason == EADDRNOTAVAIL) {
    TORCH_WARN("tutti::dist: this machine has no address of '", host,
               "' that others reach, so the store listens on all its interfaces; set MASTER_ADDR "
               "to an address of this machine, or TUTTI_STORE_ADDRESS to the one to listen at");
    descriptor = listen_everywhere(port);
    reason = descriptor < 0 ? errno : 0;
  }
  TUTTI_CHECK(descriptor >= 0, "cannot listen at ", host, ":", port, ": ", std::strerror(reason));
  return ListeningSocket(descriptor);
}

TUTTI_INLINE void warn_of_open_store(int descriptor) {
  ::sockaddr_storage address{};
  ::socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<::sockaddr*>(&address);
  if (::getsockname(descriptor, plain, &size) != 0 || is_loopback(*plain)) {
    return;
  }
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  ::getnameinfo(plain, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  TORCH_WARN("tutti::dist: the store listens at ", host, " port ", port,
             " without a token, so whoever reaches that port can read and change its keys; start "
             "the ranks by tutti-run with --token_file, or give all of them the same secret in "
             "TUTTI_TOKEN, or let a firewall close the port");
}

}  // namespace tutti::dist::detail

#endif
