package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A runLog writes run's own words: to standard error, for standard output is the command's.
type runLog struct {
	mu  sync.Mutex // one line at a time
	out io.Writer
}

func newRunLog(out io.Writer) *runLog { return &runLog{out: out} }

func (l *runLog) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "fenceproxy run: "+format+"\n", args...)
}

// seconds are written with milliseconds.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

func (s *seconds) UnmarshalJSON(text []byte) error {
	var n float64
	err := json.Unmarshal(text, &n)
	*s = seconds(n * float64(time.Second))
	return err
}

func (s seconds) String() string {
	d := time.Duration(s)
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// A runReport is one line of --report.
type runReport struct {
	Time      time.Time    `json:"time"` // when run began
	Lock      string       `json:"lock"`
	Holder    string       `json:"holder"`
	Token     tokens.Token `json:"token"` // 0: the lock was not won
	TTL       seconds      `json:"ttl"`
	Waited    seconds      `json:"waited"`     // for the lock
	Others    int          `json:"others"`     // holders that were waited for, one after the other: how contended the lock is
	TakenOver bool         `json:"taken_over"` // the holder before had not released it, as far as the service tells
	Held      seconds      `json:"held"`       // while the command ran
	Lost      bool         `json:"lost"`       // before the command had ended
	Exit      int          `json:"exit"`       // of the command
}

func newRunReport(r *runner) *runReport {
	return &runReport{Time: time.Now().Round(time.Millisecond), Lock: r.lock, Holder: r.options.holder, TTL: seconds(r.options.ttl), Exit: exitRunFailed}
}

// summary is the line at the end.
func (p *runReport) summary() string {
	s := fmt.Sprintf("token %d", p.Token)
	if p.TakenOver {
		s += ", taken over from a holder that had not released it"
	}
	s += fmt.Sprintf("; waited %s", p.Waited)
	if p.Others > 0 {
		s += fmt.Sprintf(" for %s", plural(p.Others, "holder"))
	}
	s += fmt.Sprintf(", held for %s", p.Held)
	if p.Lost {
		s += "; the lock was lost"
	}
	return s + fmt.Sprintf("; the command ended with %d", p.Exit)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// write appends the report to the file, and says what the holds on record tell about the TTL.
func (p *runReport) write(path string, log *runLog) error {
	if path == "" {
		return nil
	}
	line, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write: others append to the same file
	held, readErr := p.holds(f)
	if err := errors.Join(err, readErr, f.Close()); err != nil {
		return err
	}
	if a := advice(time.Duration(p.TTL), held); a != "" {
		log.say("%s", a)
	}
	return nil
}

// reportTail is how much of a report is read again, in bytes: some thousand runs.
const reportTail = 1 << 20

// holds reads how long this lock was held, newest runs last. A line that is none of ours is passed over.
func (p *runReport) holds(f *os.File) (held []time.Duration, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, size-reportTail), io.SeekStart); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*reportTail) // whatever else stands there
	for lines.Scan() {
		var r runReport
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Lock == p.Lock && r.Token > 0 && !r.Lost {
			held = append(held, time.Duration(r.Held))
		}
	}
	return held, lines.Err()
}

const (
	adviceFrom   = 20 // holds, before anything is said of their 99th percentile
	adviceTimes  = 3  // the TTL that is advised, in 99th percentiles: a hold that goes as most do needs no renewal then
	adviceAbove  = 10 // a TTL of more than this many of them makes a successor wait for longer than it need
	shortestTTL  = 5 * time.Second
	roundedAbove = time.Minute
)

// advice says whether the TTL suits the holds that were measured; "" if it does, or if there are too few.
func advice(ttl time.Duration, held []time.Duration) string {
	if len(held) < adviceFrom {
		return ""
	}
	slices.Sort(held)
	p99 := held[(len(held)*99+99)/100-1]
	suits := max(adviceTimes*p99, shortestTTL)
	if suits > roundedAbove {
		suits = suits.Round(time.Minute)
	} else {
		suits = suits.Round(time.Second)
	}
	said := fmt.Sprintf("the lock was held for %s at most in 99 of 100 runs (%d on record)", seconds(p99), len(held))
	switch {
	case ttl < p99:
		return fmt.Sprintf("%s, longer than --ttl %s: each run rests on renewals that come in time. With --ttl %s a pause of the renewals costs nothing", said, ttl, formatDuration(suits))
	case ttl > adviceAbove*p99 && ttl > suits:
		return fmt.Sprintf("%s: with --ttl %s instead of %s, the next holder waits less for one that has died", said, formatDuration(suits), ttl)
	}
	return ""
}
