// Converts checkpoints of many ranks: tutti-checkpoint consolidate runs/a whole
#include <tutti/checkpoint/convert_command.hpp>

int main(int argc, char** argv) {
  return tutti::checkpoint::convert_main(argc, argv);
}
