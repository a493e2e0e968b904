// SPDX-License-Identifier: Apache-2.0
//
// Histories of simulated clients, and their checker: the ones that `hydractl drill` uses.
#pragma once

#include "daemon/block_content.h"
#include "daemon/history.h"
#include "daemon/linearizability.h"

namespace hydra::sim {

using history::Access;
using history::Block;
using history::CheckLinearizable;
using history::CheckOptions;
using history::CheckResult;
using history::FillBlock;
using history::History;
using history::kAbsent;
using history::Op;
using history::OpKind;
using history::Outcome;
using history::ParseBlock;
using history::Value;

}  // namespace hydra::sim
