// Shows the runs of a folder in a browser: tutti-dashboard runs
#include <tutti/loggers/dashboard_command.hpp>

int main(int argc, char** argv) {
  return tutti::dashboard_main(argc, argv);
}
