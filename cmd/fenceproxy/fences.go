package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/spf13/cobra"
)

// A fence is what the admin API tells of one.
type fence struct {
	Resource  string       `json:"resource"`
	Token     tokens.Token `json:"token"`
	Holder    string       `json:"holder"`
	AccessKey string       `json:"access_key"`
	RaisedAt  string       `json:"raised_at"` // RFC 3339
	Refusals  int64        `json:"refusals"`
}

func (f fence) token() string { return strconv.FormatInt(int64(f.Token), 10) }

func (f fence) raised() string {
	t, err := time.Parse(time.RFC3339, f.RaisedAt)
	if err != nil {
		return f.RaisedAt
	}
	return localTime(t)
}

func newFencesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fences",
		Short: "Show and change the highest token seen of each resource",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	addAdminFlags(cmd)
	cmd.AddCommand(newFencesListCommand(), newFencesShowCommand(), newFencesRaiseCommand(), newFencesResetCommand())
	return cmd
}

func newFencesListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "list",
		Short:        "List all fences, in the order of their names",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
	}
	prefix := cmd.Flags().String("prefix", "", "only resources whose names begin with this, such as artifacts/jobs/")
	addFormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := formatOf(cmd)
		if err != nil {
			return err
		}
		client, err := newAdminClient(cmd)
		if err != nil {
			return err
		}
		fences, err := fetchFences(cmd.Context(), client, *prefix)
		if err != nil {
			return err
		}
		return fenceListing.print(cmd.OutOrStdout(), format, fences)
	}
	return cmd
}

// A fencePage is one answer of the API.
type fencePage struct {
	Fences []fence `json:"fences"`
	Next   string  `json:"next"`
}

func fetchFences(ctx context.Context, c *adminClient, prefix string) ([]fence, error) {
	fences := []fence{}
	query := url.Values{"limit": {strconv.Itoa(pageSize)}, "prefix": {prefix}}
	for {
		var page fencePage
		if err := c.get(ctx, "/api/v1/fences", query, &page); err != nil {
			return nil, err
		}
		fences = append(fences, page.Fences...)
		if page.Next == "" {
			return fences, nil
		}
		query.Set("after", page.Next)
	}
}

var fenceListing = listing[fence]{
	none: "No fences: no token has been seen there yet.",
	table: []column[fence]{
		{"RESOURCE", func(f fence) string { return f.Resource }},
		{"TOKEN", fence.token},
		{"HOLDER", func(f fence) string { return f.Holder }},
		{"ACCESS KEY", func(f fence) string { return f.AccessKey }},
		{"RAISED", fence.raised},
		{"REFUSED", func(f fence) string { return strconv.FormatInt(f.Refusals, 10) }},
	},
	csv: []column[fence]{
		{"resource", func(f fence) string { return f.Resource }},
		{"token", fence.token},
		{"holder", func(f fence) string { return f.Holder }},
		{"access_key", func(f fence) string { return f.AccessKey }},
		{"raised_at", func(f fence) string { return f.RaisedAt }},
		{"refusals", func(f fence) string { return strconv.FormatInt(f.Refusals, 10) }},
	},
}

func newFencesShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "show RESOURCE",
		Short:        "Show the fence of one resource",
		Example:      "  fenceproxy fences show artifacts/jobs/42",
		Args:         cobra.ExactArgs(1),
		SilenceUsage: true,
	}
	addFormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := formatOf(cmd)
		if err != nil {
			return err
		}
		client, err := newAdminClient(cmd)
		if err != nil {
			return err
		}
		f, err := fetchFence(cmd.Context(), client, args[0])
		if err != nil {
			return err
		}
		if f.Token == 0 {
			return fmt.Errorf("%s has no fence: no token has been seen there yet", printable(f.Resource))
		}
		if format == "json" {
			return printJSON(cmd.OutOrStdout(), f)
		}
		return fenceListing.print(cmd.OutOrStdout(), format, []fence{f})
	}
	return cmd
}

// fetchFence returns the fence of a resource, with token 0 where there is none.
func fetchFence(ctx context.Context, c *adminClient, resource string) (fence, error) {
	var page fencePage
	if err := c.get(ctx, "/api/v1/fences", url.Values{"resource": {resource}}, &page); err != nil {
		return fence{}, err
	}
	if len(page.Fences) == 0 {
		return fence{Resource: resource}, nil
	}
	return page.Fences[0], nil
}

// A fenceChange is the body of a raise or a reset.
type fenceChange struct {
	Resource string       `json:"resource"`
	Token    tokens.Token `json:"token"`
	Reason   string       `json:"reason"`
}

func newFencesRaiseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "raise RESOURCE TOKEN",
		Short:        "Let no write with a lower token in any more",
		Example:      "  fenceproxy fences raise artifacts/jobs/42 35 --reason 'job 42 runs elsewhere'",
		Args:         cobra.ExactArgs(2),
		SilenceUsage: true,
	}
	reason := cmd.Flags().String("reason", "", "for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		token, err := tokens.ParseToken(args[1])
		if err != nil {
			return err
		}
		client, err := newAdminClient(cmd)
		if err != nil {
			return err
		}
		return changeFence(cmd, client, "raise", fenceChange{args[0], token, *reason})
	}
	return cmd
}

func changeFence(cmd *cobra.Command, c *adminClient, how string, change fenceChange) error {
	var f fence
	if err := c.post(cmd.Context(), "/api/v1/fences/"+how, change, &f); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "The highest token of %s is %d now.\n", printable(f.Resource), f.Token)
	return err
}

func newFencesResetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset RESOURCE TOKEN",
		Short: "Set the highest token of a resource, lower ones included",
		Long: `Sets the highest token of a resource: the only way down, for a lock service that lost its counter and counts from the
start again. Writers with lower tokens that were refused so far get in again if theirs is not below TOKEN. Make sure that none
of them is left.`,
		Example:      "  fenceproxy fences reset artifacts/jobs/42 1 --reason 'etcd was restored from a backup'",
		Args:         cobra.ExactArgs(2),
		SilenceUsage: true,
	}
	reason := cmd.Flags().String("reason", "", "for the audit log (required)")
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		token, err := tokens.ParseToken(args[1])
		if err != nil {
			return err
		}
		if strings.TrimSpace(*reason) == "" {
			return errors.New("say why with --reason: the audit log keeps it")
		}
		client, err := newAdminClient(cmd)
		if err != nil {
			return err
		}
		if !*yes {
			if err := confirmReset(cmd, client, args[0], token); err != nil {
				return err
			}
		}
		return changeFence(cmd, client, "reset", fenceChange{args[0], token, *reason})
	}
	return cmd
}

// confirmReset shows what is about to change and asks, on a terminal; elsewhere nobody could answer.
func confirmReset(cmd *cobra.Command, c *adminClient, resource string, t tokens.Token) error {
	if !isTerminal(cmd.InOrStdin()) {
		return errors.New("a reset asks before it lets older writers in, and there is no terminal to ask on: add --yes")
	}
	f, err := fetchFence(cmd.Context(), c, resource)
	if err != nil {
		return err
	}
	cmd.PrintErrf("%s is at token %d", printable(f.Resource), f.Token)
	if f.Holder != "" {
		cmd.PrintErrf(" of holder %s", printable(f.Holder))
	}
	cmd.PrintErrf(". After the reset every writer with a token from %d on may write. Reset? [y/N] ", t)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

// isTerminal says whether somebody may sit at the other end of r. What cron gives, /dev/null, is a device, too.
var isTerminal = func(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}
