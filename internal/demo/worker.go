package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Work is a worker's process, which a story starts: it takes the lock, reads the object, works, writes the object, and lets the lock go. What it
// does it writes to out, a line each: a word, and the rest. Like most programs it does not look at its lock again once it has it. What it is to
// do is in the environment, for a lock's URL may have a password in it, and everybody sees a command line:
//
//	NAME    its own
//	LOCK    URL of the lock
//	TTL     of the lock
//	STORE   a file, or the URL of an object behind fenceproxy
//	ADD     the word that it adds to what it has read
//	WORKED  a file that comes into being when its work is done
func Work(ctx context.Context, out io.Writer, open func(url string) (locks.Service, string, error)) error {
	name := os.Getenv("NAME")
	ttl, err := time.ParseDuration(os.Getenv("TTL"))
	if err != nil {
		return err
	}
	service, _, err := open(os.Getenv("LOCK"))
	if err != nil {
		return err
	}
	defer service.Close()
	waiting := func(locks.Other) { fmt.Fprintln(out, "waiting") }
	grant, err := locks.New(service, locks.Options{TTL: ttl, Holder: name, Waiting: waiting}).Acquire(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "locked", grant.Token())
	if err := readWorkWrite(ctx, out, object{os.Getenv("STORE"), grant.Token(), name}); err != nil {
		return err
	}
	err = grant.Release(ctx)
	if errors.Is(err, locks.ErrLost) {
		fmt.Fprintln(out, "late", err)
		return nil
	}
	return err
}

func readWorkWrite(ctx context.Context, out io.Writer, o object) error {
	state, err := o.read(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "read", state)
	done := func(context.Context) bool { _, err := os.Stat(os.Getenv("WORKED")); return err == nil }
	for !done(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	state += " " + os.Getenv("ADD")
	err = o.write(ctx, state)
	var refused *Refusal
	switch {
	case errors.As(err, &refused):
		fmt.Fprintln(out, "refused", refused)
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintln(out, "wrote", state)
	return nil
}

// An object is a file, or one behind fenceproxy, and who reads and writes it. It has one line.
type object struct {
	where  string
	token  tokens.Token
	holder string
}

func (o object) fenced() bool { return strings.HasPrefix(o.where, "http://") }

func (o object) read(ctx context.Context) (string, error) {
	if o.fenced() {
		text, err := send(ctx, http.MethodGet, o.where, o.token, o.holder, "")
		return strings.TrimSpace(text), err
	}
	text, err := os.ReadFile(o.where)
	return strings.TrimSpace(string(text)), err
}

// write writes a file as programs do that mean no reader to see half of it.
func (o object) write(ctx context.Context, text string) error {
	if o.fenced() {
		_, err := send(ctx, http.MethodPut, o.where, o.token, o.holder, text+"\n")
		return err
	}
	temp := o.where + "." + o.holder
	if err := os.WriteFile(temp, []byte(text+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, o.where)
}
