// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>

// What a launcher fills in and looks up before it starts anything.

namespace tutti::dist::detail {

void refuse_unless(bool holds, const std::string& what);

/// A port of this machine that nobody listens on.
int free_port();

/// `text` with "$NAME" and "${NAME}" replaced where there is such a variable, and a leading "~".
std::string expanded(std::string_view text, const std::map<std::string, std::string>& with);

std::string file_of(std::string pattern, const std::map<std::string, std::string>& where);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE void refuse_unless(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("tutti-run: " + what);
  }
}

TUTTI_INLINE int free_port() {
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      handle >= 0 && ::bind(handle, plain, size) == 0 && ::getsockname(handle, plain, &size) == 0;
  ::close(handle);
  refuse_unless(found, "no port is free; set --master_port");
  return ntohs(address.sin_port);
}

TUTTI_INLINE std::string expanded(std::string_view text,
                                  const std::map<std::string, std::string>& with) {
  std::string out;
  if (const auto home = with.find("HOME");
      home != with.end() && (text == "~" || text.starts_with("~/"))) {
    out = home->second;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    std::size_t end = 1;
    std::string_view name;
    if (text.starts_with("${")) {
      end = std::min(text.find('}'), text.size() - 1) + 1;
      name = text.substr(2, end - 3);
    } else if (text.front() == '$') {
      while (end < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
        ++end;
      }
      name = text.substr(1, end - 1);
    }
    const auto found = with.find(std::string(name));
    out += found != with.end() && !name.empty() ? std::string_view(found->second)
                                                : text.substr(0, end);
    text.remove_prefix(end);
  }
  return out;
}

TUTTI_INLINE std::string file_of(std::string pattern,
                                 const std::map<std::string, std::string>& where) {
  for (const auto& [field, variable] :
       {std::pair("{rank}", "RANK"), std::pair("{local_rank}", "LOCAL_RANK"),
        std::pair("{world_size}", "WORLD_SIZE"),
        std::pair("{local_world_size}", "LOCAL_WORLD_SIZE"), std::pair("{node_rank}", "NODE_RANK"),
        std::pair("{restart_count}", "TORCHELASTIC_RESTART_COUNT")}) {
    for (std::size_t at = 0; (at = pattern.find(field, at)) != std::string::npos;) {
      pattern.replace(at, std::strlen(field), where.at(variable));
    }
  }
  return pattern;
}

}  // namespace tutti::dist::detail

#endif
