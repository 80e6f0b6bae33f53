// error: text is read as std::string; write get<std::string>
// culprit: string_view
// torch
#include <string_view>

#include <tutti/core/archive.hpp>

std::size_t length(const tutti::Archive& archive) {
#ifdef FIXED
  return archive.get<std::string>("name").size();
#else
  return archive.get<std::string_view>("name").size();
#endif
}
