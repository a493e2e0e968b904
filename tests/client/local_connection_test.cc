// SPDX-License-Identifier: Apache-2.0
#include "client/local_connection.h"

#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

namespace hydra {
namespace {

namespace asio = boost::asio;

Buffer Filled(size_t bytes, uint8_t with) {
  Buffer buffer = Buffer::Allocate(bytes);
  std::fill(buffer.data(), buffer.data() + buffer.size(), with);
  return buffer;
}

class LocalConnectionTest : public testing::Test {
 protected:
  LocalConnectionTest() {
    std::tie(here_, there_) = MakeLocalConnection(&io_, &io_);
    there_->Start({[this](Frame frame) { got_.push_back(std::move(frame)); },
                   [this](const Status&) { closed_ = true; }});
  }
  void Run() {
    io_.restart();
    io_.poll();
  }
  void Send(uint64_t id) { ASSERT_TRUE(here_->Send(FrameType::kRequest, id, "x", {}, 0)); }

  asio::io_context io_;
  std::shared_ptr<Connection> here_;
  std::shared_ptr<Connection> there_;
  std::vector<Frame> got_;
  bool closed_ = false;
};

TEST_F(LocalConnectionTest, WholePayloadArrivesWithoutACopy) {
  const Buffer payload = Filled(8192, 7);
  ASSERT_TRUE(here_->Send(FrameType::kRequest, 5, "header", {{payload, 0, 8192}}, 8192));
  Run();
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_EQ(got_[0].type, FrameType::kRequest);
  EXPECT_EQ(got_[0].id, 5u);
  EXPECT_EQ(got_[0].header, "header");
  EXPECT_EQ(got_[0].payload_bytes, 8192u);
  EXPECT_EQ(got_[0].payload.data(), payload.data());
  EXPECT_EQ(here_->copied_bytes(), 0u);
}

TEST_F(LocalConnectionTest, PiecesArriveTogetherAndPadded) {
  const Buffer one = Filled(4096, 1);
  const Buffer two = Filled(8192, 2);
  ASSERT_TRUE(
      here_->Send(FrameType::kReply, 6, "", {{one, 0, 4096}, {two, 4096, 4096}}, 4096 + 100));
  Run();
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_EQ(got_[0].payload_bytes, 4196u);
  ASSERT_EQ(got_[0].payload.size(), 8192u);
  EXPECT_EQ(got_[0].payload.data()[4095], 1);
  EXPECT_EQ(got_[0].payload.data()[4195], 2);
  EXPECT_EQ(got_[0].payload.data()[4196], 0);  // as a frame from a socket
  EXPECT_EQ(here_->copied_bytes(), 4196u);
}

TEST_F(LocalConnectionTest, FramesWaitInOrderWhileTheReceiverIsPaused) {
  there_->Pause();
  for (uint64_t id = 1; id <= 3; ++id) Send(id);
  Run();
  EXPECT_TRUE(got_.empty());
  there_->Resume();
  Send(4);
  Run();
  ASSERT_EQ(got_.size(), 4u);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(got_[id - 1].id, id);
}

TEST_F(LocalConnectionTest, AReceiverMayPauseInTheMiddle) {
  there_->Start({[this](Frame frame) {
                   got_.push_back(std::move(frame));
                   there_->Pause();
                 },
                 nullptr});
  for (uint64_t id = 1; id <= 3; ++id) Send(id);
  Run();
  EXPECT_EQ(got_.size(), 1u);
  there_->Resume();
  Run();
  EXPECT_EQ(got_.size(), 2u);
}

TEST_F(LocalConnectionTest, WhatWasSentBeforeTheCloseArrives) {
  Send(1);
  here_->Close();
  EXPECT_FALSE(here_->Send(FrameType::kRequest, 2, "", {}, 0));
  Run();
  EXPECT_EQ(got_.size(), 1u);
  EXPECT_TRUE(closed_);
  EXPECT_FALSE(there_->open());
}

TEST_F(LocalConnectionTest, WhoeverClosesHearsNothingMore) {
  Send(1);
  there_->Close();
  Run();
  EXPECT_TRUE(got_.empty());
  EXPECT_FALSE(closed_);
  EXPECT_FALSE(here_->open());
}

TEST_F(LocalConnectionTest, FramesThatComeBeforeTheStartAreKept) {
  auto [one, two] = MakeLocalConnection(&io_, &io_);
  ASSERT_TRUE(one->Send(FrameType::kHello, 9, "", {}, 0));
  Run();
  two->Start({[this](Frame frame) { got_.push_back(std::move(frame)); }, nullptr});
  Run();
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_EQ(got_[0].id, 9u);
}

TEST(LocalConnectionThreads, EachEndLivesOnItsOwnThread) {
  constexpr uint64_t kFrames = 2000;
  asio::io_context left;
  asio::io_context right;
  auto right_work = asio::make_work_guard(right);
  std::thread runner([&] { right.run(); });
  auto [one, two] = MakeLocalConnection(&left, &right);
  asio::post(right, [two = two, &runner] {
    two->Start({[two, &runner](Frame frame) {
                  EXPECT_EQ(std::this_thread::get_id(), runner.get_id());
                  two->Send(FrameType::kReply, frame.id, std::move(frame.header), {}, 0);
                },
                [](const Status&) {}});
  });
  uint64_t answered = 0;
  auto left_work = asio::make_work_guard(left);
  one->Start({[&, one = one](const Frame& frame) {
                EXPECT_EQ(frame.id, ++answered);  // in order
                if (answered < kFrames) {
                  one->Send(FrameType::kRequest, answered + 1, "ping", {}, 0);
                } else {
                  one->Close();
                  left_work.reset();
                }
              },
              nullptr});
  ASSERT_TRUE(one->Send(FrameType::kRequest, 1, "ping", {}, 0));
  left.run();
  EXPECT_EQ(answered, kFrames);
  asio::post(right, [two = std::move(two)]() mutable { two->Close(); });
  right_work.reset();
  runner.join();
}

}  // namespace
}  // namespace hydra
