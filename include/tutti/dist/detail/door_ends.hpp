// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/dist/detail/door.hpp>

// The two ends of a connection for those who know a token, see door.hpp.

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string address_of(int socket, bool peer) {
  ::sockaddr_storage address{};
  ::socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<::sockaddr*>(&address);
  std::array<char, NI_MAXHOST> host{};
  const int failed =
      peer ? ::getpeername(socket, plain, &size) : ::getsockname(socket, plain, &size);
  if (failed != 0 ||
      ::getnameinfo(plain, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  const std::string text = host.data();
  return text.starts_with("::ffff:") ? text.substr(7) : text;
}

// A small message is sent at once, and a machine that is gone is noticed.
TUTTI_INLINE void set_up(int socket) {
  const int on = 1;
  const int idle = 5;
  const int most_ms = 10'000;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
}

// Whether the socket is ready for `events` within that time.
TUTTI_INLINE bool ready(int socket, short events, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
    pollfd one{.fd = socket, .events = events, .revents = 0};
    const int found =
        ::poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
    if (found > 0) {
      return true;
    }
    if (left.count() <= 0 && (found == 0 || errno == EINTR)) {
      return false;
    }
  }
}

TUTTI_INLINE DoorClient::DoorClient(const std::string& host, int port, const std::string& token,
                                    Milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + timeout;
  const std::string where = host + ":" + std::to_string(port);
  int refused = 0;
  for (;;) {
    const auto left = std::chrono::duration_cast<Milliseconds>(limit - Clock::now());
    if (left.count() <= 0) {
      const std::string reason = problem_.empty() ? "" : ": " + problem_;
      throw std::runtime_error(resolves_ ? "nobody who knows this run answers at " + where + reason
                                         : problem_ + "; is it spelt right?");
    }
    const bool resolved = resolves_;
    const bool connected = connect(host, port);
    if (resolved && !resolves_ && left > Milliseconds(1000)) {
      std::fprintf(stderr, "tutti: %s; it is tried for %lld s more\n", problem_.c_str(),
                   static_cast<long long>(left.count() / 1000));
    }
    if (connected) {
      problem_ = "it closes the connection";
      if (shake_hands(token, std::min<Milliseconds>(left, handshake_time))) {
        return;
      }
      constexpr int tries = 3;  // many strangers at the door may have pushed this one out
      if (++refused == tries) {
        throw std::runtime_error(where +
                                 " refuses this process; it has not the token of the run (" +
                                 token_variable + "), or that port is another program's");
      }
    }
    std::this_thread::sleep_for(Milliseconds(50));
  }
}

TUTTI_INLINE bool DoorClient::connect(const std::string& host, int port) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  resolves_ = failed == 0;
  if (!resolves_) {
    problem_ = "the name '" + host + "' does not resolve: " + ::gai_strerror(failed);
    return false;
  }
  const std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const ::addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Descriptor socket(
        ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
    bool begun = ::connect(socket.number(), one->ai_addr, one->ai_addrlen) == 0;
    int problem = begun ? 0 : errno;
    if (problem == EINPROGRESS) {
      begun = ready(socket.number(), POLLOUT, Milliseconds(2000));
      problem = begun ? 0 : ETIMEDOUT;
    }
    ::socklen_t size = sizeof problem;
    if (begun && ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &problem, &size) == 0 &&
        problem == 0) {
      set_up(socket.number());
      socket_ = std::move(socket);
      bytes_.clear();
      return true;
    }
    problem_ = std::strerror(problem);
  }
  return false;
}

TUTTI_INLINE bool DoorClient::shake_hands(const std::string& token, Milliseconds timeout) {
  const auto limit = std::chrono::steady_clock::now() + timeout;
  const auto wait_for = [&](std::size_t count) {
    while (bytes_.size() < count) {
      const auto left =
          std::chrono::duration_cast<Milliseconds>(limit - std::chrono::steady_clock::now());
      if (!read_more(std::max(left, Milliseconds(0)))) {
        return false;
      }
    }
    return true;
  };
  try {
    if (!wait_for(door_magic.size() + 32) || !bytes_.starts_with(door_magic)) {
      return false;
    }
    const std::string theirs = bytes_.substr(door_magic.size(), 32);
    bytes_.erase(0, door_magic.size() + 32);
    const std::string ours = random_bytes(32);
    const std::string answer = ours + hmac(token, "c" + theirs + ours);
    if (::send(socket_.number(), answer.data(), answer.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(answer.size()) ||
        !wait_for(32) ||
        !same_secret(std::string_view(bytes_).substr(0, 32), hmac(token, "s" + ours + theirs))) {
      return false;
    }
    bytes_.erase(0, 32);
    const std::string key = hmac(token, "k" + theirs + ours);
    out_ = Seal(key, 'c');
    in_ = Seal(key, 's');
    return true;
  } catch (const std::runtime_error&) {
    return false;  // it was closed
  }
}

TUTTI_INLINE bool DoorClient::read_more(Milliseconds timeout) {
  if (!ready(socket_.number(), POLLIN, timeout)) {
    return false;
  }
  std::array<char, 16384> part{};
  const ssize_t got = ::recv(socket_.number(), part.data(), part.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (got <= 0) {
    throw std::runtime_error(std::string("the connection is lost: ") +
                             (got == 0 ? "the other side closed it" : std::strerror(errno)));
  }
  bytes_.append(part.data(), static_cast<std::size_t>(got));
  return true;
}

TUTTI_INLINE void DoorClient::send(std::string_view message) {
  const std::string bytes = out_.closed(message);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t sent =
        ::send(socket_.number(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if ((errno != EAGAIN && errno != EINTR) ||
               !ready(socket_.number(), POLLOUT, std::chrono::seconds(30))) {
      throw std::runtime_error(std::string("the connection is lost: ") + std::strerror(errno));
    }
  }
}

TUTTI_INLINE bool DoorClient::try_receive(std::string& message, Milliseconds timeout) {
  const auto limit = std::chrono::steady_clock::now() + timeout;
  while (!in_.open(bytes_, message)) {
    const auto left =
        std::chrono::duration_cast<Milliseconds>(limit - std::chrono::steady_clock::now());
    if (!read_more(std::max(left, Milliseconds(0)))) {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE std::string DoorClient::receive(Milliseconds timeout) {
  std::string message;
  if (!try_receive(message, timeout)) {
    throw std::runtime_error("no answer within " + std::to_string(timeout.count()) + " ms");
  }
  return message;
}

TUTTI_INLINE std::string DoorClient::own_address() const {
  return address_of(socket_.number(), false);
}

TUTTI_INLINE DoorServer::DoorServer(int listening, std::string token)
    : listening_(listening), token_(std::move(token)) {
  ::fcntl(listening, F_SETFL, ::fcntl(listening, F_GETFL) | O_NONBLOCK);
}

TUTTI_INLINE void DoorServer::step(std::chrono::milliseconds most, int also) {
  std::vector<pollfd> all{{.fd = listening_.number(), .events = POLLIN, .revents = 0},
                          {.fd = also, .events = POLLIN, .revents = 0}};
  std::vector<int> clients;
  for (const auto& [client, peer] : peers_) {
    const int events = peer.unsent.empty() ? POLLIN : POLLIN | POLLOUT;
    all.push_back({.fd = peer.socket.number(), .events = static_cast<short>(events), .revents = 0});
    clients.push_back(client);
    if (!peer.known) {
      most = std::min<std::chrono::milliseconds>(most, std::chrono::milliseconds(500));
    }
  }
  if (::poll(all.data(), all.size(), static_cast<int>(most.count())) > 0) {
    if ((all[0].revents & POLLIN) != 0) {
      accept_all();
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const int events = all[i + 2].revents;
      if ((events & POLLOUT) != 0 && peers_.contains(clients[i])) {
        write_to(clients[i]);
      }
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && peers_.contains(clients[i])) {
        read_from(clients[i]);
      }
    }
  }
  drop_strangers();
}

TUTTI_INLINE void DoorServer::accept_all() {
  constexpr int most_at_once = 256;
  for (int i = 0; i < most_at_once; ++i) {
    Descriptor socket(
        ::accept4(listening_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.number() < 0) {
      return;
    }
    set_up(socket.number());
    Peer peer;
    peer.address = address_of(socket.number(), true);
    peer.nonce = random_bytes(32);
    peer.socket = std::move(socket);
    peer.unsent = std::string(door_magic) + peer.nonce;
    const int client = next_++;
    peers_.emplace(client, std::move(peer));
    write_to(client);
  }
}

TUTTI_INLINE void DoorServer::read_from(int client) {
  Peer& peer = peers_.at(client);
  std::array<char, 16384> part{};
  const ssize_t got = ::recv(peer.socket.number(), part.data(), part.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    drop(client, "went away");
    return;
  }
  peer.read.append(part.data(), static_cast<std::size_t>(got));
  if (!peer.known) {
    check_proof(client);
  }
  try {
    std::string message;
    // received() may have dropped the client.
    for (auto found = peers_.find(client); found != peers_.end() && found->second.known &&
                                           found->second.in.open(found->second.read, message);
         found = peers_.find(client)) {
      received(client, message);
    }
  } catch (const std::runtime_error& error) {
    drop(client, error.what());
  }
}

TUTTI_INLINE void DoorServer::check_proof(int client) {
  Peer& peer = peers_.at(client);
  if (peer.read.size() < 64) {
    return;
  }
  const std::string theirs = peer.read.substr(0, 32);
  if (!same_secret(std::string_view(peer.read).substr(32, 32),
                   hmac(token_, "c" + peer.nonce + theirs))) {
    drop(client, "does not know the token");
    return;
  }
  peer.read.erase(0, 64);
  peer.known = true;
  peer.unsent += hmac(token_, "s" + theirs + peer.nonce);
  const std::string key = hmac(token_, "k" + peer.nonce + theirs);
  peer.out = Seal(key, 's');
  peer.in = Seal(key, 'c');
  const std::string address = peer.address;
  write_to(client);
  if (peers_.contains(client)) {
    joined(client, address);
  }
}

TUTTI_INLINE void DoorServer::send(int client, std::string_view message) {
  if (const auto found = peers_.find(client); found != peers_.end()) {
    found->second.unsent += found->second.out.closed(message);
    write_to(client);
  }
}

TUTTI_INLINE void DoorServer::write_to(int client) {
  Peer& peer = peers_.at(client);
  while (!peer.unsent.empty()) {
    const ssize_t sent =
        ::send(peer.socket.number(), peer.unsent.data(), peer.unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      peer.unsent.erase(0, static_cast<std::size_t>(sent));
    } else {
      return;  // what is wrong is seen when it is read from
    }
  }
}

TUTTI_INLINE void DoorServer::drop(int client, const char* why) {
  const auto found = peers_.find(client);
  const bool known = found->second.known;
  const std::string address = found->second.address;
  peers_.erase(found);
  if (known) {
    left(client);
  } else {
    log_refused(address, why);
  }
}

TUTTI_INLINE void DoorServer::drop_strangers() {
  std::vector<int> strangers;  // the oldest first
  std::vector<int> late;
  for (const auto& [client, peer] : peers_) {
    if (!peer.known) {
      (Clock::now() - peer.since > handshake_time ? late : strangers).push_back(client);
    }
  }
  for (const int client : late) {
    drop(client, "says nothing");
  }
  for (std::size_t i = 0; i + most_strangers < strangers.size(); ++i) {
    drop(strangers[i], "is one of too many");
  }
}

TUTTI_INLINE void DoorServer::log_refused(const std::string& address, const char* why) {
  auto& [said, count] = refused_[address];
  ++count;
  if (said != Clock::time_point() && Clock::now() - said < std::chrono::minutes(1)) {
    return;
  }
  std::fprintf(stderr, "tutti: a connection from %s is refused, number %d: it %s\n",
               address.c_str(), count, why);
  said = Clock::now();
  constexpr std::size_t most_addresses = 1000;
  if (refused_.size() > most_addresses) {
    refused_.clear();
  }
}

}  // namespace tutti::dist::detail

#endif
