package tokens

import (
	"context"
	"strconv"
	"testing"
	"time"
)

// freeLocks let everybody have every lock, and remember nothing.
type freeLocks struct{}

func (freeLocks) LoadLock(context.Context, string) (LockView, error) { return LockView{}, nil }

func (freeLocks) SwapLock(context.Context, LockView, LockRow) (int64, error) { return 1, nil }

// TestSightingsAreBounded: a million locks that are held take no more memory than a hundred thousand.
func TestSightingsAreBounded(t *testing.T) {
	l := NewLocks(freeLocks{}, nil)
	for i := range 2 * maxSightings {
		if _, err := l.Take(context.Background(), LockRequest{Resource: strconv.Itoa(i), Holder: "a", TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.seen); n != maxSightings {
		t.Errorf("%d are in memory, want %d", n, maxSightings)
	}
	last := strconv.Itoa(2*maxSightings - 1)
	if _, known := l.seen[last]; !known {
		t.Error("the newest is not among them")
	}
	l.see(last, LockRow{Lease: "x", Released: true})
	if n := len(l.seen); n != maxSightings-1 {
		t.Errorf("a lock that was released is still in memory, one of %d", n)
	}
}

func TestParseLeaseID(t *testing.T) {
	for id, ok := range map[string]bool{
		"0123456789abcdefABCDE_-": true, "0123456789012345678901": true, "012345678901234567890": false, "": false,
		"0123456789012345678901234567890123456789012345678901234567890123": true, "01234567890123456789012345678901234567890123456789012345678901234": false,
		"012345678901234567890 1": false, "0123456789012345678901\n": false, "01234567890123456789ä": false, "0123456789012345678901/": false,
	} {
		if got, err := ParseLeaseID(id); (err == nil) != ok || ok && got != id {
			t.Errorf("%q: %q, %v; want it good: %v", id, got, err, ok)
		}
	}
}
