// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <c10/util/Exception.h>

/// Collects the warnings of this thread as long as it lives.
struct Warnings final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }

  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};
