// SPDX-License-Identifier: Apache-2.0
//
// How hydra.h turns Asio completion tokens into plain callbacks, so that everything behind it is
// compiled once. Part of hydra.h; nothing here is meant to be used by itself.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>

namespace hydra::internal {

template <typename T>
using Callback = std::function<void(T)>;

// A callback that runs `handler` where its associated executor says, and keeps that executor's
// context from running out of work until then.
template <typename T, typename Handler>
Callback<T> Erase(Handler handler) {
  auto work = boost::asio::make_work_guard(handler);
  struct State {
    Handler handler;
    decltype(work) guard;
  };
  auto state = std::make_shared<State>(State{std::move(handler), std::move(work)});
  return [state](T value) {
    const auto executor = state->guard.get_executor();
    boost::asio::dispatch(executor, [state, value = std::move(value)]() mutable {
      Handler called = std::move(state->handler);
      state->guard.reset();
      std::move(called)(std::move(value));
    });
  };
}

// Starts an operation that ends with a T, as the token wants it: a callback, use_future,
// use_awaitable.
template <typename T, typename Token, typename Start>
auto Initiate(Start start, Token&& token) {
  return boost::asio::async_initiate<Token, void(T)>(
      [](auto handler, Start begin) { begin(Erase<T>(std::move(handler))); }, token,
      std::move(start));
}

}  // namespace hydra::internal
