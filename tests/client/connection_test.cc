// SPDX-License-Identifier: Apache-2.0
//
// Connection over loopback sockets: one end is a Connection, the other a plain socket that
// misbehaves.
#include "client/connection.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

#include "client/outbox.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() : plain_(io_) {}

  void Open(Connection::Options options = {}) {
    tcp::acceptor acceptor(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    plain_.connect(acceptor.local_endpoint());
    connection_ = Connection::Adopt(acceptor.accept(), std::move(options));
    connection_->Start({[this](Frame frame) {
                          frames_.push_back(std::move(frame));
                          if (on_frame_) on_frame_();
                        },
                        [this](const Status& why) { closed_.push_back(why); }});
  }

  // Lets the connection work until `done`, for a few seconds at most.
  bool RunUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  void RunFor(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(5));
    }
  }

  static std::string Encode(uint64_t id, const std::string& header, const std::string& payload) {
    std::string bytes(kFrameHeadBytes, '\0');
    EncodeFrameHead(FrameType::kRequest, id, header, static_cast<uint32_t>(payload.size()),
                    reinterpret_cast<uint8_t*>(bytes.data()));
    return bytes + header + payload;
  }
  static std::string Pattern(size_t bytes, unsigned seed) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 31 + seed * 7 + i / 256));
    return text;
  }
  static std::string PayloadOf(const Frame& frame) {
    return {reinterpret_cast<const char*>(frame.payload.data()), frame.payload_bytes};
  }
  static BufferSlice SliceOf(const std::string& text) {
    Buffer buffer = Buffer::Allocate(text.size());
    std::memcpy(buffer.data(), text.data(), text.size());
    return {buffer, 0, buffer.size()};
  }
  void Put(const std::string& bytes) { asio::write(plain_, asio::buffer(bytes)); }

  asio::io_context io_{1};
  tcp::socket plain_;
  std::shared_ptr<Connection> connection_;
  std::vector<Frame> frames_;
  std::vector<Status> closed_;
  std::function<void()> on_frame_;
};

TEST_F(ConnectionTest, FramesArriveWholeHoweverTheyAreCut) {
  Open();
  std::string bytes;
  const std::vector<size_t> sizes = {0, 1, 511, 4096, 5000};
  for (size_t i = 0; i < sizes.size(); ++i) {
    bytes += Encode(i, "header " + std::to_string(i), Pattern(sizes[i], static_cast<unsigned>(i)));
  }
  for (size_t at = 0; at < bytes.size(); at += 97) {
    Put(bytes.substr(at, 97));
    RunFor(std::chrono::milliseconds(0));
    io_.restart();
    io_.poll();
  }
  ASSERT_TRUE(RunUntil([&] { return frames_.size() == sizes.size(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(frames_[i].id, i);
    EXPECT_EQ(frames_[i].header, "header " + std::to_string(i));
    EXPECT_EQ(PayloadOf(frames_[i]), Pattern(sizes[i], static_cast<unsigned>(i)));
    // Zeroes up to a whole page.
    EXPECT_EQ(frames_[i].payload.size() % kPageSize, 0u);
    for (size_t b = sizes[i]; b < frames_[i].payload.size(); ++b) {
      ASSERT_EQ(frames_[i].payload.data()[b], 0);
    }
  }
  EXPECT_TRUE(closed_.empty());
}

TEST_F(ConnectionTest, LargePayloadIsReadInPlaceExceptForItsFirstBytes) {
  Open();
  const std::string payload = Pattern(1u << 20, 3);
  constexpr int kFrames = 8;
  std::string bytes;
  for (int i = 0; i < kFrames; ++i) bytes += Encode(static_cast<uint64_t>(i), "h", payload);
  size_t put = 0;
  plain_.non_blocking(true);
  ASSERT_TRUE(RunUntil([&] {
    boost::system::error_code ignored;
    if (put < bytes.size()) put += plain_.write_some(asio::buffer(bytes) + put, ignored);
    return frames_.size() == kFrames;
  }));
  for (const Frame& frame : frames_) EXPECT_EQ(PayloadOf(frame), payload);
  // The first frame is a surprise; of the others little is read before its head is known.
  EXPECT_LE(connection_->copied_bytes(), (64u << 10) + kFrames * (64u << 10) / 8);
}

TEST_F(ConnectionTest, SendsAreReadWholeBySlowPeers) {
  Open();
  const std::string payload = Pattern(2u << 20, 5);
  std::vector<BufferSlice> slices;
  for (size_t at = 0; at < payload.size(); at += 16384) {  // more than go out in one call
    slices.push_back(SliceOf(payload.substr(at, 16384)));
  }
  ASSERT_TRUE(connection_->Send(FrameType::kReply, 9, "first", slices,
                                static_cast<uint32_t>(payload.size())));
  ASSERT_TRUE(connection_->Send(FrameType::kReply, 10, "second", {}, 0));
  std::string got;
  std::vector<char> chunk(30'000);
  plain_.non_blocking(true);
  const size_t total = 2 * kFrameHeadBytes + 5 + 6 + payload.size();
  ASSERT_TRUE(RunUntil([&] {
    boost::system::error_code ignored;
    const size_t read = plain_.read_some(asio::buffer(chunk), ignored);
    got.append(chunk.data(), read);
    return got.size() == total;
  }));
  EXPECT_EQ(connection_->queued_bytes(), 0u);
  EXPECT_EQ(got.substr(kFrameHeadBytes, 5), "first");
  EXPECT_EQ(got.substr(kFrameHeadBytes + 5, payload.size()), payload);
  EXPECT_EQ(got.substr(got.size() - 6), "second");
}

TEST_F(ConnectionTest, AFullQueueRefusesAndTakesAgainWhenItDrained) {
  Connection::Options options;
  options.queue_bytes = 4u << 20;
  Open(std::move(options));
  const BufferSlice slice = SliceOf(Pattern(1u << 20, 1));
  size_t taken = 0;
  while (connection_->Send(FrameType::kReply, taken, "x", {slice}, 1u << 20)) {
    ++taken;
    ASSERT_LE(taken, 5u);
  }
  EXPECT_GE(taken, 3u);
  std::vector<char> sink(1u << 20);
  plain_.non_blocking(true);
  ASSERT_TRUE(RunUntil([&] {
    boost::system::error_code ignored;
    plain_.read_some(asio::buffer(sink), ignored);
    return connection_->queued_bytes() == 0;
  }));
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 1, "x", {slice}, 1u << 20));
}

TEST_F(ConnectionTest, AFrameLargerThanTheQueueGoesWhenNothingWaits) {
  Connection::Options options;
  options.queue_bytes = 4096;
  Open(std::move(options));
  const BufferSlice slice = SliceOf(Pattern(1u << 20, 1));
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 1, "x", {slice}, 1u << 20));
  EXPECT_FALSE(connection_->Send(FrameType::kReply, 2, "x"));
  std::vector<char> sink(1u << 20);
  plain_.non_blocking(true);
  ASSERT_TRUE(RunUntil([&] {
    boost::system::error_code ignored;
    plain_.read_some(asio::buffer(sink), ignored);
    return connection_->queued_bytes() == 0;
  }));
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 3, "x", {slice}, 1u << 20));
}

TEST_F(ConnectionTest, APeerThatTakesNothingIsSeenAndAbortLetsGoOfTheMemory) {
  constexpr size_t kBytes = 16u << 20;  // more than sockets take
  BufferPool pool(kBytes);
  Open();
  Result<Buffer> buffer = pool.Get(kBytes);
  ASSERT_OK(buffer.status());
  std::memset(buffer->data(), 0, kBytes);
  EXPECT_EQ(connection_->blocked().count(), 0);
  ASSERT_TRUE(connection_->Send(FrameType::kReply, 1, "x", {{std::move(*buffer), 0, kBytes}},
                                static_cast<uint32_t>(kBytes)));
  buffer = Status::Busy("it is sent");
  ASSERT_TRUE(RunUntil([&] { return connection_->blocked() > std::chrono::milliseconds(100); }));
  // It takes some: from then on it is waited for anew.
  std::vector<char> sink(1u << 20);
  plain_.non_blocking(true);
  ASSERT_TRUE(RunUntil([&] {
    boost::system::error_code ignored;
    plain_.read_some(asio::buffer(sink), ignored);
    return connection_->blocked() < std::chrono::milliseconds(50);
  }));
  EXPECT_GT(connection_->queued_bytes(), 0u);
  EXPECT_FALSE(pool.Get(kBytes).ok());
  connection_->Abort();
  EXPECT_FALSE(connection_->open());
  EXPECT_EQ(connection_->queued_bytes(), 0u);
  EXPECT_OK(pool.Get(kBytes).status());
  RunFor(std::chrono::milliseconds(5));
  EXPECT_TRUE(closed_.empty());
}

TEST_F(ConnectionTest, AHeldOutboxWritesWhenItIsToldToAndTheRestWhenItIsReleased) {
  Outbox outbox(&io_);
  Connection::Options options;
  options.outbox = &outbox;
  Open(std::move(options));
  const size_t frame = kFrameHeadBytes + 1;
  outbox.Hold();
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 1, "x"));
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 2, "y"));
  RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(plain_.available(), 0u);
  outbox.Flush();
  EXPECT_EQ(plain_.available(), 2 * frame);
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 3, "z"));
  RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(plain_.available(), 2 * frame);
  outbox.Release();
  EXPECT_TRUE(RunUntil([&] { return plain_.available() == 3 * frame; }));
  // Not held, it writes when the event is over.
  EXPECT_TRUE(connection_->Send(FrameType::kReply, 4, "z"));
  EXPECT_TRUE(RunUntil([&] { return plain_.available() == 4 * frame; }));
  connection_.reset();
}

TEST_F(ConnectionTest, APeerThatClosesInMidFrameIsReportedOnce) {
  for (const size_t cut : {10u, 33u, 40u, 5000u, 60000u}) {
    frames_.clear();
    closed_.clear();
    plain_ = tcp::socket(io_);
    Open();
    Put(Encode(1, "header", Pattern(70'000, 1)).substr(0, cut));
    plain_.close();
    ASSERT_TRUE(RunUntil([&] { return !closed_.empty(); }));
    RunFor(std::chrono::milliseconds(5));
    EXPECT_EQ(closed_.size(), 1u);
    EXPECT_CODE(closed_[0], Code::kUnavailable);
    EXPECT_TRUE(frames_.empty());
    EXPECT_FALSE(connection_->open());
    EXPECT_FALSE(connection_->Send(FrameType::kReply, 1, ""));
  }
}

TEST_F(ConnectionTest, OversizedFramesAreRefusedBeforeMemoryIsTaken) {
  Connection::Options options;
  options.limits = {.header_bytes = 100, .payload_bytes = 8192};
  bool allocated = false;
  options.allocate = [&](size_t bytes) {
    allocated = true;
    return Result<Buffer>(Buffer::Allocate(bytes));
  };
  Open(std::move(options));
  Put(Encode(1, "h", Pattern(8193, 1)));
  ASSERT_TRUE(RunUntil([&] { return !closed_.empty(); }));
  EXPECT_CODE(closed_[0], Code::kOutOfRange);
  EXPECT_FALSE(allocated);
}

TEST_F(ConnectionTest, RubbishAndChangedHeadersEndTheConnection) {
  Open();
  Put(std::string(200, 'x'));
  ASSERT_TRUE(RunUntil([&] { return !closed_.empty(); }));
  EXPECT_CODE(closed_[0], Code::kCorruption);

  closed_.clear();
  plain_ = tcp::socket(io_);
  Open();
  std::string bytes = Encode(1, "header", "");
  bytes[kFrameHeadBytes + 2] ^= 1;
  Put(bytes);
  ASSERT_TRUE(RunUntil([&] { return !closed_.empty(); }));
  EXPECT_CODE(closed_[0], Code::kCorruption);
  EXPECT_TRUE(frames_.empty());
}

TEST_F(ConnectionTest, WithoutMemoryItWaitsAndGoesOn) {
  int refusals = 5;
  Connection::Options options;
  options.allocate = [&](size_t bytes) -> Result<Buffer> {
    if (refusals-- > 0) return Status::Busy("none left");
    return Buffer::Allocate(bytes);
  };
  Open(std::move(options));
  Put(Encode(1, "a", Pattern(4096, 1)) + Encode(2, "b", ""));
  ASSERT_TRUE(RunUntil([&] { return frames_.size() == 2; }));
  EXPECT_EQ(PayloadOf(frames_[0]), Pattern(4096, 1));
  EXPECT_EQ(frames_[1].id, 2u);
}

TEST_F(ConnectionTest, PausedItReadsNothingAndResumedItGoesOn) {
  Open();
  on_frame_ = [&] { connection_->Pause(); };
  std::string bytes;
  for (uint64_t i = 0; i < 4; ++i) bytes += Encode(i, "h", Pattern(40'000, 1));
  Put(bytes);
  for (size_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(RunUntil([&] { return frames_.size() == i; }));
    RunFor(std::chrono::milliseconds(10));
    EXPECT_EQ(frames_.size(), i);
    connection_->Resume();
  }
}

TEST_F(ConnectionTest, CloseWritesWhatIsQueuedAndForgetsItsHandlers) {
  Open();
  ASSERT_TRUE(connection_->Send(FrameType::kGoodbye, 0, "bye"));
  connection_->Close();
  EXPECT_FALSE(connection_->open());
  std::string got(kFrameHeadBytes + 3, '\0');
  asio::read(plain_, asio::buffer(got));
  EXPECT_EQ(got.substr(kFrameHeadBytes), "bye");
  RunFor(std::chrono::milliseconds(5));
  EXPECT_TRUE(closed_.empty());
}

TEST_F(ConnectionTest, AHandlerMayCloseAndDropTheConnection) {
  Open();
  on_frame_ = [&] {
    connection_->Close();
    connection_.reset();
  };
  Put(Encode(1, "a", "") + Encode(2, "b", ""));
  ASSERT_TRUE(RunUntil([&] { return !frames_.empty(); }));
  RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(frames_.size(), 1u);
}

}  // namespace
}  // namespace hydra
