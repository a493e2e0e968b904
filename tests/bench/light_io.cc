// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "tests/bench/light.h"

namespace hydra::light {
namespace {

constexpr int kSocketBuffer = 4 << 20;
constexpr size_t kFillBytes = 1u << 20;

void Tune(const Descriptor& socket) {
  const int on = 1;
  if (setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
    Stop("TCP_NODELAY");
  }
  // Less than asked for, where the system has a lower limit, is fine.
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    setsockopt(socket.get(), SOL_SOCKET, option, &kSocketBuffer, sizeof(kSocketBuffer));
  }
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

void Stop(const std::string& what) {
  fmt::print(stderr, "light-bench: {}: {}\n", what, std::strerror(errno));
  std::_Exit(1);
}

double CpuSeconds() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) Stop("getrusage");
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void Descriptor::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int Descriptor::Release() { return std::exchange(fd_, -1); }

Connection MakeConnection() {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (bind(listener.get(), raw, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), raw, &length) != 0) {
    Stop("listening on loopback");
  }
  Connection connection;
  connection.caller = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(connection.caller.get(), raw, length) != 0) Stop("connecting over loopback");
  connection.callee = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection.callee.get() < 0) Stop("accept");
  Tune(connection.caller);
  Tune(connection.callee);
  return connection;
}

bool ReadAll(const Descriptor& from, void* data, size_t length) {
  auto* at = static_cast<uint8_t*>(data);
  while (length > 0) {
    const ssize_t got = read(from.get(), at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= static_cast<size_t>(got);
  }
  return true;
}

bool SendAll(const Descriptor& to, const void* data, size_t length) {
  const auto* at = static_cast<const uint8_t*>(data);
  while (length > 0) {
    const ssize_t sent = send(to.get(), at, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    length -= static_cast<size_t>(sent);
  }
  return true;
}

void FreePages::operator()(uint8_t* pages) const { std::free(pages); }

Pages AllocatePages(size_t bytes) {
  void* pages = std::aligned_alloc(kBlockBytes, bytes);
  if (pages == nullptr) Stop("memory");
  std::memset(pages, 0, bytes);
  return Pages(static_cast<uint8_t*>(pages));
}

Log::Log(const std::string& path)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600)) {
  if (file_.get() < 0) Stop(path);
  const Pages noise = AllocatePages(kFillBytes);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < kFillBytes; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(noise.get() + i, &word, sizeof(word));
  }
  for (size_t at = 0; at < kLogBytes; at += kFillBytes) {
    if (pwrite(file_.get(), noise.get(), kFillBytes, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(kFillBytes)) {
      Stop(path);
    }
  }
  if (fsync(file_.get()) != 0) Stop(path);
  // From here on every write is a flush as well; O_DSYNC cannot be switched on later.
  file_ = Descriptor(open(path.c_str(), O_RDWR | O_DIRECT | O_DSYNC | O_CLOEXEC));
  if (file_.get() < 0) Stop(path);
}

uint64_t Log::Take(size_t length) {
  if (next_ + length > kLogBytes) next_ = 0;
  const uint64_t at = next_;
  next_ += length;
  taken_ += length;
  return at;
}

}  // namespace hydra::light
