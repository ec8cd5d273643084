// Command fenceproxy is an HTTP proxy that makes fencing tokens true for S3 and for directories.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process as if there were no handler
	err := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		if !errors.Is(err, errQuiet) {
			fmt.Fprintln(os.Stderr, "fenceproxy:", err)
		}
		os.Exit(exitCode(err))
	}
}

// execute is the program without its process.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	cmd := newRootCommand()
	cmd.SetArgs(args)
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	return cmd.ExecuteContext(ctx)
}

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fenceproxy",
		Short: "An S3 proxy that lets no stale lock holder write",
		Long: `fenceproxy stands in front of a directory, speaks the S3 API, and keeps the highest
fencing token seen for every resource on disk. No write with a lower token takes effect.`,
		SilenceErrors: true, // main says it
		SilenceUsage:  true, // a full disk is not explained by a list of flags
	}
	cmd.AddCommand(newServeCommand(), newRunCommand(), newDemoCommand(), newFencesCommand(), newAuditCommand(), newConfigCommand(), newRaiseCommand(), newRebuildCommand(), newFsckCommand(), newVersionCommand())
	return cmd
}
