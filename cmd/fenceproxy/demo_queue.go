package main

import (
	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/internal/demo"
)

func newDemoQueueCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "queue",
		Short: "Ten workers on a jobs table: one is killed, one is paused, and no job is processed twice",
		Long: `Ten worker processes take jobs from a table in PostgreSQL with FOR UPDATE SKIP LOCKED. A job's attempt number, which is
committed before the work begins, is the token of its result. A worker is killed in the middle of its transaction, and
gives its job back at once; one is paused, loses its job, wakes up and writes its result, and is refused. In the end
everything is counted. It needs PostgreSQL's server, and starts its own.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := demoOptions(cmd)
			if err != nil {
				return err
			}
			return demo.Queue(cmd.Context(), options)
		},
	}
}

// newDemoQueueWorkerCommand is a worker of demo queue, which starts it.
func newDemoQueueWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "queue-worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.WorkQueue(cmd.Context(), cmd.OutOrStdout())
		},
	}
}
