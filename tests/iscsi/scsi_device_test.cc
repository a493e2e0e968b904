// SPDX-License-Identifier: Apache-2.0
//
// Commands about the unit itself: what it is, how it is set, who has it.
#include <algorithm>
#include <set>

#include "tests/iscsi/scsi_fixture.h"

namespace hydra::iscsi {
namespace {

class ScsiDevice : public ScsiTest {
 protected:
  Bytes Vpd(uint8_t page) { return DataOf(Run({0x12, 1, page, 0x02, 0, 0})); }
};

// --- INQUIRY, READ CAPACITY ---------------------------------------------------------------------

TEST_F(ScsiDevice, StandardInquiry) {
  const Bytes data = DataOf(Run({0x12, 0, 0, 0, 255, 0}));
  ASSERT_EQ(data.size(), 96u);
  EXPECT_EQ(data[0], 0);
  EXPECT_EQ(data[2], 6);
  EXPECT_EQ(data[3] & 0x0f, 2);
  EXPECT_EQ(data[4], 91);
  EXPECT_EQ(std::string(data.begin() + 8, data.begin() + 16), "HYDRA   ");
  EXPECT_EQ(DataOf(Run({0x12, 0, 0, 0, 5, 0})).size(), 5u) << "cut to the allocation length";
  EXPECT_TRUE(BadCdb(Run({0x12, 0, 1, 0, 255, 0}))) << "a page code without EVPD";
}

TEST_F(ScsiDevice, EveryPageThatIsListedIsThere) {
  const Bytes list = Vpd(0);
  EXPECT_EQ(Bytes(list.begin() + 4, list.end()),
            (Bytes{0x00, 0x80, 0x83, 0x86, 0x87, 0xb0, 0xb1, 0xb2}));
  for (size_t i = 4; i < list.size(); ++i) {
    const Bytes page = Vpd(list[i]);
    ASSERT_GE(page.size(), 4u);
    EXPECT_EQ(page[1], list[i]);
    EXPECT_EQ(Get16(&page[2]), page.size() - 4);
  }
  EXPECT_TRUE(BadCdb(Run({0x12, 1, 0x99, 0, 255, 0})));
}

TEST_F(ScsiDevice, IdentifiersAreThoseOfTheDisk) {
  const Bytes page = Vpd(0x83);
  std::set<int> types;
  for (size_t at = 4; at + 4 <= page.size(); at += 4u + page[at + 3]) {
    types.insert((page[at + 1] & 0x30) << 4 | (page[at + 1] & 0x0f));
    ASSERT_LE(at + 4 + page[at + 3], page.size());
  }
  EXPECT_EQ(types, (std::set<int>{0x001, 0x003, 0x008, 0x104, 0x105, 0x108, 0x208}));
  EXPECT_EQ(Vpd(0x80).size(), 4u + 32);
}

TEST_F(ScsiDevice, CapacityOf512e) {
  Bytes data = DataOf(Run(Cdb10(0x25, 0, 0)));
  EXPECT_EQ(Get32(&data[0]), kBlocks - 1);
  EXPECT_EQ(Get32(&data[4]), 512u);
  data = DataOf(Run(Cdb16(0x9e, 0, 32, 0x10)));
  EXPECT_EQ(Get64(&data[0]), kBlocks - 1);
  EXPECT_EQ(data[13], 3) << "eight logical blocks in a physical one";
  EXPECT_EQ(data[14], 0xc0) << "thin, zeroes";
}

TEST_F(ScsiDevice, OtherUnitsDoNotExist) {
  lun_ = 0x0001000000000000;
  EXPECT_EQ(DataOf(Run({0x12, 0, 0, 0, 96, 0}))[0], 0x7f);
  EXPECT_TRUE(
      Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kIllegalRequest, Asc::kLogicalUnitNotSupported));
  EXPECT_EQ(DataOf(Run({0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0})).size(), 16u);
}

TEST_F(ScsiDevice, UnknownCommandsAndActions) {
  EXPECT_TRUE(Failed(Run({0xff}), SenseKey::kIllegalRequest, Asc::kInvalidOpcode));
  EXPECT_TRUE(BadCdb(Run(Cdb16(0x9e, 0, 32, 0x1f))));
}

// --- Reports ------------------------------------------------------------------------------------

TEST_F(ScsiDevice, EveryCommandIsReportedAndKnowsItsLength) {
  const Bytes all = DataOf(Run({0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0}));
  EXPECT_EQ(Get32(&all[0]), all.size() - 4);
  EXPECT_EQ((all.size() - 4) / 8, CommandTable().size());
  for (const CommandRow& row : CommandTable()) {
    EXPECT_EQ(row.usage[0], row.opcode) << row.name;
    const size_t group[8] = {6, 10, 10, 0, 16, 12, 0, 0};
    EXPECT_EQ(row.usage.size(), group[row.opcode >> 5]) << row.name;
    EXPECT_NE(row.now == nullptr, row.later == nullptr) << row.name;
  }
}

TEST_F(ScsiDevice, OneCommandIsReportedWithOrWithoutAction) {
  const auto ask = [&](uint8_t what, uint8_t opcode, uint8_t action) {
    return Run({0xa3, 0x0c, what, opcode, 0, action, 0, 0, 1, 0, 0, 0});
  };
  EXPECT_EQ(DataOf(ask(1, 0x28, 0))[1], 0x03);
  EXPECT_EQ(DataOf(ask(1, 0xfe, 0))[1], 0x01) << "not supported";
  EXPECT_TRUE(BadCdb(ask(1, 0x9e, 0))) << "it has actions";
  EXPECT_TRUE(BadCdb(ask(2, 0x28, 0))) << "it has none";
  EXPECT_EQ(DataOf(ask(2, 0x9e, 0x10))[1], 0x03);
  EXPECT_EQ(DataOf(ask(3, 0x9e, 0x1e))[1], 0x01);
  EXPECT_EQ(DataOf(ask(0x81, 0x28, 0)).size(), 4u + 10 + 12) << "with timeouts";
}

TEST_F(ScsiDevice, PortGroupsAreReported) {
  const Bytes data = DataOf(Run({0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  ASSERT_EQ(data.size(), 16u);
  EXPECT_EQ(data[4] & 0x0f, 0) << "active, optimized";
  EXPECT_EQ(Get16(&data[6]), 1);
}

class PortGroups : public ScsiDevice {
 protected:
  PortGroups() {
    unit_->Leave(&first_);
    unit_->Leave(&second_);
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    options.portal_groups = [this] { return groups_; };
    unit_ = std::make_unique<LogicalUnit>(std::move(disk), std::move(options));
    first_.portal_group = second_.portal_group = 2;
    unit_->Join(&first_);
    unit_->Join(&second_);
    Settle({&first_, &second_});
  }

  // Group and state of each, from the descriptors; the header's length has to be theirs.
  std::vector<std::pair<uint16_t, uint8_t>> Report(bool extended = false) {
    const Bytes data = DataOf(
        Run({0xa3, static_cast<uint8_t>(extended ? 0x2a : 0x0a), 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}));
    EXPECT_EQ(Get32(&data[0]), data.size() - 4);
    std::vector<std::pair<uint16_t, uint8_t>> states;
    for (size_t at = extended ? 8 : 4; at + 12 <= data.size(); at += 8u + 4u * data[at + 7]) {
      EXPECT_EQ(data[at + 1], 0x0b) << "what states there are";
      EXPECT_EQ(data[at + 7], 1) << "one port";
      EXPECT_EQ(Get16(&data[at + 10]), Get16(&data[at + 2]));
      states.emplace_back(Get16(&data[at + 2]), data[at] & 0x0f);
    }
    return states;
  }
  bool Told(Nexus* nexus) {
    return static_cast<bool>(Failed(RunAs(nexus, {0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention,
                                    Asc::kAccessStateChanged));
  }

  std::vector<PortalGroup> groups_ = {{1, true}, {2, true}, {300, true}};
};

using States = std::vector<std::pair<uint16_t, uint8_t>>;

TEST_F(PortGroups, OfNodesThatDoNotAnswerAreUnavailable) {
  EXPECT_EQ(Report(), (States{{1, 0}, {2, 0}, {300, 0}}));
  groups_ = {{1, false}, {2, true}, {300, true}};
  EXPECT_EQ(Report(), (States{{1, 3}, {2, 0}, {300, 0}}));
  EXPECT_EQ(Report(true), Report()) << "the extended header says the same";
}

TEST_F(PortGroups, MoreThanOneMakeItADeviceWithSeveralPorts) {
  EXPECT_EQ(DataOf(Run({0x12, 0, 0, 0, 96, 0}))[6], 0x10);
  groups_ = {{2, true}};
  EXPECT_EQ(DataOf(Run({0x12, 0, 0, 0, 96, 0}))[6], 0);
}

TEST_F(PortGroups, OneThatLostTouchSaysThatOthersAreBetter) {
  groups_ = {{1, false}, {2, true, true}, {300, false}};
  EXPECT_EQ(Report(), (States{{1, 3}, {2, 1}, {300, 3}}));
  unit_->NotePortalGroups();
  groups_[1].waits = false;
  unit_->NotePortalGroups();
  EXPECT_TRUE(Told(&first_));
}

TEST_F(PortGroups, EveryoneIsToldOnceWhenAStateChanges) {
  unit_->NotePortalGroups();
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good()) << "none has changed";
  groups_[2].reachable = false;
  unit_->NotePortalGroups();
  unit_->NotePortalGroups();
  EXPECT_TRUE(Told(&first_));
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good());
  EXPECT_TRUE(Told(&second_)) << "each of them";
  EXPECT_TRUE(RunAs(&second_, {0, 0, 0, 0, 0, 0}).good());
  groups_[2].reachable = true;
  unit_->NotePortalGroups();
  EXPECT_TRUE(Told(&first_));
  // Back and forth before anyone asked: one word is enough.
  groups_[0].reachable = false;
  unit_->NotePortalGroups();
  groups_[0].reachable = true;
  unit_->NotePortalGroups();
  EXPECT_TRUE(Told(&first_));
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good());
}

TEST_F(PortGroups, AGroupThatIsNewOrGoneChangesNoState) {
  groups_ = {{2, true}, {7, true}, {300, true}};
  unit_->NotePortalGroups();
  groups_ = {};
  unit_->NotePortalGroups();
  groups_ = {{1, true}, {2, true}, {300, true}};
  unit_->NotePortalGroups();
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good());
  groups_[0].reachable = false;
  unit_->NotePortalGroups();
  EXPECT_TRUE(Told(&first_));
}

// --- Mode pages ---------------------------------------------------------------------------------

TEST_F(ScsiDevice, ModePages) {
  const Bytes all = DataOf(Run({0x1a, 0, 0x3f, 0, 255, 0}));
  EXPECT_EQ(all[0], all.size() - 1);
  EXPECT_EQ(all[2], 0x10) << "DPO and FUA are understood";
  EXPECT_EQ(all[3], 8);
  const Bytes caching = DataOf(Run({0x1a, 0x08, 0x08, 0, 255, 0}));
  ASSERT_EQ(caching.size(), 4u + 20);
  EXPECT_EQ(caching[6] & 0x04, 0) << "no write cache";
  EXPECT_TRUE(BadCdb(Run({0x1a, 0, 0x2f, 0, 255, 0})));
  EXPECT_TRUE(
      Failed(Run({0x1a, 0, 0xca, 0, 255, 0}), SenseKey::kIllegalRequest, Asc::kSavingNotSupported));
  const Bytes ten = DataOf(Run({0x5a, 0x10, 0x0a, 0, 0, 0, 0, 0, 255, 0}));
  EXPECT_EQ(Get16(&ten[6]), 16) << "a long block descriptor";
}

TEST_F(ScsiDevice, WriteProtectionIsSwitchedAndToldToOthers) {
  Bytes list = DataOf(Run({0x1a, 0x08, 0x0a, 0, 255, 0}));
  list[0] = list[2] = 0;
  list[8] |= 0x08;
  const Bytes select = {0x15, 0x10, 0, 0, static_cast<uint8_t>(list.size()), 0};
  EXPECT_TRUE(Run(select, list).good());
  EXPECT_TRUE(Failed(Run(Cdb10(0x2a, 0, 1), Fill(1, 1)), SenseKey::kDataProtect,
                     Asc::kSoftwareWriteProtected));
  EXPECT_TRUE(Run(Cdb10(0x28, 0, 1)).good());
  EXPECT_TRUE(Failed(RunAs(&second_, {0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention,
                     Asc::kModeParametersChanged));
  EXPECT_TRUE(RunAs(&second_, {0, 0, 0, 0, 0, 0}).good()) << "told once";
  list[8] &= static_cast<uint8_t>(~0x08);
  EXPECT_TRUE(Run(select, list).good());
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 1), Fill(1, 1)).good());
}

// The policy that is published, and what is true of two portals with the same disk.
TEST_F(ScsiDevice, WhatIsSetOfTheControlPageHoldsForOnePort) {
  EXPECT_EQ(Vpd(0x87), (Bytes{0x00, 0x87, 0, 8, 0x0a, 0x00, 0x01, 0, 0x3f, 0xff, 0x00, 0}));
  UnitOptions options;
  options.target_name = "iqn.2026-11.io.hydra:disk";
  LogicalUnit other(std::make_unique<MemoryDisk>(kBytes, "disk", 4096, disk_->access()), options);
  Bytes list = DataOf(Run({0x1a, 0x08, 0x0a, 0, 255, 0}));
  list[0] = list[2] = 0;
  list[8] |= 0x08;
  EXPECT_TRUE(Run({0x15, 0x10, 0, 0, static_cast<uint8_t>(list.size()), 0}, list).good());
  EXPECT_TRUE(unit_->write_protected);
  EXPECT_FALSE(other.write_protected);
}

TEST_F(ScsiDevice, NothingElseCanBeSet) {
  Bytes list = DataOf(Run({0x1a, 0x08, 0x08, 0, 255, 0}));
  list[0] = list[2] = 0;
  list[6] |= 0x04;  // a write cache
  const uint8_t length = static_cast<uint8_t>(list.size());
  EXPECT_TRUE(Failed(Run({0x15, 0x10, 0, 0, length, 0}, list), SenseKey::kIllegalRequest,
                     Asc::kInvalidFieldInParameters));
  EXPECT_TRUE(BadCdb(Run({0x15, 0x11, 0, 0, length, 0}, list))) << "saving";
  EXPECT_TRUE(Failed(Run({0x15, 0x10, 0, 0, 10, 0}, list), SenseKey::kIllegalRequest,
                     Asc::kParameterListLength));
}

// --- Unit attentions, sense data ----------------------------------------------------------------

TEST_F(ScsiDevice, AResizeIsSeen) {
  disk_->Resize(kBytes * 2);
  EXPECT_TRUE(Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kCapacityChanged));
  EXPECT_EQ(Get64(DataOf(Run(Cdb16(0x9e, 0, 32, 0x10))).data()), kBlocks * 2 - 1);
}

TEST_F(ScsiDevice, InquiryAndReportLunsLeaveAttentionsRequestSenseTakesThem) {
  unit_->Attention(Asc::kResetOccurred);
  EXPECT_TRUE(Run({0x12, 0, 0, 0, 96, 0}).good());
  const Bytes sense = DataOf(Run({0x03, 0, 0, 0, 252, 0}));
  EXPECT_EQ(sense[2] & 0x0f, 0x06);
  EXPECT_EQ(Get16(&sense[12]), 0x2900);
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good());
}

TEST_F(ScsiDevice, WhoIsNewHearsThatItMayHaveMissedSomething) {
  unit_->Leave(&first_);
  disk_->Resize(kBytes / 2);  // nobody can tell the one that is not there
  unit_->Join(&first_);
  EXPECT_TRUE(Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kResetOccurred));
  EXPECT_TRUE(Run({0, 0, 0, 0, 0, 0}).good()) << "once";
  EXPECT_TRUE(
      Failed(RunAs(&second_, {0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kCapacityChanged));
  EXPECT_TRUE(RunAs(&second_, {0, 0, 0, 0, 0, 0}).good()) << "the other one is not new";
}

TEST(ScsiSense, FixedAndDescriptorFormat) {
  Sense sense{
      SenseKey::kIllegalRequest, Asc::kInvalidFieldInCdb, 0x1234, Sense::Field{true, 2, 7}, {}};
  const Bytes fixed = EncodeSense(sense, false);
  EXPECT_EQ(fixed, (Bytes{0xf0, 0, 5, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 2}));
  const Bytes descriptors = EncodeSense(sense, true);
  EXPECT_EQ(descriptors[0], 0x72);
  EXPECT_EQ(descriptors[1], 5);
  EXPECT_EQ(descriptors[7], descriptors.size() - 8);
  EXPECT_EQ(Get64(&descriptors[12]), 0x1234u);
}

// --- RESERVE and RELEASE ------------------------------------------------------------------------

TEST_F(ScsiDevice, AReservationKeepsOthersOutUntilItIsReleased) {
  EXPECT_TRUE(Run({0x16, 0, 0, 0, 0, 0}).good());
  EXPECT_TRUE(Run({0x16, 0, 0, 0, 0, 0}).good()) << "again";
  const auto refused = [&](Bytes cdb) {
    return RunAs(&second_, std::move(cdb)).status == ScsiStatus::kReservationConflict;
  };
  EXPECT_TRUE(refused({0x16, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(refused(Cdb10(0x28, 0, 1)));
  EXPECT_TRUE(refused({0x1a, 0, 0x3f, 0, 255, 0}));
  EXPECT_FALSE(refused({0x12, 0, 0, 0, 96, 0}));
  EXPECT_FALSE(refused({0x17, 0, 0, 0, 0, 0})) << "a release of what it has not";
  EXPECT_TRUE(refused(Cdb10(0x28, 0, 1)));
  EXPECT_TRUE(Run({0x17, 0, 0, 0, 0, 0}).good());
  EXPECT_FALSE(refused(Cdb10(0x28, 0, 1)));
}

TEST_F(ScsiDevice, AReservationEndsWithItsNexusOrAReset) {
  EXPECT_TRUE(Run({0x16, 0, 0, 0, 0, 0}).good());
  unit_->Leave(&first_);
  unit_->Release(first_.id(), [] {});
  EXPECT_TRUE(RunAs(&second_, {0x16, 0, 0, 0, 0, 0}).good());
  unit_->Join(&first_);
  Settle({&first_});
  bool done = false;
  unit_->Reset(Asc::kLunReset, [&](const Status& reset) { done = reset.ok(); });
  EXPECT_TRUE(done);
  EXPECT_TRUE(Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kLunReset));
  EXPECT_TRUE(Run(Cdb10(0x28, 0, 1)).good());
}

// --- Persistent reservations --------------------------------------------------------------------

class ScsiPersistent : public ScsiDevice {
 protected:
  Response Out(Nexus* nexus, uint8_t action, uint64_t key, uint64_t other, uint8_t type = 0) {
    Bytes cdb = {0x5f, action, type, 0, 0, 0, 0, 0, 24, 0};
    Bytes list(24);
    Put64(&list[0], key);
    Put64(&list[8], other);
    return RunAs(nexus, cdb, list);
  }
  Bytes In(uint8_t action) { return DataOf(Run({0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0})); }
  bool Conflict(const Response& response) {
    return response.status == ScsiStatus::kReservationConflict;
  }
  static constexpr uint8_t kRegister = 0, kReserve = 1, kRelease = 2, kClear = 3, kPreempt = 4;
};

TEST_F(ScsiPersistent, RegistrationNeedsTheKeyThatIsThere) {
  EXPECT_TRUE(Conflict(Out(&first_, kRegister, 5, 6))) << "there is none yet";
  EXPECT_TRUE(Out(&first_, kRegister, 0, 5).good());
  EXPECT_TRUE(Conflict(Out(&first_, kRegister, 0, 6)));
  EXPECT_TRUE(Out(&first_, kRegister, 5, 6).good());
  const Bytes keys = In(0);
  ASSERT_EQ(keys.size(), 16u);
  EXPECT_EQ(Get32(&keys[0]), 2u) << "generation";
  EXPECT_EQ(Get64(&keys[8]), 6u);
  EXPECT_TRUE(Out(&first_, 6, 99, 0).good()) << "register and ignore: gone";
  EXPECT_EQ(In(0).size(), 8u);
}

TEST_F(ScsiPersistent, WhoMayDoWhat) {
  struct Row {
    uint8_t type;
    bool registered_reads, registered_writes, others_read, others_write;
  };
  const Row table[] = {{1, true, false, true, false}, {3, false, false, false, false},
                       {5, true, true, true, false},  {6, true, true, false, false},
                       {7, true, true, true, false},  {8, true, true, false, false}};
  for (const Row& row : table) {
    EXPECT_TRUE(Out(&first_, 6, 0, 1).good());
    EXPECT_TRUE(Out(&second_, 6, 0, 2).good());
    EXPECT_TRUE(Out(&first_, kReserve, 1, 0, row.type).good());
    EXPECT_TRUE(Run(Cdb10(0x2a, 0, 1), Fill(1, 1)).good()) << int(row.type);
    EXPECT_EQ(RunAs(&second_, Cdb10(0x28, 0, 1)).good(), row.registered_reads) << int(row.type);
    EXPECT_EQ(RunAs(&second_, Cdb10(0x2a, 0, 1), Fill(1, 1)).good(), row.registered_writes)
        << int(row.type);
    EXPECT_TRUE(Out(&second_, kRegister, 2, 0).good());
    EXPECT_EQ(RunAs(&second_, Cdb10(0x28, 0, 1)).good(), row.others_read) << int(row.type);
    EXPECT_EQ(RunAs(&second_, Cdb10(0x2a, 0, 1), Fill(1, 1)).good(), row.others_write)
        << int(row.type);
    EXPECT_TRUE(Out(&first_, kRelease, 1, 0, row.type).good());
    EXPECT_TRUE(Out(&first_, kRegister, 1, 0).good());
  }
}

TEST_F(ScsiPersistent, OfAllRegistrantsEachHoldsIt) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  EXPECT_TRUE(Out(&second_, kRegister, 0, 2).good());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 8).good());
  EXPECT_EQ(Get64(&In(1)[8]), 0u);
  EXPECT_TRUE(Out(&first_, kRegister, 1, 0).good());
  EXPECT_EQ(In(1).size(), 24u) << "the other one still holds it";
  EXPECT_TRUE(Out(&second_, kRegister, 2, 0).good());
  EXPECT_EQ(In(1).size(), 8u);
}

TEST_F(ScsiPersistent, ReleaseOfAnotherTypeIsRefused) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 3).good());
  EXPECT_TRUE(
      Failed(Out(&first_, kRelease, 1, 0, 1), SenseKey::kIllegalRequest, Asc::kInvalidRelease));
  EXPECT_TRUE(BadCdb(Out(&first_, kReserve, 1, 0, 2))) << "no such type";
  EXPECT_TRUE(BadCdb(Out(&first_, kReserve, 1, 0, 0x13))) << "no such scope";
}

TEST_F(ScsiPersistent, PreemptionTakesOverAndTells) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  EXPECT_TRUE(Out(&second_, kRegister, 0, 2).good());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 3).good());
  EXPECT_TRUE(Conflict(Out(&second_, kPreempt, 2, 9, 3))) << "nobody has that key";
  EXPECT_TRUE(Out(&second_, kPreempt, 2, 1, 3).good());
  EXPECT_TRUE(
      Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kRegistrationsPreempted));
  EXPECT_TRUE(Conflict(Run(Cdb10(0x28, 0, 1))));
  EXPECT_TRUE(RunAs(&second_, Cdb10(0x28, 0, 1)).good());
  EXPECT_EQ(Get64(&In(1)[8]), 2u);
}

TEST_F(ScsiPersistent, ClearLeavesNothing) {
  EXPECT_TRUE(Out(&first_, kRegister, 0, 1).good());
  EXPECT_TRUE(Out(&second_, kRegister, 0, 2).good());
  EXPECT_TRUE(Out(&first_, kReserve, 1, 0, 3).good());
  EXPECT_TRUE(Out(&second_, kClear, 2, 0).good());
  EXPECT_TRUE(
      Failed(Run({0, 0, 0, 0, 0, 0}), SenseKey::kUnitAttention, Asc::kReservationsPreempted));
  EXPECT_EQ(In(0).size(), 8u);
  EXPECT_EQ(In(1).size(), 8u);
}

TEST_F(ScsiPersistent, CapabilitiesAreHonest) {
  EXPECT_EQ(In(2), (Bytes{0, 8, 0x01, 0x81, 0xea, 0x01, 0, 0}));
  Bytes list(24);
  Put64(&list[8], 1);
  list[20] = 0x08;  // SPEC_I_PT
  EXPECT_TRUE(Failed(Run({0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list), SenseKey::kIllegalRequest,
                     Asc::kInvalidFieldInParameters));
  list[20] = 0x01;  // APTPL
  EXPECT_TRUE(Run({0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list).good());
  const Bytes full = In(3);
  ASSERT_GT(full.size(), 8u + 24 + 4);
  EXPECT_EQ(full[8 + 24], 0x45) << "an iSCSI transport ID";
}

// --- EXTENDED COPY ------------------------------------------------------------------------------

TEST_F(ScsiDevice, ExtendedCopyCopiesWithinTheUnit) {
  const Bytes page = Vpd(0x83);
  Bytes list(16 + 32 + 28);
  list[0] = 1;
  Put16(&list[2], 32);
  Put32(&list[8], 28);
  list[16] = 0xe4;
  std::copy_n(&page[4], 4u + page[7], &list[20]);
  uint8_t* segment = &list[48];
  segment[0] = 0x02;
  Put16(segment + 2, 24);
  Put16(segment + 10, 100);
  Put64(segment + 12, 0);
  Put64(segment + 20, 50);
  Bytes cdb(16);
  cdb[0] = 0x83;
  Put32(&cdb[10], static_cast<uint32_t>(list.size()));
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 50), Fill(50, 'x')).good());
  EXPECT_TRUE(Run(Cdb10(0x2a, 50, 50), Fill(50, 'y')).good());
  EXPECT_TRUE(Run(cdb, list).good());
  EXPECT_EQ(disk_->Contents(50 * 512, 50 * 512), Fill(50, 'x')) << "also where it overlaps";
  EXPECT_EQ(disk_->Contents(100 * 512, 50 * 512), Fill(50, 'y'));
  Bytes status = {0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0};
  EXPECT_EQ(DataOf(Run(status))[4], 0x01);
  EXPECT_TRUE(BadCdb(Run(status))) << "asked for once";
  Put64(segment + 20, kBlocks - 1);
  EXPECT_TRUE(Failed(Run(cdb, list), SenseKey::kCopyAborted, Asc::kNone));
}

}  // namespace
}  // namespace hydra::iscsi
