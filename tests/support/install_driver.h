// SPDX-License-Identifier: Apache-2.0
//
// InstallDriver: brings a group of one store up to date from its replica in another, the way the
// layers above will: chunk by chunk, from wherever the receiver's durable cursor stands. It keeps
// nothing that matters, so after a crash of the receiver a new driver goes on.
#pragma once

#include <cstdint>

#include "blockstore/image_source.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {

class InstallDriver {
 public:
  struct Options {
    InstallMode mode = InstallMode::kImage;
    uint32_t max_pages = 8;
    size_t max_rows = 16;
    bool ignore_base = false;  // an image with all payload
    // As earlier builds sent it: blocks that were written again after `as_of` as they are now.
    bool newer = false;
    bool bare = false;  // rows alone; Deliver brings the payload
  };
  // What travelled.
  struct Counts {
    uint64_t chunks = 0;
    uint64_t rows = 0;
    uint64_t payload_pages = 0;
    uint64_t same = 0;
    uint64_t delivered = 0;  // blocks
  };

  InstallDriver(Store* source, Store* target, GroupId group, const Options& options)
      : source_(source), target_(target), group_(group), options_(options) {}

  // The next chunk that the receiver needs.
  Result<ImagePiece> Build();
  // Each queues one record. Begin also tells the target's model what was chosen elsewhere.
  Status Begin();
  Status QueueChunk();
  Status QueueFinish();
  // The next of begin, chunk and finish.
  Status QueueNext();
  // Everything that is left up to the finish, each record flushed.
  Status Run();
  // Queues the payload of some blocks that are owed, if the source still has them in the version
  // that is: of any others the log has a newer one. kNotFound: there is nothing to be brought.
  Status QueueDelivery(size_t limit = 8);
  // Until nothing can be.
  Status DeliverAll();
  // Run, DeliverAll; and applies what was chosen since, up to where the source is.
  Status RunAndCatchUp();

  const Counts& counts() const { return counts_; }

 private:
  Status AddNewer(ImagePiece* piece);

  Store* source_;
  Store* target_;
  GroupId group_;
  Options options_;
  Counts counts_;
};

// Has `target` accept and apply what `source` has applied, up to `instance`, as a replica in step
// with it does.
Status Follow(Store* source, Store* target, GroupId group, Instance instance);

// "" if both replicas hold the same: applied instance, digest, and every block by itself.
std::string Differences(Store* a, Store* b, GroupId group);

}  // namespace hydra::test
