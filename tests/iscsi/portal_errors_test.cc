// SPDX-License-Identifier: Apache-2.0
//
// What an initiator may get wrong on a socket after its login: digests, numbers, data that nobody
// asked for. Without error recovery (level 0) the answer is a failed command or the end of the
// connection; what the write meant to change never is.
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#include "tests/iscsi/portal_fixture.h"

namespace hydra::iscsi {
namespace {

constexpr size_t kBlocks4 = 4 * 512;

// --- Digests ------------------------------------------------------------------------------------

class PortalDigests : public PortalTest {
 protected:
  PortalDigests() : initiator_(portal_.port()) {
    const LoginAnswer login =
        initiator_.LogIn(kDiskName, {{"HeaderDigest", "CRC32C"}, {"DataDigest", "CRC32C"}});
    EXPECT_TRUE(login.moves_on());
    EXPECT_EQ(login.keys.at("HeaderDigest"), "CRC32C");
    EXPECT_EQ(login.keys.at("DataDigest"), "CRC32C");
    Fill(0, Of(16384, 'o'));
  }
  void ExpectUntouched() { EXPECT_EQ(Contents(0, 16384), Of(16384, 'o')); }

  RawInitiator initiator_;
};

TEST_F(PortalDigests, RightOnesGoThroughBothWays) {
  // Of a length that is padded, too.
  initiator_.Send(initiator_.Nop(3), std::vector<uint8_t>{1, 2, 3, 4, 5});
  const auto pong = initiator_.Receive();
  ASSERT_TRUE(pong.has_value());
  EXPECT_EQ(pong->data, (std::vector<uint8_t>{1, 2, 3, 4, 5}));
  initiator_.Send(initiator_.Write(kWriteTag, 0, 4), Of(kBlocks4, 'n'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kGoodStatus));
  EXPECT_EQ(initiator_.ReadBlocks(0, 4), Of(kBlocks4, 'n'));
}

// Which has a CRC32C of its own, for headers.
TEST_F(PortalDigests, LibiscsiFindsTheSame) {
  iscsi_context* context = iscsi_create_context("iqn.2026-11.io.example:library");
  iscsi_set_noautoreconnect(context, 1);
  iscsi_set_timeout(context, 20);
  iscsi_set_session_type(context, ISCSI_SESSION_NORMAL);
  iscsi_set_targetname(context, kDiskName);
  iscsi_set_header_digest(context, ISCSI_HEADER_DIGEST_CRC32C);
  const std::string portal = "127.0.0.1:" + std::to_string(portal_.port());
  EXPECT_EQ(iscsi_full_connect_sync(context, portal.c_str(), 0), 0) << iscsi_get_error(context);
  std::vector<uint8_t> data = Of(16384, 'l');
  for (int round = 0; round < 3; ++round) {
    scsi_task* task = iscsi_write10_sync(context, 0, 0, data.data(), 16384, 512, 0, 0, 0, 0, 0);
    EXPECT_TRUE(task != nullptr && task->status == SCSI_STATUS_GOOD) << iscsi_get_error(context);
    if (task != nullptr) scsi_free_scsi_task(task);
  }
  scsi_task* task = iscsi_read10_sync(context, 0, 0, 16384, 512, 0, 0, 0, 0, 0);
  EXPECT_TRUE(task != nullptr && task->status == SCSI_STATUS_GOOD) << iscsi_get_error(context);
  if (task != nullptr) {
    EXPECT_EQ(std::vector<uint8_t>(task->datain.data, task->datain.data + task->datain.size), data);
    scsi_free_scsi_task(task);
  }
  iscsi_destroy_context(context);
}

TEST_F(PortalDigests, AWrongHeaderDigestEndsTheConnection) {
  initiator_.Send(initiator_.Write(kWriteTag, 0, 4), Of(kBlocks4, 'x'), Damage::kHeaderDigest);
  EXPECT_TRUE(initiator_.WaitForEnd());
  ExpectUntouched();
  ExpectHealthy();
}

TEST_F(PortalDigests, AWrongHeaderDigestOfDataEndsTheConnection) {
  initiator_.Send(initiator_.Write(kWriteTag, 0, 8, false));
  initiator_.Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 0, true), Of(4096, 'x'),
                  Damage::kHeaderDigest);
  EXPECT_TRUE(initiator_.WaitForEnd());
  ExpectUntouched();
  ExpectHealthy();
}

TEST_F(PortalDigests, AWrongDigestOfImmediateDataFailsTheWrite) {
  initiator_.Send(initiator_.Write(kWriteTag, 0, 4), Of(kBlocks4, 'x'), Damage::kDataDigest);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kDataDigest));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kCheckStatus));
  ExpectUntouched();
  // The session goes on: the command's number was in the header, which was whole.
  initiator_.Send(initiator_.Write(kWriteTag, 0, 4), Of(kBlocks4, 'n'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kGoodStatus));
}

TEST_F(PortalDigests, AWrongDigestOfUnsolicitedDataFailsTheWrite) {
  initiator_.Send(initiator_.Write(kWriteTag, 0, 8, false), Of(1024, 'x'));
  initiator_.Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 1024, false), Of(1024, 'x'),
                  Damage::kDataDigest);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kDataDigest));
  EXPECT_TRUE(initiator_.IsQuiet()) << "answered before all of its data came";
  initiator_.Send(RawInitiator::DataOut(kWriteTag, kNoTag, 1, 2048, true), Of(2048, 'x'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kCheckStatus));
  ExpectUntouched();
  ExpectHealthy();
}

TEST_F(PortalDigests, AWrongDigestOfSolicitedDataFailsTheWrite) {
  initiator_.Send(initiator_.Write(kWriteTag, 0, 24));
  const uint32_t tag = Requested(&initiator_, 0, 8192);
  initiator_.Send(RawInitiator::DataOut(kWriteTag, tag, 0, 0, true), Of(8192, 'x'),
                  Damage::kDataDigest);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kDataDigest));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kCheckStatus)) << "the rest is not asked for";
  ExpectUntouched();
  ExpectHealthy();
}

TEST_F(PortalDigests, AnOrdinaryRequestWithAWrongDigestIsRejectedAndEndsTheConnection) {
  Header text(Opcode::kTextRequest);
  text.set_task_tag(9);
  text.set_transfer_tag(kNoTag);
  RawInitiator::SetCommandNumber(&text, initiator_.next_command());
  const std::string keys("SendTargets=\0", 13);
  initiator_.Send(text, {reinterpret_cast<const uint8_t*>(keys.data()), keys.size()},
                  Damage::kDataDigest);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kDataDigest));
  EXPECT_TRUE(initiator_.WaitForEnd()) << "its number is lost";
  ExpectHealthy();
}

// --- Numbers ------------------------------------------------------------------------------------

class PortalNumbers : public PortalTest {
 protected:
  PortalNumbers() : initiator_(portal_.port()) { Fill(0, Of(16384, 'o')); }
  void LogIn() { ASSERT_TRUE(initiator_.LogIn(kDiskName).moves_on()); }

  RawInitiator initiator_;
};

TEST_F(PortalNumbers, ADuplicateChangesNothing) {
  LogIn();
  const Header first = initiator_.Write(kWriteTag, 0, 4);
  initiator_.Send(first, Of(kBlocks4, 'n'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kGoodStatus));
  Header again = first;
  initiator_.Send(again, Of(kBlocks4, 'x'));
  again.set_task_tag(kWriteTag + 1);
  initiator_.Send(again, Of(kBlocks4, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  EXPECT_EQ(initiator_.ReadBlocks(0, 4), Of(kBlocks4, 'n'));
}

TEST_F(PortalNumbers, ADuplicateOfOneThatWaitsChangesNothing) {
  LogIn();
  const Header first = initiator_.Write(kWriteTag, 0, 4);
  const Header second = initiator_.Write(kWriteTag + 1, 0, 4);
  initiator_.Send(second, Of(kBlocks4, '2'));
  Header again = second;
  again.set_task_tag(kWriteTag + 2);
  initiator_.Send(again, Of(kBlocks4, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet()) << "before its turn";
  EXPECT_EQ(Contents(0, kBlocks4), Of(kBlocks4, 'o'));
  initiator_.Send(first, Of(kBlocks4, '1'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kGoodStatus));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag + 1, kGoodStatus));
  EXPECT_TRUE(initiator_.IsQuiet());
  EXPECT_EQ(initiator_.ReadBlocks(0, 4), Of(kBlocks4, '2'));
}

TEST_F(PortalNumbers, WhatWaitsBehindAGapIsGoneWithTheConnection) {
  LogIn();
  initiator_.Write(kWriteTag, 0, 4);  // never sent
  initiator_.Send(initiator_.Write(kWriteTag + 1, 0, 4), Of(kBlocks4, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  initiator_.Drop(false);
  ASSERT_TRUE(portal_.WaitForSessions(0));
  EXPECT_EQ(Contents(0, kBlocks4), Of(kBlocks4, 'o'));
  ExpectHealthy();
}

TEST_F(PortalNumbers, BeyondTheWindowNothingIsTaken) {
  LogIn();
  Header far = initiator_.Write(kWriteTag, 0, 4);
  RawInitiator::SetCommandNumber(&far, far.command_sn() + Session::kWindow);
  initiator_.Send(far, Of(kBlocks4, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  RawInitiator::SetCommandNumber(&far, far.command_sn() - Session::kWindow);
  initiator_.Send(far, Of(kBlocks4, 'n'));
  EXPECT_TRUE(Answers(&initiator_, kWriteTag, kGoodStatus));
  EXPECT_EQ(Contents(0, kBlocks4), Of(kBlocks4, 'n'));
}

TEST_F(PortalNumbers, GoAroundTheirEnd) {
  initiator_.StartAt(0xfffffffe);
  LogIn();
  for (uint32_t i = 0; i < 5; ++i) {
    initiator_.Send(initiator_.Write(i, i, 1), Of(512, static_cast<uint8_t>('a' + i)));
    EXPECT_TRUE(Answers(&initiator_, i, kGoodStatus)) << i;
  }
  EXPECT_EQ(initiator_.ReadBlocks(4, 1), Of(512, 'e'));
}

// --- Data ---------------------------------------------------------------------------------------

// A write of 8 KiB, for which the target asks in one piece; each row breaks something.
TEST_F(PortalNumbers, DataOutOfTurnFailsTheWriteAndNothingIsWritten) {
  struct Piece {
    uint32_t number, offset, length;
    bool final;
  };
  const std::vector<std::pair<const char*, std::vector<Piece>>> table = {
      {"a number twice", {{0, 0, 4096, false}, {0, 4096, 4096, true}}},
      {"a number left out", {{0, 0, 4096, false}, {2, 4096, 4096, true}}},
      {"numbers that begin late", {{1, 0, 4096, false}, {2, 4096, 4096, true}}},
      {"a hole", {{0, 0, 2048, false}, {1, 4096, 4096, true}}},
      {"the same place twice", {{0, 0, 4096, false}, {1, 0, 4096, true}}},
      {"an end before the beginning", {{0, 4096, 4096, false}, {1, 0, 4096, true}}},
      {"an offset beyond everything", {{0, 0xffffff00, 4096, false}, {1, 4096, 4096, true}}},
      {"an end too early", {{0, 0, 4096, true}}},
      {"no end, until later", {{0, 0, 8192, false}, {1, 8192, 0, true}}},
  };
  LogIn();
  uint32_t task = 1;
  for (const auto& [what, pieces] : table) {
    initiator_.Send(initiator_.Write(++task, 0, 16));
    const uint32_t tag = Requested(&initiator_, 0, 8192);
    for (const Piece& piece : pieces) {
      initiator_.Send(RawInitiator::DataOut(task, tag, piece.number, piece.offset, piece.final),
                      Of(piece.length, 'x'));
    }
    EXPECT_TRUE(Answers(&initiator_, task, kCheckStatus)) << what;
    EXPECT_EQ(Contents(0, 8192), Of(8192, 'o')) << what;
  }
  ExpectHealthy();
}

TEST_F(PortalNumbers, ATransferTagThatDoesNotExistIsRejectedAndTheWriteGoesOn) {
  LogIn();
  initiator_.Send(initiator_.Write(1, 0, 8));
  const uint32_t first = Requested(&initiator_, 0, 4096);
  initiator_.Send(initiator_.Write(2, 8, 8));
  const uint32_t second = Requested(&initiator_, 0, 4096);
  for (const uint32_t wrong : {second, first + 1000, 0u}) {
    initiator_.Send(RawInitiator::DataOut(1, wrong, 0, 0, true), Of(4096, 'x'));
    EXPECT_TRUE(Rejects(&initiator_, RejectReason::kInvalidField)) << wrong;
  }
  // Data for a task that there is not.
  initiator_.Send(RawInitiator::DataOut(3, first, 0, 0, true), Of(4096, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  EXPECT_EQ(Contents(0, 8192), Of(8192, 'o'));
  initiator_.Send(RawInitiator::DataOut(2, second, 0, 0, true), Of(4096, '2'));
  EXPECT_TRUE(Answers(&initiator_, 2, kGoodStatus));
  initiator_.Send(RawInitiator::DataOut(1, first, 0, 0, true), Of(4096, '1'));
  EXPECT_TRUE(Answers(&initiator_, 1, kGoodStatus));
  // A tag that was good is not any more.
  initiator_.Send(RawInitiator::DataOut(1, first, 1, 0, true), Of(4096, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  EXPECT_EQ(Contents(0, 4096), Of(4096, '1'));
  EXPECT_EQ(Contents(4096, 4096), Of(4096, '2'));
}

// Each on a connection of its own, which ends.
TEST_F(PortalNumbers, MoreThanWasAgreedOnEndsTheConnectionAndNothingIsWritten) {
  using Talk = std::function<void(RawInitiator*)>;
  const auto after_request = [](uint32_t length, bool final) -> Talk {
    return [=](RawInitiator* i) {
      i->Send(i->Write(kWriteTag, 0, 16));
      const uint32_t tag = Requested(i, 0, 8192);
      i->Send(RawInitiator::DataOut(kWriteTag, tag, 0, 0, final), Of(length, 'x'));
      i->Send(RawInitiator::DataOut(kWriteTag, tag, 1, length, true), Of(512, 'x'));
    };
  };
  const std::vector<std::pair<const char*, Talk>> table = {
      {"immediate data beyond the first burst",
       [](RawInitiator* i) { i->Send(i->Write(kWriteTag, 0, 16), Of(4608, 'x')); }},
      {"unsolicited data beyond the first burst",
       [](RawInitiator* i) {
         i->Send(i->Write(kWriteTag, 0, 16, false), Of(2048, 'x'));
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 2048, false), Of(2048, 'x'));
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 1, 4096, true), Of(512, 'x'));
       }},
      {"one piece of unsolicited data beyond it",
       [](RawInitiator* i) {
         i->Send(i->Write(kWriteTag, 0, 16, false), Of(2048, 'x'));
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 2048, true), Of(2560, 'x'));
       }},
      {"more than the command is about",
       [](RawInitiator* i) {
         i->Send(i->Write(kWriteTag, 0, 2, false));
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 0, true), Of(1536, 'x'));
       }},
      {"unsolicited data after its end",
       [](RawInitiator* i) {
         i->Send(i->Write(kWriteTag, 0, 16, false), Of(512, 'x'));
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 512, true), Of(512, 'x'));
         Requested(i, 1024, 7168);
         i->Send(RawInitiator::DataOut(kWriteTag, kNoTag, 1, 1024, true), Of(512, 'x'));
       }},
      {"more than was asked for", after_request(8192, false)},
      {"a piece more than was asked for", after_request(8704, true)},
      {"data with a read",
       [](RawInitiator* i) { i->Send(i->Read(kWriteTag, 0, 1), Of(512, 'x')); }},
      {"a segment beyond what the target takes",
       [](RawInitiator* i) { i->Send(i->Nop(1), Of((256 << 10) + 4, 'x')); }},
      {"a tag that is in use",
       [](RawInitiator* i) {
         i->Send(i->Write(kWriteTag, 0, 16));
         Requested(i, 0, 8192);
         i->Send(i->Write(kWriteTag, 0, 1), Of(512, 'x'));
       }},
  };
  for (const auto& [what, talk] : table) {
    RawInitiator initiator(portal_.port());
    ASSERT_TRUE(initiator.LogIn(kDiskName).moves_on()) << what;
    talk(&initiator);
    EXPECT_TRUE(initiator.WaitForEnd()) << what;
    EXPECT_EQ(Contents(0, 16384), Of(16384, 'o')) << what;
  }
  ExpectHealthy();
}

TEST_F(PortalNumbers, DataThatWasNotAgreedOnEndsTheConnection) {
  for (const bool immediate : {false, true}) {
    RawInitiator initiator(portal_.port());
    const LoginAnswer login =
        initiator.LogIn(kDiskName, {{"InitialR2T", "Yes"}, {"ImmediateData", "No"}});
    ASSERT_TRUE(login.moves_on());
    initiator.Send(initiator.Write(kWriteTag, 0, 1, immediate),
                   immediate ? Of(512, 'x') : Of(0, 'x'));
    EXPECT_TRUE(initiator.WaitForEnd());
  }
  EXPECT_EQ(Contents(0, 512), Of(512, 'o'));
  ExpectHealthy();
}

// --- What these tests found ---------------------------------------------------------------------

// A reset through another path ends a write of which a piece of data is just coming in: then its
// tag means nothing any more, and no more data may be asked for.
TEST_F(PortalNumbers, AWriteThatIsResetInTheMiddleOfAPieceIsAskedForNoMore) {
  LogIn();
  initiator_.Send(initiator_.Write(kWriteTag, 0, 32, false));
  Header header = RawInitiator::DataOut(kWriteTag, kNoTag, 0, 0, true);
  header.set_data_bytes(4096);
  initiator_.SendBytes(header.bytes);
  initiator_.SendBytes(Of(2048, 'x'));
  RawInitiator other(portal_.port(), "iqn.2026-11.io.example:other");
  ASSERT_TRUE(other.LogIn(kDiskName).moves_on());
  Header reset(Opcode::kTaskRequest, 0x85);
  reset.bytes[0] |= 0x40;
  reset.set_task_tag(1);
  other.Send(reset);
  const auto done = other.Receive();
  ASSERT_TRUE(done && done->opcode() == Opcode::kTaskResponse);
  EXPECT_EQ(done->header.bytes[2], 0);
  initiator_.SendBytes(Of(2048, 'x'));
  EXPECT_TRUE(initiator_.IsQuiet());
  EXPECT_EQ(Contents(0, 16384), Of(16384, 'o'));
}

// Text in pieces without end is refused, and what it piled up is forgotten.
TEST_F(PortalNumbers, EndlessTextEndsItsExchange) {
  LogIn();
  Header text(Opcode::kTextRequest, 0x40);
  text.bytes[0] |= 0x40;
  text.set_task_tag(9);
  text.set_transfer_tag(kNoTag);
  std::string piece = "X-a=";
  piece.resize(8192, 'x');
  const std::vector<uint8_t> bytes(piece.begin(), piece.end());
  for (int i = 0; i < 4; ++i) {
    initiator_.Send(text, bytes);
    const auto more = initiator_.Receive();
    ASSERT_TRUE(more && more->opcode() == Opcode::kTextResponse) << i;
    text.set_transfer_tag(more->header.transfer_tag());
  }
  initiator_.Send(text, bytes);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kOutOfResources));
  initiator_.Send(text, bytes);
  EXPECT_TRUE(Rejects(&initiator_, RejectReason::kInvalidField)) << "it is over";
}

// An answer that comes in pieces is not made longer by asking for it again and again.
TEST_F(PortalNumbers, WhoAsksInTheMiddleOfAnAnswerIsRefused) {
  portal_.Run([&] {
    for (int i = 0; i < 40; ++i) portal_.directory().Add("more" + std::to_string(i), 1 << 20);
  });
  RawInitiator initiator(portal_.port());
  ASSERT_TRUE(initiator.LogIn("", {{"MaxRecvDataSegmentLength", "512"}}).moves_on());
  Header text(Opcode::kTextRequest);
  text.bytes[0] |= 0x40;
  text.set_task_tag(9);
  text.set_transfer_tag(kNoTag);
  const std::string keys("SendTargets=All\0", 16);
  const std::vector<uint8_t> bytes(keys.begin(), keys.end());
  initiator.Send(text, bytes);
  const auto part = initiator.Receive();
  ASSERT_TRUE(part && part->opcode() == Opcode::kTextResponse);
  EXPECT_FALSE(part->header.final());
  text.set_transfer_tag(part->header.transfer_tag());
  initiator.Send(text, bytes);
  EXPECT_TRUE(Rejects(&initiator, RejectReason::kProtocolError));
  initiator.Send(text);
  EXPECT_TRUE(Rejects(&initiator, RejectReason::kInvalidField)) << "it is over";
}

// Short requests with long answers: whoever does not read those is not answered any further, and
// when it does, everything is there.
TEST_F(PortalNumbers, AnswersThatNobodyReadsDoNotPileUp) {
  constexpr size_t kPortals = 500;
  constexpr size_t kRequests = 2000;
  portal_.Run([&] {
    for (uint16_t i = 0; i < kPortals; ++i) {
      portal_.directory().portals.push_back({std::string(80, 'a') + ":3260", 100, true});
    }
  });
  RawInitiator initiator(portal_.port());
  ASSERT_TRUE(initiator.LogIn("", {{"MaxRecvDataSegmentLength", "262144"}}).moves_on());
  Header text(Opcode::kTextRequest);
  text.bytes[0] |= 0x40;
  text.set_transfer_tag(kNoTag);
  const std::string keys("SendTargets=All\0", 16);
  const std::vector<uint8_t> bytes(keys.begin(), keys.end());
  for (uint32_t i = 0; i < kRequests; ++i) {
    text.set_task_tag(i);
    ASSERT_TRUE(initiator.Send(text, bytes));
  }
  size_t before = 0;
  size_t listed = 0;
  do {
    before = listed;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    portal_.Run([&] { listed = portal_.directory().listed; });
  } while (listed != before);
  // What the kernel takes is a few MiB; 1 MiB waits.
  EXPECT_LT(listed * kPortals * 100, 32u << 20);
  for (uint32_t i = 0; i < kRequests; ++i) {
    const auto answer = initiator.Receive();
    ASSERT_TRUE(answer && answer->opcode() == Opcode::kTextResponse) << i;
    ASSERT_EQ(answer->header.task_tag(), i);
    ASSERT_GT(answer->data.size(), kPortals * 100);
  }
}

}  // namespace
}  // namespace hydra::iscsi
