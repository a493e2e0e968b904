// SPDX-License-Identifier: Apache-2.0
//
// What of a volume is mapped.
#include <algorithm>
#include <memory>
#include <utility>

#include "client/hydra.h"
#include "client/runtime.h"
#include "client/transfer.h"
#include "client/volume_state.h"

namespace hydra {
namespace {

constexpr uint64_t kMaxMapBytes = 4ull << 30;  // of one call: a million runs at the worst

void JoinRuns(std::vector<MapRun>* runs) {
  std::sort(runs->begin(), runs->end(),
            [](const MapRun& a, const MapRun& b) { return a.offset < b.offset; });
  size_t last = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    MapRun& before = (*runs)[last];
    if (before.mapped == (*runs)[i].mapped) {
      before.length += (*runs)[i].length;
    } else {
      (*runs)[++last] = (*runs)[i];
    }
  }
  runs->resize(last + 1);
}

}  // namespace

void Volume::StartGetMap(uint64_t offset, uint64_t length,
                         internal::Callback<Result<std::vector<MapRun>>> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  const auto runs = std::make_shared<std::vector<MapRun>>();
  const auto end = [state, runs, done = std::move(done)](const Status& status) {
    if (!status.ok()) {
      ++state->errors;
      return done(status);
    }
    JoinRuns(runs.get());
    done(std::move(*runs));
  };
  const Status checked = CheckArguments(offset, length);
  state->runtime->Post([=] {
    if (!checked.ok()) return end(checked);
    state->CheckRange(offset, length, [=](const Status& inside) {
      if (!inside.ok()) return end(inside);
      const auto transfer = std::make_shared<Transfer>(state, Transfer::Kind::kMap, offset,
                                                       std::min(length, kMaxMapBytes));
      transfer->set_map(runs.get());
      transfer->set_guard(guard);
      transfer->Start(end);
    });
  });
}

Result<std::vector<MapRun>> Volume::GetMap(uint64_t offset, uint64_t length) {
  return impl_->cluster->Await<Result<std::vector<MapRun>>>(
      [&](auto done) { StartGetMap(offset, length, std::move(done)); });
}

}  // namespace hydra
