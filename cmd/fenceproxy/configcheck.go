package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
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
			for _, warning := range c.Warnings {
				cmd.PrintErrln("warning: " + warning)
			}
			summarize(cmd.OutOrStdout(), c)
			return nil
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

// summarize says what a configuration comes to.
func summarize(w io.Writer, c *config) {
	rules := 0
	for _, b := range c.Buckets {
		rules += len(b.Rules)
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	say("%s is good: %d backends, %d bucket entries, %d rules; it listens on %s (admin on %s) and keeps its data in %s",
		c.File, len(c.Backends), len(c.Buckets), rules, c.Listen, c.Admin, c.Data)
	if c.Registry.shared() {
		say("The token registry is shared with other proxies: %s; the lease is %s.", c.Registry.place(), formatDuration(c.Registry.Lease))
	}
	if c.Health != "" {
		say("Health and metrics are on %s, too.", c.Health)
	}
	if c.TLS == (tlsFiles{}) {
		say("The S3 API is plain HTTP.")
	} else {
		say("The S3 API is HTTPS, with the certificate %s.", c.TLS.Cert)
	}
	if c.Domain != "" {
		say("Buckets have names of their own below %s.", c.Domain)
	}
	if c.Region != "" {
		say("Signatures have to name the region %s.", c.Region)
	}
	switch {
	case c.Anonymous:
		say("Anybody may come in, unsigned: anonymous.")
	case len(c.AccessKeys) == 0:
		say("Anybody on this machine may come in: there are no access_keys.")
	}
	for _, k := range c.AccessKeys {
		say("Access key %s: %s.", k.ID, reachOf(&k.Access))
	}
}

// reachOf says in words what an access key may do.
func reachOf(a *rules.Access) string {
	var parts []string
	if a.ReadOnly {
		parts = append(parts, "reads only")
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"buckets", a.Buckets}, {"keys that begin with", a.Prefixes}} {
		if len(list.names) > 0 {
			parts = append(parts, list.what+" "+strings.Trim(fmt.Sprintf("%q", list.names), "[]"))
		}
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, ", ")
}
