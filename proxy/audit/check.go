package audit

import (
	"context"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

// invariants hold in every audit log, whatever killed the process that wrote it.
var invariants = []sqlitedb.Invariant{
	{Broken: "a record of no event", Rows: "SELECT 'record ' || id FROM record WHERE count < 1 OR kind = ''"},
	{Broken: "a record with a token below 0", Rows: "SELECT 'record ' || id FROM record WHERE token < 0 OR highest < 0"},
}

// Check looks through the audit log at path and changes nothing. Nobody else may have it open. Its errors are those of
// [sqlitedb.Check].
func Check(ctx context.Context, path string) (sqlitedb.Checked, error) {
	return sqlitedb.Check(ctx, path, schema, invariants, nil)
}
