// SPDX-License-Identifier: Apache-2.0
//
// Persistent reservations as bytes, from one state to another, and over several paths to one disk.
#include "iscsi/scsi/reservations.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "iscsi/scsi/shared_state.h"
#include "tests/iscsi/scsi_fixture.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kWriteExclusive = 1, kRegistrantsOnly = 6, kAllRegistrants = 8;

// Registered with the keys 1, 2, ... in this order.
Reservations Registered(const std::vector<std::string>& nexuses) {
  Reservations state;
  uint64_t key = 0;
  for (const std::string& nexus : nexuses) {
    EXPECT_TRUE(state.Register(nexus, 0, ++key, false).response.good());
  }
  return state;
}

Reservations Reserved(const std::vector<std::string>& nexuses, uint8_t type) {
  Reservations state = Registered(nexuses);
  EXPECT_TRUE(state.Reserve(nexuses[0], 1, type).response.good());
  return state;
}

TEST(ReservationBytes, EveryStateComesBack) {
  Reservations cleared = Registered({"a", "b"});
  EXPECT_TRUE(cleared.Clear("a", 1).response.good());
  std::vector<Reservations> states = {Reservations(), cleared, Registered({"a", "b", "c"})};
  for (const uint8_t type : {1, 3, 5, 6, 7, 8}) states.push_back(Reserved({"a", "b"}, type));
  Reservations last_of_all = Reserved({"a", "b"}, kAllRegistrants);
  EXPECT_TRUE(last_of_all.Register("a", 1, 0, false).response.good());
  states.push_back(last_of_all);
  Reservations moved = Reserved({"a", "b"}, kWriteExclusive);
  EXPECT_TRUE(
      moved.Move("a", 1, 9, std::string(Reservations::kMaxNexusBytes, 'c'), true).response.good());
  states.push_back(moved);
  for (const Reservations& state : states) {
    const auto decoded = Reservations::Decode(state.Encode());
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, state);
    EXPECT_EQ(decoded->Encode(), state.Encode());
  }
}

TEST(ReservationBytes, AreThese) {
  EXPECT_EQ(Reserved({"a", "bc"}, kRegistrantsOnly).Encode(),
            std::string("\x01\x02\0\0\0\x06\0\0\x02\0"
                        "\x01\0\0\0\0\0\0\0\x01"
                        "a"
                        "\x02\0\0\0\0\0\0\0\x02"
                        "bc",
                        10 + 10 + 11));
  EXPECT_EQ(*Reservations::Decode(""), Reservations()) << "in the beginning";
}

TEST(ReservationBytes, WhatIsCutDoubledOrNonsenseIsRefused) {
  const std::string good = Reserved({"a", "bc"}, kRegistrantsOnly).Encode();
  for (size_t length = 1; length < good.size(); ++length) {
    EXPECT_FALSE(Reservations::Decode(good.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(Reservations::Decode(good + '\0').ok());
  const auto with = [&](size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return Reservations::Decode(bytes).status().code();
  };
  EXPECT_EQ(with(0, 2), Code::kUnsupported);
  EXPECT_EQ(with(5, 2), Code::kCorruption) << "no such type";
  EXPECT_EQ(with(5, 0), Code::kCorruption) << "a holder of nothing";
  EXPECT_EQ(with(5, 8), Code::kCorruption) << "one holder where all hold it";
  EXPECT_EQ(with(6, 2), Code::kCorruption) << "a holder that is not registered";
  EXPECT_EQ(with(9, 2), Code::kCorruption) << "more than there may be";
  EXPECT_EQ(with(10, 0), Code::kCorruption) << "no key";
  EXPECT_EQ(with(18, 0), Code::kCorruption) << "nobody";
  const std::string one = good.substr(10, 10);
  std::string twice = good.substr(0, 10) + one + one;
  EXPECT_EQ(Reservations::Decode(twice).status().code(), Code::kCorruption) << "the same twice";
}

TEST(ReservationSteps, NarrowOnlyIfSomeoneMayDoLess) {
  const Reservations registered = Registered({"a", "b"});
  EXPECT_FALSE(registered.Narrows(Reservations()));
  const Reservations reserved = Reserved({"a", "b"}, kRegistrantsOnly);
  EXPECT_TRUE(reserved.Narrows(registered)) << "strangers are out";
  EXPECT_FALSE(registered.Narrows(reserved));
  Reservations fewer = reserved;
  EXPECT_TRUE(fewer.Register("b", 2, 0, false).response.good());
  EXPECT_TRUE(fewer.Narrows(reserved)) << "b is out";
  Reservations more = reserved;
  EXPECT_TRUE(more.Register("c", 0, 3, false).response.good());
  EXPECT_FALSE(more.Narrows(reserved));
  Reservations taken = Reserved({"a", "b"}, kWriteExclusive);
  const Reservations before = taken;
  EXPECT_TRUE(taken.Preempt("b", 2, 1, kWriteExclusive).response.good());
  EXPECT_TRUE(taken.Narrows(before)) << "a may not write any more";
}

TEST(ReservationSteps, TellWhatTheActionTells) {
  struct Row {
    const char* what;
    uint8_t type;
    std::function<Reservations::Outcome(Reservations*)> act;  // by "b"
  };
  const Row rows[] = {
      {"clear", 6, [](Reservations* s) { return s->Clear("b", 2); }},
      {"preempt", 6, [](Reservations* s) { return s->Preempt("b", 2, 1, 6); }},
      {"preempt, another type", 6, [](Reservations* s) { return s->Preempt("b", 2, 1, 1); }},
      {"preempt one that does not hold", 6,
       [](Reservations* s) { return s->Preempt("b", 2, 3, 6); }},
      {"preempt all", 8, [](Reservations* s) { return s->Preempt("b", 2, 0, 6); }},
      {"release of all", 8, [](Reservations* s) { return s->Release("b", 2, 8); }},
      {"unregister", 8, [](Reservations* s) { return s->Register("b", 2, 0, false); }},
      {"register anew", 6, [](Reservations* s) { return s->Register("b", 2, 7, false); }},
  };
  for (const Row& row : rows) {
    const Reservations before = Reserved({"a", "b", "c"}, row.type);
    Reservations after = before;
    const Reservations::Outcome outcome = row.act(&after);
    ASSERT_TRUE(outcome.response.good()) << row.what;
    for (const std::string nexus : {"a", "c", "d"}) {
      Asc told = Asc::kNone;
      for (const auto& [id, asc] : outcome.attentions) {
        if (id == nexus) told = asc;
      }
      EXPECT_EQ(after.NewsFor(nexus, before), told) << row.what << ", " << nexus;
    }
  }
}

// --- Two portals --------------------------------------------------------------------------------

class TwoPaths : public ScsiTest {
 protected:
  TwoPaths() {
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk", 4096, disk_->access());
    other_disk_ = disk.get();
    other_ = std::make_unique<LogicalUnit>(std::move(disk), unit_->options());
    far_.initiator = "iqn.c,i,0x000000000003";
    far_.portal_group = 2;
    other_->Join(&far_);
    Settle({&far_});
  }

  Response Out(Nexus* nexus, uint8_t action, uint64_t key, uint64_t other, uint8_t type = 0) {
    Bytes list(24);
    Put64(&list[0], key);
    Put64(&list[8], other);
    return On(nexus, {0x5f, action, type, 0, 0, 0, 0, 0, 24, 0}, list);
  }
  Response On(Nexus* nexus, Bytes cdb, const Bytes& out = {}) {
    if (nexus != &far_) return RunAs(nexus, std::move(cdb), out);
    unit_.swap(other_);
    Response response = RunAs(nexus, std::move(cdb), out);
    unit_.swap(other_);
    return response;
  }
  bool Conflict(const Response& response) {
    return response.status == ScsiStatus::kReservationConflict;
  }
  static constexpr uint8_t kRegister = 0, kReserve = 1, kPreemptAndAbort = 5;

  MemoryDisk* other_disk_ = nullptr;
  std::unique_ptr<LogicalUnit> other_;
  Nexus far_;
};

TEST_F(TwoPaths, AReservationBindsAll) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 3).good());
  EXPECT_TRUE(Conflict(On(&far_, Cdb10(0x28, 0, 1))));
  EXPECT_TRUE(Out(&far_, kRegister, 0, 9).good());
  EXPECT_EQ(disk_->access()->narrowed, 1u) << "registering takes nothing from anyone";
  EXPECT_TRUE(Out(&far_, kPreemptAndAbort, 9, 1, 3).good());
  EXPECT_EQ(disk_->access()->narrowed, 2u);
  EXPECT_TRUE(
      Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kRegistrationsPreempted));
  EXPECT_TRUE(Conflict(Run(Cdb10(0x2a, 0, 1), Fill(1, 1))));
  EXPECT_TRUE(On(&far_, Cdb10(0x28, 0, 1)).good());
}

TEST_F(TwoPaths, WhoIsSlowerTriesAgain) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  disk_->access()->interfere = [this] { EXPECT_TRUE(Out(&far_, kRegister, 0, 9).good()); };
  EXPECT_TRUE(Out(&second_, kRegister, 0, 2).good());
  EXPECT_EQ(unit_->reservations().registrations().size(), 3u);
  EXPECT_EQ(unit_->epoch(), other_->epoch());
  // The same key twice: what another did in between counts.
  disk_->access()->interfere = [this] { EXPECT_TRUE(Out(&far_, kReserve, 9, 0, 3).good()); };
  EXPECT_TRUE(Conflict(Out(&first_, kReserve, 1, 0, 3)));
}

TEST_F(TwoPaths, NothingChangesIfTheDiskRefuses) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  disk_->FailWith(Status::Unavailable("no majority"));
  EXPECT_TRUE(Failed(Out(&first_, kReserve, 1, 0, 3), SenseKey::kNotReady, Asc::kBecomingReady));
  disk_->FailWith(Status::Ok());
  EXPECT_FALSE(unit_->reservations().type().has_value());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 3).good()) << "its turn was given back";
}

TEST_F(TwoPaths, AReserveBindsAllUntilItsNexusIsGone) {
  const Bytes reserve = {0x16, 0, 0, 0, 0, 0};
  const Bytes release = {0x17, 0, 0, 0, 0, 0};
  EXPECT_TRUE(On(&far_, reserve).good());
  EXPECT_TRUE(Conflict(On(&first_, reserve)));
  EXPECT_TRUE(Conflict(On(&first_, Cdb10(0x28, 0, 1))));
  EXPECT_TRUE(On(&first_, release).good()) << "of what it has not";
  EXPECT_TRUE(Conflict(On(&first_, Cdb10(0x28, 0, 1))));
  bool gone = false;
  other_->Leave(&far_);
  other_->Release(far_.id(), [&] { gone = true; });
  EXPECT_TRUE(gone);
  EXPECT_TRUE(On(&first_, reserve).good());
  EXPECT_TRUE(On(&first_, release).good());
  EXPECT_EQ(unit_->reserved_by(), "");
}

TEST_F(TwoPaths, NobodyIsRefusedForWhatIsOverElsewhere) {
  const auto watchers = std::exchange(disk_->access()->watchers, {});  // slow ones
  EXPECT_TRUE(On(&far_, {0x16, 0, 0, 0, 0, 0}).good());
  EXPECT_TRUE(Conflict(On(&first_, {0x16, 0, 0, 0, 0, 0})));
  EXPECT_TRUE(On(&far_, {0x17, 0, 0, 0, 0, 0}).good());
  EXPECT_TRUE(On(&first_, Cdb10(0x28, 0, 1)).good());
  EXPECT_TRUE(On(&first_, {0x16, 0, 0, 0, 0, 0}).good());
}

TEST_F(TwoPaths, AResetIsOneOfAll) {
  EXPECT_TRUE(On(&far_, {0x16, 0, 0, 0, 0, 0}).good());
  EXPECT_EQ(unit_->reserved_by(), far_.id());
  std::vector<std::string> aborted;
  first_.abort_tasks = [&](const auto& done) { aborted.push_back("near"), done(); };
  far_.abort_tasks = [&](const auto& done) { aborted.push_back("far"), done(); };
  bool reset = false;
  unit_->Reset(Asc::kLunReset, [&](const Status& status) { reset = status.ok(); });
  EXPECT_TRUE(reset);
  EXPECT_EQ(aborted, (std::vector<std::string>{"near"})) << "what is far was fenced";
  EXPECT_EQ(other_->reserved_by(), "");
  EXPECT_EQ(disk_->access()->narrowed, 2u) << "by the RESERVE, then by the reset";
  const Bytes ready = {0, 0, 0, 0, 0, 0};
  for (Nexus* nexus : {&first_, &far_}) {
    EXPECT_TRUE(Failed(On(nexus, ready), SenseKey::kUnitAttention, Asc::kLunReset));
    EXPECT_TRUE(On(nexus, ready).good()) << "told once";
  }
}

TEST_F(TwoPaths, WhoAsksWhetherTheUnitIsReadyHearsAboutOthers) {
  const auto watchers = std::exchange(disk_->access()->watchers, {});  // slow ones
  unit_->Reset(Asc::kLunReset, [](const Status&) {});
  EXPECT_TRUE(Failed(On(&far_, {0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kLunReset));
}

TEST_F(TwoPaths, AResetThatTheClusterDoesNotKnowOfIsNone) {
  disk_->FailWith(Status::Unavailable("no majority"));
  Status outcome;
  unit_->Reset(Asc::kLunReset, [&](const Status& status) { outcome = status; });
  EXPECT_EQ(outcome.code(), Code::kUnavailable);
}

TEST(SharedStateBytes, ComeBackOrAreRefused) {
  SharedState state;
  state.reservations = Reserved({"a"}, kWriteExclusive);
  state.resets = 7;
  state.last_reset = Asc::kLunReset;
  state.reserved_by = "b";
  const std::string good = state.Encode();
  EXPECT_EQ(*SharedState::Decode(good), state);
  EXPECT_EQ(*SharedState::Decode(""), SharedState());
  for (size_t length = 1; length < good.size(); ++length) {
    EXPECT_FALSE(SharedState::Decode(good.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(SharedState::Decode(good + "x").ok());
  EXPECT_EQ(SharedState::Decode("\x03" + good.substr(1)).status().code(), Code::kUnsupported);
}

TEST_F(TwoPaths, BytesThatNobodyUnderstandsKeepEveryoneFromChangingThem) {
  disk_->access()->now = {1, "\x02what is this"};
  EXPECT_TRUE(
      Failed(Out(&first_, kRegister, 0, 1), SenseKey::kHardwareError, Asc::kInternalFailure));
  EXPECT_EQ(disk_->access()->now.epoch, 1u);
}

}  // namespace
}  // namespace hydra::iscsi
