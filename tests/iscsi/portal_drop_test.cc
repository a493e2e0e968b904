// SPDX-License-Identifier: Apache-2.0
//
// Connections that end in the middle of something, initiators that come back, and several paths to
// one disk.
#include <chrono>
#include <string>
#include <vector>

#include "tests/iscsi/portal_fixture.h"

namespace hydra::iscsi {
namespace {

// --- A connection that ends within a write ------------------------------------------------------

// A piece of a write as it goes over the wire, in order.
struct Piece {
  enum Kind { kCommand, kUnsolicited, kSolicited } kind;
  uint32_t offset;
  uint32_t length;
  bool final;
};

struct WriteShape {
  const char* name;
  uint16_t blocks;
  bool unsolicited;  // and immediate data
  std::vector<Piece> pieces;
};

// First burst 4 KiB, bursts of 8 KiB, one R2T at a time.
const WriteShape kShapes[] = {
    {"Immediate", 8, true, {{Piece::kCommand, 0, 4096, true}}},
    {"Unsolicited",
     8,
     true,
     {{Piece::kCommand, 0, 0, false},
      {Piece::kUnsolicited, 0, 1024, false},
      {Piece::kUnsolicited, 1024, 1024, false},
      {Piece::kUnsolicited, 2048, 2048, true}}},
    {"Solicited",
     32,
     false,
     {{Piece::kCommand, 0, 0, true},
      {Piece::kSolicited, 0, 4096, false},
      {Piece::kSolicited, 4096, 4096, true},
      {Piece::kSolicited, 8192, 8192, true}}},
    {"All",
     32,
     true,
     {{Piece::kCommand, 0, 1024, false},
      {Piece::kUnsolicited, 1024, 1024, false},
      {Piece::kUnsolicited, 2048, 2048, true},
      {Piece::kSolicited, 4096, 2048, false},
      {Piece::kSolicited, 6144, 6144, true},
      {Piece::kSolicited, 12288, 4096, true}}},
};

class PortalDrop : public PortalTest, public testing::WithParamInterface<WriteShape> {
 protected:
  static constexpr size_t kBytes = 16384;

  std::unique_ptr<RawInitiator> LoggedIn() {
    auto initiator = std::make_unique<RawInitiator>(portal_.port());
    const bool unsolicited = GetParam().unsolicited;
    const LoginAnswer login =
        initiator->LogIn(kDiskName, {{"InitialR2T", unsolicited ? "No" : "Yes"},
                                     {"ImmediateData", unsolicited ? "Yes" : "No"}});
    EXPECT_TRUE(login.moves_on());
    return initiator;
  }

  // Sends so many pieces of the write, and of the next one so much as `part` says, in bytes from
  // its header on.
  void SendPart(RawInitiator* initiator, size_t pieces, size_t part) {
    const WriteShape& shape = GetParam();
    uint32_t tag = kNoTag;
    uint32_t number = 0;
    for (size_t i = 0; i < pieces + (part > 0 ? 1 : 0); ++i) {
      const Piece& piece = shape.pieces[i];
      const Piece::Kind before = i == 0 ? Piece::kCommand : shape.pieces[i - 1].kind;
      const bool begins = i > 0 && (before != piece.kind || shape.pieces[i - 1].final);
      if (begins) number = 0;
      if (piece.kind == Piece::kSolicited && begins) {
        const uint32_t rest = shape.blocks * 512u - piece.offset;
        tag = Requested(initiator, piece.offset, std::min(rest, 8192u));
      }
      Header header =
          piece.kind == Piece::kCommand
              ? initiator->Write(kWriteTag, 0, shape.blocks, piece.final)
              : RawInitiator::DataOut(kWriteTag, tag, number++, piece.offset, piece.final);
      if (i < pieces) {
        initiator->Send(header, Of(piece.length, 'n'));
        continue;
      }
      header.set_data_bytes(piece.length);
      std::vector<uint8_t> bytes(header.bytes.begin(), header.bytes.end());
      bytes.resize(bytes.size() + piece.length, 'n');
      initiator->SendBytes(std::span(bytes).first(std::min(part, bytes.size() - 1)));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, PortalDrop, testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

TEST_P(PortalDrop, AWriteThatWasNotSentInFullNeverHappens) {
  const std::vector<uint8_t> old = Of(kBytes, 'o');
  for (size_t pieces = 0; pieces < GetParam().pieces.size(); ++pieces) {
    for (const size_t part :
         {size_t{0}, size_t{1}, kHeaderBytes - 1, kHeaderBytes, kHeaderBytes + 512}) {
      for (const bool reset : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << pieces << " pieces and " << part << " bytes of the next");
        Fill(0, old);
        auto initiator = LoggedIn();
        SendPart(initiator.get(), pieces, part);
        initiator->Drop(reset);
        ASSERT_TRUE(portal_.WaitForSessions(0));
        ASSERT_EQ(Contents(0, kBytes), old);
      }
    }
  }
  ExpectHealthy();
}

TEST_P(PortalDrop, AWriteThatWasSentInFullHappensInFullOrNotAtAll) {
  const size_t length = GetParam().blocks * 512u;
  for (const bool reset : {false, true}) {
    Fill(0, Of(kBytes, 'o'));
    auto initiator = LoggedIn();
    SendPart(initiator.get(), GetParam().pieces.size(), 0);
    initiator->Drop(reset);  // without waiting for the answer
    ASSERT_TRUE(portal_.WaitForSessions(0));
    const std::vector<uint8_t> now = Contents(0, length);
    EXPECT_TRUE(now == Of(length, 'n') || now == Of(length, 'o'));
  }
  ExpectHealthy();
}

TEST_P(PortalDrop, AWriteThatWasAnsweredIsThere) {
  const size_t length = GetParam().blocks * 512u;
  for (const bool reset : {false, true}) {
    Fill(0, Of(kBytes, 'o'));
    auto initiator = LoggedIn();
    SendPart(initiator.get(), GetParam().pieces.size(), 0);
    ASSERT_TRUE(Answers(initiator.get(), kWriteTag, kGoodStatus));
    initiator->Drop(reset);
    ASSERT_TRUE(portal_.WaitForSessions(0));
    EXPECT_EQ(Contents(0, length), Of(length, 'n'));
    EXPECT_EQ(Contents(length, kBytes - length), Of(kBytes - length, 'o'));
  }
}

// --- Reinstatement ------------------------------------------------------------------------------

class PortalReinstatement : public PortalTest {
 protected:
  void SendLogin(RawInitiator* initiator) {
    std::string text;
    for (const auto& [key, value] : initiator->Greeting(kDiskName)) AppendText(key, value, &text);
    initiator->SendLogin({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, 0x87);
  }
  // A session with a write of 'x' to the first block that the disk is busy with.
  void BeginWrite(RawInitiator* initiator) {
    ASSERT_TRUE(initiator->LogIn(kDiskName).moves_on());
    portal_.Run([&] { disk_->Hold(); });
    initiator->Send(initiator->Write(kWriteTag, 0, 1), Of(512, 'x'));
    ASSERT_TRUE(portal_.WaitUntil([&] { return disk_->held() == 1; }));
  }
  void Release() {
    portal_.Run([&] { disk_->Release(); });
  }
};

// What became of the unit, or of a RESERVE, meanwhile it would not hear otherwise.
TEST_F(PortalReinstatement, WhoLogsInAnewHearsThatItIsNew) {
  for (int round = 0; round < 2; ++round) {
    RawInitiator initiator(portal_.port());
    SendLogin(&initiator);
    ASSERT_TRUE(initiator.ReceiveLogin().moves_on());
    initiator.Send(initiator.Write(kWriteTag, 0, 1), Of(512, 'x'));
    const auto refused = initiator.Receive();
    ASSERT_TRUE(refused && refused->opcode() == Opcode::kScsiResponse);
    EXPECT_EQ(refused->status(), kCheckStatus);
    ASSERT_EQ(refused->data.size(), 20u);
    EXPECT_EQ(refused->data[4], 0x06) << "UNIT ATTENTION";
    EXPECT_EQ(Get16(&refused->data[14]), 0x2900);
    initiator.Send(initiator.Write(kWriteTag, 0, 1), Of(512, 'n'));
    EXPECT_TRUE(Answers(&initiator, kWriteTag, kGoodStatus));
  }
}

TEST_F(PortalReinstatement, TheOldSessionsCommandsEndBeforeTheLoginIsAnswered) {
  RawInitiator old(portal_.port());
  BeginWrite(&old);
  RawInitiator anew(portal_.port());
  SendLogin(&anew);
  EXPECT_TRUE(old.WaitForEnd()) << "the old connection is closed at once";
  EXPECT_FALSE(anew.HasInput(std::chrono::milliseconds(100))) << "answered too early";
  Release();
  ASSERT_TRUE(anew.ReceiveLogin().moves_on());
  anew.TakeAttentions();
  // So nothing of the old session can come after this.
  anew.Send(anew.Write(kWriteTag, 0, 1), Of(512, 'n'));
  EXPECT_TRUE(Answers(&anew, kWriteTag, kGoodStatus));
  EXPECT_EQ(anew.ReadBlocks(0, 1), Of(512, 'n'));
  EXPECT_EQ(portal_.Sessions(), 1u);
}

TEST_F(PortalReinstatement, AnUnfinishedWriteOfTheOldSessionNeverHappens) {
  RawInitiator old(portal_.port());
  ASSERT_TRUE(old.LogIn(kDiskName).moves_on());
  old.Send(old.Write(kWriteTag, 0, 16, false), Of(512, 'x'));
  old.Send(RawInitiator::DataOut(kWriteTag, kNoTag, 0, 512, true), Of(3584, 'x'));
  const uint32_t tag = Requested(&old, 4096, 4096);
  RawInitiator anew(portal_.port());
  ASSERT_TRUE(anew.LogIn(kDiskName).moves_on());
  old.Send(RawInitiator::DataOut(kWriteTag, tag, 0, 4096, true), Of(4096, 'x'));
  EXPECT_TRUE(old.WaitForEnd());
  EXPECT_EQ(anew.ReadBlocks(0, 16), Of(8192, 0));
}

TEST_F(PortalReinstatement, OtherPortsOfTheSameMachineAreLeftAlone) {
  RawInitiator first(portal_.port(), "iqn.2026-11.io.example:raw", 1);
  RawInitiator second(portal_.port(), "iqn.2026-11.io.example:raw", 2);
  RawInitiator other(portal_.port(), "iqn.2026-11.io.example:other", 1);
  for (RawInitiator* initiator : {&first, &second, &other}) {
    ASSERT_TRUE(initiator->LogIn(kDiskName).moves_on());
  }
  for (RawInitiator* initiator : {&first, &second, &other}) {
    EXPECT_TRUE(initiator->ReadBlocks(0, 1).has_value());
  }
  EXPECT_EQ(portal_.Sessions(), 3u);
}

// Both wait for the session before them. Only one session of a port may come of it, and it is the
// one of the login that came last: the initiator has given up the other.
TEST_F(PortalReinstatement, OfTwoLoginsThatWaitTheLastOneStays) {
  for (int round = 0; round < 10; ++round) {
    RawInitiator old(portal_.port());
    BeginWrite(&old);
    RawInitiator given_up(portal_.port());
    SendLogin(&given_up);
    EXPECT_TRUE(old.WaitForEnd());
    RawInitiator last(portal_.port());
    SendLogin(&last);
    // Whatever was sent before this is answered has been read.
    RawInitiator other(portal_.port(), "iqn.2026-11.io.example:other");
    ASSERT_TRUE(other.LogIn(kDiskName).moves_on());
    Release();
    ASSERT_TRUE(last.ReceiveLogin().moves_on());
    ASSERT_TRUE(given_up.WaitForEnd());
    EXPECT_TRUE(last.ReadBlocks(0, 1).has_value());
    EXPECT_EQ(portal_.Sessions(), 2u) << "this and the other";
  }
}

// --- Login on a socket --------------------------------------------------------------------------

class PortalLogin : public PortalTest {};

// The target was looked up by the text of the first PDU: a name that was cut opened another target
// than the one the login was checked for, or none.
TEST_F(PortalLogin, ATargetNameThatComesInPiecesIsThatTarget) {
  portal_.Run([&] { portal_.directory().Add("disk2", 1 << 20); });
  Fill(0, Of(512, '1'));
  std::string text;
  RawInitiator initiator(portal_.port());
  for (const auto& [key, value] : initiator.Greeting(std::string(kDiskName) + "2")) {
    AppendText(key, value, &text);
  }
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  for (const size_t cut : {bytes.size() - 2, bytes.size() - 10, size_t{5}}) {
    RawInitiator pieces(portal_.port());
    pieces.SendLogin(std::span(bytes).first(cut), 0x44);
    const LoginAnswer more = pieces.ReceiveLogin();
    ASSERT_TRUE(more.answered && more.status == LoginStatus::kSuccess) << cut;
    pieces.SendLogin(std::span(bytes).subspan(cut), 0x87);
    ASSERT_TRUE(pieces.ReceiveLogin().moves_on()) << cut;
    EXPECT_EQ(pieces.ReadBlocks(0, 1), Of(512, 0)) << "not what is on disk, but on disk2";
  }
}

TEST_F(PortalLogin, AnythingButALoginBeforeTheLoginEndsTheConnection) {
  for (const Opcode opcode : {Opcode::kScsiCommand, Opcode::kNopOut, Opcode::kTextRequest,
                              Opcode::kTaskRequest, Opcode::kDataOut}) {
    RawInitiator initiator(portal_.port());
    initiator.Send(Header(opcode), Of(16, 'x'));
    EXPECT_TRUE(initiator.WaitForEnd());
  }
  ExpectHealthy();
}

// --- Two paths ----------------------------------------------------------------------------------

class PortalPaths : public PortalTest {
 protected:
  PortalPaths() : PortalTest(2) {}
};

TEST_F(PortalPaths, BothLeadToTheSameDisk) {
  RawInitiator first(portal_.port(0), "iqn.2026-11.io.example:raw", 1);
  RawInitiator second(portal_.port(1), "iqn.2026-11.io.example:raw", 2);
  EXPECT_EQ(first.LogIn(kDiskName).keys.at("TargetPortalGroupTag"), "1");
  EXPECT_EQ(second.LogIn(kDiskName).keys.at("TargetPortalGroupTag"), "2");
  first.Send(first.Write(kWriteTag, 0, 1), Of(512, 'a'));
  EXPECT_TRUE(Answers(&first, kWriteTag, kGoodStatus));
  EXPECT_EQ(second.ReadBlocks(0, 1), Of(512, 'a'));
  second.Send(second.Write(kWriteTag, 0, 1), Of(512, 'b'));
  EXPECT_TRUE(Answers(&second, kWriteTag, kGoodStatus));
  EXPECT_EQ(first.ReadBlocks(0, 1), Of(512, 'b'));
}

TEST_F(PortalPaths, AWriteIsRetriedOnTheOtherWhenItsOwnDies) {
  RawInitiator second(portal_.port(1), "iqn.2026-11.io.example:raw", 2);
  ASSERT_TRUE(second.LogIn(kDiskName).moves_on());
  for (uint8_t round = 1; round < 20; ++round) {
    RawInitiator first(portal_.port(0), "iqn.2026-11.io.example:raw", 1);
    ASSERT_TRUE(first.LogIn(kDiskName).moves_on());
    first.Send(first.Write(kWriteTag, 0, 16, false), Of(512, 0xee));
    first.Drop(round % 2 == 0);
    second.Send(second.Write(kWriteTag, 0, 8), Of(4096, round));
    ASSERT_TRUE(Answers(&second, kWriteTag, kGoodStatus));
    ASSERT_TRUE(portal_.WaitForSessions(1));
    EXPECT_EQ(second.ReadBlocks(0, 8), Of(4096, round));
  }
}

TEST_F(PortalPaths, AReserveHoldsUntilItsPathIsGone) {
  RawInitiator first(portal_.port(0), "iqn.2026-11.io.example:raw", 1);
  RawInitiator second(portal_.port(1), "iqn.2026-11.io.example:raw", 2);
  ASSERT_TRUE(first.LogIn(kDiskName).moves_on());
  ASSERT_TRUE(second.LogIn(kDiskName).moves_on());
  first.Send(first.Command(1, {0x16, 0, 0, 0, 0, 0}, 0x81, 0));  // RESERVE(6)
  EXPECT_TRUE(Answers(&first, 1, kGoodStatus));
  second.Send(second.Write(kWriteTag, 0, 1), Of(512, 'x'));
  EXPECT_TRUE(Answers(&second, kWriteTag, kConflictStatus));
  first.Drop(true);
  ASSERT_TRUE(portal_.WaitForSessions(1));
  second.Send(second.Write(kWriteTag, 0, 1), Of(512, 'n'));
  EXPECT_TRUE(Answers(&second, kWriteTag, kGoodStatus));
  EXPECT_EQ(Contents(0, 512), Of(512, 'n'));
}

}  // namespace
}  // namespace hydra::iscsi
