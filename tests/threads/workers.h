// SPDX-License-Identifier: Apache-2.0
//
// Worker and Mailbox: how an owner thread hands work out and gets its results back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hydra::test {

// What other threads want the owner to do. Post may be called by any thread.
class Mailbox {
 public:
  void Post(std::function<void()> letter) {
    {
      const std::lock_guard lock(mutex_);
      letters_.push_back(std::move(letter));
    }
    arrived_.notify_one();
  }

  // Runs what has arrived, waiting up to `patience` for the first. Says whether there was any.
  bool Deliver(std::chrono::milliseconds patience) {
    std::vector<std::function<void()>> letters;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait_for(lock, patience, [this] { return !letters_.empty(); });
      letters.swap(letters_);
    }
    for (const std::function<void()>& letter : letters) letter();
    return !letters.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::function<void()>> letters_;  // guarded by mutex_
};

// A thread that runs tasks in order; those left when it is destroyed are run first.
class Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Send(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;                       // last: it uses the others
};

}  // namespace hydra::test
