package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNewer says that a later version of this program made or upgraded the audit log. Nothing in it was changed.
var ErrNewer = errors.New("it was made by a newer version of this program")

// versions[i] brings an audit log of version i to i+1. Times are Unix milliseconds. Every index ends in time and id, so that a filter walks
// one of them backwards and stops at its limit.
var versions = []string{`
CREATE TABLE fenceproxy.audit_record (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	time       bigint NOT NULL,
	last       bigint NOT NULL,
	count      bigint NOT NULL CHECK (count >= 1),
	kind       text COLLATE "C" NOT NULL CHECK (kind <> ''),
	code       text COLLATE "C" NOT NULL,
	bucket     text COLLATE "C" NOT NULL,
	key        text COLLATE "C" NOT NULL,
	operation  text COLLATE "C" NOT NULL,
	resource   text COLLATE "C" NOT NULL,
	token      bigint NOT NULL CHECK (token >= 0),
	highest    bigint NOT NULL CHECK (highest >= 0),
	holder     text COLLATE "C" NOT NULL,
	access_key text COLLATE "C" NOT NULL,
	client     text COLLATE "C" NOT NULL,
	user_agent text COLLATE "C" NOT NULL,
	request_id text COLLATE "C" NOT NULL,
	detail     text COLLATE "C" NOT NULL,
	instance   text COLLATE "C" NOT NULL, -- the proxy that wrote it
	event      text COLLATE "C" UNIQUE    -- of a record whose write may be repeated
);
CREATE INDEX audit_record_time ON fenceproxy.audit_record (time, id);
CREATE INDEX audit_record_kind ON fenceproxy.audit_record (kind, time, id);
CREATE INDEX audit_record_code ON fenceproxy.audit_record (code, time, id);
CREATE INDEX audit_record_bucket ON fenceproxy.audit_record (bucket, time, id);
CREATE INDEX audit_record_resource ON fenceproxy.audit_record (hashtextextended(resource, 0), time, id); -- a name may be longer than an entry of an index
CREATE INDEX audit_record_access_key ON fenceproxy.audit_record (access_key, time, id);
`}

// upgrading is the key of the advisory lock under which one proxy at a time makes or upgrades the audit log.
const upgrading = 0x66704175_6c6f636b

// upgrade makes the audit log, or brings it to the newest version, in one transaction: if we crash in it, nothing has changed.
func (s *Store) upgrade(ctx context.Context) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var encoding string
		if err := tx.QueryRow(ctx, "SELECT current_setting('server_encoding') FROM pg_advisory_xact_lock($1)", int64(upgrading)).Scan(&encoding); err != nil {
			return err
		}
		if encoding != "UTF8" {
			return fmt.Errorf("the database has the encoding %s, in which not every key can be written: make one with ENCODING 'UTF8' TEMPLATE template0", encoding)
		}
		version, err := versionOf(ctx, tx)
		switch {
		case err != nil:
			return err
		case version > len(versions):
			return fmt.Errorf("%w; its schema has version %d and this one knows versions up to %d; nothing was changed: start the newer version", ErrNewer, version, len(versions))
		case version == len(versions):
			return nil
		case version == 0:
			if err := begin(ctx, tx); err != nil {
				return err
			}
		}
		for _, statements := range versions[version:] {
			if _, err := tx.Exec(ctx, statements); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, "UPDATE fenceproxy.audit_version SET version = $1", len(versions))
		return err
	})
}

// begin makes the schema only where it is missing: who may write into one may not always make one.
func begin(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regnamespace('fenceproxy') IS NOT NULL").Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA fenceproxy"); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "CREATE TABLE fenceproxy.audit_version (version integer NOT NULL); INSERT INTO fenceproxy.audit_version VALUES (0)")
	return err
}

// versionOf is 0 where there is no audit log.
func versionOf(ctx context.Context, tx pgx.Tx) (version int, err error) {
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('fenceproxy.audit_version') IS NOT NULL").Scan(&there); err != nil || !there {
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT version FROM fenceproxy.audit_version").Scan(&version)
	return version, err
}
