// SPDX-License-Identifier: Apache-2.0
#include "iscsi/pdu.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra::iscsi {

Framing Frame(OutPdu* pdu, Digests digests) {
  Framing framing;
  const std::span<const uint8_t> data = pdu->data();
  pdu->header.set_data_bytes(static_cast<uint32_t>(data.size()));
  std::copy(pdu->header.bytes.begin(), pdu->header.bytes.end(), framing.head.begin());
  framing.head_bytes = kHeaderBytes;
  if (digests.header) {
    EncodeFixed32(&framing.head[kHeaderBytes], Crc32c(pdu->header.bytes));
    framing.head_bytes += kDigestBytes;
  }
  if (data.empty()) return framing;
  framing.tail_bytes = Padding(data.size());
  if (digests.data) {
    const uint32_t crc = Crc32c(framing.tail.data(), framing.tail_bytes, Crc32c(data));
    EncodeFixed32(&framing.tail[framing.tail_bytes], crc);
    framing.tail_bytes += kDigestBytes;
  }
  return framing;
}

void PduReader::Enter(Stage stage, size_t wanted) {
  stage_ = stage;
  filled_ = 0;
  wanted_ = wanted;
}

std::span<uint8_t> PduReader::Want() {
  const size_t left = wanted_ - filled_;
  switch (stage_) {
    case Stage::kHeader: return std::span(header_.bytes).subspan(filled_, left);
    case Stage::kRest: return std::span(rest_).subspan(filled_, left);
    case Stage::kData:
      if (drop_) return std::span(dropped_).first(std::min(left, dropped_.size()));
      return place_.subspan(filled_, left);
    case Stage::kTail: return std::span(tail_).subspan(filled_, left);
  }
  return {};
}

Status PduReader::Got(size_t bytes) {
  HYDRA_CHECK(bytes <= wanted_ - filled_);
  if (stage_ == Stage::kData && drop_ && digests_.data) {
    crc_ = Crc32c(dropped_.data(), bytes, crc_);
  }
  filled_ += bytes;
  if (filled_ < wanted_) return Status::Ok();
  return Finished();
}

// One stage is complete. Stages of no bytes are passed over here.
Status PduReader::Finished() {
  if (stage_ == Stage::kHeader) {
    // What comes next depends on lengths that a digest may yet prove wrong; both are small.
    const size_t rest = header_.ahs_bytes() + (digests_.header ? kDigestBytes : 0);
    Enter(Stage::kRest, rest);
    if (rest > 0) return Status::Ok();
  }
  if (stage_ == Stage::kRest) {
    HYDRA_RETURN_IF_ERROR(HeadDone());
    if (wanted_ > 0) return Status::Ok();
  }
  if (stage_ == Stage::kData) {
    const bool any = header_.data_bytes() > 0;
    const size_t tail =
        any ? Padding(header_.data_bytes()) + (digests_.data ? kDigestBytes : 0) : 0;
    Enter(Stage::kTail, tail);
    if (tail > 0) return Status::Ok();
  }
  return DataDone();
}

Status PduReader::HeadDone() {
  const size_t ahs = header_.ahs_bytes();
  if (digests_.header) {
    const uint32_t crc = Crc32c(rest_.data(), ahs, Crc32c(header_.bytes));
    if (crc != DecodeFixed32(&rest_[ahs])) {
      sink_->HeaderDamaged();
      return Status::Corruption("a header does not match its digest");
    }
  }
  if (header_.data_bytes() > max_data_) {
    return Status::InvalidArgument(fmt::format("a data segment of {} bytes, where {} are allowed",
                                               header_.data_bytes(), max_data_));
  }
  HYDRA_ASSIGN_OR_RETURN(place_, sink_->Begin(header_, std::span(rest_).first(ahs)));
  drop_ = place_.empty();
  HYDRA_CHECK(drop_ || place_.size() == header_.data_bytes());
  crc_ = 0;
  Enter(Stage::kData, header_.data_bytes());
  return Status::Ok();
}

Status PduReader::DataDone() {
  bool intact = true;
  if (digests_.data && header_.data_bytes() > 0) {
    const size_t padding = Padding(header_.data_bytes());
    const uint32_t data = drop_ ? crc_ : Crc32c(place_);
    intact = Crc32c(tail_.data(), padding, data) == DecodeFixed32(&tail_[padding]);
  }
  place_ = {};
  Enter(Stage::kHeader, kHeaderBytes);
  return sink_->End(intact);
}

}  // namespace hydra::iscsi
