// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

/// Which process of a run this is, as its launcher says in environment variables. LibTorch-free.
///
/// | variable | meaning | when it is missing |
/// |---|---|---|
/// | RANK, WORLD_SIZE | global rank, number of ranks | MPI's or Slurm's variables; else 0 and 1 |
/// | LOCAL_RANK, LOCAL_WORLD_SIZE | the same within the node | RANK, WORLD_SIZE on one node |
/// | NODE_RANK | index of the node | worked out from the ranks |
/// | MASTER_ADDR, MASTER_PORT | where rank 0 is met | an error when WORLD_SIZE > 1, see below |
///
/// `mpirun` and `srun` set their own variables instead of these; they are read when RANK and
/// WORLD_SIZE are both unset. On a single node they need no MASTER_ADDR (127.0.0.1), under Slurm
/// never (the first node of the step); MASTER_PORT is then derived from the job's identity.

namespace tutti::dist {

/// How a variable is looked up: its value, or nullptr where it is unset. For tests.
using Lookup = std::function<const char*(const char* name)>;

/// The place of this process in a run. Plain data: fill it by hand to start without variables.
struct Environment {
  int rank = 0;                    ///< Global rank, 0 .. world_size - 1.
  int world_size = 1;              ///< Number of processes; >= 1.
  int local_rank = 0;              ///< Rank within this node, 0 .. local_world_size - 1.
  int local_world_size = 1;        ///< Processes on this node; >= 1.
  int node_rank = 0;               ///< Index of this node; >= 0.
  std::string master_addr;         ///< Host of rank 0's store; empty in a single process.
  int master_port = 0;             ///< Its port, 1 .. 65535; 0 in a single process.
  bool agent_store = false;        ///< The launcher itself serves the store (torchrun).
  int restart_count = 0;           ///< How often the launcher restarted the run; >= 0.
  std::string source = "default";  ///< Who said so: "default", "RANK", "Open MPI", "Slurm", "PMI".

  /// Reads the variables above.
  ///
  /// lookup: the source of variables; the process's own environment by default.
  /// Returns a validated place; rank 0 of 1 when no launcher speaks.
  /// Throws std::invalid_argument naming the variable, its value and what is expected.
  static Environment read(const Lookup& lookup = process_variable);

  /// Checks that the numbers fit together; `read` has done so.
  /// Throws std::invalid_argument naming what does not fit.
  void validate() const;

  /// Returns "rank 1 of 4 (local rank 1 of 2, node 0)", for messages.
  [[nodiscard]] std::string describe() const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " (local rank " +
           std::to_string(local_rank) + " of " + std::to_string(local_world_size) + ", node " +
           std::to_string(node_rank) + ")";
  }

  /// All ranks run on this node.
  [[nodiscard]] bool single_node() const noexcept { return local_world_size == world_size; }

  /// The value of a variable of this process, or nullptr.
  static const char* process_variable(const char* name) { return std::getenv(name); }
};

}  // namespace tutti::dist

#include <tutti/dist/detail/launchers.hpp>  // defines Environment::read

#if TUTTI_BODIES

namespace tutti::dist {

TUTTI_INLINE void Environment::validate() const {
  const auto require = [](bool holds, const char* name, int value, const std::string& expected) {
    if (!holds) {
      throw std::invalid_argument("tutti::dist: " + std::string(name) + " is " +
                                  std::to_string(value) + ", expected " + expected);
    }
  };
  const auto below = [](int limit, const char* name) {
    return "0 to " + std::to_string(limit - 1) + " (" + name + " is " + std::to_string(limit) + ")";
  };
  require(world_size >= 1, "WORLD_SIZE", world_size, "at least 1");
  require(rank >= 0 && rank < world_size, "RANK", rank, below(world_size, "WORLD_SIZE"));
  require(local_world_size >= 1 && local_world_size <= world_size, "LOCAL_WORLD_SIZE",
          local_world_size, "1 to " + std::to_string(world_size) + ", which is WORLD_SIZE");
  require(local_rank >= 0 && local_rank < local_world_size, "LOCAL_RANK", local_rank,
          below(local_world_size, "LOCAL_WORLD_SIZE"));
  require(node_rank >= 0 && node_rank < world_size, "NODE_RANK", node_rank,
          below(world_size, "WORLD_SIZE"));
  if (world_size == 1) {
    return;
  }
  if (master_addr.empty()) {
    throw std::invalid_argument(
        "tutti::dist: MASTER_ADDR is not set, expected the host name or address of rank 0, the "
        "same on every rank (127.0.0.1 when all ranks run on one machine)");
  }
  require(master_port >= 1 && master_port <= 65535, "MASTER_PORT", master_port,
          "1 to 65535, the same free port on every rank");
}

}  // namespace tutti::dist

#endif
