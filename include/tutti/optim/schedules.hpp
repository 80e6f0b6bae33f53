// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Every schedule of the library.
///
/// From PyTorch's: StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR and
/// CosineAnnealingWarmRestarts are Step, MultiStep, Exponential, CosineAnnealing and
/// CosineAnnealingWarmRestarts with their epochs written as "30ep"; LinearLR is Linear, OneCycleLR
/// and CyclicLR are OneCycle and Cyclic; ReduceLROnPlateau looks at a metric, so it is a callback.
/// These follow the batches inside an epoch; for a rate that only changes between epochs wrap one:
///
///     [s = tutti::CosineAnnealing{}](tutti::Progress p, double ssr) {
///       p.timestamp.batch -= p.timestamp.batch_in_epoch;
///       return s(p, ssr);
///     }
///
/// When a rate is used: as in Composer, one batch late. The schedule is stepped before the batch
/// that has just been trained is counted, so the first rate is used in two batches and the last in
/// none. With `TrainerOptions::schedule_ahead = true` every batch is trained with the rate of the
/// timestamp at which it begins, as with PyTorch's schedulers.

#include <tutti/config.hpp>
#include <tutti/optim/annealing.hpp>
#include <tutti/optim/cyclic.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/optim/step.hpp>
#include <tutti/optim/warmup.hpp>

#if defined(TUTTI_SEPARATE_COMPILATION)
namespace tutti {

TUTTI_TEMPLATE Schedule::Schedule(Constant);
TUTTI_TEMPLATE Schedule::Schedule(Linear);
TUTTI_TEMPLATE Schedule::Schedule(CosineAnnealing);
TUTTI_TEMPLATE Schedule::Schedule(CosineAnnealingWarmRestarts);
TUTTI_TEMPLATE Schedule::Schedule(Polynomial);
TUTTI_TEMPLATE Schedule::Schedule(OneCycle);
TUTTI_TEMPLATE Schedule::Schedule(Cyclic);
TUTTI_TEMPLATE Schedule::Schedule(Step);
TUTTI_TEMPLATE Schedule::Schedule(MultiStep);
TUTTI_TEMPLATE Schedule::Schedule(Exponential);
TUTTI_TEMPLATE Schedule::Schedule(MultiStepWithWarmup);
TUTTI_TEMPLATE Schedule::Schedule(ConstantWithWarmup);
TUTTI_TEMPLATE Schedule::Schedule(LinearWithWarmup);
TUTTI_TEMPLATE Schedule::Schedule(CosineAnnealingWithWarmup);
TUTTI_TEMPLATE Schedule::Schedule(PolynomialWithWarmup);

}  // namespace tutti
#endif
