package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/spf13/cobra"
)

type rebuildFlags struct {
	serveFlags
	buckets        []string
	acceptFailures bool
}

func newRebuildCommand() *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Read the tokens of a lost registry back from the stamps of the objects, while no proxy runs",
		Long: `Asks every object of the configuration's buckets for the stamp that the proxy left on it, and raises the registry to the
tokens found. Where there is no registry it makes one. It can be interrupted and run again.

What it finds is a lower bound: objects that were deleted carry no stamp, and an upload in parts carries the token that began it.
So fenceproxy raise --all-by N has to follow before fenceproxy serve.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := formatOf(cmd)
			if err != nil {
				return err
			}
			c, err := loadConfig(f.config, os.LookupEnv)
			if err != nil {
				return err
			}
			return rebuild(cmd, c, f, format)
		},
	}
	addConfigFlag(cmd, &f.config)
	addFormatFlag(cmd)
	cmd.Flags().StringSliceVar(&f.buckets, "bucket", nil, "only these buckets, also where the store does not list them")
	cmd.Flags().StringArrayVar(&f.adopt, "adopt", nil, "stamps of the token registry with this `ID` count, too; a registry that is new takes them all")
	cmd.Flags().BoolVar(&f.acceptFailures, "accept-failures", false, "come to an end although objects could not be read: what their stamps say is given up")
	cmd.Flags().BoolVar(&f.unsafeNetworkFS, "unsafe-network-fs", false, "as of serve")
	return cmd
}

// A bucketCount is what was found in a bucket.
type bucketCount struct {
	Bucket        string `json:"bucket"`
	Backend       string `json:"backend"`
	Objects       int64  `json:"objects"`
	Stamps        int64  `json:"stamps"`         // that count
	Raised        int64  `json:"raised"`         // resources
	NoStamp       int64  `json:"no_stamp"`       // objects
	OtherResource int64  `json:"other_resource"` // objects whose stamp names another resource: copies, or other rules
	OtherRegistry int64  `json:"other_registry"` // objects whose stamp is of a registry that does not count
	NotFenced     int64  `json:"not_fenced"`     // objects of a rule with token: off
	Failures      int64  `json:"failures"`       // objects that could not be asked for, or lists that broke off
}

func (b *bucketCount) add(o bucketCount) {
	b.Objects, b.Stamps, b.Raised, b.NoStamp = b.Objects+o.Objects, b.Stamps+o.Stamps, b.Raised+o.Raised, b.NoStamp+o.NoStamp
	b.OtherResource, b.OtherRegistry = b.OtherResource+o.OtherResource, b.OtherRegistry+o.OtherRegistry
	b.NotFenced, b.Failures = b.NotFenced+o.NotFenced, b.Failures+o.Failures
}

var rebuildListing = func() listing[bucketCount] {
	number := func(title string, of func(bucketCount) int64) column[bucketCount] {
		return column[bucketCount]{title, func(b bucketCount) string { return strconv.FormatInt(of(b), 10) }}
	}
	columns := func(titles ...string) []column[bucketCount] {
		return []column[bucketCount]{
			{titles[0], func(b bucketCount) string { return b.Bucket }},
			{titles[1], func(b bucketCount) string { return b.Backend }},
			number(titles[2], func(b bucketCount) int64 { return b.Objects }),
			number(titles[3], func(b bucketCount) int64 { return b.Stamps }),
			number(titles[4], func(b bucketCount) int64 { return b.Raised }),
			number(titles[5], func(b bucketCount) int64 { return b.NoStamp }),
			number(titles[6], func(b bucketCount) int64 { return b.OtherResource }),
			number(titles[7], func(b bucketCount) int64 { return b.OtherRegistry }),
			number(titles[8], func(b bucketCount) int64 { return b.NotFenced }),
			number(titles[9], func(b bucketCount) int64 { return b.Failures }),
		}
	}
	return listing[bucketCount]{
		none:  "There are no buckets.",
		table: columns("BUCKET", "BACKEND", "OBJECTS", "STAMPS", "RAISED", "NO STAMP", "OTHER RESOURCE", "OTHER REGISTRY", "NOT FENCED", "FAILURES"),
		csv: columns("bucket", "backend", "objects", "stamps", "raised", "no_stamp", "other_resource", "other_registry", "not_fenced",
			"failures"),
	}
}()

// rebuild opens what serve would open, and a new registry where there is none. If we crash in the middle, what was recorded so far is
// there, lower than it should be, and the next rebuild goes over everything once more.
func rebuild(cmd *cobra.Command, c *config, f rebuildFlags, format string) (err error) {
	ctx, log := cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	s := newState()
	defer func() { err = errors.Join(err, s.close(log)) }()
	r := &rebuilder{state: s, config: c, log: log, acceptFailures: f.acceptFailures, at: time.Now(), others: map[string]int64{}, progress: newProgress(cmd.ErrOrStderr())}
	if err := r.begin(ctx, f.serveFlags); err != nil {
		return err
	}
	rows, err := r.targets(ctx, f.buckets)
	if err != nil {
		return err
	}
	total := bucketCount{Bucket: "all"}
	for i := range rows {
		if ctx.Err() != nil || s.registry.Failure() != nil {
			rows = rows[:i]
			break
		}
		r.bucket(ctx, &rows[i])
		total.add(rows[i])
	}
	r.progress.done()
	s.audit.Add(ctx, audit.Record{
		Kind: audit.KindRaise, Operation: "rebuild",
		Detail: fmt.Sprintf("%d resources were raised from the stamps of %d objects, %d of which could not be read", total.Raised, total.Objects, total.Failures),
	})
	if format == "table" && len(rows) > 1 {
		rows = append(rows, total)
	}
	if err := rebuildListing.print(cmd.OutOrStdout(), format, rows); err != nil {
		return err
	}
	return r.conclude(ctx, cmd, total)
}

// conclude says what the numbers are worth.
func (r *rebuilder) conclude(ctx context.Context, cmd *cobra.Command, total bucketCount) error {
	for _, id := range slices.Sorted(maps.Keys(r.others)) {
		cmd.PrintErrf("%d stamps of registry %s were left out, for it is not this one's. If that one is gone for good, `fenceproxy rebuild --adopt %s` takes them.\n",
			r.others[id], id, id)
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("the rebuild was interrupted: run it again, it goes over everything once more")
	case r.registry.Failure() != nil:
		return r.registry.Failure()
	case total.Failures > 0 && !r.acceptFailures:
		return fmt.Errorf("%d objects or lists could not be read, so tokens may be missing: see the warnings, and run the rebuild again. If they can never be read, --accept-failures gives them up", total.Failures)
	}
	if err := r.registry.SetRepair(ctx, tokens.RepairMargin); err != nil {
		return err
	}
	cmd.PrintErrln("These tokens are lower bounds: deleted objects carry none, and uploads in parts that of their beginning. A resource without an\n" +
		"object has no mark at all: see that none of its old holders is left. Before `fenceproxy serve`, run `fenceproxy raise --all-by N`, with N\n" +
		"larger than the number of tokens that were handed out for any one resource since its last object was written. New tokens on S3\n" +
		"wait for what the old proxy may still have under way there.")
	return nil
}

// A rebuilder is a rebuild under way. One goroutine has it.
type rebuilder struct {
	*state
	config   *config
	log      *slog.Logger
	progress *progress
	at       time.Time // when it began
	// acceptFailures lets it end although objects could not be read.
	acceptFailures bool
	fresh          bool             // the registry knows nothing yet: whatever registry has left stamps, this one takes its place
	others         map[string]int64 // stamps that do not count, by registry
	warned         int
}

// begin opens everything. A registry that has no token yet is a new one, as after a rebuild that was killed early.
func (r *rebuilder) begin(ctx context.Context, f serveFlags) error {
	f.newRegistry = true
	r.repair = tokens.RepairNew // from its first moment on
	if err := r.open(ctx, r.config, f, r.log, "fenceproxy rebuild", instanceOf("rebuild")); err != nil {
		return offline(err)
	}
	if r.registry.Start().Created {
		r.log.Warn("there was no token registry: a new one was made", "registry", r.registry.Start().ID, "in", r.config.Registry.place(), "data", r.config.Data)
	}
	some, err := r.registry.List(ctx, "", "", 1)
	if err != nil {
		return err
	}
	before, err := r.registry.Repair(ctx)
	if err != nil {
		return err
	}
	r.fresh = len(some) == 0 || before == tokens.RepairNew
	under := tokens.RepairKnown
	if r.fresh {
		under = tokens.RepairNew
	}
	if err := r.registry.SetRepair(ctx, under); err != nil {
		return err
	}
	if err := alone(ctx, r.registry, r.log); err != nil { // none starts any more, for the repair is on record
		return errors.Join(err, r.registry.SetRepair(ctx, before))
	}
	f.newRegistry = r.fresh
	if err := r.bind(r.config, f, r.log); err != nil {
		return err
	}
	r.recordStart(ctx, r.config, r.log)
	if err := r.adopt(ctx, f.adopt, r.log); err != nil {
		return err
	}
	return r.checkMapping(ctx, r.config, false, r.log)
}

// targets are the buckets to go through: those that were named, or all that the stores have and the configuration leads there.
func (r *rebuilder) targets(ctx context.Context, named []string) (all []bucketCount, err error) {
	for _, bucket := range named {
		t, ok := r.config.Rules.Bucket(bucket)
		if !ok {
			return nil, fmt.Errorf("--bucket %s: no entry of the configuration matches it", bucket)
		}
		all = append(all, bucketCount{Bucket: bucket, Backend: t.Backend})
	}
	if len(named) > 0 {
		return all, nil
	}
	for _, b := range r.config.Backends {
		buckets, err := r.walker(b.Name).buckets(ctx)
		if err != nil {
			return nil, fmt.Errorf("backend %s does not list its buckets; name them with --bucket: %w", b.Name, err)
		}
		for _, bucket := range buckets {
			if t, ok := r.config.Rules.Bucket(bucket); ok && t.Backend == b.Name {
				all = append(all, bucketCount{Bucket: bucket, Backend: b.Name})
			}
		}
	}
	return all, nil
}

// walker asks a disk for two objects at a time, and a store over the network for as many as its answers take their time.
func (r *rebuilder) walker(backend string) *walker {
	w := &walker{backend: r.backends[backend].Handler, heads: 16, pause: 200 * time.Millisecond}
	if r.stores[backend] != nil {
		w.heads = 2
	}
	return w
}

func (r *rebuilder) bucket(ctx context.Context, n *bucketCount) {
	w := r.walker(n.Backend)
	err := w.keys(ctx, n.Bucket, func(keys []string) error { return r.page(ctx, w, n, keys) })
	if err != nil && ctx.Err() == nil {
		n.Failures++
		r.warn("the list of a bucket broke off", "bucket", n.Bucket, "cause", err)
	}
}

// page reads the stamps of some objects and records what they tell, in one step.
func (r *rebuilder) page(ctx context.Context, w *walker, n *bucketCount, keys []string) error {
	resources := make(map[string]string, len(keys))
	keys = slices.DeleteFunc(keys, func(key string) bool {
		t, ok := r.config.Rules.Object(n.Bucket, key)
		resources[key] = t.Resource
		if !ok || !t.Fenced {
			n.Objects++
			n.NotFenced++
			return true
		}
		return false
	})
	marks := map[string]tokens.Mark{}
	w.stamps(ctx, n.Bucket, keys, func(key, text string, err error) {
		switch {
		case ctx.Err() != nil:
			return // not looked at
		case errors.Is(err, errUnreadable):
			n.NoStamp++
			r.warn("an object has no stamp that could be read", "bucket", n.Bucket, "key", key, "cause", err)
		case err != nil:
			n.Failures++
			r.warn("an object could not be read", "bucket", n.Bucket, "key", key, "cause", err)
		default:
			if m := r.judge(ctx, n, resources[key], text); m.Token > 0 {
				old := marks[resources[key]]
				marks[resources[key]] = tokens.Mark{Token: max(m.Token, old.Token), Generation: max(m.Generation, old.Generation)}
			}
		}
		n.Objects++
		r.progress.object(n.Bucket)
	})
	if len(marks) == 0 {
		return nil
	}
	raised, err := r.registry.RaiseTo(ctx, marks, r.at)
	n.Raised += raised
	return err
}

// judge is what a stamp tells of a resource; the zero Mark if it tells nothing. In a registry that is being filled for the first time, a token from
// before a reset counts as any other: that may be too high, and is never too low.
func (r *rebuilder) judge(ctx context.Context, n *bucketCount, resource, text string) tokens.Mark {
	s, ok := proxy.ParseStamp(text)
	switch {
	case !ok:
		n.NoStamp++
	case s.Resource != proxy.ResourceHash(resource):
		n.OtherResource++ // it came with a copy, or from a time with other rules
	case !r.counts(ctx, s.Registry):
		n.OtherRegistry++
		r.others[s.Registry]++
	case r.outdated(ctx, s, resource):
		n.Stamps++
	default:
		n.Stamps++
		return tokens.Mark{Token: s.Token, Generation: s.Generation}
	}
	return tokens.Mark{}
}

// outdated says that a stamp is from before a reset that the registry knows of. Where it is being filled for the first time, generations of other
// registries say nothing of each other.
func (r *rebuilder) outdated(ctx context.Context, s proxy.Stamp, resource string) bool {
	if r.fresh && s.Registry != r.registry.Start().ID {
		return false
	}
	now, err := r.registry.Lookup(ctx, resource)
	return err == nil && s.Generation < now.Generation
}

// counts says whether the stamps of a registry count. A new registry takes the place of every one that has left some, and has to
// say so for ever: to the proxy they would be signs of a second fence.
func (r *rebuilder) counts(ctx context.Context, id string) bool {
	if id == r.registry.Start().ID || slices.Contains(r.registry.Adopted(), id) {
		return true
	}
	if !r.fresh {
		return false
	}
	if err := r.adopt(ctx, []string{id}, r.log); err != nil {
		r.warn("a stamp names a registry that cannot be adopted", "cause", err)
		return false
	}
	return true
}

// maxWarnings is how many failures are told one by one.
const maxWarnings = 20

func (r *rebuilder) warn(what string, args ...any) {
	if r.warned++; r.warned <= maxWarnings {
		r.log.Warn(what, args...)
	}
	if r.warned == maxWarnings {
		r.log.Warn("further failures are counted only")
	}
}

// A progress tells how far the rebuild is: in one line that is written anew on a terminal, elsewhere in a line every 5 seconds.
type progress struct {
	w       io.Writer
	begin   string // of a line
	end     string
	every   time.Duration
	start   time.Time
	last    time.Time
	objects int64
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, end: "\n", every: 5 * time.Second, start: time.Now(), last: time.Now()}
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		p.begin, p.end, p.every = "\r\x1b[K", "", 200*time.Millisecond // back to the first column, and clear the line
	}
	return p
}

// object counts one.
func (p *progress) object(bucket string) {
	p.objects++
	now := time.Now()
	if now.Sub(p.last) < p.every {
		return
	}
	p.last = now
	fmt.Fprintf(p.w, "%s%d objects, %.0f per second, in bucket %s%s", p.begin, p.objects, float64(p.objects)/now.Sub(p.start).Seconds(), printable(bucket), p.end)
}

// done leaves the terminal's line empty.
func (p *progress) done() { fmt.Fprint(p.w, p.begin) }
