// SPDX-License-Identifier: Apache-2.0
//
// Messages as bytes: what goes in comes out, and nothing else is let in.
#include "paxos/wire.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/rng.h"
#include "paxos/write_wire.h"
#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

Body Text(const char* text) { return std::make_shared<const std::string>(text); }

EntryMeta Command(uint64_t digest) { return {EntryKind::kCommand, 4096, digest, nullptr}; }

EntryMeta ConfigAt(Instance instance) {
  return {EntryKind::kConfig, 10, 77,
          std::make_shared<Config>(instance, std::vector<Member>{{{1, 1}, Role::kVoter},
                                                                 {{2, 3}, Role::kVoter},
                                                                 {{9, 1}, Role::kLearner}})};
}

// One of each, with every field set.
std::vector<Message> Samples() {
  const Ballot ballot{1ull << 40, 3};
  const Ballot other{7, 2};
  const auto entries = std::make_shared<const std::vector<AcceptEntry>>(std::vector<AcceptEntry>{
      {8, Command(~0ull), Text("a")}, {9, {}, nullptr}, {10, ConfigAt(10), Text("c")}});
  std::vector<MessageBody> bodies = {
      PreVote{ballot, 5},
      PreVoteReply{ballot, true, other},
      Prepare{ballot, 6, 5, other},
      Promise{ballot, 7, {{8, other, Command(4), true}, {12, ballot, ConfigAt(12), false}}},
      Reject{ballot, other, Refusal::kNotMember, 5},
      Accept{ballot, 7, entries},
      Accept{ballot, 7, std::make_shared<const std::vector<AcceptEntry>>()},
      Accepted{ballot, {{8, 9}, {20, 20}}, 3},
      Accepted{ballot, {{8, 9}}, 3, Lacks::kPayload},
      Beat{ballot, 7, 11},
      BeatReply{ballot, 11, 6},
      BeatReply{ballot, 11, 6, Lacks::kBlocks},
      CatchUp{4, {{true, 99}, {}}},
      CatchUpReply{
          4,
          9,
          2,
          {{4, other, Command(1), true, nullptr}, {5, other, Command(2), false, Text("b")}}},
      FetchBody{8, ballot, 4},
      FetchedBody{8, ballot, 4, true, Text("d")},
      FetchedBody{8, ballot, 4, false, nullptr},
      ReadIndex{~0ull},
      ReadIndexReply{6, true, 9},
      TakeOver{ballot},
      InstallRequest{5, 6, std::string("cur\0sor", 7)},
      InstallRequest{5, 6, std::string("cur\0sor", 7), true},
      InstallChunk{5, "cursor", "next", 9, true, Text("image")},
  };
  std::vector<Message> messages;
  for (MessageBody& body : bodies) messages.push_back({7, {1, 2}, {3, 4}, 1ull << 63, body});
  return messages;
}

// All fields of the message, so that two of equal text are equal.
std::string Dump(const Message& message) {
  std::string bytes;
  std::vector<Body> bodies;
  EncodeMessage(message, &bytes, &bodies);
  for (const Body& body : bodies) bytes += "|" + *std::static_pointer_cast<const std::string>(body);
  return Describe(message) + bytes;
}

TEST(Wire, EveryMessageComesOutAsItWentIn) {
  std::set<size_t> kinds;
  for (const Message& message : Samples()) {
    kinds.insert(message.body.index());
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage(message, &bytes, &bodies);
    const Result<Message> decoded = DecodeMessage(bytes, bodies);
    ASSERT_OK(decoded.status()) << Describe(message);
    EXPECT_EQ(Dump(*decoded), Dump(message));
    EXPECT_EQ(decoded->boot, message.boot);
    EXPECT_EQ(decoded->from, message.from);
    EXPECT_EQ(decoded->to, message.to);
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<MessageBody>);
}

TEST(Wire, FieldsThatTheTextDoesNotShowComeOutToo) {
  for (const Message& message : Samples()) {
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage(message, &bytes, &bodies);
    const Message decoded = *DecodeMessage(bytes, bodies);
    if (const auto* promise = std::get_if<Promise>(&decoded.body)) {
      EXPECT_EQ(promise->entries[0].meta.digest, 4u);
      EXPECT_EQ(promise->entries[0].meta.bytes, 4096u);
      ASSERT_NE(promise->entries[1].meta.config, nullptr);
      EXPECT_EQ(*promise->entries[1].meta.config, *ConfigAt(12).config);
    }
    if (const auto* prepare = std::get_if<Prepare>(&decoded.body)) {
      EXPECT_EQ(prepare->config, 5u);
    }
    if (const auto* request = std::get_if<InstallRequest>(&decoded.body)) {
      EXPECT_EQ(request->cursor.size(), 7u);
    }
  }
}

TEST(Wire, AMissingOrSuperfluousBodyIsRefused) {
  for (const Message& message : Samples()) {
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage(message, &bytes, &bodies);
    bodies.push_back(Text("more"));
    EXPECT_CODE(DecodeMessage(bytes, bodies).status(), Code::kCorruption);
    bodies.pop_back();
    if (bodies.empty()) continue;
    bodies.back() = nullptr;
    EXPECT_CODE(DecodeMessage(bytes, bodies).status(), Code::kCorruption);
    bodies.pop_back();
    EXPECT_CODE(DecodeMessage(bytes, bodies).status(), Code::kCorruption);
  }
}

TEST(Wire, AnyFlippedByteIsRefusedOrUnderstood) {
  Rng rng(1);
  for (const Message& message : Samples()) {
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage(message, &bytes, &bodies);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int i = 0; i < 8; ++i) {
        std::string broken = bytes;
        broken[at] = static_cast<char>(broken[at] ^ rng.Between(1, 255));
        const Result<Message> decoded = DecodeMessage(broken, bodies);
        EXPECT_TRUE(!decoded.ok() || !Describe(*decoded).empty());
      }
      static_cast<void>(DecodeMessage(std::string_view(bytes).substr(0, at), bodies).ok());
    }
  }
}

// --- The messages of a write, which protobuf does not see ---------------------------------------

uint64_t AnyNumber(Rng* rng) { return rng->Percent(20) ? 0 : rng->Next() >> rng->Below(64); }

Message AnyWriteMessage(Rng* rng) {
  Message message;
  message.group = static_cast<GroupId>(AnyNumber(rng));
  message.from = {static_cast<NodeId>(1 + rng->Below(5)), static_cast<uint32_t>(AnyNumber(rng))};
  message.to = {static_cast<NodeId>(1 + rng->Below(5)), static_cast<uint32_t>(AnyNumber(rng))};
  message.boot = AnyNumber(rng);
  const Ballot ballot{AnyNumber(rng), static_cast<NodeId>(AnyNumber(rng))};
  Instance next = 0;
  const auto advance = [&] { return next += 1 + rng->Below(rng->Percent(90) ? 2 : 1 << 20); };
  if (rng->Percent(50)) {
    Accepted accepted{ballot, {}, AnyNumber(rng), static_cast<Lacks>(rng->Below(3))};
    for (uint64_t i = rng->Below(4); i > 0; --i) {
      const Instance from = advance();
      accepted.ranges.push_back({from, advance()});
    }
    message.body = std::move(accepted);
    return message;
  }
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  for (uint64_t i = rng->Below(4); i > 0; --i) {
    const Instance instance = advance();
    EntryMeta meta{EntryKind::kCommand, static_cast<uint32_t>(AnyNumber(rng)), AnyNumber(rng),
                   nullptr};
    Body body = Text("body");
    if (rng->Percent(10)) {
      meta = ConfigAt(instance);
    } else if (rng->Percent(10)) {
      meta = rng->Percent(50) ? FenceEntry(ballot, AnyNumber(rng)) : EntryMeta{};
      body = nullptr;
    }
    entries->push_back({instance, meta, body});
  }
  message.body = Accept{ballot, AnyNumber(rng), std::move(entries)};
  return message;
}

TEST(Wire, MessagesOfAWriteAreTheBytesThatProtobufMakesOfThem) {
  Rng rng(2);
  for (int i = 0; i < 20'000; ++i) {
    const Message message = AnyWriteMessage(&rng);
    std::string bytes;
    std::string by_protobuf;
    std::vector<Body> bodies;
    std::vector<Body> bodies_by_protobuf;
    EncodeMessage(message, &bytes, &bodies);
    EncodeByProtobuf(message, &by_protobuf, &bodies_by_protobuf);
    ASSERT_EQ(bytes, by_protobuf) << Describe(message);
    ASSERT_EQ(bodies, bodies_by_protobuf);
    const Result<Message> decoded = DecodeMessage(bytes, bodies);
    ASSERT_OK(decoded.status());
    ASSERT_EQ(Dump(*decoded), Dump(message));
  }
}

TEST(Wire, WhatIsReadWithoutProtobufMeansTheSameToIt) {
  Rng rng(3);
  int understood = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage(AnyWriteMessage(&rng), &bytes, &bodies);
    for (uint64_t flips = rng.Below(3); flips > 0; --flips) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
    }
    if (rng.Percent(10)) bytes.resize(rng.Below(bytes.size()));
    if (rng.Percent(10)) bodies.push_back(Text("more"));
    if (rng.Percent(10) && !bodies.empty()) bodies.back() = nullptr;
    const std::optional<Message> read = DecodeWriteMessage(bytes, bodies);
    if (!read) continue;
    ++understood;
    const Result<Message> by_protobuf = DecodeByProtobuf(bytes, bodies);
    ASSERT_OK(by_protobuf.status());
    ASSERT_EQ(Dump(*read), Dump(*by_protobuf));
  }
  EXPECT_GT(understood, 5'000);
}

// With so many ranges, however many bytes that takes.
std::string AcceptedOf(size_t ranges) {
  std::string body("\x0a\0", 2);  // the ballot
  for (size_t i = 0; i < ranges; ++i) body += "\x7a\x04\x08\x01\x10\x01";
  std::string bytes = "\x12\x02\x08\x01\x1a\x02\x08\x02\xb2\x01";  // 1 to 2, and what it is
  PutLengthPrefixed(&bytes, body);
  return bytes;
}

// Limits hold for what is read without protobuf as well.
TEST(Wire, AnAcceptedIsTakenUpToTheLimitOfItsRanges) {
  for (const size_t ranges : {size_t{2}, kMaxWireElements}) {
    Accepted accepted;
    accepted.ranges.assign(ranges, {1, 1});
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage({0, {1, 0}, {2, 0}, 0, accepted}, &bytes, &bodies);
    EXPECT_TRUE(bytes == AcceptedOf(ranges)) << ranges;
    EXPECT_TRUE(DecodeWriteMessage(bytes, {}).has_value()) << ranges;
    const Result<Message> decoded = DecodeMessage(bytes, {});
    ASSERT_OK(decoded.status());
    EXPECT_EQ(std::get<Accepted>(decoded->body).ranges, accepted.ranges);
    EXPECT_OK(DecodeByProtobuf(bytes, {}).status());
  }
  const std::string more = AcceptedOf(kMaxWireElements + 1);
  EXPECT_FALSE(DecodeWriteMessage(more, {}).has_value());
  EXPECT_CODE(DecodeMessage(more, {}).status(), Code::kCorruption);
  // Of too many bytes: that is seen before anything is counted.
  size_t ranges = kMaxWireBytes / 6;
  while (AcceptedOf(ranges).size() > kMaxWireBytes) --ranges;
  Status status = DecodeMessage(AcceptedOf(ranges), {}).status();
  EXPECT_CODE(status, Code::kCorruption);
  EXPECT_EQ(status.message(), "a message with a list of " + std::to_string(ranges));
  const std::string large = AcceptedOf(ranges + 1);
  status = DecodeMessage(large, {}).status();
  EXPECT_CODE(status, Code::kCorruption);
  EXPECT_EQ(status.message(), "a message of " + std::to_string(large.size()) + " bytes");
}

TEST(Wire, AnAcceptIsTakenUpToTheLimitOfItsEntries) {
  for (const size_t count : {kMaxWireElements, kMaxWireElements + 1}) {
    auto entries = std::make_shared<std::vector<AcceptEntry>>();
    for (size_t i = 1; i <= count; ++i) entries->push_back({i, Command(1), Text("a")});
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage({7, {1, 1}, {2, 1}, 5, Accept{{1, 1}, 0, entries}}, &bytes, &bodies);
    const bool taken = count <= kMaxWireElements;
    EXPECT_EQ(DecodeWriteMessage(bytes, bodies).has_value(), taken);
    EXPECT_EQ(DecodeMessage(bytes, bodies).ok(), taken);
    EXPECT_EQ(DecodeByProtobuf(bytes, bodies).ok(), taken);
  }
}

TEST(Wire, ListsOutOfOrderAndImpossibleEntriesAreRefused) {
  const auto refused = [](MessageBody body) {
    std::string bytes;
    std::vector<Body> bodies;
    EncodeMessage({7, {1, 1}, {2, 1}, 5, std::move(body)}, &bytes, &bodies);
    EXPECT_CODE(DecodeMessage(bytes, bodies).status(), Code::kCorruption);
  };
  const Ballot ballot{1, 1};
  refused(Promise{ballot, 0, {{5, ballot, {}, false}, {5, ballot, {}, false}}});
  refused(Promise{ballot, 0, {{0, ballot, {}, false}}});
  refused(Promise{ballot, 0, {{5, ballot, {EntryKind::kConfig, 0, 1, nullptr}, false}}});
  refused(Promise{ballot, 0, {{5, ballot, ConfigAt(6), false}}});
  refused(Promise{ballot, 0, {{5, ballot, {static_cast<EntryKind>(3), 0, 1, nullptr}, false}}});
  refused(Accepted{ballot, {{6, 5}}, 0});
  refused(Accepted{ballot, {{5, 6}}, 0, static_cast<Lacks>(3)});
  refused(BeatReply{ballot, 0, 0, static_cast<Lacks>(3)});
  refused(Reject{ballot, ballot, static_cast<Refusal>(0), 0});
  refused(Accept{ballot, 0,
                 std::make_shared<const std::vector<AcceptEntry>>(
                     std::vector<AcceptEntry>{{5, Command(1), nullptr}})});
  refused(InstallRequest{1, 1, std::string(kMaxWireCursor + 1, 'x')});
}

TEST(Wire, TooMuchIsRefusedBeforeItIsParsed) {
  EXPECT_CODE(DecodeMessage(std::string(kMaxWireBytes + 1, '\0'), {}).status(), Code::kCorruption);
  // A promise (19) with a list (15) of empty entries.
  std::string list;
  for (size_t i = 0; i <= kMaxWireElements; ++i) list += std::string("\x7a\0", 2);
  std::string bytes = "\x9a\x01";
  for (size_t size = list.size();; size >>= 7) {
    bytes += static_cast<char>((size & 0x7f) | (size > 0x7f ? 0x80 : 0));
    if (size <= 0x7f) break;
  }
  const Status status = DecodeMessage(bytes + list, {}).status();
  EXPECT_CODE(status, Code::kCorruption);
  EXPECT_EQ(status.message(), "a message with a list of 32769");
  EXPECT_CODE(DecodeHeartbeat(list).status(), Code::kCorruption);
}

TEST(Wire, AHeartbeatComesOutAsItWentIn) {
  Heartbeat heartbeat;
  heartbeat.from = 1;
  heartbeat.to = 2;
  heartbeat.boot = ~0ull;
  heartbeat.sequence = 5;
  heartbeat.is_reply = true;
  heartbeat.lease = 300 * kMillisecond;
  heartbeat.notices = {{3, 7, Notice::Kind::kMoved, {4, 2}},
                       {4, 8, Notice::Kind::kResigned, {5, 1}}};
  heartbeat.last_notice = 9;
  heartbeat.more_notices = true;
  heartbeat.seen_boot = 12;
  heartbeat.seen_notice = 13;
  heartbeat.durable_batch = 14;
  heartbeat.credit = ~0ull;
  heartbeat.credit_known = true;
  std::string bytes;
  EncodeHeartbeat(heartbeat, &bytes);
  const Result<Heartbeat> decoded = DecodeHeartbeat(bytes);
  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded->from, 1u);
  EXPECT_EQ(decoded->to, 2u);
  EXPECT_EQ(decoded->boot, ~0ull);
  EXPECT_EQ(decoded->sequence, 5u);
  EXPECT_TRUE(decoded->is_reply);
  EXPECT_EQ(decoded->lease, 300 * kMillisecond);
  EXPECT_EQ(decoded->credit, ~0ull);
  EXPECT_TRUE(decoded->credit_known);
  ASSERT_EQ(decoded->notices.size(), 2u);
  EXPECT_EQ(decoded->notices[1].group, 8u);
  EXPECT_EQ(decoded->notices[1].kind, Notice::Kind::kResigned);
  EXPECT_EQ(decoded->notices[1].ballot, (Ballot{5, 1}));
  EXPECT_EQ(decoded->last_notice, 9u);
  EXPECT_TRUE(decoded->more_notices);
  EXPECT_EQ(decoded->seen_boot, 12u);
  EXPECT_EQ(decoded->seen_notice, 13u);
  EXPECT_EQ(decoded->durable_batch, 14u);
  heartbeat.lease = -1;
  bytes.clear();
  EncodeHeartbeat(heartbeat, &bytes);
  EXPECT_CODE(DecodeHeartbeat(bytes).status(), Code::kCorruption);
}

}  // namespace
}  // namespace hydra::paxos::test
