// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

/// Sets a variable of the environment, null: removes it, and brings back what was there.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) {
    const char* now = std::getenv(name);
    had_ = now != nullptr;
    old_ = had_ ? now : "";
    set(value);
  }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;
  ~EnvironmentVariable() { set(had_ ? old_.c_str() : nullptr); }

 private:
  void set(const char* value) { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

  const char* name_;
  bool had_ = false;
  std::string old_;
};
