// Can a checkpoint of this format be loaded by a job of another world size? Pure; decides whether --elastic
// may shrink a job. Only the number of data parallel replicas changes then: tensor and pipeline parallel
// groups stay whole.
#ifndef DGXRUN_AGENT_CKPT_RESHARD_H_
#define DGXRUN_AGENT_CKPT_RESHARD_H_

#include <string>
#include <string_view>

namespace dgxrun::agent::ckpt {

enum class Reshard {
  kYes,
  kNo,        // the framework raises an error
  kNotKnown,  // the format was not recognised, or its own documentation does not say
};

struct ReshardAnswer {
  Reshard answer = Reshard::kNotKnown;
  std::string reason;  // one line for a person: what the framework does; never empty
};

// `format`: of format.h; "" gives kNotKnown. A job without any checkpoint may change its size: do not ask.
ReshardAnswer CanLoadAtOtherWorldSize(std::string_view format);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_RESHARD_H_
