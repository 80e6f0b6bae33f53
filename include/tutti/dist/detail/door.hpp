// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/sha2.hpp>

// Connections for those who know a token. Both sides prove that they do, and each message carries a
// proof, so that nobody on the way can change or repeat one. Messages are not secret.
// LibTorch-free.
//
//   server: magic, N_s (32 random bytes)
//   client: N_c (32), HMAC-SHA256(token, "c" N_s N_c)
//   server: HMAC(token, "s" N_c N_s)
//   key = HMAC(token, "k" N_s N_c)
//   message: length u32, bytes, first 16 bytes of HMAC(key, side, counter u64, bytes)

namespace tutti::dist::detail {

/// The variable with the token, which tutti-run makes: 64 hexadecimal digits.
inline constexpr const char* token_variable = "TUTTI_TOKEN";

inline constexpr std::string_view door_magic = "tutti-1\n";
inline constexpr std::size_t most_message = 64U << 20U;
inline constexpr std::chrono::seconds handshake_time{5};
inline constexpr std::size_t most_strangers = 64;  // connections that have proved nothing yet

/// HMAC-SHA256, 32 bytes. Source: RFC 2104.
std::string hmac(std::string_view key, std::string_view text);

/// `count` bytes of the kernel's random numbers. Throws std::runtime_error when there are none.
std::string random_bytes(std::size_t count);

/// Whether two texts are equal, in a time that says nothing about where they differ.
bool same_secret(std::string_view a, std::string_view b);

/// A new token.
std::string new_token();

/// The token in a file that its owner alone may read: 32 or more characters without white space.
/// Throws std::invalid_argument saying what is wrong with the file.
std::string token_of_file(const std::string& path);

/// Lets go of a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

/// One direction of a connection: the proofs of its messages.
class Seal {
 public:
  Seal() = default;
  Seal(std::string key, char side) : key_(std::move(key)), side_(side) {}

  /// The message with its length and proof.
  std::string closed(std::string_view message);

  /// Takes a whole message off the front of `bytes`, if one is there. Throws std::runtime_error
  /// when it is too long or its proof is wrong.
  bool open(std::string& bytes, std::string& message);

 private:
  [[nodiscard]] std::string proof(std::string_view message) const;

  std::string key_;
  char side_ = 0;
  std::uint64_t count_ = 0;
};

/// The client's end, blocking.
class DoorClient {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, again and again until there is a server, and proves itself.
  /// Throws std::runtime_error saying that nobody answers in time and why, or that the token is
  /// another's. A name that does not resolve may do so later; a line on stderr says so meanwhile.
  DoorClient(const std::string& host, int port, const std::string& token, Milliseconds timeout);

  void send(std::string_view message);

  /// The next message. Throws std::runtime_error when the connection is lost or none comes in time.
  std::string receive(Milliseconds timeout);

  /// Whether there is one within that time.
  bool try_receive(std::string& message, Milliseconds timeout);

  [[nodiscard]] int descriptor() const noexcept { return socket_.number(); }

  /// This side's address, as the server sees it.
  [[nodiscard]] std::string own_address() const;

 private:
  // One try; false: nobody is there yet, for the reason in problem_.
  bool connect(const std::string& host, int port);

  // One try; false: the other side closed the connection.
  bool shake_hands(const std::string& token, Milliseconds timeout);

  // Reads at least one more byte into bytes_; false: not in time.
  bool read_more(Milliseconds timeout);

  Descriptor socket_;
  Seal out_;
  Seal in_;
  std::string bytes_;
  std::string problem_;
  bool resolves_ = true;
};

/// The server's end, for any number of clients, in one thread that calls step().
class DoorServer {
 public:
  using Clock = std::chrono::steady_clock;

  /// listening: a socket that listens, which the server closes.
  DoorServer(int listening, std::string token);
  DoorServer(const DoorServer&) = delete;
  DoorServer& operator=(const DoorServer&) = delete;
  virtual ~DoorServer() = default;

  /// Waits up to `most` for something to happen and does it. also: a further descriptor to wake up
  /// for; -1: none.
  void step(std::chrono::milliseconds most, int also = -1);

  /// Sends to a client; one that is gone is passed over.
  void send(int client, std::string_view message);

 protected:
  /// A client has proved that it knows the token; `address` is its own.
  virtual void joined(int client, const std::string& address) = 0;
  virtual void received(int client, const std::string& message) = 0;
  virtual void left(int client) = 0;

  /// Lets go of a client without left().
  void forget(int client) { peers_.erase(client); }

 private:
  struct Peer {
    Descriptor socket{};
    std::string address{};
    std::string nonce{};  // of the server
    bool known = false;
    Clock::time_point since = Clock::now();
    Seal out{};
    Seal in{};
    std::string read{};
    std::string unsent{};
  };

  void accept_all();
  void read_from(int client);
  void check_proof(int client);
  void write_to(int client);
  void drop(int client, const char* why);
  void drop_strangers();
  void log_refused(const std::string& address, const char* why);

  Descriptor listening_;
  std::string token_;
  int next_ = 0;
  std::map<int, Peer> peers_;
  std::map<std::string, std::pair<Clock::time_point, int>> refused_;  // when it was last said
};

/// Numbers and texts in messages.
class Packed {
 public:
  Packed& number(std::int64_t value);
  Packed& text(std::string_view value);
  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads them in the same order. Throws std::runtime_error where the message is too short.
class Unpacked {
 public:
  explicit Unpacked(std::string_view bytes) : bytes_(bytes) {}
  std::int64_t number();
  std::string text();

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
};

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string hmac(std::string_view key, std::string_view text) {
  constexpr std::size_t block = 64;
  std::string padded(key.size() > block ? ::tutti::detail::sha256_bytes(key) : std::string(key));
  padded.resize(block, '\0');
  std::string inner = padded;
  std::string outer = padded;
  for (std::size_t i = 0; i < block; ++i) {
    inner[i] = static_cast<char>(inner[i] ^ 0x36);
    outer[i] = static_cast<char>(outer[i] ^ 0x5C);
  }
  return ::tutti::detail::sha256_bytes(
      outer.append(::tutti::detail::sha256_bytes(inner.append(text))));
}

TUTTI_INLINE std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) {
    throw std::runtime_error("the kernel gives no random numbers");
  }
  return bytes;
}

TUTTI_INLINE bool same_secret(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  }
  return differs == 0;
}

TUTTI_INLINE std::string new_token() {
  const std::string bytes = random_bytes(32);
  return ::tutti::detail::hexadecimal(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                      bytes.size());
}

TUTTI_INLINE std::string token_of_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto refuse = [&path](const std::string& what) {
    throw std::invalid_argument("tutti-run: the token file '" + path + "' " + what);
  };
  struct stat about{};
  if (file.number() < 0 || ::fstat(file.number(), &about) != 0 || !S_ISREG(about.st_mode)) {
    refuse("cannot be read; make it by: (umask 077; openssl rand -hex 32 > '" + path + "')");
  }
  if ((about.st_mode & 077U) != 0) {
    refuse("can be read by others than its owner; run chmod 600 on it");
  }
  std::array<char, 4096> text{};
  const ssize_t got = ::read(file.number(), text.data(), text.size());
  std::string token(text.data(), static_cast<std::size_t>(got > 0 ? got : 0));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.size() < 32 || token.size() > 1024 ||
      token.find_first_of(" \t\r\n") != std::string::npos) {
    refuse("has no token; expected 32 to 1024 characters without white space");
  }
  return token;
}

TUTTI_INLINE std::string Seal::proof(std::string_view message) const {
  std::string text(1, side_);
  for (int shift = 0; shift < 64; shift += 8) {
    text += static_cast<char>(count_ >> shift & 255);
  }
  return hmac(key_, text.append(message)).substr(0, 16);
}

TUTTI_INLINE std::string Seal::closed(std::string_view message) {
  if (message.size() > most_message) {
    throw std::runtime_error("a message has " + std::to_string(message.size()) +
                             " bytes, at most 64 MiB are sent");
  }
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(message.size() >> shift & 255);
  }
  bytes.append(message).append(proof(message));
  ++count_;
  return bytes;
}

TUTTI_INLINE bool Seal::open(std::string& bytes, std::string& message) {
  if (bytes.size() < 4) {
    return false;
  }
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  if (size > most_message) {
    throw std::runtime_error("a message is too long");
  }
  if (bytes.size() < 4 + size + 16) {
    return false;
  }
  message = bytes.substr(4, size);
  if (!same_secret(std::string_view(bytes).substr(4 + size, 16), proof(message))) {
    throw std::runtime_error("a message does not prove where it comes from");
  }
  ++count_;
  bytes.erase(0, 4 + size + 16);
  return true;
}

TUTTI_INLINE Packed& Packed::number(std::int64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> shift & 255);
  }
  return *this;
}

TUTTI_INLINE Packed& Packed::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes_.append(value);
  return *this;
}

TUTTI_INLINE std::string_view Unpacked::take(std::size_t count) {
  if (count > bytes_.size()) {
    throw std::runtime_error("a message is too short");
  }
  const std::string_view part = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return part;
}

TUTTI_INLINE std::int64_t Unpacked::number() {
  std::uint64_t value = 0;
  const std::string_view part = take(8);
  for (std::size_t i = 0; i < 8; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(part[i])) << (8 * i);
  }
  return static_cast<std::int64_t>(value);
}

TUTTI_INLINE std::string Unpacked::text() {
  return std::string(take(static_cast<std::size_t>(number())));
}

}  // namespace tutti::dist::detail

#endif

#include <tutti/dist/detail/door_ends.hpp>  // defines DoorClient and DoorServer
