#include <tutti/separate.hpp>
