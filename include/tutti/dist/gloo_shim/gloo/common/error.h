// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by c10d/ProcessGroupGloo.hpp, which uses no name of it. See gloo/algorithm.h here.
