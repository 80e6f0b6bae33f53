#pragma once

// Included by c10d/ProcessGroupGloo.hpp, which uses no name of it. See gloo/algorithm.h here.
