package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/spf13/cobra"
)

func newAuditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who was refused, who raised a fence, and what operators did",
		Long: `Shows the audit log of a running proxy, the newest first. Refusals that repeat are one record with a count.

--since and --until take a time (2026-05-04T03:02:01Z) or how long ago (90m, 24h, 7d).`,
		Example: `  fenceproxy audit --since 7d --kind refusal --bucket artifacts
  fenceproxy audit --resource artifacts/jobs/42 --format jsonl`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return runAudit(cmd) },
	}
	addAdminFlags(cmd)
	addFormatFlag(cmd)
	f := cmd.Flags()
	f.String("since", "24h", `records that began or went on after this; "" for all`)
	f.String("until", "", "records that began before this")
	f.String("kind", "", "refusal, raise, reset, in_doubt, guarantee, reload or start")
	f.String("code", "", "why something was refused, as in X-Fence-Error: StaleToken, …")
	f.String("bucket", "", "records of this bucket")
	f.String("resource", "", "records of this resource")
	f.String("access-key", "", "records of this access key")
	f.Int("limit", audit.DefaultLimit, "at most so many records")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(audit.Kinds, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runAudit(cmd *cobra.Command) error {
	format, err := formatOf(cmd)
	if err != nil {
		return err
	}
	query, limit, err := auditQuery(cmd)
	if err != nil {
		return err
	}
	client, err := newAdminClient(cmd)
	if err != nil {
		return err
	}
	records, more, err := fetchAudit(cmd.Context(), client, query, limit)
	if err != nil {
		return err
	}
	if err := auditListing.print(cmd.OutOrStdout(), format, records); err != nil {
		return err
	}
	if more {
		cmd.PrintErrf("These are the newest %d; there are more (--limit, or --until to go back).\n", len(records))
	}
	return nil
}

func auditQuery(cmd *cobra.Command) (query url.Values, limit int, err error) {
	f := cmd.Flags()
	query = url.Values{}
	for flag, name := range map[string]string{
		"since": "since", "until": "until", "kind": "kind", "code": "code", "bucket": "bucket", "resource": "resource", "access-key": "access_key",
	} {
		value, err := f.GetString(flag)
		if err != nil {
			return nil, 0, err
		}
		if value != "" {
			query.Set(name, value)
		}
	}
	if query.Has("until") && !f.Changed("since") {
		query.Del("since") // the default would end after the end that was asked for
	}
	limit, err = f.GetInt("limit")
	if err == nil && limit < 1 {
		err = fmt.Errorf("--limit %d: it is a number from 1 on", limit)
	}
	return query, limit, err
}

// fetchAudit reads up to limit records, page by page, and says whether there are more.
func fetchAudit(ctx context.Context, c *adminClient, query url.Values, limit int) (records []audit.Record, more bool, err error) {
	records = []audit.Record{}
	for {
		var page struct {
			Records []audit.Record `json:"records"`
			Next    string         `json:"next"`
		}
		query.Set("limit", strconv.Itoa(min(limit-len(records), pageSize)))
		if err := c.get(ctx, "/api/v1/audit", query, &page); err != nil {
			return nil, false, err
		}
		records = append(records, page.Records...)
		if page.Next == "" || len(records) >= limit {
			return records, page.Next != "", nil
		}
		query.Set("after", page.Next)
	}
}

var auditListing = listing[audit.Record]{
	none: "No records match.",
	table: []column[audit.Record]{
		{"TIME", func(r audit.Record) string { return localTime(r.Time) }},
		{"LAST", lastTime},
		{"COUNT", func(r audit.Record) string { return strconv.FormatInt(r.Count, 10) }},
		{"WHAT", whatHappened},
		{"RESOURCE", func(r audit.Record) string { return r.Resource }},
		{"TOKEN", func(r audit.Record) string { return tokenOrNone(r.Token) }},
		{"HIGHEST", func(r audit.Record) string { return tokenOrNone(r.Highest) }},
		{"WHO", func(r audit.Record) string { return cmp.Or(r.Holder, r.AccessKey) }},
		{"CLIENT", clientHost},
		{"DETAIL", func(r audit.Record) string { return r.Detail }},
	},
	csv: []column[audit.Record]{
		{"id", func(r audit.Record) string { return strconv.FormatInt(r.ID, 10) }},
		{"time", func(r audit.Record) string { return utcTime(r.Time) }},
		{"last", func(r audit.Record) string { return utcTime(r.Last) }},
		{"count", func(r audit.Record) string { return strconv.FormatInt(r.Count, 10) }},
		{"kind", func(r audit.Record) string { return r.Kind }},
		{"code", func(r audit.Record) string { return r.Code }},
		{"bucket", func(r audit.Record) string { return r.Bucket }},
		{"key", func(r audit.Record) string { return r.Key }},
		{"operation", func(r audit.Record) string { return r.Operation }},
		{"resource", func(r audit.Record) string { return r.Resource }},
		{"token", func(r audit.Record) string { return strconv.FormatInt(r.Token, 10) }},
		{"highest", func(r audit.Record) string { return strconv.FormatInt(r.Highest, 10) }},
		{"holder", func(r audit.Record) string { return r.Holder }},
		{"access_key", func(r audit.Record) string { return r.AccessKey }},
		{"client", func(r audit.Record) string { return r.Client }},
		{"user_agent", func(r audit.Record) string { return r.UserAgent }},
		{"request_id", func(r audit.Record) string { return r.RequestID }},
		{"detail", func(r audit.Record) string { return r.Detail }},
	},
}

// lastTime is when the last one of a run was: nothing for a single event, and no date where it is the day the run began.
func lastTime(r audit.Record) string {
	first, last := r.Time.Local(), r.Last.Local()
	switch {
	case r.Count == 1:
		return ""
	case first.Format(time.DateOnly) == last.Format(time.DateOnly):
		return last.Format(time.TimeOnly)
	}
	return localTime(last)
}

// whatHappened is the kind and the code; the code of a refusal says it alone.
func whatHappened(r audit.Record) string {
	switch {
	case r.Code == "":
		return r.Kind
	case r.Kind == audit.KindRefusal:
		return r.Code
	}
	return r.Kind + " " + r.Code
}

func tokenOrNone(t int64) string {
	if t == 0 {
		return ""
	}
	return strconv.FormatInt(t, 10)
}

func clientHost(r audit.Record) string {
	if host, _, err := net.SplitHostPort(r.Client); err == nil {
		return host
	}
	return r.Client
}

func utcTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
