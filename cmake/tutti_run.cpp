// Starts a program once per rank: tutti-run -n 2 ./digits
#include <tutti/dist/launch_command.hpp>

int main(int argc, char** argv) {
  return tutti::dist::launch_main(argc, argv);
}
