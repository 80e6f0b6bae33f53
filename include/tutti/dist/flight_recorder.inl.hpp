// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/flight_recorder.hpp>

namespace tutti::dist {

namespace detail {

TUTTI_INLINE std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

TUTTI_INLINE std::string where_it_was(std::uint64_t call, std::string_view name,
                                      std::string_view purpose, bool inside, std::int64_t batch) {
  std::string text;
  if (call > 0) {
    text = std::string(inside ? "in " : "behind ") + std::string(name) +
           (purpose.empty() ? std::string() : " (" + std::string(purpose) + ")") + ", call " +
           std::to_string(call);
  }
  if (batch >= 0) {
    text += (text.empty() ? "in batch " : ", in batch ") + std::to_string(batch);
  }
  return text.empty() ? "before its first collective" : text;
}

TUTTI_INLINE std::string where_it_was(const RankSlot& slot) {
  return where_it_was(slot.call.load(), slot.call_name.get(), slot.call_purpose.get(),
                      slot.call_since.load() != 0,
                      slot.batches.load() > 0 ? slot.batch.load() : -1);
}

TUTTI_INLINE std::int64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace detail

TUTTI_INLINE FlightRecorder& flight_recorder() {
  static auto* const recorder = new FlightRecorder;
  return *recorder;
}

TUTTI_INLINE std::uint64_t FlightRecorder::begin(const char* name,
                                                 std::span<const std::int64_t> sizes,
                                                 const char* type) {
  const std::lock_guard lock(mutex_);
  RecordedCall& call = entry(++count_);
  call = {.number = count_,
          .name = name,
          .dimensions =
              sizes.size() < RecordedCall::most_sizes ? sizes.size() : RecordedCall::most_sizes,
          .type = type,
          .batch = batch_.load(std::memory_order_relaxed),
          .started_ns = detail::wall_ns()};
  for (std::size_t i = 0; i < call.dimensions; ++i) {
    call.sizes[i] = sizes[i];
  }
  const std::string_view purpose = CallPurpose::current();
  purpose.copy(call.purpose.data(), call.purpose.size() - 1);
  if (detail::RankSlot* const slot = this->slot()) {
    slot->call_name.set(name);
    slot->call_purpose.set(purpose);
    slot->call.store(count_, std::memory_order_relaxed);
    slot->call_since.store(detail::monotonic_ns(), std::memory_order_release);
  }
  return count_;
}

TUTTI_INLINE void FlightRecorder::end(std::uint64_t number, bool failed) {
  const std::lock_guard lock(mutex_);
  RecordedCall& call = entry(number);
  if (number == 0 || call.number != number || call.ended_ns != 0) {
    return;
  }
  call.ended_ns = detail::wall_ns();
  call.failed = failed;
  detail::RankSlot* const slot = this->slot();
  if (slot != nullptr && number == count_ && !failed) {  // a failed one stays where it failed
    slot->call_since.store(0, std::memory_order_release);
  }
}

TUTTI_INLINE void FlightRecorder::begin_batch(std::int64_t batch) {
  batch_.store(batch, std::memory_order_relaxed);
  if (detail::RankSlot* const slot = this->slot()) {
    slot->batch.store(batch, std::memory_order_relaxed);
    slot->batches.fetch_add(1, std::memory_order_relaxed);
    slot->batch_since.store(detail::monotonic_ns(), std::memory_order_release);
  }
}

TUTTI_INLINE void FlightRecorder::end_batch() {
  if (detail::RankSlot* const slot = this->slot()) {
    slot->batch_since.store(0, std::memory_order_release);
  }
}

TUTTI_INLINE std::optional<Phase> FlightRecorder::begin_phase(Phase phase) {
  detail::RankSlot* const slot = this->slot();
  if (slot == nullptr) {
    return std::nullopt;
  }
  const std::uint32_t before = slot->phase.load(std::memory_order_relaxed);
  const bool is_inside = slot->phase_since.load(std::memory_order_relaxed) != 0;
  slot->phase_since.store(0, std::memory_order_relaxed);  // no time of the one before
  slot->phase.store(static_cast<std::uint32_t>(phase), std::memory_order_release);
  slot->phase_since.store(detail::monotonic_ns(), std::memory_order_release);
  return is_inside ? std::optional(static_cast<Phase>(before)) : std::nullopt;
}

TUTTI_INLINE void FlightRecorder::end_phase(std::optional<Phase> before) {
  if (before) {
    begin_phase(*before);
  } else if (detail::RankSlot* const slot = this->slot()) {
    slot->phase_since.store(0, std::memory_order_release);
  }
}

TUTTI_INLINE RecordedCall FlightRecorder::last() const {
  const std::lock_guard lock(mutex_);
  return count_ == 0 ? RecordedCall() : entry(count_);
}

TUTTI_INLINE std::vector<RecordedCall> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordedCall> all;
  for (std::uint64_t i = count_ > capacity ? count_ - capacity + 1 : 1; i <= count_; ++i) {
    all.push_back(entry(i));
  }
  return all;
}

TUTTI_INLINE std::string FlightRecorder::where() const {
  const RecordedCall call = last();
  return detail::where_it_was(call.number, call.name, call.purpose.data(),
                              call.ended_ns == 0 || call.failed,
                              batch_.load(std::memory_order_relaxed));
}

TUTTI_INLINE std::string FlightRecorder::json() const {
  std::string text = "{\"rank\": " + std::to_string(place_.rank) +
                     ", \"world_size\": " + std::to_string(place_.world_size) +
                     ", \"restart_count\": " + std::to_string(place_.restart_count) +
                     ", \"host\": " + ::tutti::detail::json_quoted(detail::host_name()) +
                     ", \"pid\": " + std::to_string(::getpid()) +
                     ", \"batch\": " + std::to_string(batch_.load()) + ", \"entries\": [";
  const char* separator = "\n";
  for (const RecordedCall& call : entries()) {
    text += separator;
    separator = ",\n";
    text += "  {\"collective_seq_id\": " + std::to_string(call.number) +
            ", \"profiling_name\": " + ::tutti::detail::json_quoted(call.name) +
            ", \"purpose\": " + ::tutti::detail::json_quoted(call.purpose.data()) +
            ", \"sizes\": [";
    for (std::size_t i = 0; i < call.dimensions; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(call.sizes[i]);
    }
    const char* const state = call.ended_ns == 0 ? "started" : call.failed ? "failed" : "completed";
    text += "], \"dtype\": " + ::tutti::detail::json_quoted(call.type) +
            ", \"batch\": " + std::to_string(call.batch) +
            ", \"time_started_ns\": " + std::to_string(call.started_ns) +
            ", \"time_ended_ns\": " + std::to_string(call.ended_ns) + ", \"state\": \"" + state +
            "\"}";
  }
  return text + "\n]}\n";
}

TUTTI_INLINE std::string FlightRecorder::dump() noexcept {
  try {
    const char* const folder = std::getenv("TUTTI_FLIGHT_FOLDER");
    if (folder == nullptr || *folder == 0) {
      return {};
    }
    ::mkdir(folder, 0700);  // unless it is there
    const std::string path = std::string(folder) + "/attempt" +
                             std::to_string(place_.restart_count) + "_rank" +
                             std::to_string(place_.rank) + ".json";
    const std::string text = json();
    const std::string fresh = path + "." + std::to_string(::getpid());
    const int file =
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    const bool written =
        file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (file >= 0) {
      ::close(file);
    }
    if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) {
      ::unlink(fresh.c_str());
      return {};
    }
    if (detail::RankSlot* const slot = this->slot()) {
      slot->dumps.fetch_add(1);
    }
    return path;
  } catch (const std::exception&) {
    return {};
  }
}

TUTTI_INLINE void FlightRecorder::follow() {
  ::tutti::detail::follows_another().store(true);
  if (detail::RankSlot* const slot = this->slot()) {
    slot->follows.store(1);
  }
}

TUTTI_INLINE void FlightRecorder::belongs_to(const Environment& environment,
                                             detail::RankSlot* slot) {
  const std::lock_guard lock(mutex_);
  place_ = environment;
  slot_.store(slot, std::memory_order_release);
}

}  // namespace tutti::dist
