// SPDX-License-Identifier: Apache-2.0
#pragma once

// LibTorch's packages ship c10d/ProcessGroupGloo.hpp without gloo's headers, although gloo itself
// is inside the library. This folder declares the few names that header mentions, so that the
// class can be constructed; it goes on the include path only where gloo's own headers are missing.
// c10d::ProcessGroupGloo holds all of these behind pointers, so their sizes do not matter, and
// what is called is exported by the library; orders of virtual functions are gloo's.
