package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/internal/demo"
)

func newDemoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what fencing is for: stories that are played with real processes",
		Long: `Each demo starts what it needs on this machine, on free ports of 127.0.0.1 and in a temporary folder, and clears it
away at its end, also after a Ctrl-C. It exits with 0 if what it tells has happened, else with 1.`,
	}
	cmd.AddCommand(newDemoPauseCommand(), newDemoNaiveCommand(), newDemoQueueCommand(), newDemoCompareCommand(), newDemoWorkerCommand(), newDemoQueueWorkerCommand())
	return cmd
}

func newDemoPauseCommand() *cobra.Command {
	var o demo.PauseOptions
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "A lock holder is paused, loses its lock, wakes up and writes: without a fence, and with one",
		Long: `Two worker processes take a lock in turn, read an object, work, and write it. The first is stopped by SIGSTOP in the
middle of its work; the second gets the lock when it has run out, and writes; the first is woken and writes what it
had in mind. Once straight to a directory, once through fenceproxy. It takes a little more than twice the TTL.

Without --lock nothing is needed but this program: the lock is the proxy's own. --lock etcdctl and --lock redis-cli
are locks as shell scripts take them, with curl for the object; their servers are started, too. Any other lock is a
URL, of a service that you run:
` + lockForms(),
		Example: `  fenceproxy demo pause
  fenceproxy demo pause --lock etcdctl
  fenceproxy demo pause --lock redis://localhost/demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := demoOptions(cmd)
			if err != nil {
				return err
			}
			return demo.Pause(cmd.Context(), options, o)
		},
	}
	cmd.Flags().StringVar(&o.Lock, "lock", "", "etcdctl, redis-cli, or the `URL` of a lock (default: the proxy's own)")
	cmd.Flags().DurationVar(&o.TTL, "ttl", 10*time.Second, "after which a holder that is not heard of loses the lock")
	return cmd
}

func newDemoNaiveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "naive",
		Short: "The Redis lock as it is often written: how it breaks, its repair, what still breaks it, and the fence",
		Long: `Shows on a redis-server of its own how three common ways to write a lock let two holders in, or none ever again; the
lock as it should be, under which that does not happen; the pause that breaks that, too; and the fence, which does
not let the late write through. It needs redis-server, redis-cli and curl.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := demoOptions(cmd)
			if err != nil {
				return err
			}
			return demo.Naive(cmd.Context(), options)
		},
	}
}

// newDemoWorkerCommand is the worker of a demo, which starts it.
func newDemoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Work(cmd.Context(), cmd.OutOrStdout(), openLock)
		},
	}
}

func demoOptions(cmd *cobra.Command) (demo.Options, error) {
	program, err := os.Executable()
	return demo.Options{Out: cmd.OutOrStdout(), Program: program, OpenLock: openLock}, err
}
