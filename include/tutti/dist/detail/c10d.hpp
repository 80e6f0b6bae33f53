// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/door_store.hpp>
#include <tutti/dist/detail/store_socket.hpp>
#include <tutti/dist/heartbeat.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/version.h>

// LibTorch's packages contain Gloo but not its headers; see gloo_shim/gloo/algorithm.h.
#if !__has_include(<gloo/context.h>)
#error \
    "tutti: gloo's headers are missing; link tutti::torch or add tutti/dist/gloo_shim (-isystem)."
#endif
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#if TUTTI_WITH_CUDA
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

// How dist::Group is put together.

namespace tutti::dist::detail {

inline c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::minimum:
      return c10d::ReduceOp::MIN;
    case ReduceOp::maximum:
      return c10d::ReduceOp::MAX;
    case ReduceOp::bit_and:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bit_or:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bit_xor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::sum:
    case ReduceOp::mean:  // Gloo has no mean: the caller divides
      break;
  }
  return c10d::ReduceOp::SUM;
}

/// A tensor over host values, without a copy; it must not outlive them.
template <class T>
at::Tensor view_of(std::span<T> values) {
  const c10::ScalarType type = std::is_same_v<T, double>         ? c10::ScalarType::Double
                               : std::is_same_v<T, std::int64_t> ? c10::ScalarType::Long
                                                                 : c10::ScalarType::Byte;
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                       c10::TensorOptions().dtype(type));
}

inline void check_device(c10::DeviceType device) {
#if TUTTI_WITH_CUDA
  const bool known = device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA;
#else
  const bool known = device == c10::DeviceType::CPU;
  TUTTI_CHECK(device != c10::DeviceType::CUDA,
              "tutti::dist: a process group for CUDA was asked for, but this program was built "
              "without NCCL; configure with -DTUTTI_WITH_CUDA=ON, or train on the CPU");
#endif
  TUTTI_CHECK(known, "tutti::dist: a process group for device ", device,
              " was asked for; cpu and cuda are supported");
}

/// The store in which ranks find each other, served by torchrun itself or by rank 0; behind a door
/// where TUTTI_TOKEN is set, as tutti-run does. The connection
/// is kept for the life of the process, and keys carry torchrun's attempt and the number of the
/// group, so that a group which is started again meets its peers and not its past.
inline c10::intrusive_ptr<c10d::Store> connect_store(const Environment& environment,
                                                     std::chrono::milliseconds timeout) {
  struct Connection {
    c10::intrusive_ptr<c10d::Store> store;
    int groups = 0;
  };
  static std::map<std::string, Connection> connections;
  const std::string place = std::to_string(environment.rank) + "@" + environment.master_addr + ":" +
                            std::to_string(environment.master_port);
  Connection& connection = connections[place];
  const char* const token = std::getenv(token_variable);
  if (!connection.store && token != nullptr && *token != 0 && !environment.agent_store) {
    connection.store = open_door(environment, token, timeout);
  }
  if (!connection.store) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(environment.master_port);
    options.isServer = environment.rank == 0 && !environment.agent_store;
    options.numWorkers = static_cast<std::size_t>(environment.world_size);
    options.timeout = timeout;
    if (options.isServer) {
      ListeningSocket listening = listen_for_store(environment);
      warn_of_open_store(listening.descriptor());
      options.masterListenFd = listening.release();  // the store closes it
      // LibTorch 2.7's newer backend takes no socket that listens already; 2.11's does.
      options.useLibUV = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11;
    }
    connection.store = c10::make_intrusive<c10d::TCPStore>(store_host(environment), options);
  }
  connection.store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>("tutti/attempt_" +
                                                    std::to_string(environment.restart_count) +
                                                    "/group_" + std::to_string(connection.groups++),
                                                connection.store);
}

/// Gloo's network device: as GLOO_SOCKET_IFNAME says; loopback when all ranks are on this machine,
/// which works whatever its host name resolves to; else that by which tutti-run met the other
/// machines; else that of the host's name.
inline std::shared_ptr<gloo::transport::Device> gloo_device(const Environment& environment) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (environment.single_node()) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  if (const char* address = std::getenv(address_variable); address != nullptr && *address != 0) {
    return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

/// machine: the place of this process among all, which says how its network is reached.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_group(
    const c10::intrusive_ptr<c10d::Store>& store, const Environment& environment,
    c10::DeviceType device, std::chrono::milliseconds timeout, const Environment& machine) {
  using c10d::ProcessGroup;
  const int rank = environment.rank;
  const int size = environment.world_size;
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(gloo_device(machine));
  const c10::intrusive_ptr<c10d::Backend> gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, std::move(options));
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
#if TUTTI_WITH_CUDA
  if (device == c10::DeviceType::CUDA) {
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
    nccl_options->timeout = timeout;
    const c10::intrusive_ptr<c10d::Backend> nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size, std::move(nccl_options));
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL, nccl);
    group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  }
#else
  static_cast<void>(device);
#endif
  group->setGroupName("tutti");
  return group;
}

/// Ends the backends; at this point a failure has nobody left to tell.
inline void shutdown_quietly(const c10::intrusive_ptr<c10d::ProcessGroup>& group) noexcept {
  try {
    if (group) {
      group->shutdown();
    }
  } catch (const std::exception&) {
  }
}

/// The first line of an error, without LibTorch's stack trace and the last full stop.
inline std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  const std::string line = text.substr(0, text.find('\n'));
  return line.substr(0, line.find_last_not_of(". ") + 1);
}

/// Whether a call of c10d failed since another rank is gone or did not answer: by c10d's own
/// errors, and by Gloo's, which have no type of their own but begin with Gloo's file. What
/// explain() has already said does not count.
inline bool of_another_rank(const std::exception& error) {
  const std::string text = first_line(error);
  const bool explained = text.rfind("tutti::dist::", 0) == 0;
  return !explained && (dynamic_cast<const c10::DistError*>(&error) != nullptr ||
                        text.find("gloo/") != std::string::npos);
}

/// What this rank does when a call has failed since another rank is gone: it writes down its last
/// collectives and asks the launcher who failed first. Returns that, or "".
inline std::string fault_behind(const std::exception& error) {
  if (!of_another_rank(error)) {
    return {};
  }
  flight_recorder().follow();
  flight_recorder().dump();
  const std::string first = first_fault(std::chrono::seconds(1));
  return first.empty() ? std::string() : ". The first failure of the run: " + first;
}

/// What a failed call means and what to look at.
inline std::string explain(const std::string& call, const Environment& environment,
                           std::chrono::milliseconds timeout, const std::exception& error) {
  std::ostringstream text;
  text << "tutti::dist::" << call << ": " << environment.describe() << " failed (timeout "
       << static_cast<double>(timeout.count()) / 1000 << " s): " << first_line(error) << ". ";
  if (call != "initialize") {
    text << "Another rank failed, left, or did not make the same call in time; look for its own "
            "error first; this rank, on "
         << host_name() << ", was " << flight_recorder().where();
  } else if (environment.rank == 0 && !environment.agent_store) {
    text << "This rank serves the others at " << environment.master_addr << ":"
         << environment.master_port << "; check that the port is free and that all "
         << environment.world_size << " ranks were started";
  } else {
    text << "Rank 0 was looked for at " << environment.master_addr << ":" << environment.master_port
         << "; check that it was started and that MASTER_ADDR and MASTER_PORT are the same on "
            "every rank";
  }
  text << fault_behind(error);
  return text.str();
}

/// A group that exists serves a second `initialize` only if it is what was asked for.
inline void check_same(const Communicator& group, const Environment& environment,
                       c10::DeviceType device) {
  const auto agree = [](const char* name, int has, int says) {
    TUTTI_CHECK(has == says, "tutti::dist::initialize: the process group that exists has ", name,
                " ", has, ", but the environment says ", says,
                "; call tutti::dist::shutdown() before starting another group");
  };
  agree("RANK", group.rank(), environment.rank);
  agree("WORLD_SIZE", group.size(), environment.world_size);
  const bool needs_nccl = device == c10::DeviceType::CUDA && group.size() > 1;
  TUTTI_CHECK(!needs_nccl || group.backend() == "nccl",
              "tutti::dist::initialize: the process group that exists uses ", group.backend(),
              ", but a model on ", device, " needs nccl; initialize with that device first");
}

}  // namespace tutti::dist::detail
