package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	var file string
	check := &cobra.Command{
		Use:   "check",
		Short: "Read the configuration as serve would, and name every fault in it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(file, os.LookupEnv)
			if err != nil {
				return err
			}
			rules := 0
			for _, b := range c.Buckets {
				rules += len(b.Rules)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is good: %d backends, %d bucket entries, %d rules; it listens on %s (admin on %s) and keeps its data in %s\n",
				file, len(c.Backends), len(c.Buckets), rules, c.Listen, c.Admin, c.Data)
			return err
		},
	}
	addConfigFlag(check, &file)
	cmd.AddCommand(check)
	return cmd
}

func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "config.yaml", "the configuration")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}
