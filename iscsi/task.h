// SPDX-License-Identifier: Apache-2.0
//
// Coroutines for commands that take several steps: a Task<T> starts when it is awaited, runs on the
// thread that resumes it and ends with a T. No executor and no Asio: what resumes it is the
// callback of the operation it waits for, so a command runs in a test as it runs in a portal.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

namespace hydra::iscsi {

template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::optional<T> value;
    std::coroutine_handle<> waiting;

    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct Resume {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
          return h.promise().waiting ? h.promise().waiting : std::noop_coroutine();
        }
        void await_resume() noexcept {}
      };
      return Resume{};
    }
    template <typename U>
    void return_value(U&& result) {
      value.emplace(std::forward<U>(result));
    }
    void unhandled_exception() { std::terminate(); }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiting) noexcept {
    handle_.promise().waiting = waiting;
    return handle_;
  }
  T await_resume() { return std::move(*handle_.promise().value); }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

namespace task_internal {

struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

template <typename T>
Detached Run(Task<T> task, std::function<void(T)> done) {
  T value = co_await task;
  done(std::move(value));
}

}  // namespace task_internal

// Starts the task; `done` gets its value. Nobody has to keep anything.
template <typename T>
void Start(Task<T> task, std::function<void(T)> done) {
  task_internal::Run(std::move(task), std::move(done));
}

// Waits for an operation that calls back: co_await Await<Status>([&](auto done) {
// disk->Flush(done); }). The callback is called once, at any time, also before the operation's call
// returns.
template <typename T>
class Await {
 public:
  using Callback = std::function<void(T)>;

  explicit Await(std::function<void(Callback)> start) : start_(std::move(start)) {}

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> waiting) {
    starting_ = true;
    start_([this, waiting](T value) {
      value_.emplace(std::move(value));
      if (!starting_) waiting.resume();
    });
    starting_ = false;
    return !value_.has_value();
  }
  T await_resume() { return std::move(*value_); }

 private:
  std::function<void(Callback)> start_;
  std::optional<T> value_;
  bool starting_ = false;
};

}  // namespace hydra::iscsi
