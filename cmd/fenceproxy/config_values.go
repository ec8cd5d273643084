package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const day = 24 * time.Hour

// scalar gives a single value, its ${NAME}s replaced. It is false after a fault.
func (r *configReader) scalar(n *yaml.Node) (string, bool) {
	if r.bad[n] || !r.kind(n, yaml.ScalarNode, "one value") {
		return "", false
	}
	if n.Tag == "!!null" {
		r.fault(n, "has no value; write one, or take it out for the default")
		return "", false
	}
	s, err := expandEnv(n.Value, r.getenv)
	if err != nil {
		r.fault(n, "%v", err)
		return "", false
	}
	return s, true
}

func (r *configReader) text(n *yaml.Node, into *string) {
	if s, ok := r.scalar(n); ok {
		*into = s
	}
}

func (r *configReader) boolean(n *yaml.Node, into *bool) {
	var s string
	r.oneOf(n, &s, "true", "false")
	*into = s == "true"
}

func (r *configReader) onOff(n *yaml.Node, into *bool) {
	s := map[bool]string{true: "on", false: "off"}[*into]
	r.oneOf(n, &s, "on", "off")
	*into = s == "on"
}

// integer reads a number that is not negative.
func (r *configReader) integer(n *yaml.Node, into *int64) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil || i < 0 {
		r.fault(n, "%q must be a whole number from 0 to %d", s, math.MaxInt64)
		return
	}
	*into = i
}

// count reads a number with bounds.
func (r *configReader) count(n *yaml.Node, least, most int64, into *int64) {
	i := least - 1
	switch r.integer(n, &i); {
	case r.bad[n]:
	case i < least || i > most:
		r.fault(n, "%d must be from %d to %d", i, least, most)
	default:
		*into = i
	}
}

// texts reads a list of values. One that is empty could be taken for nothing as well as for everything.
func (r *configReader) texts(n *yaml.Node, into *[]string) {
	items := r.list(n)
	if len(items) == 0 && !r.bad[n] {
		r.fault(n, "is empty; take it out for all of them, or write which")
	}
	*into = make([]string, len(items))
	for i, item := range items {
		r.text(item, &(*into)[i])
	}
}

// file reads the path of a file.
func (r *configReader) file(n *yaml.Node, into *string) {
	s, ok := r.scalar(n)
	switch {
	case !ok:
	case s == "" || strings.ContainsRune(s, 0):
		r.fault(n, "%q must name a file", s)
	default:
		*into = filepath.Clean(s)
	}
}

func (r *configReader) oneOf(n *yaml.Node, into *string, choices ...string) {
	s, ok := r.scalar(n)
	switch {
	case !ok:
	case slices.Contains(choices, s):
		*into = s
	default:
		last := len(choices) - 1
		r.fault(n, "%q must be %s", s, strings.TrimPrefix(strings.Join(choices[:last], ", ")+" or "+choices[last], " or "))
	}
}

func (r *configReader) path(n *yaml.Node, into *string) {
	s, ok := r.scalar(n)
	switch {
	case !ok:
	case s == "" || strings.ContainsRune(s, 0):
		r.fault(n, "%q must name a directory", s)
	default:
		*into = filepath.Clean(s)
	}
}

func (r *configReader) duration(n *yaml.Node, least, most time.Duration, into *time.Duration) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	d, err := parseDuration(s)
	switch {
	case err != nil:
		r.fault(n, "%v", err)
	case d < least || d > most:
		r.fault(n, "%s must be from %s to %s", s, formatDuration(least), formatDuration(most))
	default:
		*into = d
	}
}

// size reads a number of bytes.
func (r *configReader) size(n *yaml.Node, least, most int64, into *int64) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	size, err := parseSize(s)
	switch {
	case err != nil:
		r.fault(n, "%v", err)
	case size < least || size > most:
		r.fault(n, "%s must be from %s to %s", s, formatSize(least), formatSize(most))
	default:
		*into = size
	}
}

// address reads host:port.
func (r *configReader) address(n *yaml.Node, into *string) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	if _, _, err := splitAddress(s); err != nil {
		r.fault(n, "%v", err)
		return
	}
	*into = s
}

// loopback reads an address that only this machine reaches. why says what keeps others out until this version can.
func (r *configReader) loopback(n *yaml.Node, why string, into *string) {
	var s string
	if r.address(n, &s); s == "" {
		return
	}
	if host, _, _ := splitAddress(s); !host.IsLoopback() {
		r.fault(n, "%s is reached from other machines, and %s; write a loopback address, such as 127.0.0.1:9000", s, why)
		return
	}
	*into = s
}

// splitAddress reads host:port, where the host is an IP address, localhost, or nothing (every address).
func splitAddress(s string) (netip.Addr, uint16, error) {
	name, digits, err := net.SplitHostPort(s)
	port, portErr := strconv.ParseUint(digits, 10, 16)
	host := netip.IPv4Unspecified()
	switch name {
	case "":
	case "localhost":
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	default:
		var hostErr error
		host, hostErr = netip.ParseAddr(name)
		err = errors.Join(err, hostErr)
	}
	if err != nil || portErr != nil {
		return netip.Addr{}, 0, fmt.Errorf("%q must be an IP address or localhost, a colon, and a port, "+
			"such as 127.0.0.1:9000 or [::1]:9000", s)
	}
	return host.Unmap(), uint16(port), nil
}

// sameAddress says that two addresses cannot both be listened on. Of port 0 there is one for everybody.
func sameAddress(a, b string) bool {
	hostA, portA, errA := splitAddress(a)
	hostB, portB, errB := splitAddress(b)
	return errA == nil && errB == nil && hostA == hostB && portA == portB && portA != 0
}

var envReference = regexp.MustCompile(`^\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expandEnv replaces ${NAME} by the environment and $$ by a dollar sign. What comes out of the environment is left alone.
func expandEnv(s string, getenv func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "$")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if after, ok := strings.CutPrefix(rest, "$"); ok {
			b.WriteByte('$')
			s = after
			continue
		}
		m := envReference.FindStringSubmatch(rest)
		if m == nil {
			return "", errors.New("a lone $ means nothing here; write $$ for a dollar sign, or ${NAME} for a variable of the environment")
		}
		value, ok := getenv(m[1])
		if !ok {
			return "", fmt.Errorf("the environment has no %s; set it, or write $${%s} for these characters themselves", m[1], m[1])
		}
		b.WriteString(value)
		s = rest[len(m[0]):]
	}
}

var (
	durationPattern = regexp.MustCompile(`^(\d+(\.\d+)?(ns|us|µs|ms|s|m|h|d|w))+$`)
	durationPart    = regexp.MustCompile(`([\d.]+)([a-zµ]+)`)
)

// parseDuration is [time.ParseDuration] with d for days of 24 hours and w for weeks, and without signs.
func parseDuration(s string) (time.Duration, error) {
	if !durationPattern.MatchString(s) {
		return 0, fmt.Errorf("%q must be a duration: numbers with units (ms, s, m, h, d, w), such as 90d or 1h30m", s)
	}
	var sum float64 // nanoseconds
	for _, part := range durationPart.FindAllStringSubmatch(s, -1) {
		number, unit := part[1], part[2]
		scale := map[string]time.Duration{"d": day, "w": 7 * day}[unit]
		if scale == 0 {
			one, err := time.ParseDuration("1" + unit)
			if err != nil {
				return 0, err
			}
			scale = one
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, fmt.Errorf("%s is too long", s)
		}
		sum += f * float64(scale)
	}
	if sum >= math.MaxInt64 {
		return 0, fmt.Errorf("%s is too long; 292 years is the most", s)
	}
	return time.Duration(math.Round(sum)), nil
}

func formatDuration(d time.Duration) string {
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var (
	sizePattern = regexp.MustCompile(`^(\d+)(KiB|MiB|GiB)$`)
	sizeUnits   = []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
)

// parseSize reads a number of bytes. 0 needs no unit.
func parseSize(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	m := sizePattern.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q must be a size: a whole number with a unit (KiB, MiB, GiB), such as 8MiB, or 0", s)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	for _, unit := range sizeUnits {
		if unit.name == m[2] && err == nil && n <= math.MaxInt64/unit.bytes {
			return n * unit.bytes, nil
		}
	}
	return 0, fmt.Errorf("%s is too large", s)
}

// formatSize writes a size in the largest unit of which it is a multiple.
func formatSize(n int64) string {
	for _, unit := range sizeUnits {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", n/unit.bytes, unit.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

func isBackendName(s string) bool {
	for i, c := range s {
		if !('a' <= c && c <= 'z' || i > 0 && ('0' <= c && c <= '9' || c == '-' || c == '_')) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// insteadOfName says what to write for a word that is unknown.
func insteadOfName(meant string, names []string) string {
	if meant != "" {
		return "did you mean " + meant + "?"
	}
	return "there is " + strings.Join(names, ", ")
}

// nearestName gives the name that is at most two slips away from a word, "" where none is.
func nearestName(word string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		if n := editDistance(word, name); n < least && n < len(name)/2+1 {
			best, least = name, n
		}
	}
	return best
}

// editDistance is the Levenshtein distance: how many bytes are to be put in, taken out or changed.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
