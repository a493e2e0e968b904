// SPDX-License-Identifier: Apache-2.0
//
// The speed of light of three durable copies: what is left when everything but the promise is taken
// away. A client, a leader and two followers are four processes that talk TCP over loopback. The
// client keeps a number of 4 KiB writes under way. The leader gathers what has come while its last
// batch was being written, gives the batch a CRC32C, sends it to both followers and writes it to
// its own log. A follower checks the CRC, writes, and answers. What two of the three logs have on
// their disk is acknowledged. There are no elections, no map, no reads and no recovery.
//
//   client -> leader    Request, then its block
//   leader -> client    the tags of the requests that are durable, 8 bytes each
//   leader -> follower  a batch: a page that begins with BatchHeader, then the blocks
//   follower -> leader  the number of the batch that is durable, 8 bytes
//
// A log holds batches as they are sent. It is written over once before the measurement, so that a
// flush has no allocation to write, and is begun anew when it is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hydra::light {

inline constexpr size_t kBlockBytes = 4096;
inline constexpr size_t kLogBytes = 256u << 20;
inline constexpr size_t kMaxBatchBlocks = 1024;
inline constexpr size_t kMaxDepth = 512;  // so that all requests fit into the sockets' buffers
inline constexpr unsigned kFollowers = 2;
inline constexpr unsigned kMajority = 2;

struct Request {
  uint64_t tag = 0;    // the client's own; returned when the write is durable
  uint64_t block = 0;  // where it would go in a volume; nobody looks at it here
};

struct BatchHeader {
  uint64_t number = 0;
  uint32_t blocks = 0;
  uint32_t crc = 0;  // of the blocks
};

// What one server process used between its readiness and its end. In memory that all processes
// share; each writes its own.
struct ServerFigures {
  double cpu_seconds = 0;
  uint64_t device_bytes = 0;
  uint64_t batches = 0;
  uint64_t blocks = 0;
};

struct ClientFigures {
  double seconds = 0;
  double cpu_seconds = 0;
  std::vector<float> latency_us;
};

// Ends the process with status 1, saying what failed and errno.
[[noreturn]] void Stop(const std::string& what);

double CpuSeconds();  // of this process so far

// --- light_io.cc --------------------------------------------------------------------------------

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  void Close();

 private:
  int Release();
  int fd_ = -1;
};

// Both ends of one TCP connection over loopback.
struct Connection {
  Descriptor caller;
  Descriptor callee;
};
Connection MakeConnection();

// False: the other side is gone.
bool ReadAll(const Descriptor& from, void* data, size_t length);
bool SendAll(const Descriptor& to, const void* data, size_t length);

struct FreePages {
  void operator()(uint8_t* pages) const;
};
using Pages = std::unique_ptr<uint8_t[], FreePages>;
Pages AllocatePages(size_t bytes);  // aligned for direct I/O

// A log, written over and synced, and where the next batch goes.
class Log {
 public:
  explicit Log(const std::string& path);

  int fd() const { return file_.get(); }
  // Of the next `length` bytes, which are taken.
  uint64_t Take(size_t length);
  uint64_t taken_bytes() const { return taken_; }

 private:
  Descriptor file_;
  uint64_t next_ = 0;
  uint64_t taken_ = 0;
};

// --- light_server.cc, light_client.cc -----------------------------------------------------------

// Each runs until the other side closes its connection.
void RunLeader(const Descriptor& client, const Descriptor (&followers)[kFollowers],
               const std::string& log, ServerFigures* figures);
void RunFollower(const Descriptor& leader, const std::string& log, ServerFigures* figures);

ClientFigures RunClient(const Descriptor& leader, unsigned depth, double seconds);

}  // namespace hydra::light
