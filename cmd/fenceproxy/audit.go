package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/spf13/cobra"
)

func newAuditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who was refused, who raised a fence, and what operators did",
		Long: `Shows the audit log of a running proxy, the newest first. Refusals that repeat are one record with a count. Of several proxies
(--admin URL,URL,…) it shows the records of all; it exits with 1 where one did not answer.

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
	clients, err := newAdminClients(cmd)
	if err != nil {
		return err
	}
	records, more, err := mergeAudit(cmd.Context(), clients, query, limit)
	if len(records) == 0 && err != nil {
		return err
	}
	if err := auditListingOf(records).print(cmd.OutOrStdout(), format, records); err != nil {
		return err
	}
	if more {
		cmd.PrintErrf("These are the newest %d; there are more (--limit, or --until to go back).\n", len(records))
	}
	return err
}

// mergeAudit asks all proxies at once and returns the newest records of all of them, from newest to oldest. It also does where some do not answer: its error says
// which, and that their records are missing.
func mergeAudit(ctx context.Context, clients []*adminClient, query url.Values, limit int) (records []audit.Record, more bool, err error) {
	answers := make([]auditAnswer, len(clients))
	var asked sync.WaitGroup
	for i, c := range clients {
		asked.Go(func() { answers[i] = fetchAudit(ctx, c, maps.Clone(query), limit) })
	}
	asked.Wait()
	records = []audit.Record{}
	var missing []error
	shared := map[string]bool{} // logs that several proxies write to, and one of them has shown
	for i, a := range answers {
		if a.err != nil {
			missing = append(missing, a.err)
			continue
		}
		if a.log != "" && shared[a.log] {
			continue
		}
		shared[a.log] = true
		for _, r := range a.records {
			if len(clients) > 1 {
				r.Instance = cmp.Or(r.Instance, clients[i].base)
			}
			records = append(records, r)
		}
		more = more || a.more
	}
	slices.SortStableFunc(records, func(a, b audit.Record) int { return b.Time.Compare(a.Time) })
	if len(records) > limit {
		records, more = records[:limit], true
	}
	if len(missing) > 0 && len(missing) < len(clients) {
		rest := "what they have written is missing"
		if _, own := shared[""]; !own {
			rest = "it is shown what they write to together"
		}
		missing = append(missing, fmt.Errorf("%d of %d proxies did not answer: %s", len(missing), len(clients), rest))
	}
	return records, more, errors.Join(missing...)
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

// An auditAnswer is what one proxy tells.
type auditAnswer struct {
	records []audit.Record
	more    bool   // there are
	log     string // where other proxies write to the same; "" where none does
	err     error
}

// fetchAudit reads up to limit records, page by page.
func fetchAudit(ctx context.Context, c *adminClient, query url.Values, limit int) (a auditAnswer) {
	for {
		var page struct {
			Records []audit.Record `json:"records"`
			Next    string         `json:"next"`
			Log     string         `json:"log"`
		}
		query.Set("limit", strconv.Itoa(min(limit-len(a.records), pageSize)))
		if a.err = c.get(ctx, "/api/v1/audit", query, &page); a.err != nil {
			return a
		}
		a.records, a.log = append(a.records, page.Records...), page.Log
		if page.Next == "" || len(a.records) >= limit {
			a.more = page.Next != ""
			return a
		}
		query.Set("after", page.Next)
	}
}

// auditListingOf names the proxies where the records come from several.
func auditListingOf(records []audit.Record) listing[audit.Record] {
	l := auditListing
	several := func(r audit.Record) bool { return r.Instance != records[0].Instance }
	if slices.ContainsFunc(records, several) {
		detail := len(l.table) - 1 // the longest comes last
		l.table = slices.Insert(slices.Clone(l.table), detail, column[audit.Record]{"INSTANCE", func(r audit.Record) string { return r.Instance }})
	}
	return l
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
		{"instance", func(r audit.Record) string { return r.Instance }},
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
