package fleet

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

var cost = flag.Bool("cost", false, "measure what a registry that several proxies share costs, beside SQLite")

const (
	costClients = 32
	costFor     = 5 * time.Second // each measurement, behind a second that does not count
)

// TestCost measures; it holds nobody to a number. docs/fleet.md has a run of it.
func TestCost(t *testing.T) {
	if !*cost {
		t.Skip("nothing to measure: -args -cost")
	}
	alone := engineKind{name: "sqlite", start: func(*testing.T) engine { return embedded{} }}
	three := engineKind{name: "etcd, 3 members", start: engineKinds[1].spread}
	pair := engineKind{name: "postgres, synchronous standby", start: engineKinds[0].spread}
	var table strings.Builder
	fmt.Fprintln(&table, "| registry | proxies | raises per second | a raise, median | p99 | a raise that another proxy gives a grant back for, median | p99 | writes per second, same token | a write, median | p99 |")
	fmt.Fprintln(&table, "|---|---|---|---|---|---|---|---|---|---|")
	for _, c := range []struct {
		kind    engineKind
		proxies int
	}{{alone, 1}, {engineKinds[0], 1}, {engineKinds[0], 3}, {pair, 3}, {engineKinds[1], 1}, {engineKinds[1], 3}, {three, 3}} {
		t.Run(fmt.Sprintf("%s/%d", c.kind.name, c.proxies), func(t *testing.T) {
			f := newFleet(t, c.kind, options{proxies: c.proxies, lease: 10 * time.Second, misbehaving: true, calm: true, direct: true, plain: true})
			defer f.stop()
			to := func(client int) string { return f.members[client%len(f.members)].address }
			raises := measure(t, func(client, n int) answer {
				return f.ask(to(client), http.MethodPut, fmt.Sprintf("/own/raise-%d?fence", client), int64(n+1), "", histories.Patience)
			})
			handed := figures{}
			if c.proxies > 1 {
				handed = measure(t, func(client, n int) answer {
					return f.ask(to(client+n), http.MethodPut, fmt.Sprintf("/own/handed-%d?fence", client), int64(n+1), "", histories.Patience)
				})
			}
			body := strings.Repeat("x", 1<<10)
			writes := measure(t, func(client, _ int) answer {
				return f.ask(to(client), http.MethodPut, fmt.Sprintf("/own/write-%d", client), 1, body, histories.Patience)
			})
			fmt.Fprintf(&table, "| %s | %d | %s | %s | %s |\n", c.kind.name, c.proxies, raises, handed.latencies(), writes)
		})
	}
	fmt.Fprintln(os.Stdout, table.String())
}

type figures struct {
	perSecond   float64
	median, p99 time.Duration
}

func (f figures) latencies() string {
	if f.median == 0 {
		return "– | –"
	}
	return fmt.Sprintf("%.1f ms | %.1f ms", f.median.Seconds()*1e3, f.p99.Seconds()*1e3)
}

func (f figures) String() string { return fmt.Sprintf("%.0f | %s", f.perSecond, f.latencies()) }

// measure has clients do something again and again; n counts what a client has done.
func measure(t *testing.T, do func(client, n int) answer) figures {
	t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	from := time.Now().Add(time.Second)
	until := from.Add(costFor)
	var clients sync.WaitGroup
	for client := range costClients {
		clients.Go(func() {
			var own []time.Duration
			for n := 0; time.Now().Before(until); n++ {
				a := do(client, n)
				if a.status != http.StatusOK {
					t.Errorf("%v", a)
					return
				}
				if time.Now().After(from) {
					own = append(own, a.took)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	clients.Wait()
	if len(took) == 0 {
		return figures{}
	}
	slices.Sort(took)
	return figures{float64(len(took)) / costFor.Seconds(), took[len(took)/2], took[len(took)*99/100]}
}

// embedded is SQLite in the one proxy, to compare with.
type embedded struct{ engine }

func (embedded) addresses() []string                   { return nil }
func (embedded) config([]string, time.Duration) string { return "driver: sqlite" }
func (embedded) secret() string                        { return "" }
