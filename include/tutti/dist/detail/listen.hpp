// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tutti/config.hpp>

// Sockets that listen. LibTorch-free.

namespace tutti::dist::detail {

/// Whether only this machine reaches it.
bool is_loopback(const ::sockaddr& address);

/// A socket that listens at one address; -1 with errno where that cannot be.
int listen_at(const ::sockaddr* address, ::socklen_t size);

/// The same on all interfaces.
int listen_everywhere(int port);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE bool is_loopback(const ::sockaddr& address) {
  if (address.sa_family == AF_INET6) {
    ::sockaddr_in6 six{};
    std::memcpy(&six, &address, sizeof six);
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) != 0;
  }
  ::sockaddr_in four{};
  std::memcpy(&four, &address, sizeof four);
  return (ntohl(four.sin_addr.s_addr) >> 24) == 127;
}

TUTTI_INLINE int listen_at(const ::sockaddr* address, ::socklen_t size) {
  constexpr int backlog = 2048;
  const int descriptor = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    return -1;
  }
  const int on = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(descriptor, address, size) == 0 && ::listen(descriptor, backlog) == 0) {
    return descriptor;
  }
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  return -1;
}

TUTTI_INLINE int listen_everywhere(int port) {
  ::sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  const int descriptor = listen_at(reinterpret_cast<const ::sockaddr*>(&six), sizeof six);
  if (descriptor >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) {
    return descriptor;
  }
  ::sockaddr_in four{};  // a machine without IPv6
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return listen_at(reinterpret_cast<const ::sockaddr*>(&four), sizeof four);
}

}  // namespace tutti::dist::detail

#endif
