// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hydra {

// For threads whose work can wait: from here on this one gets a third of the processor time of
// another that wants it too, and gives way when that one wakes up. Once called, it stays so.
void LowerPriority();

}  // namespace hydra
