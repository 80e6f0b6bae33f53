// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/detail/key_server.hpp>
#include <tutti/dist/detail/store_socket.hpp>

// c10d's store over a connection that strangers do not have.

namespace tutti::dist::detail {

/// A store with what c10d's has in LibTorch 2.11, with older ones too.
struct NewStore : c10d::Store {
  using c10d::Store::Store;
  virtual c10::intrusive_ptr<c10d::Store> clone() = 0;
  virtual std::vector<std::string> listKeys() = 0;
};

/// A client of a KeyServer. Rank 0's also serves it.
class DoorStore final : public NewStore {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Throws c10::DistStoreError when there is no server in time, or it refuses the token.
  DoorStore(std::string host, int port, std::string token, Milliseconds timeout,
            std::shared_ptr<ServedKeys> served = nullptr);
  ~DoorStore() override;

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  std::vector<std::string> listKeys() override;

 private:
  // Asks and returns the answer; waits for it that much longer than the server may take.
  std::string ask(const Packed& question, Milliseconds server_time = Milliseconds(0));

  std::string host_;
  int port_;
  std::string token_;
  std::shared_ptr<ServedKeys> served_;
  std::mutex mutex_;
  std::unique_ptr<DoorClient> client_;
};

/// The store of a run that has a token: at MASTER_ADDR:MASTER_PORT, served by rank 0.
c10::intrusive_ptr<c10d::Store> open_door(const Environment& environment, const std::string& token,
                                          std::chrono::milliseconds timeout);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
TUTTI_INLINE std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
TUTTI_INLINE Packed question(KeyCall call) {
  Packed out;
  out.number(static_cast<std::int64_t>(call));
  return out;
}
TUTTI_INLINE Packed question(KeyCall call, const std::vector<std::string>& keys) {
  Packed out = question(call);
  out.number(static_cast<std::int64_t>(keys.size()));
  for (const std::string& key : keys) {
    out.text(key);
  }
  return out;
}

TUTTI_INLINE DoorStore::DoorStore(std::string host, int port, std::string token,
                                  Milliseconds timeout, std::shared_ptr<ServedKeys> served)
    : NewStore(timeout),
      host_(std::move(host)),
      port_(port),
      token_(std::move(token)),
      served_(std::move(served)) {
  std::string problem;
  try {
    client_ = std::make_unique<DoorClient>(host_, port_, token_, timeout);
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  TUTTI_CHECK_AS(c10::DistStoreError, client_ != nullptr, problem);
}

TUTTI_INLINE DoorStore::~DoorStore() = default;

TUTTI_INLINE std::string DoorStore::ask(const Packed& question, Milliseconds server_time) {
  const std::lock_guard lock(mutex_);
  std::string answer;
  std::string problem;
  try {
    client_->send(question.bytes());
    answer = client_->receive(server_time + std::chrono::seconds(30));
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  TUTTI_CHECK_AS(c10::DistStoreError, problem.empty(), "the store at ", host_, ":", port_, ": ",
                 problem);
  return answer;
}

TUTTI_INLINE c10::intrusive_ptr<c10d::Store> DoorStore::clone() {
  return c10::make_intrusive<DoorStore>(host_, port_, token_, timeout_, served_);
}

TUTTI_INLINE void DoorStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  ask(question(KeyCall::set).text(key).text(text_of(value)));
}

TUTTI_INLINE void DoorStore::append(const std::string& key,
                                    const std::vector<std::uint8_t>& value) {
  ask(question(KeyCall::append).text(key).text(text_of(value)));
}

TUTTI_INLINE std::vector<std::uint8_t> DoorStore::compareSet(
    const std::string& key, const std::vector<std::uint8_t>& expected,
    const std::vector<std::uint8_t>& desired) {
  const std::string answer =
      ask(question(KeyCall::compare_set).text(key).text(text_of(expected)).text(text_of(desired)));
  return bytes_of(Unpacked(answer).text());
}

TUTTI_INLINE std::vector<std::uint8_t> DoorStore::get(const std::string& key) {
  const std::string answer =
      ask(question(KeyCall::get).text(key).number(timeout_.count()), timeout_);
  Unpacked out(answer);
  TUTTI_CHECK_AS(c10::DistStoreError, out.number() == 1, "wait timeout after ", timeout_.count(),
                 "ms, key: ", key);
  return bytes_of(out.text());
}

TUTTI_INLINE void DoorStore::wait(const std::vector<std::string>& keys,
                                  const Milliseconds& timeout) {
  const std::string answer = ask(question(KeyCall::wait, keys).number(timeout.count()), timeout);
  TUTTI_CHECK_AS(c10::DistStoreError, Unpacked(answer).number() == 1, "wait timeout after ",
                 timeout.count(), "ms, keys: ", keys);
}

TUTTI_INLINE std::int64_t DoorStore::add(const std::string& key, std::int64_t value) {
  const std::string answer = ask(question(KeyCall::add).text(key).number(value));
  return Unpacked(answer).number();
}

TUTTI_INLINE bool DoorStore::deleteKey(const std::string& key) {
  const std::string answer = ask(question(KeyCall::erase).text(key));
  return Unpacked(answer).number() == 1;
}

TUTTI_INLINE bool DoorStore::check(const std::vector<std::string>& keys) {
  const std::string answer = ask(question(KeyCall::check, keys));
  return Unpacked(answer).number() == 1;
}

TUTTI_INLINE std::int64_t DoorStore::getNumKeys() {
  const std::string answer = ask(question(KeyCall::count));
  return Unpacked(answer).number();
}

TUTTI_INLINE std::vector<std::vector<std::uint8_t>> DoorStore::multiGet(
    const std::vector<std::string>& keys) {
  std::vector<std::vector<std::uint8_t>> values;
  for (const std::string& key : keys) {
    values.push_back(get(key));
  }
  return values;
}

TUTTI_INLINE void DoorStore::multiSet(const std::vector<std::string>& keys,
                                      const std::vector<std::vector<std::uint8_t>>& values) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    set(keys[i], values.at(i));
  }
}

TUTTI_INLINE std::vector<std::string> DoorStore::listKeys() {
  const std::string answer = ask(question(KeyCall::list));
  Unpacked out(answer);
  std::vector<std::string> keys;
  for (std::int64_t left = out.number(); left > 0; --left) {
    keys.push_back(out.text());
  }
  return keys;
}

TUTTI_INLINE c10::intrusive_ptr<c10d::Store> open_door(const Environment& environment,
                                                       const std::string& token,
                                                       std::chrono::milliseconds timeout) {
  std::shared_ptr<ServedKeys> served;
  if (environment.rank == 0) {
    served = std::make_shared<ServedKeys>(listen_for_store(environment).release(), token);
  }
  return c10::make_intrusive<DoorStore>(store_host(environment), environment.master_port, token,
                                        timeout, std::move(served));
}

}  // namespace tutti::dist::detail

#endif
