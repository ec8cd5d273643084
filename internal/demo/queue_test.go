package demo

import (
	"context"
	"errors"
	"testing"
)

func TestParseJob(t *testing.T) {
	j, text, err := parseJob("41 2 HTTP 412: it is stale")
	if j != (queueJob{41, 2}) || text != "HTTP 412: it is stale" || err != nil {
		t.Errorf("%v, %q, %v", j, text, err)
	}
	for _, wrong := range []string{"", "41", "x 1 ", "1 x "} {
		if _, _, err := parseJob(wrong); err == nil {
			t.Errorf("%q was read", wrong)
		}
	}
}

// TestQueueCrewNext: the end of a worker is an error, unless it was killed; results are counted.
func TestQueueCrewNext(t *testing.T) {
	killed, other := &Process{}, &Process{}
	c := &queueCrew{said: make(chan queueSaid, 4), wrote: map[int]int{}, killed: killed}
	ended := errors.New("it has ended")
	c.said <- queueSaid{worker: killed, err: ended}
	c.said <- queueSaid{worker: other, word: "wrote", queueJob: queueJob{7, 1}}
	c.said <- queueSaid{worker: other, err: ended}
	if said, err := c.next(context.Background()); err != nil || said.id != 7 || c.wrote[7] != 1 {
		t.Errorf("%v, %v, %v", said, err, c.wrote)
	}
	if _, err := c.until(context.Background(), "did", 7); !errors.Is(err, ended) {
		t.Errorf("it fails with %v", err)
	}
}
