// A look at SQLite's write-ahead log as a start finds it. SQLite reads it up to the first frame whose
// checksum is wrong and takes all before that for the log: right for a tail that a crash cut short, silent
// loss of what was confirmed if a disk has damaged an earlier place.
//
// The two are told apart by what follows. With synchronous=FULL only the last transaction can be on its way
// when the machine dies, so nothing that belongs to a later one may stand behind the first bad frame. (A
// damaged last transaction looks the same as a torn one: it is cut and said.)
//
// The file must not change meanwhile: the caller holds the lock of the database, and has not written.
#ifndef DGXRUN_CONTROLLER_WAL_CHECK_H_
#define DGXRUN_CONTROLLER_WAL_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace dgxrun {

// Of the tail that SQLite leaves out; all 0: there is none.
struct TornTail {
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;   // from there on, of frames of this generation of the file
};

// `path` of the -wal file; a missing one is fine. DataLoss names file and offset of a damaged place in the
// middle.
absl::StatusOr<TornTail> CheckWal(const std::string& path);

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_WAL_CHECK_H_
