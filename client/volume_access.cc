// SPDX-License-Identifier: Apache-2.0
//
// What gateways need of a volume beside its data.
#include <utility>

#include "client/hydra.h"
#include "client/protocol.pb.h"
#include "client/runtime.h"
#include "client/volume_state.h"

namespace hydra {

Guard Volume::MakeGuard(uint64_t epoch) const {
  const VolumeState& state = *impl_->state;
  Guard guard;
  guard.epoch = epoch;
  guard.seen.reserve(state.groups.size());
  for (uint32_t shard = 0; shard < state.groups.size(); ++shard) {
    guard.seen.push_back(state.commit(shard));
  }
  return guard;
}

Volume Volume::Under(Guard guard) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->guard = std::make_shared<const Guard>(std::move(guard));
  return Volume(std::move(impl));
}

namespace {

// Asks the cluster; `done` gets what the catalogue then says of the volume.
void Look(const std::shared_ptr<VolumeState>& state,
          std::function<void(Result<CatalogueView::Volume>)> done) {
  Router* router = &state->runtime->router;
  router->RefreshToCurrent(state->runtime->options.timeout,
                           [state, router, done = std::move(done)](const Status& refreshed) {
                             if (!refreshed.ok()) return done(refreshed);
                             if (Status updated = state->Update(); !updated.ok())
                               return done(updated);
                             done(router->catalogue()->volumes.at(state->name));
                           });
}

}  // namespace

void Volume::StartGetAccess(internal::Callback<Result<VolumeAccess>> done) const {
  const auto state = impl_->state;
  state->runtime->Post([state, done = std::move(done)] {
    Look(state, [done](const Result<CatalogueView::Volume>& volume) {
      if (!volume.ok()) return done(volume.status());
      done(VolumeAccess{volume->epoch, volume->reservations, volume->target});
    });
  });
}

void Volume::StartChangeAccess(uint64_t epoch, const std::string& reservations,
                               internal::Callback<Result<uint64_t>> done) const {
  const auto state = impl_->state;
  rpc::Request request;
  request.mutable_change_access()->set_name(state->name);
  request.mutable_change_access()->set_epoch(epoch);
  request.mutable_change_access()->set_reservations(reservations);
  const auto fence = [state, epoch, done] {
    state->Fence(epoch + 1, [epoch, done](const Status& fenced) {
      if (!fenced.ok()) {
        return done(Status::Aborted(
            "access was changed, but older requests may still be executed: fence again; " +
            std::string(fenced.message())));
      }
      done(epoch + 1);
    });
  };
  state->runtime->Post([=] {
    state->runtime->router.Call(request, state->runtime->options.timeout,
                                [=](const Status& status, const rpc::Reply&, bool maybe_repeated) {
                                  if (status.ok()) return fence();
                                  if (status.code() != Code::kFailedPrecondition || !maybe_repeated)
                                    return done(status);
                                  // It may be our own change that is in the way.
                                  Look(state, [=](const Result<CatalogueView::Volume>& volume) {
                                    if (!volume.ok()) return done(volume.status());
                                    const bool ours = volume->epoch == epoch + 1 &&
                                                      volume->reservations == reservations;
                                    if (!ours) return done(status);
                                    fence();
                                  });
                                });
  });
}

void Volume::StartFence(uint64_t epoch, internal::Callback<Status> done) const {
  const auto state = impl_->state;
  state->runtime->Post([state, epoch, done = std::move(done)] { state->Fence(epoch, done); });
}

Result<VolumeAccess> Volume::GetAccess() {
  return impl_->cluster->Await<Result<VolumeAccess>>(
      [&](auto done) { StartGetAccess(std::move(done)); });
}

Result<uint64_t> Volume::ChangeAccess(uint64_t epoch, std::string reservations) {
  return impl_->cluster->Await<Result<uint64_t>>(
      [&](auto done) { StartChangeAccess(epoch, reservations, std::move(done)); });
}

Status Volume::Fence(uint64_t epoch) {
  return impl_->cluster->Await<Status>([&](auto done) { StartFence(epoch, std::move(done)); });
}

}  // namespace hydra
