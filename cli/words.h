// The nearest word for an error message: see launcher/base/nearest_word.h.
#ifndef DGXRUN_CLI_WORDS_H_
#define DGXRUN_CLI_WORDS_H_

#include "launcher/base/nearest_word.h"

#endif  // DGXRUN_CLI_WORDS_H_
