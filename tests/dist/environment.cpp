#include <tutti/dist/environment.hpp>

#include "support/catch.hpp"

#include <map>
#include <string>

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::dist::Environment;
using Variables = std::map<std::string, std::string>;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

namespace {

Environment read(const Variables& variables) {
  return Environment::read([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

Variables torchrun() {
  return {{"RANK", "3"},         {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
}

}  // namespace

TEST_CASE("without a launcher this is rank 0 of 1", "[dist][environment]") {
  for (const Variables& variables :
       {Variables{}, Variables{{"WORLD_SIZE", "1"}}, Variables{{"RANK", "0"}, {"LOCAL_RANK", "0"}},
        Variables{{"RANK", ""}, {"WORLD_SIZE", ""}}}) {
    const Environment found = read(variables);
    CHECK(found.rank == 0);
    CHECK(found.world_size == 1);
    CHECK(found.local_world_size == 1);
    CHECK(found.source == "default");
  }
}

TEST_CASE("torchrun's variables are read", "[dist][environment]") {
  Variables variables = torchrun();
  variables["GROUP_RANK"] = "1";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  const Environment found = read(variables);
  CHECK(found.describe() == "rank 3 of 4 (local rank 1 of 2, node 1)");
  CHECK(found.master_addr == "n0");
  CHECK(found.master_port == 29500);
  CHECK(found.agent_store);
  CHECK(found.restart_count == 2);
  CHECK_FALSE(found.single_node());
}

TEST_CASE("on the loopback address local ranks are optional", "[dist][environment]") {
  const Environment found = read(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29501"}});
  CHECK(found.describe() == "rank 1 of 2 (local rank 1 of 2, node 0)");
  CHECK(found.single_node());
  CHECK_FALSE(found.agent_store);
}

TEST_CASE("the node is worked out where no variable names it", "[dist][environment]") {
  CHECK(read(torchrun()).node_rank == 1);
  Variables variables = torchrun();
  variables["NODE_RANK"] = "0";
  CHECK(read(variables).node_rank == 0);
}

TEST_CASE("a wrong variable is named with its value and what is expected", "[dist][environment]") {
  const auto with = [](const std::string& name, const std::string& value) {
    Variables variables = torchrun();
    variables[name] = value;
    return error_of(variables);
  };
  CHECK(with("RANK", "two") == "tutti::dist: RANK is \"two\", expected a whole number, 0 or more");
  CHECK(with("RANK", "1x") == "tutti::dist: RANK is \"1x\", expected a whole number, 0 or more");
  CHECK(with("RANK", "-1") == "tutti::dist: RANK is \"-1\", expected a whole number, 0 or more");
  CHECK(with("RANK", "4") == "tutti::dist: RANK is 4, expected 0 to 3 (WORLD_SIZE is 4)");
  CHECK(with("WORLD_SIZE", "0") == "tutti::dist: WORLD_SIZE is 0, expected at least 1");
  CHECK(with("LOCAL_RANK", "2") ==
        "tutti::dist: LOCAL_RANK is 2, expected 0 to 1 (LOCAL_WORLD_SIZE is 2)");
  CHECK(with("LOCAL_WORLD_SIZE", "5") ==
        "tutti::dist: LOCAL_WORLD_SIZE is 5, expected 1 to 4, which is WORLD_SIZE");
  CHECK(with("LOCAL_WORLD_SIZE", "0") ==
        "tutti::dist: LOCAL_WORLD_SIZE is 0, expected 1 to 4, which is WORLD_SIZE");
  CHECK(with("NODE_RANK", "7") == "tutti::dist: NODE_RANK is 7, expected 0 to 3 (WORLD_SIZE is 4)");
  CHECK(with("MASTER_PORT", "99999") ==
        "tutti::dist: MASTER_PORT is 99999, expected 1 to 65535, the same free port on every rank");
}

TEST_CASE("a missing variable is named", "[dist][environment]") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    Variables variables = torchrun();
    variables.erase(name);
    CHECK_THAT(error_of(variables), ContainsSubstring(std::string(name) + " is not set"));
  }
  CHECK_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
             StartsWith("tutti::dist: MASTER_ADDR and MASTER_PORT are not set, although ") &&
                 EndsWith("with 127.0.0.1 where all ranks run on one machine, else LOCAL_RANK and "
                          "LOCAL_WORLD_SIZE, too"));
  CHECK_THAT(error_of({{"WORLD_SIZE", "2"}, {"MASTER_PORT", "4000"}}),
             StartsWith("tutti::dist: RANK and MASTER_ADDR are not set, "));
  CHECK_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "gpu01"}}),
             StartsWith("tutti::dist: MASTER_PORT, LOCAL_RANK and LOCAL_WORLD_SIZE are not set, "));
  CHECK(read({{"RANK", "1"},
              {"WORLD_SIZE", "2"},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", "4000"}})
            .describe() == "rank 1 of 2 (local rank 1 of 2, node 0)");
  Variables variables = torchrun();
  variables.erase("MASTER_PORT");
  CHECK_THAT(error_of(variables), ContainsSubstring("MASTER_PORT is 0"));
  variables = torchrun();
  variables["MASTER_ADDR"] = "";
  CHECK_THAT(error_of(variables), ContainsSubstring("MASTER_ADDR is not set"));
}

TEST_CASE("mpirun's variables are read", "[dist][environment]") {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_NAMESPACE", "job-1"}};
  const Environment first = read(variables);
  CHECK(first.describe() == "rank 1 of 2 (local rank 1 of 2, node 0)");
  CHECK(first.source == "Open MPI");
  CHECK(first.master_addr == "127.0.0.1");
  CHECK(first.master_port >= 10000);
  CHECK(first.master_port < 30000);
  variables["PMIX_NAMESPACE"] = "job-2";
  CHECK(read(variables).master_port != first.master_port);

  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  CHECK_THAT(error_of(variables), ContainsSubstring("MASTER_ADDR is not set"));
  variables["MASTER_ADDR"] = "n0";
  variables["MASTER_PORT"] = "4000";
  CHECK(read(variables).describe() == "rank 1 of 2 (local rank 0 of 1, node 1)");
  CHECK(read(variables).master_port == 4000);
}

TEST_CASE("Hydra's variables are read", "[dist][environment]") {
  const Environment found = read({{"PMI_RANK", "5"},
                                  {"PMI_SIZE", "8"},
                                  {"MPI_LOCALRANKID", "1"},
                                  {"MPI_LOCALNRANKS", "4"},
                                  {"MASTER_ADDR", "n0"}});
  CHECK(found.describe() == "rank 5 of 8 (local rank 1 of 4, node 1)");
  CHECK(found.master_port == 29500);
}

TEST_CASE("srun's variables are read in a step of several tasks only", "[dist][environment]") {
  Variables variables{{"SLURM_PROCID", "6"},
                      {"SLURM_LOCALID", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "7"},
                      {"SLURM_TASKS_PER_NODE", "4,3"},
                      {"SLURM_JOB_ID", "4711"},
                      {"SLURM_JOB_NODELIST", "gpu[003-004]"}};
  CHECK(read(variables).world_size == 1);  // the batch script itself
  variables["SLURM_STEP_ID"] = "0";
  const Environment found = read(variables);
  CHECK(found.describe() == "rank 6 of 7 (local rank 2 of 3, node 1)");
  CHECK(found.master_addr == "gpu003");
  CHECK(found.source == "Slurm");
  variables["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(read(variables).world_size == 1);  // an interactive shell
}

TEST_CASE("explicit variables win over the launcher's", "[dist][environment]") {
  Variables variables = torchrun();
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_PROCID"] = "0";
  variables["SLURM_NTASKS"] = "2";
  CHECK(read(variables).rank == 3);
}

TEST_CASE("Slurm's compressed lists are expanded", "[dist][environment]") {
  using namespace tutti::dist::detail;
  CHECK(first_host("login") == "login");
  CHECK(first_host("a1,a2") == "a1");
  CHECK(first_host("gpu[003-005,9],login1") == "gpu003");
  CHECK(first_host("rack[2,4]n[07-09]-ib") == "rack2n07-ib");
  CHECK(tasks_on_node("4", 0) == 4);
  CHECK(tasks_on_node("4(x2),3", 1) == 4);
  CHECK(tasks_on_node("4(x2),3", 2) == 3);
  CHECK(tasks_on_node("4(x2),3", 3) == 0);
  CHECK(tasks_on_node("many", 0) == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
