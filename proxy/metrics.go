package proxy

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// metrics of the data plane. No label grows with keys, resources or clients.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	locks    *prometheus.CounterVec
	gate     prometheus.Histogram

	conditions *prometheus.GaugeVec
	lostRaces  prometheus.Counter
	inDoubt    prometheus.Counter
	proven     prometheus.Counter
}

// newMetrics registers them. r may be nil: then they are counted and not shown.
func newMetrics(r prometheus.Registerer, f *tokens.Fence, log *audit.Log) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fenceproxy_requests_total", Help: "Requests answered, by operation and HTTP status.",
		}, []string{"operation", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fenceproxy_request_seconds", Help: "Time from the headers of a request to the end of its answer, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"operation"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fenceproxy_refusals_total", Help: "Requests that the fence or a rule did not let through, by X-Fence-Error.",
		}, []string{"error"}),
		locks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fenceproxy_locks_total",
			Help: "Requests for the proxy's own locks: taken, taken_over (from a holder that had not released), held (by another), renewed, released, lost (renewed or released when it was over).",
		}, []string{"outcome"}),
		gate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fenceproxy_gate_wait_seconds", Help: "Time that writes stood at the gate: raise and older writes included.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 11),
		}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fenceproxy_backend_conditions", Help: "1 where writes to the backend carry a condition that its store honours, 0 where the settle time alone keeps late ones out.",
		}, []string{"backend", "operation"}),
		lostRaces: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fenceproxy_lost_races_total", Help: "Tries of writes whose key had changed since it was observed.",
		}),
		inDoubt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fenceproxy_in_doubt_total", Help: "Writes whose outcome the store did not tell.",
		}),
		proven: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fenceproxy_in_doubt_proven_total", Help: "Those of them that were seen to have taken effect before their settle time was over.",
		}),
	}
	if r == nil {
		return m
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	r.MustRegister(
		m.requests, m.duration, m.refusals, m.locks, m.gate, m.conditions, m.lostRaces, m.inDoubt, m.proven,
		gauge("fenceproxy_writes_open", "Writes past the gate that are not settled.", func() float64 { return float64(f.Stats().Open) }),
		gauge("fenceproxy_writes_in_doubt", "Writes whose outcome is unknown, until their settle time is over.", func() float64 { return float64(f.Stats().InDoubt) }),
		gauge("fenceproxy_resources_in_memory", "Resources that the fence has in memory.", func() float64 { return float64(f.Stats().Resources) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "fenceproxy_audit_failures_total", Help: "Audit records that could not be written.",
		}, func() float64 { return float64(log.Failures()) }),
	)
	return m
}

func (m *metrics) request(operation string, status int, d time.Duration) {
	if operation == "" {
		operation = "unknown"
	}
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(operation).Observe(d.Seconds())
}

func (m *metrics) refusal(name string) {
	if name != "" {
		m.refusals.WithLabelValues(name).Inc()
	}
}

func (m *metrics) lock(outcome string) { m.locks.WithLabelValues(outcome).Inc() }

func (m *metrics) gateWait(d time.Duration) { m.gate.Observe(d.Seconds()) }

func (m *metrics) condition(backend, operation string, judged bool) {
	value := 0.0
	if judged {
		value = 1
	}
	m.conditions.WithLabelValues(backend, operation).Set(value)
}
