//go:build !linux

package main

import (
	"log/slog"
	"net"
	"time"
)

func dataListener(time.Duration) net.ListenConfig { return net.ListenConfig{} }

func boundedByFiles(connections int, _ *slog.Logger) int { return connections }
