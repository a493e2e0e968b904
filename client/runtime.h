// SPDX-License-Identifier: Apache-2.0
//
// What stands behind the handles of hydra.h: a thread, an io_context, a router. Internal.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "base/status.h"
#include "client/hydra.h"
#include "client/router.h"

namespace hydra {

// Operations under way share it; it does not own the thread, so the last of them may end on it.
struct Runtime {
  explicit Runtime(ClusterOptions options_in, RouterOptions router_options)
      : options(std::move(options_in)),
        own(options.context == nullptr ? std::make_unique<boost::asio::io_context>(1) : nullptr),
        context(own ? *own : *options.context),
        work(context.get_executor()),
        router(&context, std::move(router_options)) {}

  const ClusterOptions options;
  const std::unique_ptr<boost::asio::io_context> own;  // null: the caller runs it
  boost::asio::io_context& context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  Router router;        // used on the thread alone
  bool closed = false;  // likewise

  template <typename Function>
  void Post(Function function) {
    boost::asio::post(context, std::move(function));
  }
};

// The thread that runs it, unless the caller does. Its end is the end of all handles.
class RuntimeThread {
 public:
  explicit RuntimeThread(std::shared_ptr<Runtime> runtime);
  // Ends what is under way and waits for the thread, unless it is this one.
  ~RuntimeThread();

  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }

  // Starts an asynchronous operation and waits for its end. T is Status or a Result.
  template <typename T, typename Start>
  T Await(Start start) const {
    if (runtime_->context.get_executor().running_in_this_thread()) {
      return Status::FailedPrecondition(
          "a blocking call was made on the library's own thread: use the Async one in handlers");
    }
    std::promise<T> promise;
    std::future<T> future = promise.get_future();
    start([&promise](T value) { promise.set_value(std::move(value)); });
    return future.get();
  }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::thread thread_;  // none if the caller runs it
};

struct Cluster::Impl : RuntimeThread {
  using RuntimeThread::RuntimeThread;
};

}  // namespace hydra
