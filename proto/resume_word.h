// What Prepare.resume says when there is nothing to load: the one word that controller and agent agree on.
#ifndef DGXRUN_PROTO_RESUME_WORD_H_
#define DGXRUN_PROTO_RESUME_WORD_H_

namespace dgxrun {

// A path is absolute, so this is none.
inline constexpr char kResumeNothing[] = "none";

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_RESUME_WORD_H_
