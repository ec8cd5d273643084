package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/internal/demo"
)

func newDemoCompareCommand() *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "One lock on Redis, etcd, ZooKeeper, PostgreSQL and the proxy: a killed holder, and a paused one",
		Long: `Plays the same rounds on each lock service, side by side, and shows as one table how long it takes until the next
holder has the lock when the one before is killed or paused, the tokens of both, and what became of the paused
holder's late write: straight to a directory, and through fenceproxy. It takes three to four times the TTL.

It starts a server of each, and leaves out those that are not installed; the table says how to install them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := demoOptions(cmd)
			if err != nil {
				return err
			}
			return demo.Compare(cmd.Context(), options, ttl)
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 4*time.Second, "after which a holder that is not heard of loses the lock")
	return cmd
}
