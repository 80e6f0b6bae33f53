// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The functions that are no templates, for a program whose sources define
/// TUTTI_SEPARATE_COMPILATION: include it in exactly one of them, before any other header of tutti.
///
/// Or in two, which can be compiled at the same time: one defines TUTTI_SEPARATE_PART as 1 before
/// it, for the loop and what it needs, the other as 2, for all else. CMake's tutti::separate is
/// made so.

#if !defined(TUTTI_SEPARATE_COMPILATION)
#error "tutti: separate.hpp needs TUTTI_SEPARATE_COMPILATION in every source; link tutti::separate."
#elif defined(TUTTI_BODIES)
#error "tutti: include <tutti/separate.hpp> before any other header of tutti."
#elif defined(TUTTI_SEPARATE_PART) && TUTTI_SEPARATE_PART != 1 && TUTTI_SEPARATE_PART != 2
#error "tutti: TUTTI_SEPARATE_PART is 1 in one source and 2 in another, or not defined."
#else
#if !defined(TUTTI_SEPARATE_PART) || TUTTI_SEPARATE_PART == 1
#define TUTTI_SEPARATE_SOURCE
#endif
#if defined(TUTTI_SEPARATE_PART)
// What the first part compiles and the second only declares; some is included by bodies alone.
#include <tutti/checkpoint/average.hpp>
#include <tutti/checkpoint/command_object_store.hpp>
#include <tutti/checkpoint/convert.hpp>
#include <tutti/core/detail/command.hpp>
#include <tutti/core/detail/pattern.hpp>
#include <tutti/core/detail/whole_file.hpp>
#include <tutti/data/chats.hpp>
#include <tutti/data/cifar.hpp>
#include <tutti/data/color_jitter.hpp>
#include <tutti/data/crops.hpp>
#include <tutti/data/csv.hpp>
#include <tutti/data/detail/inflate.hpp>
#include <tutti/data/detail/json_tensor.hpp>
#include <tutti/data/idx.hpp>
#include <tutti/data/image_geometry.hpp>
#include <tutti/data/image_loader.hpp>
#include <tutti/data/instructions.hpp>
#include <tutti/data/length_buckets.hpp>
#include <tutti/data/lines.hpp>
#include <tutti/data/mask_tokens.hpp>
#include <tutti/data/npy.hpp>
#include <tutti/data/packing.hpp>
#include <tutti/data/random_erasing.hpp>
#include <tutti/data/split.hpp>
#include <tutti/data/streaming_order.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/data/trivial_augment.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/dist/launch.hpp>
#include <tutti/dist/memory_plan.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/dist/sharded.hpp>
#include <tutti/dist/start_alike.hpp>
#include <tutti/loggers/detail/dashboard_page.hpp>
#include <tutti/loggers/detail/dashboard_report.hpp>
#include <tutti/loggers/detail/json_line.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/loggers/detail/run_series.hpp>
#include <tutti/loggers/detail/run_summary.hpp>
#include <tutti/models/causal_lm.hpp>
#include <tutti/optim/adadelta.hpp>
#include <tutti/optim/adafactor.hpp>
#include <tutti/optim/adagrad.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/adamax.hpp>
#include <tutti/optim/asgd.hpp>
#include <tutti/optim/groups.hpp>
#include <tutti/optim/lamb.hpp>
#include <tutti/optim/lars.hpp>
#include <tutti/optim/lion.hpp>
#include <tutti/optim/muon.hpp>
#include <tutti/optim/nadam.hpp>
#include <tutti/optim/radam.hpp>
#include <tutti/optim/rmsprop.hpp>
#include <tutti/optim/rprop.hpp>
#include <tutti/optim/schedule_free.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/train/cuda_graphs.hpp>
#include <tutti/train/memory_plan.hpp>
#include <tutti/train/num_threads.hpp>
#include <tutti/train/print_environment.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>
#if TUTTI_SEPARATE_PART == 2
#undef TUTTI_BODIES
#undef TUTTI_TEMPLATE
#define TUTTI_BODIES 1
#define TUTTI_INLINE
#define TUTTI_TEMPLATE template
#endif
#endif
#if !defined(TUTTI_SEPARATE_PART) || TUTTI_SEPARATE_PART == 2
#include <tutti/tutti.hpp>
// Not in tutti.hpp, but its functions are compiled here:
#if __has_include(<CLI/CLI.hpp>)
#include <tutti/cli.hpp>
#endif
#include <tutti/models/tensor_parallel.hpp>
#endif
#endif
