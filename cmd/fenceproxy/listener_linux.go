package main

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dataListener returns how the S3 API listens. A connection whose client has taken nothing for wait, whether it is gone or only does not read, is ended by the kernel
// (TCP_USER_TIMEOUT, tcp(7); the connections have it from their listener).
func dataListener(wait time.Duration) net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var option error
		err := c.Control(func(fd uintptr) {
			option = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(wait.Milliseconds()))
		})
		return errors.Join(err, option)
	}}
}

// boundedByFiles is how many clients this process has files for: each needs a connection and, while it writes, a file or another connection. The Go runtime has raised
// the soft limit to the hard one.
func boundedByFiles(connections int, log *slog.Logger) int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || uint64(connections) <= files.Cur/2 {
		return connections
	}
	bound := max(1, int(files.Cur/2))
	log.Warn("fewer clients are let in than limits.connections says: this process may not have as many open files. Raise its limit (ulimit -n, LimitNOFILE=) to twice that number",
		"connections", connections, "open_files", files.Cur, "let_in", bound)
	return bound
}
