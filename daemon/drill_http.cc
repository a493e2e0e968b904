// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxAnswer = 4u << 20;

class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

bool WaitFor(int socket, short events, steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()).count();
  pollfd waited{.fd = socket, .events = events, .revents = 0};
  return left > 0 && poll(&waited, 1, static_cast<int>(left)) == 1;
}

bool Connect(const Socket& socket, const addrinfo& to, steady_clock::time_point deadline) {
  if (connect(socket.number(), to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS || !WaitFor(socket.number(), POLLOUT, deadline)) return false;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

Result<HttpAnswer> HttpCall(const std::string& address, const std::string& target,
                            const std::string& body, milliseconds patience) {
  const auto deadline = steady_clock::now() + patience;
  const auto failed = [&](const char* what) {
    return Status::Unavailable(fmt::format("http://{}{}: {}", address, target, what));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return failed("that is no address; use host:port");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return failed("no such host");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.number() < 0 || !Connect(socket, *found, deadline)) return failed("no connection");
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
                                    body.empty() ? "GET" : "POST", target, address);
  if (!body.empty()) {
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  request += "\r\n" + body;
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t n =
        send(socket.number(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EAGAIN || !WaitFor(socket.number(), POLLOUT, deadline)) {
      return failed("the request could not be sent");
    }
  }
  std::string answer;
  char piece[16 << 10];
  while (answer.size() < kMaxAnswer) {
    const ssize_t n = recv(socket.number(), piece, sizeof(piece), 0);
    if (n == 0) break;
    if (n > 0) {
      answer.append(piece, static_cast<size_t>(n));
    } else if (errno != EAGAIN || !WaitFor(socket.number(), POLLIN, deadline)) {
      return failed("no answer in time");
    }
  }
  const size_t end = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.") || end == std::string::npos) return failed("no HTTP answer");
  return HttpAnswer{std::atoi(answer.c_str() + std::strlen("HTTP/1.1 ")), answer.substr(end + 4)};
}

Result<std::string> StatusPage(uint32_t node, const std::string& address, milliseconds patience) {
  HYDRA_ASSIGN_OR_RETURN(HttpAnswer answer, HttpCall(address, "/api/status", "", patience));
  const nlohmann::json json = nlohmann::json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || !json.is_object() || !json.contains("groups")) {
    return Status::Unavailable(
        fmt::format("http://{}/api/status says nothing of a node (node {})", address, node));
  }
  const uint32_t who = json.value("node", 0u);
  if (who == node) return std::move(answer.body);
  return Status::InvalidArgument(fmt::format(
      "at {0}, where node {1} has its pages, node {2} answers: a drill would watch and break the "
      "wrong node. Nodes on several machines need an --http address that can be reached from here",
      address, node, who));
}

}  // namespace hydra::drill
