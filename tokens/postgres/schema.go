package postgres

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceproxy/fenceproxy/tokens"
)

var (
	//go:embed schema/1.sql
	version1 string
	//go:embed schema/2.sql
	version2 string
	//go:embed schema/3.sql
	version3 string
)

// versions are the steps from an empty schema to the newest one. A step that was released is never changed.
var versions = []string{version1, version2, version3}

// setUpLock is the number of the advisory lock under which the schema is made and upgraded: FNCR.
const setUpLock = 0x46_4e_43_52

// setUp makes, upgrades and checks the registry, in one transaction. If we crash before its commit, nothing was done.
func (s *store) setUp(ctx context.Context, config *pgxpool.Config) (start tokens.Start, err error) {
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	if err != nil {
		return start, err
	}
	defer s.hangUp(conn)
	if err := checkSettings(ctx, conn); err != nil {
		return start, err
	}
	err = long(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", setUpLock); err != nil {
			return err
		}
		if err := s.upgrade(ctx, tx); err != nil {
			return err
		}
		if start.Created, err = s.create(ctx, tx); err != nil {
			return err
		}
		if err := s.identify(ctx, tx); err != nil {
			return err
		}
		if start.ID, err = registryID(ctx, tx); err != nil {
			return err
		}
		return s.readAdopted(ctx, tx)
	})
	if err != nil {
		return start, err
	}
	return start, s.warnUnreplicated(ctx, conn)
}

// upgrade brings the schema to the newest version.
func (s *store) upgrade(ctx context.Context, tx pgx.Tx) error {
	var schema, ours bool
	err := tx.QueryRow(ctx, "SELECT to_regnamespace('fenceproxy') IS NOT NULL, to_regclass('fenceproxy.registry_version') IS NOT NULL").Scan(&schema, &ours)
	if err != nil {
		return err
	}
	version := 0
	switch {
	case ours:
		if err := tx.QueryRow(ctx, "SELECT version FROM fenceproxy.registry_version").Scan(&version); err != nil {
			return fmt.Errorf("the version of its schema: %w", err)
		}
	case !s.options.Create:
		return ErrMissing
	default:
		if !schema {
			if _, err := tx.Exec(ctx, "CREATE SCHEMA fenceproxy"); err != nil {
				return fmt.Errorf("make the schema fenceproxy (GRANT CREATE ON DATABASE … TO the user lets it): %w", err)
			}
		}
		if _, err := tx.Exec(ctx, "CREATE TABLE fenceproxy.registry_version AS SELECT 0 AS version"); err != nil {
			return err
		}
	}
	if version > len(versions) {
		return fmt.Errorf("%w: its schema has version %d, and this one knows versions up to %d; nothing was changed: start the newer version", ErrNewer, version, len(versions))
	}
	for i, step := range versions[version:] {
		if _, err := tx.Exec(ctx, step); err != nil { // several statements: the simple protocol, as there are no arguments
			return fmt.Errorf("upgrade the schema to version %d: %w", version+i+1, err)
		}
	}
	if version == len(versions) {
		return nil
	}
	_, err = tx.Exec(ctx, "UPDATE fenceproxy.registry_version SET version = $1", len(versions))
	return err
}

// create gives an id to a registry that has none.
func (s *store) create(ctx context.Context, tx pgx.Tx) (created bool, err error) {
	var rows, given int64
	if err := tx.QueryRow(ctx, "SELECT (SELECT count(*) FROM fenceproxy.registry), (SELECT max(incarnation) FROM fenceproxy.counters)").Scan(&rows, &given); err != nil {
		return false, err
	}
	switch {
	case rows == 1:
		return false, nil
	case rows > 1 || given > 0:
		return false, errors.New("it is damaged: it has lost its id, or has several. Restore the database from a backup")
	case !s.options.Create:
		return false, ErrMissing
	}
	_, err = tx.Exec(ctx, "INSERT INTO fenceproxy.registry VALUES ($1, fenceproxy.now_ms(), $2, "+systemNow+", "+timelineNow+", "+transactionNow+")", rand.Text(), rand.Text())
	if err == nil && s.options.Replaces {
		err = recordReplaced(ctx, tx)
	}
	if err == nil && s.options.Repair != tokens.RepairNone {
		_, err = tx.Exec(ctx, "INSERT INTO fenceproxy.repair VALUES ($1)", string(s.options.Repair))
	}
	return true, err
}

func registryID(ctx context.Context, q querier) (id string, err error) {
	err = q.QueryRow(ctx, "SELECT id FROM fenceproxy.registry").Scan(&id)
	return id, err
}

// warnUnreplicated tells of a database that replicates nothing, where the operator counts on it.
func (s *store) warnUnreplicated(ctx context.Context, conn *pgx.Conn) error {
	if !s.options.Failover {
		return nil
	}
	var names string
	err := conn.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names')").Scan(&names)
	if err == nil && names == "" {
		s.log.Warn("the registry's configuration says `failover: synchronous`, and the database has no synchronous standby: a failover may lose tokens unless its storage is replicated. " +
			"Set synchronous_standby_names")
	}
	return err
}
