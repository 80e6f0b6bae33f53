// Runs a program with many values of its flags: tutti-sweep ranges.toml ./digits
#include <tutti/sweep/sweep_command.hpp>

int main(int argc, char** argv) {
  return tutti::sweep::sweep_main(argc, argv);
}
