// A rank for tests. Modes:
//   exit CODE            ends with CODE
//   escape FILE CODE     double-forks a process in a session of its own, with an empty environment, that
//                        ignores SIGTERM and writes its pid to FILE; then ends with CODE, or with -1 stays
//   lines N              N lines, each in two writes, on stdout; half as many on stderr
//   serve PORT FILE      binds and listens on PORT, writes "ok" or the errno to FILE
//   stubborn FILE        ignores SIGTERM; writes its pid to FILE
//   polite FILE          ends with 0 on SIGTERM; writes its pid to FILE
//   fds                  ends with the number of open descriptors
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace {

void WriteFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  FILE* file = fopen(temporary.c_str(), "w");
  if (file == nullptr) _exit(99);
  fputs(text.c_str(), file);
  fclose(file);
  rename(temporary.c_str(), path.c_str());
}

[[noreturn]] void StayForever() {
  while (true) pause();
}

int Escape(const std::string& file, int code) {
  int done[2];
  if (pipe(done) != 0) return 98;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    setsid();
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    clearenv();
    WriteFile(file, std::to_string(getpid()));
    if (write(done[1], "x", 1) != 1) _exit(97);
    StayForever();
  }
  waitpid(child, nullptr, 0);
  char byte;
  if (read(done[0], &byte, 1) != 1) return 97;
  if (code >= 0) return code;
  StayForever();
}

int Lines(int count) {
  const char* rank = getenv("RANK");
  for (int i = 0; i < count; ++i) {
    const std::string head = "rank " + std::string(rank) + " line ";
    const std::string tail = std::to_string(i) + " of the output\n";
    for (int fd : {1, 2}) {
      if (fd == 2 && i % 2 != 0) continue;
      if (write(fd, head.data(), head.size()) < 0 || write(fd, tail.data(), tail.size()) < 0) return 96;
    }
  }
  return 0;
}

int Serve(int port, const std::string& file) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1) != 0) {
    WriteFile(file, std::to_string(errno));
    return 1;
  }
  WriteFile(file, "ok");
  return 0;
}

int CountFds() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir)) ++count;
  }
  closedir(dir);
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "exit" && argc == 3) return atoi(argv[2]);
  if (mode == "escape" && argc == 4) return Escape(argv[2], atoi(argv[3]));
  if (mode == "lines" && argc == 3) return Lines(atoi(argv[2]));
  if (mode == "serve" && argc == 4) return Serve(atoi(argv[2]), argv[3]);
  if (mode == "fds") return CountFds();
  if ((mode == "stubborn" || mode == "polite") && argc == 3) {
    signal(
        SIGTERM, mode == "stubborn" ? SIG_IGN : +[](int) { _exit(0); });
    WriteFile(argv[2], std::to_string(getpid()));
    StayForever();
  }
  return 64;
}
