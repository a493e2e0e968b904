// SPDX-License-Identifier: Apache-2.0
//
// Why a command failed, as SCSI says it (SPC-4, 4.5).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hydra::iscsi {

enum class SenseKey : uint8_t {
  kNone = 0x0,
  kNotReady = 0x2,
  kMediumError = 0x3,
  kHardwareError = 0x4,
  kIllegalRequest = 0x5,
  kUnitAttention = 0x6,
  kDataProtect = 0x7,
  kCopyAborted = 0xa,
  kAbortedCommand = 0xb,
  kMiscompare = 0xe,
};

// Additional sense code and qualifier in one number.
enum class Asc : uint16_t {
  kNone = 0x0000,
  kBecomingReady = 0x0401,
  kSanitizeInProgress = 0x041b,
  kCommunicationFailure = 0x0800,
  kUnrecoveredReadError = 0x1100,
  kParameterListLength = 0x1a00,
  kMiscompare = 0x1d00,
  kInvalidOpcode = 0x2000,
  kLbaOutOfRange = 0x2100,
  kInvalidFieldInCdb = 0x2400,
  kLogicalUnitNotSupported = 0x2500,
  kInvalidFieldInParameters = 0x2600,
  kInvalidRelease = 0x2604,
  kTooManyTargetDescriptors = 0x2606,
  kUnsupportedTargetDescriptor = 0x2607,
  kTooManySegmentDescriptors = 0x2608,
  kUnsupportedSegmentDescriptor = 0x2609,
  kSoftwareWriteProtected = 0x2702,
  kSpaceAllocationFailed = 0x2707,
  kResetOccurred = 0x2900,
  kLunReset = 0x2903,
  kModeParametersChanged = 0x2a01,
  kReservationsPreempted = 0x2a03,
  kReservationsReleased = 0x2a04,
  kRegistrationsPreempted = 0x2a05,
  kAccessStateChanged = 0x2a06,
  kCapacityChanged = 0x2a09,
  kUnreachableCopyTarget = 0x0804,
  kSanitizeFailed = 0x3103,
  kSavingNotSupported = 0x3900,
  kInternalFailure = 0x4400,
  kCopyTargetNotReachable = 0x0d02,
  kProtocolCrcError = 0x4705,
  kInvalidFieldInInformationUnit = 0x0e03,
  kInsufficientRegistrationResources = 0x5504,
};

struct Sense {
  SenseKey key = SenseKey::kNone;
  Asc asc = Asc::kNone;
  std::optional<uint64_t> information;  // an LBA, or an offset
  // Where in the CDB (or else in the parameters) the bad field is: byte, and bit unless it is 8.
  struct Field {
    bool in_cdb = true;
    uint16_t byte = 0;
    uint8_t bit = 8;
  };
  std::optional<Field> field;
  std::optional<uint16_t> progress;  // of what it is not ready for, in 65536ths
};

// Response code 70h (fixed, 18 bytes) or 72h (descriptors).
std::vector<uint8_t> EncodeSense(const Sense& sense, bool descriptors);

}  // namespace hydra::iscsi
