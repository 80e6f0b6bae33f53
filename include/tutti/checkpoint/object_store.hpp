// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The stores that checkpoints are kept in; data sets take the same ones.
#include <tutti/core/object_store.hpp>
