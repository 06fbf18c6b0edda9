#pragma once
// Protocol messages <-> the plain types of the other rooms.
#include "accord/v1/control.pb.h"
#include "accord/v1/status.pb.h"
#include "accord/v1/worker.pb.h"
#include "controller/run_state.hpp"
#include "controller/worker.hpp"

namespace accord::rpc {

v1::SampleKeyMessage to_proto(const SampleKey& key);
SampleKey from_proto(const v1::SampleKeyMessage& message);

v1::GenerateRequest to_proto(const controller::GenerateJob& job);
controller::GenerateJob from_proto(const v1::GenerateRequest& message);

v1::SampleSummary to_proto(const controller::SampleSummary& summary);
controller::SampleSummary from_proto(const v1::SampleSummary& message);

v1::JoinRequest to_proto(const controller::GroupJob& job);
StatusOr<controller::GroupJob> from_proto(const v1::JoinRequest& message);

v1::TrainRequest to_proto(const controller::TrainJob& job);
controller::TrainJob from_proto(const v1::TrainRequest& message);

v1::SftRequest to_proto(const controller::SftJob& job);
controller::SftJob from_proto(const v1::SftRequest& message);

v1::TrainReply to_proto(const Metrics& metrics);
Metrics from_proto(const v1::TrainReply& message);

v1::TensorRecord to_proto(const controller::TensorRecord& record);
controller::TensorRecord from_proto(const v1::TensorRecord& message);

v1::StepMetrics to_proto(const controller::StepRecord& record);
v1::GetStatusReply to_proto(const controller::RunSnapshot& snapshot);

}  // namespace accord::rpc
