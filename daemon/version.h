// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hydra {

// "0.1.0+71b57b2": with the commit that was checked out when the build was configured, if that is
// known.
const char* BuildVersion();

}  // namespace hydra
