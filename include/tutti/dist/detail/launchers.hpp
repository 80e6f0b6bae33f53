// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/dist/environment.hpp>

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

// Environment::read, and one function for each launcher whose variables it understands.

namespace tutti::dist::detail {

/// Variables, read as what they should be.
struct Variables {
  const Lookup& lookup;

  /// Set, and not to the empty string.
  bool has(const char* name) const {
    const char* text = lookup(name);
    return text != nullptr && *text != '\0';
  }

  std::string text(const char* name, const std::string& fallback) const {
    return has(name) ? std::string(lookup(name)) : fallback;
  }

  /// Throws std::invalid_argument when the variable is set to anything but a whole number >= 0.
  int number(const char* name, int fallback) const;

  int number(const char* name) const;
};

inline bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

/// A port in 10000..29999 (below the range systems hand out themselves), the same for one job.
int port_of(std::string_view job);

/// MPICH, Intel MPI and others started by Hydra.
Environment from_pmi(const Variables& variables);

/// A job step of several tasks: `srun`, not the batch script or the shell around it.
inline bool is_slurm_step(const Variables& variables) {
  return variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID") &&
         variables.number("SLURM_STEP_NUM_TASKS", variables.number("SLURM_NTASKS", 1)) > 1;
}

/// The first host of a Slurm node list: "gpu[003-005,9],login" gives "gpu003".
std::string first_host(std::string_view list);

/// The number of tasks on a node: "4(x2),3" gives 4, 4, 3 for nodes 0, 1, 2; 0 when unreadable.
int tasks_on_node(std::string_view counts, int node);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE int Variables::number(const char* name, int fallback) const {
  if (!has(name)) {
    return fallback;
  }
  const std::string_view text = lookup(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    throw std::invalid_argument("tutti::dist: " + std::string(name) + " is \"" + std::string(text) +
                                "\", expected a whole number, 0 or more");
  }
  return value;
}

TUTTI_INLINE int Variables::number(const char* name) const {
  if (!has(name)) {
    throw std::invalid_argument(
        "tutti::dist: " + std::string(name) +
        " is not set, although other variables say that this is a distributed run; start it by "
        "tutti-run, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT");
  }
  return number(name, 0);
}

TUTTI_INLINE int port_of(std::string_view job) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : job) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  }
  return 10000 + static_cast<int>(hash % 20000U);
}

TUTTI_INLINE void set_master(Environment& found, const Variables& variables,
                             const std::string& host, int port) {
  found.master_addr = variables.text("MASTER_ADDR", host);
  found.master_port = variables.number("MASTER_PORT", port);
}

// Names all variables that are missing in a start by hand, but for a port alone, of which
// validate() speaks.
TUTTI_INLINE void check_start(const Variables& variables) {
  std::vector<std::string> needed{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  if (variables.has("MASTER_ADDR") && !is_loopback(variables.text("MASTER_ADDR", ""))) {
    needed.insert(needed.end(), {"LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  }
  std::string missing;
  int count = 0;
  for (auto name = needed.rbegin(); name != needed.rend(); ++name) {
    if (!variables.has(name->c_str())) {
      missing = *name + (count == 0 ? "" : count == 1 ? " and " : ", ") + missing;
      ++count;
    }
  }
  if (count > 0 && missing != "MASTER_PORT") {
    throw std::invalid_argument(
        "tutti::dist: " + missing + (count == 1 ? " is" : " are") +
        " not set, although other variables say that this is a distributed run; start it by "
        "tutti-run, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
        "for every rank, with 127.0.0.1 where all ranks run on one machine, else LOCAL_RANK and "
        "LOCAL_WORLD_SIZE, too");
  }
}

TUTTI_INLINE Environment from_torch(const Variables& variables) {
  Environment found;
  found.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT", 0);
  found.world_size = variables.number("WORLD_SIZE", 1);
  if (found.world_size == 1 && variables.number("RANK", 0) == 0) {
    return found;  // a run of one process, whatever else is set
  }
  check_start(variables);
  found.source = "RANK";
  found.rank = variables.number("RANK");
  found.world_size = variables.number("WORLD_SIZE");
  set_master(found, variables, "", 0);
  const bool one_node = is_loopback(found.master_addr);
  if (one_node) {
    found.local_rank = variables.number("LOCAL_RANK", found.rank);
    found.local_world_size = variables.number("LOCAL_WORLD_SIZE", found.world_size);
  } else {
    found.local_rank = variables.number("LOCAL_RANK");
    found.local_world_size = variables.number("LOCAL_WORLD_SIZE");
  }
  const int block = found.local_world_size > 0 ? found.rank / found.local_world_size : 0;
  found.node_rank = variables.number("GROUP_RANK", variables.number("NODE_RANK", block));
  found.agent_store = variables.text("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  return found;
}

TUTTI_INLINE Environment from_open_mpi(const Variables& variables) {
  Environment found;
  found.source = "Open MPI";
  found.rank = variables.number("OMPI_COMM_WORLD_RANK");
  found.world_size = variables.number("OMPI_COMM_WORLD_SIZE");
  found.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK");
  found.local_world_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  // OMPI_COMM_WORLD_NODE_RANK is a rank within the node, so the node's index is worked out.
  found.node_rank = variables.number(
      "NODE_RANK", found.local_world_size > 0 ? found.rank / found.local_world_size : 0);
  const std::string job =
      variables.text("PMIX_NAMESPACE", variables.text("OMPI_MCA_ess_base_jobid", ""));
  set_master(found, variables, found.single_node() ? "127.0.0.1" : "",
             job.empty() ? 29500 : port_of(job));
  return found;
}

TUTTI_INLINE Environment from_pmi(const Variables& variables) {
  Environment found;
  found.source = "PMI";
  found.rank = variables.number("PMI_RANK");
  found.world_size = variables.number("PMI_SIZE");
  const bool knows_node = variables.has("MPI_LOCALRANKID") && variables.has("MPI_LOCALNRANKS");
  found.local_rank = knows_node ? variables.number("MPI_LOCALRANKID") : found.rank;
  found.local_world_size = knows_node ? variables.number("MPI_LOCALNRANKS") : found.world_size;
  found.node_rank = variables.number(
      "NODE_RANK", found.local_world_size > 0 ? found.rank / found.local_world_size : 0);
  const std::string job = found.single_node() ? variables.text("PMI_PORT", "") : std::string{};
  set_master(found, variables, found.single_node() ? "127.0.0.1" : "",
             job.empty() ? 29500 : port_of(job));
  return found;
}

TUTTI_INLINE std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = list.find(']', i);
    const std::size_t end = list.find_first_of(",-]", i);
    if (close == std::string_view::npos) {
      break;
    }
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

TUTTI_INLINE int tasks_on_node(std::string_view counts, int node) {
  while (!counts.empty()) {
    const std::size_t comma = counts.find(',');
    const std::string_view item = counts.substr(0, comma);
    int tasks = 0;
    int repeat = 1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), tasks);
    const std::size_t times = item.find("(x");
    if (times != std::string_view::npos) {
      std::from_chars(item.data() + times + 2, item.data() + item.size(), repeat);
    }
    if (error != std::errc{} || end == item.data()) {
      return 0;
    }
    if (node < repeat) {
      return tasks;
    }
    node -= repeat;
    counts = comma == std::string_view::npos ? std::string_view{} : counts.substr(comma + 1);
  }
  return 0;
}

TUTTI_INLINE Environment from_slurm(const Variables& variables) {
  Environment found;
  found.source = "Slurm";
  found.rank = variables.number("SLURM_PROCID");
  found.world_size = variables.number("SLURM_STEP_NUM_TASKS", variables.number("SLURM_NTASKS", 1));
  found.local_rank = variables.number("SLURM_LOCALID");
  found.node_rank = variables.number("SLURM_NODEID", 0);
  const std::string counts =
      variables.text("SLURM_STEP_TASKS_PER_NODE", variables.text("SLURM_TASKS_PER_NODE", ""));
  found.local_world_size = tasks_on_node(counts, found.node_rank);
  const std::string hosts =
      variables.text("SLURM_STEP_NODELIST", variables.text("SLURM_JOB_NODELIST", ""));
  const std::string job =
      variables.text("SLURM_JOB_ID", "") + "." + variables.text("SLURM_STEP_ID", "");
  set_master(found, variables, found.single_node() ? "127.0.0.1" : first_host(hosts), port_of(job));
  return found;
}

}  // namespace tutti::dist::detail

namespace tutti::dist {

TUTTI_INLINE Environment Environment::read(const Lookup& lookup) {
  const detail::Variables variables{lookup};
  Environment found;
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    found = detail::from_torch(variables);
  } else if (variables.has("OMPI_COMM_WORLD_RANK")) {
    found = detail::from_open_mpi(variables);
  } else if (detail::is_slurm_step(variables)) {
    found = detail::from_slurm(variables);
  } else if (variables.has("PMI_RANK") && variables.has("PMI_SIZE")) {
    found = detail::from_pmi(variables);
  }
  found.validate();
  return found;
}

}  // namespace tutti::dist

#endif
