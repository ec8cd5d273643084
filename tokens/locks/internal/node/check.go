package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/resp"
)

// Refused says that a server has answered, and has done nothing.
func Refused(err error) bool {
	e := resp.Error("")
	return errors.As(err, &e)
}

// Passes says that a server has refused for now: it is starting, or busy.
func Passes(err error) bool {
	e := resp.Error("")
	if !errors.As(err, &e) {
		return false
	}
	kind, _, _ := strings.Cut(string(e), " ")
	return kind == "LOADING" || kind == "BUSY" || kind == "TRYAGAIN" || kind == "CLUSTERDOWN"
}

// Explain says what can be done about an answer of a server.
func Explain(err error) error {
	e := resp.Error("")
	if !errors.As(err, &e) {
		return err
	}
	kind, _, _ := strings.Cut(string(e), " ")
	advice, ok := map[string]string{
		"NOAUTH":    "the server wants a password, before the host in the URL: :PASSWORD@HOST",
		"WRONGPASS": "the user or the password is wrong",
		"NOPERM":    "the user must be allowed EVAL, GET, SET, INCR, DEL, PTTL and PEXPIRE on the lock's keys",
		"READONLY":  "this server is a replica: name the primary",
		"MOVED":     "this server belongs to a Redis Cluster, and another one of it has this name",
		"OOM":       "the server's memory is full",
		"WRONGTYPE": "something else is kept under a key of this lock",
		"MISCONF":   "the server cannot write to its disk",
		"LOADING":   "the server is starting",
	}[kind]
	if strings.Contains(string(e), "overflow") || strings.Contains(string(e), "not an integer") {
		advice, ok = "the counter of this lock cannot be counted on from: set it to a number above all tokens that were used", true
	}
	if !ok {
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}

// Check says, one sentence each, how a server could lose a counter. It needs INFO, and CONFIG GET for the rest.
func Check(ctx context.Context, client *resp.Client) (found []string, err error) {
	answer, err := client.Do(ctx, "INFO")
	if err != nil {
		return nil, Explain(err)
	}
	text, ok := answer.(string)
	if !ok {
		return nil, fmt.Errorf("redis at %s gave an answer that cannot be: %v", client.Address(), answer)
	}
	say := func(format string, args ...any) {
		found = append(found, fmt.Sprintf("redis at %s ", client.Address())+fmt.Sprintf(format, args...))
	}
	info := parseInfo(text)
	if info["role"] != "master" {
		say("is a replica (role:%s): name the primary.", info["role"])
	}
	if info["aof_enabled"] != "1" {
		say("has no append-only file: after a crash the tokens begin again, or some way back. Set appendonly yes and appendfsync always.")
	} else if fsync, err := setting(client.Do(ctx, "CONFIG", "GET", "appendfsync")); err != nil {
		say("does not tell how often it syncs its append-only file (%v): see to it that appendfsync is always.", err)
	} else if fsync != "always" {
		say("syncs its append-only file by the rule %q: a crash of its machine takes back the last tokens. Set appendfsync always.", fsync)
	}
	if n := info["connected_slaves"]; n != "" && n != "0" {
		say("has replicas (%s), which lag behind: one that is promoted may give the last tokens again. Bind tokens to holders where they are checked "+
			"(fenceproxy: `holder: required`), and do not count on WAIT, which promises nothing of a promotion.", n)
	}
	if policy := info["maxmemory_policy"]; strings.HasPrefix(policy, "allkeys-") {
		say("removes any key when its memory is full (maxmemory-policy %s), and the counter is one. Set noeviction.", policy)
	} else if strings.HasPrefix(policy, "volatile-") && info["maxmemory"] != "0" {
		say("removes keys that run out, such as the lock, when its memory is full (maxmemory-policy %s). Tokens stay right; two may work at once. "+
			"Set noeviction.", policy)
	}
	return found, nil
}

func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// setting is the value in the answer of CONFIG GET.
func setting(answer any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	pair, ok := answer.([]any)
	if !ok || len(pair) != 2 {
		return "", errors.New("no such setting")
	}
	value, _ := pair[1].(string)
	return value, nil
}
