package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A waiting tells the user whom the lock is waited for.
type waiting struct {
	runner *runner
	began  time.Time
	found  func() // called when the lock is found taken; nil where that is no end

	mu   sync.Mutex // guards the rest
	last *locks.Other
	tick *time.Timer
}

const waitingEvery = 30 * time.Second

// told is called whenever the lock is found in other hands than before.
func (w *waiting) told(o locks.Other) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &o
	w.runner.report.Others++
	w.runner.log.say("waiting for %s: %s", w.runner.lock, describe(o))
	if w.tick != nil {
		w.tick.Stop()
	}
	w.tick = time.AfterFunc(waitingEvery, w.again)
	if w.found != nil {
		w.found()
	}
}

func (w *waiting) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tick == nil {
		return
	}
	w.runner.log.say("still waiting, for %s: %s", time.Since(w.began).Round(time.Second), describe(*w.last))
	w.tick.Reset(waitingEvery)
}

func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tick != nil {
		w.tick.Stop()
		w.tick = nil
	}
}

func (w *waiting) seen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last != nil
}

func (w *waiting) whose() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return describe(*w.last)
}

// describe says who has a lock, as far as its service tells.
func describe(o locks.Other) string {
	s := "somebody"
	if o.Holder != "" {
		s = o.Holder
	}
	s += " has it"
	if !o.Since.IsZero() {
		s += fmt.Sprintf(" since %s (%s)", o.Since.Local().Format(time.TimeOnly), time.Since(o.Since).Round(time.Second))
	}
	if o.Token != 0 {
		s += fmt.Sprintf(", token %d", o.Token)
	}
	return s
}
