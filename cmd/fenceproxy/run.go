package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	fencelock "github.com/fenceproxy/fenceproxy/tokens/locks/fence"
)

// What `fenceproxy run` exits with when it is not the command's own code. Like timeout(1), env(1) and the shells have it.
const (
	exitLockLost   = 123 // and the command was ended for it
	exitNotWon     = 124 // the lock was not free within --wait
	exitRunFailed  = 125 // run itself failed; the command was not started
	exitNotStarted = 126 // the command was found, and could not be started
	exitNotFound   = 127
	exitSignal     = 128 // and the number of the signal that ended the command
)

type runOptions struct {
	lock      string
	ttl       time.Duration
	wait      time.Duration
	endpoint  string
	holder    string
	resource  string
	announce  string
	killAfter time.Duration
	onLost    string
	report    string
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run --lock URL [flags] -- command [argument…]",
		Short: "Run a command under a lock, with the lock's fencing token in its environment",
		Long: `run takes a lock, gives the command a fencing token that is higher than that of every holder before,
and keeps the lock until the command ends. The command needs to know nothing of it:

  FENCE_TOKEN, FENCE_HOLDER   the token, and the name under which the lock is held
  FENCE_RESOURCE              what the token fences, where that is known (--resource, --announce, fence://)
  AWS_ENDPOINT_URL            the proxy of --endpoint, with the token in its path
  AWS_SESSION_TOKEN           the token once more, for clients that do not take the endpoint from there
  AWS_CA_BUNDLE               the certificates to trust, if the lock's URL names a file

The token is fixed when the command starts. If the lock is lost, the command gets a SIGTERM, and a SIGKILL
after --kill-after; until then, and with --on-lost keep, the fence refuses its writes as soon as somebody
else has written. Signals are passed on.

Locks:
` + lockForms() + `
Exit codes: the command's own, 128 and the number of the signal that ended it; 123: the lock was lost, and
the command was ended; 124: the lock was not free within --wait; 125: run itself failed, and the command was
not started; 126, 127: the command could not be started, or was not found.`,
		Example: `  fenceproxy run --lock fence://localhost:9000/demo/jobs/7/state -- aws s3 cp state s3://demo/jobs/7/state
  fenceproxy run --lock redis://localhost/compactor --endpoint http://localhost:9000 \
      --announce demo/jobs/7/state -- ./compact --bucket demo`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &exitError{exitRunFailed, errors.New("there is no command to run: fenceproxy run --lock URL -- command …")}
			}
			r, err := newRunner(o, args, cmd.ErrOrStderr())
			if err != nil {
				return &exitError{exitRunFailed, err}
			}
			return r.run(cmd.Context())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitRunFailed, err} })
	f := cmd.Flags()
	f.SetInterspersed(false) // what comes after the command is the command's
	f.StringVar(&o.lock, "lock", "", "`URL` of the lock (default: "+lockVariable+", which others do not see)")
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "after which a holder that is not heard of loses the lock; it is renewed every third of it")
	f.DurationVar(&o.wait, "wait", 10*time.Minute, "how long to wait for the lock; 0 does not wait")
	f.StringVar(&o.endpoint, "endpoint", "", "`URL` of the proxy, for the command (default with fence://: the proxy that has the lock)")
	f.StringVar(&o.holder, "holder", "", "`name` of this holder, for others to see (default: this machine, the process and a random part)")
	f.StringVar(&o.resource, "resource", "", "what the token fences, for the command to know")
	f.StringVar(&o.announce, "announce", "", "`bucket/key` whose fence is raised before the command starts, so that no older holder can change what it reads")
	f.DurationVar(&o.killAfter, "kill-after", 10*time.Second, "how long after the SIGTERM of a lost lock the SIGKILL comes")
	f.StringVar(&o.onLost, "on-lost", "term", "what becomes of the command when the lock is lost: `term|keep`")
	f.StringVar(&o.report, "report", "", "append what happened to this `file`, as one line of JSON")
	_ = cmd.MarkFlagFilename("report")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]string{"term", "keep"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// lockVariable names the lock where --lock does not: a command line is there for all to see, and a lock's URL may have a password in it.
const lockVariable = "FENCEPROXY_LOCK"

// A runner is one `fenceproxy run`.
type runner struct {
	options runOptions
	command []string
	lock    string // its URL as it may be shown
	service locks.Service
	log     *runLog
	proxy   *fencelock.Proxy // nil where no --endpoint is known
	ca      string           // a file of certificates to trust at the proxy, where the lock's URL has one
	report  *runReport
}

func newRunner(o runOptions, command []string, errOut io.Writer) (*runner, error) {
	if o.onLost != "term" && o.onLost != "keep" {
		return nil, fmt.Errorf("--on-lost %q: it is term or keep", o.onLost)
	}
	if o.ttl < time.Second || o.wait < 0 || o.killAfter < 0 {
		return nil, errors.New("--ttl is at least 1s, and --wait and --kill-after are not negative")
	}
	if o.holder == "" {
		o.holder = locks.NewHolder()
	} else if _, err := tokens.ParseHolder(o.holder); err != nil {
		return nil, fmt.Errorf("--holder: %w", err)
	}
	o.lock = cmp.Or(o.lock, os.Getenv(lockVariable))
	if o.lock == "" {
		return nil, errors.New("which lock? --lock URL says it, or " + lockVariable + "; fenceproxy run --help lists the kinds there are")
	}
	service, shown, err := openLock(o.lock)
	if err != nil {
		return nil, fmt.Errorf("--lock: %w", err)
	}
	r := &runner{options: o, command: command, lock: shown, service: service, log: newRunLog(errOut)}
	r.report = newRunReport(r)
	if err := r.findProxy(); err != nil {
		return nil, errors.Join(err, service.Close())
	}
	return r, nil
}

// findProxy prepares what talks to the proxy, if there is one to talk to.
func (r *runner) findProxy() (err error) {
	o := &r.options
	if o.announce != "" {
		if bucket, key, _ := strings.Cut(o.announce, "/"); bucket == "" || key == "" {
			return fmt.Errorf("--announce %q: it is bucket/key", o.announce)
		}
	}
	if p, ok := r.service.(interface{ Endpoint() (url, ca string) }); ok && o.endpoint == "" {
		o.endpoint, r.ca = p.Endpoint()
	}
	if o.endpoint == "" {
		if o.announce != "" {
			return errors.New("--announce needs --endpoint: where is the proxy?")
		}
		return nil
	}
	o.endpoint = strings.TrimRight(o.endpoint, "/")
	if r.proxy, err = fencelock.NewProxy(o.endpoint, r.ca); err != nil {
		return fmt.Errorf("--endpoint %q: %w", o.endpoint, err)
	}
	return nil
}

// run takes the lock, runs the command, and gives the lock back.
func (r *runner) run(ctx context.Context) error {
	defer r.service.Close()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // main was faster, and knows not which signal it was
		return &exitError{exitSignal + int(syscall.SIGTERM), &signalError{syscall.SIGTERM}}
	}
	// Who reads our words may be gone (2>&1 | head). That is an error of Write then, and not our end: the lock is to be kept, and given back.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	grant, err := r.prepare(ctx, signals)
	if err != nil {
		return err
	}
	started := time.Now()
	code, err := r.child(grant, signals)
	r.report.Held = seconds(time.Since(started))
	r.report.Exit = code
	if err := r.release(grant); err != nil {
		r.log.say("the lock could not be released, and runs out within %s: %v", r.options.ttl, err)
	}
	r.log.say("%s", r.report.summary())
	r.write()
	if err != nil || code == 0 {
		return err
	}
	return &exitError{code, errQuiet}
}

// prepare takes the lock and announces its token, unless a signal comes first. What a signal after that does is the command's affair.
func (r *runner) prepare(ctx context.Context, signals <-chan os.Signal) (*locks.Grant, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // main's context knows not which signal it was
	listened := make(chan struct{})
	var ended *signalError // to be read when listened is closed
	go func() {
		defer close(listened)
		for {
			select {
			case s := <-signals:
				if s != syscall.SIGUSR1 && s != syscall.SIGUSR2 && s != syscall.SIGWINCH { // nobody is there yet whom they would concern
					ended = &signalError{s.(syscall.Signal)}
					cancel(ended)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	grant, err := r.acquire(ctx)
	if err == nil {
		err = r.raise(ctx, grant)
	}
	cancel(nil)
	<-listened
	if ended != nil { // perhaps when all was done: the command would not hear of it any more
		err = &exitError{exitSignal + int(ended.signal), ended}
	}
	if err != nil && grant != nil {
		err = errors.Join(err, r.release(grant))
	}
	var coded *exitError
	if err != nil && !errors.As(err, &coded) {
		err = &exitError{exitRunFailed, err}
	}
	if err != nil {
		r.report.Exit = exitCode(err)
		r.write()
	}
	return grant, err
}

// A signalError says that a signal came before the command was started.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string {
	return fmt.Sprintf("ended by a signal (%v) before the command was started", e.signal)
}

// write writes the report; that it cannot be written ends nothing.
func (r *runner) write() {
	if err := r.report.write(r.options.report, r.log); err != nil {
		r.log.say("--report: %v", err)
	}
}

// acquire waits for the lock.
func (r *runner) acquire(ctx context.Context) (*locks.Grant, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &waiting{runner: r, began: time.Now()}
	defer w.end()
	limit := r.options.wait
	if limit == 0 {
		w.found = func() { cancel(errNotWon) }
		limit = tryWait
	}
	stop := time.AfterFunc(limit, func() { cancel(errNotWon) })
	defer stop.Stop()
	r.warn(ctx)
	lock := locks.New(r.service, locks.Options{TTL: r.options.ttl, Holder: r.options.holder, Waiting: w.told})
	grant, err := lock.Acquire(ctx)
	r.report.Waited = seconds(time.Since(w.began))
	switch {
	case err == nil:
		r.report.Token, r.report.TakenOver = grant.Token(), grant.TakenOver()
		return grant, nil
	case errors.Is(context.Cause(ctx), errNotWon) && w.seen():
		return nil, &exitError{exitNotWon, fmt.Errorf("%s was not free%s: %s", r.lock, r.within(), w.whose())}
	case errors.Is(context.Cause(ctx), errNotWon):
		return nil, &exitError{exitNotWon, fmt.Errorf("%s could not be taken%s: %w", r.lock, r.within(), err)}
	}
	return nil, fmt.Errorf("%s: %w", r.lock, err)
}

// within is how long the lock was waited for.
func (r *runner) within() string {
	if r.options.wait == 0 {
		return ""
	}
	return fmt.Sprintf(" within %s", r.options.wait)
}

// tryWait is how long a lock that is not to be waited for may take to say whether it is free.
const tryWait = 10 * time.Second

var (
	errNotWon = errors.New("the time of --wait is over")
	errQuiet  = errors.New("") // all has been said
)

// warn tells what the lock service says of itself, before anybody relies on it.
func (r *runner) warn(ctx context.Context) {
	checker, ok := r.service.(locks.Checker)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	problems, err := checker.Check(ctx)
	if err != nil {
		return // Acquire will say it
	}
	for _, p := range problems {
		r.log.say("careful: %s", p)
	}
}

func (r *runner) release(g *locks.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), min(r.options.ttl, 10*time.Second))
	defer cancel()
	err := g.Release(ctx)
	if errors.Is(err, locks.ErrLost) {
		r.report.Lost = true
		return nil // said when it happened, or of no consequence any more
	}
	return err
}

// environment is what the command gets: what run sets comes last, and what would win over it is taken out.
func (r *runner) environment(g *locks.Grant) []string {
	set := []string{fmt.Sprintf("FENCE_TOKEN=%d", g.Token()), "FENCE_HOLDER=" + g.Holder()}
	if resource := cmp.Or(r.options.resource, g.Resource()); resource != "" {
		set = append(set, "FENCE_RESOURCE="+resource)
	}
	claim := fmt.Sprintf("fence=%d;holder=%s", g.Token(), g.Holder())
	set = append(set, "AWS_SESSION_TOKEN="+claim)
	if r.options.endpoint != "" {
		set = append(set, fmt.Sprintf("AWS_ENDPOINT_URL=%s/~fence/%d;holder=%s", r.options.endpoint, g.Token(), url.PathEscape(g.Holder())))
	}
	if r.ca != "" {
		set = append(set, "AWS_CA_BUNDLE="+r.ca)
	}
	out := []string{"FENCE_RESOURCE", lockVariable, "AWS_SECURITY_TOKEN"} // the last is the old name of AWS_SESSION_TOKEN
	if r.options.endpoint != "" {
		out = append(out, "AWS_ENDPOINT_URL_S3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
	}
	for _, e := range set {
		out = append(out, nameOf(e))
	}
	all := slices.DeleteFunc(os.Environ(), func(e string) bool { return slices.Contains(out, nameOf(e)) })
	return append(all, set...)
}

// nameOf is the name of a variable, NAME=value.
func nameOf(e string) string {
	name, _, _ := strings.Cut(e, "=")
	return name
}
