// Makes whole checkpoints of sharded ones and the other way round: tutti-checkpoint consolidate runs/a whole
#include <tutti/checkpoint/convert_command.hpp>

int main(int argc, char** argv) {
  return tutti::checkpoint::convert_main(argc, argv);
}
