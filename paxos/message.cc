// SPDX-License-Identifier: Apache-2.0
#include "paxos/message.h"

#include <fmt/format.h>

namespace hydra::paxos {
namespace {

std::string Text(const PreVote& m) { return Describe(m.ballot); }
std::string Text(const PreVoteReply& m) {
  return fmt::format("{} {}", Describe(m.ballot), m.granted ? "yes" : "no");
}
std::string Text(const Prepare& m) {
  return fmt::format("{} from {}{}", Describe(m.ballot), m.from,
                     m.released != Ballot{} ? " released " + Describe(m.released) : "");
}
std::string Text(const Promise& m) {
  std::string text = fmt::format("{} commit {}", Describe(m.ballot), m.commit);
  for (const PromisedEntry& entry : m.entries) {
    text +=
        fmt::format(" {}@{}{}", entry.instance, Describe(entry.ballot), entry.faulty ? "!" : "");
  }
  return text;
}
std::string Text(const Reject& m) {
  const char* reason = m.reason == Refusal::kBallot  ? "promised"
                       : m.reason == Refusal::kLease ? "leased to"
                                                     : "not a member; promised";
  return fmt::format("{}: {} {}", Describe(m.ballot), reason, Describe(m.promised));
}
std::string Text(const Accept& m) {
  std::string text = fmt::format("{} commit {}:", Describe(m.ballot), m.commit);
  for (const AcceptEntry& entry : *m.entries) {
    const char* kind = entry.meta.kind == EntryKind::kNoop     ? "n"
                       : entry.meta.kind == EntryKind::kConfig ? "c"
                                                               : "";
    text += fmt::format(" {}{}", entry.instance, kind);
  }
  return text;
}
std::string_view Text(Lacks lacks) {
  constexpr std::string_view kTexts[] = {"", " lacks payload", " lacks blocks"};
  return kTexts[static_cast<size_t>(lacks)];
}
std::string Text(const Accepted& m) {
  std::string text = Describe(m.ballot) + ":";
  for (const InstanceRange& range : m.ranges) {
    text += range.from == range.to ? fmt::format(" {}", range.from)
                                   : fmt::format(" {}-{}", range.from, range.to);
  }
  text += Text(m.lacks);
  return text;
}
std::string Text(const Beat& m) {
  return fmt::format("{} commit {}{}", Describe(m.ballot), m.commit,
                     m.round != 0 ? fmt::format(" round {}", m.round) : "");
}
std::string Text(const BeatReply& m) {
  return fmt::format("{}{}{}", Describe(m.ballot),
                     m.round != 0 ? fmt::format(" round {}", m.round) : "", Text(m.lacks));
}
std::string Text(const CatchUp& m) { return fmt::format("from {} x{}", m.from, m.held.size()); }
std::string Text(const CatchUpReply& m) {
  std::string text = fmt::format("commit {}", m.commit);
  if (m.truncated != 0) text += fmt::format(" truncated {}", m.truncated);
  for (const ChosenEntry& entry : m.entries) {
    text += fmt::format(" {}{}", entry.instance, entry.same ? "=" : "");
  }
  return text;
}
std::string Text(const FetchBody& m) {
  return fmt::format("{}@{}", m.instance, Describe(m.ballot));
}
std::string Text(const FetchedBody& m) {
  return fmt::format("{}@{} {}", m.instance, Describe(m.ballot), m.found ? "found" : "none");
}
std::string Text(const ReadIndex& m) { return fmt::format("{}", m.id); }
std::string Text(const ReadIndexReply& m) {
  return m.ok ? fmt::format("{} at {}", m.id, m.instance) : fmt::format("{} no", m.id);
}
std::string Text(const TakeOver& m) { return Describe(m.ballot); }
std::string Text(const InstallRequest& m) {
  return fmt::format("base {}{}", m.base, m.bare ? " bare" : "");
}
std::string Text(const InstallChunk& m) {
  return fmt::format("as of {}{}", m.as_of, m.done ? " done" : "");
}

constexpr const char* kNames[] = {
    "PreVote",     "PreVoteReply", "Prepare",        "Promise",  "Reject",         "Accept",
    "Accepted",    "Beat",         "BeatReply",      "CatchUp",  "CatchUpReply",   "FetchBody",
    "FetchedBody", "ReadIndex",    "ReadIndexReply", "TakeOver", "InstallRequest", "InstallChunk"};
static_assert(std::size(kNames) == std::variant_size_v<MessageBody>);

}  // namespace

std::string Describe(const Ballot& ballot) {
  return fmt::format("({},{})", ballot.round, ballot.node);
}

const char* NameOf(const MessageBody& body) { return kNames[body.index()]; }

std::string Describe(const Message& message) {
  return fmt::format("{}>{} {} {}", message.from.node, message.to.node, NameOf(message.body),
                     std::visit([](const auto& body) { return Text(body); }, message.body));
}

}  // namespace hydra::paxos
