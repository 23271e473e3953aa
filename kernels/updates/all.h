// The formulas of all updates.
#pragma once

#include "kernels/updates/adagrad.h"
#include "kernels/updates/adam.h"
#include "kernels/updates/average.h"
#include "kernels/updates/clip.h"
#include "kernels/updates/loss_scale.h"
#include "kernels/updates/nadam.h"
#include "kernels/updates/rmsprop.h"
#include "kernels/updates/sgd.h"
