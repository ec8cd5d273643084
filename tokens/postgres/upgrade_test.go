package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// recordSQL2 is what a program of version 2 asks for a raise.
const recordSQL2 = "SELECT outcome, coalesce(id, 0), lower_ids FROM fenceproxy.record($1, $2, 0, $3, $4, '', 60000)"

// TestUpgradeUnderProgramsOfVersion2: raises of programs that know version 2 go on while a newer one upgrades the schema under them, and after
// it. A grant of theirs for writers that do not name themselves is asked for as they know it, which is for a higher token only: they would
// give it back at once, and go on with it.
func TestUpgradeUnderProgramsOfVersion2(t *testing.T) {
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	const first = 1000 // the incarnation of the old programs
	var old [3]*pgx.Conn
	for i := range old {
		conn, err := pgx.Connect(t.Context(), p.URL("fenceproxy", name))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		old[i] = conn
	}
	for _, step := range []string{
		"CREATE SCHEMA fenceproxy; CREATE TABLE fenceproxy.registry_version AS SELECT 2 AS version", version1, version2,
		fmt.Sprintf("INSERT INTO fenceproxy.instances VALUES (%d, 1, 3600000, 0)", first),
	} {
		if _, err := old[0].Exec(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	record := func(conn *pgx.Conn, resource string, token int64, holder string) (outcome string, id int64, lower []int64, err error) {
		err = conn.QueryRow(t.Context(), recordSQL2, int64(first), []byte(resource), token, []byte(holder)).Scan(&outcome, &id, &lower)
		return outcome, id, lower, err
	}

	var stop atomic.Bool
	var raises atomic.Int64
	var wait sync.WaitGroup
	for n, conn := range old {
		wait.Go(func() {
			for token := int64(1); !stop.Load(); token++ {
				if outcome, _, _, err := record(conn, fmt.Sprintf("b/load/%d", n), token, ""); err != nil || outcome != "recorded" {
					t.Errorf("token %d: %q, %v", token, outcome, err)
					return
				}
				raises.Add(1)
			}
		})
	}
	more := func() {
		before := raises.Load()
		eventually(t, func() bool { return raises.Load() > before+20 || t.Failed() })
	}
	more()
	newer, second := joined(t, dsn)
	more()
	stop.Store(true)
	wait.Wait()
	if v := p.Value(name, "SELECT version FROM fenceproxy.registry_version"); v != fmt.Sprint(len(versions)) {
		t.Errorf("the schema has version %s", v)
	}

	_, id, _, err := record(old[0], "b/a", 34, "")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := newer.Record(t.Context(), second, tokens.Claim{Resource: "b/a", Token: 34, Holder: "x", Settle: time.Minute})
	if err != nil || len(rec.Lower) != 0 {
		t.Errorf("binding: %+v, %v", rec, err)
	}
	if outcome, _, _, err := record(old[0], "b/a", 34, ""); outcome != "conflict" || err != nil {
		t.Errorf("without a name: %q, %v", outcome, err)
	}
	rec, err = newer.Record(t.Context(), second, tokens.Claim{Resource: "b/a", Token: 35, Settle: time.Minute})
	if err != nil || len(rec.Lower) != 1 || int64(rec.Lower[0].ID) != id {
		t.Errorf("a higher token: %+v, %v; want to wait for %d", rec, err, id)
	}

	// The other way round: what a newer program has is waited for, and given back by it.
	rec, err = newer.Record(t.Context(), second, tokens.Claim{Resource: "b/b", Token: 34, Settle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, lower, err := record(old[0], "b/b", 34, "x"); outcome != "recorded" || err != nil || len(lower) != 1 || lower[0] != int64(rec.Grant.ID) {
		t.Errorf("binding by a program of version 2: %q, %d, %v", outcome, lower, err)
	}
	if ids := revokedOf(t, newer, second); len(ids) != 1 || ids[0] != rec.Grant.ID {
		t.Errorf("asked for: %v; want %d", ids, rec.Grant.ID)
	}
}

func revokedOf(t *testing.T, s *store, incarnation int64) (ids []tokens.GrantID) {
	t.Helper()
	v, err := s.Beat(t.Context(), incarnation)
	if err != nil {
		t.Fatal(err)
	}
	for _, rv := range v.Revoked {
		ids = append(ids, rv.ID)
	}
	return ids
}
