package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// What is under the prefix:
//
//	registry                    this registry's id and the etcd cluster that it was made in, see identity
//	halt                        why nobody may raise, see halt; absent: there is no reason
//	repair                      how far a rebuild has come; absent: there is none under way
//	mappings/list, /version     the mappings, and their version: the epoch in the high 32 bits, see Mappings
//	adopted/ID                  since when the stamps of registry ID count as our own, ms since 1970
//	adoption                    there for a day after the last of them: how long ago that was, its etcd lease knows
//	fences/RESOURCE             see fence
//	locks/RESOURCE              the proxy's own lock, see lockValue; never removed. Its version is the key's ModRevision
//	uploads/NAME                the highest token that touched it, 20 digits
//	members/INCARNATION         an incarnation that is not swept, see member
//	instances/INCARNATION       one that is alive; written anew by each of its beats, whose number is the version of the key
//	grants/LENGTH/RESOURCE/INCARNATION   a grant: generation, token and settle time, see grant. Its id is the key's ModRevision
//	held/INCARNATION/RESOURCE   the same once more, written and deleted with it: what one incarnation has
//	revoke/INCARNATION/ID       somebody waits for this grant; the value is its resource
//
// Nothing else has an etcd lease. A grant must outlive its instance by the settle time. And whether an instance is alive is judged by its beats,
// which are writes of the majority, for a KeepAlive proves nothing: a leader that was paused, and has a successor by then, answers it. With etcd
// 3.4.23 one for 10 s was answered so, and the key was gone 4.3 s later.
//
// Names of resources and uploads are put into keys as they are, whatever bytes they have; the length in front keeps "a" and "a/7" apart.
type keys string

func (k keys) registry() string        { return string(k) + "registry" }
func (k keys) halt() string            { return string(k) + "halt" }
func (k keys) repair() string          { return string(k) + "repair" }
func (k keys) mappings() string        { return string(k) + "mappings/list" }
func (k keys) version() string         { return string(k) + "mappings/version" }
func (k keys) adopted() string         { return string(k) + "adopted/" }
func (k keys) adoption() string        { return string(k) + "adoption" }
func (k keys) fences() string          { return string(k) + "fences/" }
func (k keys) fence(r string) string   { return k.fences() + r }
func (k keys) locks() string           { return string(k) + "locks/" }
func (k keys) lock(r string) string    { return k.locks() + r }
func (k keys) upload(u string) string  { return string(k) + "uploads/" + u }
func (k keys) members() string         { return string(k) + "members/" }
func (k keys) member(i int64) string   { return k.members() + strconv.FormatInt(i, 10) }
func (k keys) instances() string       { return string(k) + "instances/" }
func (k keys) instance(i int64) string { return k.instances() + strconv.FormatInt(i, 10) }

// grants begins the keys of all grants on a resource.
func (k keys) grants(r string) string         { return fmt.Sprintf("%sgrants/%d/%s/", string(k), len(r), r) }
func (k keys) grant(r string, i int64) string { return k.grants(r) + strconv.FormatInt(i, 10) }
func (k keys) allHeld(i int64) string         { return fmt.Sprintf("%sheld/%d/", string(k), i) }
func (k keys) held(i int64, r string) string  { return k.allHeld(i) + r }
func (k keys) revocations() string            { return string(k) + "revoke/" }
func (k keys) revocationsOf(i int64) string   { return fmt.Sprintf("%s%d/", k.revocations(), i) }
func (k keys) revocation(g fleetGrant) string {
	return k.revocationsOf(g.incarnation) + strconv.FormatInt(int64(g.id), 10)
}

func number(key []byte, prefix string) int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(string(key), prefix), 10, 64)
	if err != nil {
		return 0 // no key of ours
	}
	return n
}

// An identity is the value of the key registry.
type identity struct {
	Format    int    `json:"format"` // of all that is under the prefix
	ID        string `json:"id"`
	Cluster   string `json:"cluster"` // id of the etcd cluster; another one has been restored from a snapshot, or is a copy
	CreatedAt int64  `json:"created_at"`
	Accepted  int    `json:"accepted,omitempty"` // how often it was taken on after a restore; who goes by another number has slept through one
	Distance  *int64 `json:"distance,omitempty"` // see restored.go; absent where no member told
}

// format is the only one so far. A program that knows less than what is there refuses to run.
const format = 1

// A member is the value of the keys members/ and instances/.
type member struct {
	LeaseMS int64 `json:"lease_ms"`
	Mapping int64 `json:"mapping"` // the epoch that it goes by
}

// order puts (generation, token) into digits that compare as the numbers do, so that etcd can compare them.
func order(generation int64, t tokens.Token) string {
	return fmt.Sprintf("%020d%020d", generation, int64(t))
}

// afterEqual is the first text after all those that begin with order(generation, t).
func afterEqual(generation int64, t tokens.Token) string {
	return fmt.Sprintf("%020d%020d", generation, uint64(t)+1)
}

const orderLen = 40

func parseOrder(s string) (generation int64, t tokens.Token, err error) {
	if len(s) < orderLen {
		return 0, 0, errors.New("it is too short")
	}
	g, err := strconv.ParseInt(s[:orderLen/2], 10, 64)
	if err != nil {
		return 0, 0, err
	}
	n, err := strconv.ParseInt(s[orderLen/2:orderLen], 10, 64)
	return g, tokens.Token(n), err
}

// bound is the value of a fence up to where its holder ends: the order, the holder escaped, and an end that no escaped holder has in it. beyond is
// the first text after all values that begin so.
func bound(generation int64, t tokens.Token, holder string) (begin, beyond string) {
	begin = order(generation, t) + url.QueryEscape(holder)
	return begin + "\n", begin + "\v"
}

// fenceRest is what stands behind it.
type fenceRest struct {
	AccessKey string `json:"access_key,omitempty"`
	RaisedAt  int64  `json:"raised_at"` // ms since 1970
}

func fenceValue(e tokens.Entry) string {
	begin, _ := bound(e.Generation, e.Token, e.Holder)
	rest, err := json.Marshal(fenceRest{e.AccessKey, e.RaisedAt.UnixMilli()})
	if err != nil {
		panic(err) // strings and numbers
	}
	return begin + string(rest)
}

func parseFence(resource string, value []byte) (e tokens.Entry, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the fence of %s is damaged: %w", resource, err)
		}
	}()
	e.Resource = resource
	head, tail, ok := bytes.Cut(value, []byte("\n"))
	if !ok {
		return e, errors.New("its holder has no end")
	}
	if e.Generation, e.Token, err = parseOrder(string(head)); err != nil {
		return e, err
	}
	if e.Holder, err = url.QueryUnescape(string(head[orderLen:])); err != nil {
		return e, err
	}
	var rest fenceRest
	if err := json.Unmarshal(tail, &rest); err != nil {
		return e, err
	}
	e.AccessKey, e.RaisedAt = rest.AccessKey, time.UnixMilli(rest.RaisedAt)
	return e, nil
}

// entryOf reads the answer to a question for one fence.
func entryOf(resource string, kvs []*mvccpb.KeyValue) (tokens.Entry, error) {
	if len(kvs) == 0 {
		return tokens.Entry{Resource: resource}, nil
	}
	return parseFence(resource, kvs[0].Value)
}

// A fleetGrant is one grant on record.
type fleetGrant struct {
	id          tokens.GrantID
	resource    string
	incarnation int64
	generation  int64
	token       tokens.Token
	unnamed     bool // for writers that do not name themselves
	settle      time.Duration
}

// before says whether who has this recorded waits for the grant.
func (g fleetGrant) before(e tokens.Entry) bool {
	if g.generation == e.Generation && g.token == e.Token {
		return g.unnamed && e.Holder != ""
	}
	return g.generation < e.Generation || g.generation == e.Generation && g.token < e.Token
}

// unnamed is put in front of the settle time of a grant for writers that do not name themselves. It sorts before the digits. A program that
// does not know it reads the number all the same, and asks nobody for such a grant who is of its kind, for they do not write it.
const unnamed = "+"

func grantValue(c tokens.Claim) string {
	ms := (c.Settle + time.Millisecond - 1) / time.Millisecond // never shorter than asked for
	value := order(c.Generation, c.Token)
	if c.Holder == "" {
		value += unnamed
	}
	return value + fmt.Sprintf("%020d", int64(ms))
}

// afterSame is the first text after all values of grants like that of a claim, but for their settle times.
func afterSame(c tokens.Claim) string {
	if c.Holder == "" {
		return order(c.Generation, c.Token) + "0"
	}
	return afterEqual(c.Generation, c.Token)
}

func parseGrant(kv *mvccpb.KeyValue, resource string, incarnation int64) (fleetGrant, error) {
	g := fleetGrant{id: tokens.GrantID(kv.ModRevision), resource: resource, incarnation: incarnation}
	var err error
	if g.generation, g.token, err = parseOrder(string(kv.Value)); err != nil {
		return g, fmt.Errorf("the grant of incarnation %d on %s is damaged: %w", incarnation, resource, err)
	}
	settle, ok := strings.CutPrefix(string(kv.Value[orderLen:]), unnamed)
	g.unnamed = ok
	ms, err := strconv.ParseInt(settle, 10, 64)
	if err != nil {
		return g, fmt.Errorf("the grant of incarnation %d on %s is damaged: %w", incarnation, resource, err)
	}
	g.settle = time.Duration(ms) * time.Millisecond
	return g, nil
}

// parseHeld takes a key of held/ apart.
func (k keys) parseHeld(key string) (incarnation int64, resource string, ok bool) {
	rest, ok := strings.CutPrefix(key, string(k)+"held/")
	if !ok {
		return 0, "", false
	}
	digits, resource, ok := strings.Cut(rest, "/")
	incarnation, err := strconv.ParseInt(digits, 10, 64)
	return incarnation, resource, ok && err == nil
}
