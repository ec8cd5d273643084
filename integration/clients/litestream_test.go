package clients

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"
)

// TestLitestream: story litestream #1301. A database is replicated and restored; a stale replica adds nothing to it.
func TestLitestream(t *testing.T) {
	t.Parallel()
	program := longTool(t, "litestream")
	if program == "" {
		return
	}
	r := readRecipe(t, "Litestream")
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "S3": overS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "litestream")
			c.env = append(c.env, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
			c.version("litestream version")
			c.createBucket()
			c.insert("of 34")
			c.write("litestream.yml", c.here("34", r["yaml"][0]))
			c.works(r["sh"][0])

			c.insert("of 33")
			c.write("litestream.yml", c.here("33", r["yaml"][0]))
			r.told(c, c.stale(2, r["sh"][0])) // it tries once more when it shuts down

			c.works("litestream restore -config litestream.yml -o restored.db app.db")
			if got := c.rows("restored.db"); got != "of 34" {
				t.Errorf("restored: %q", got)
			}
			c.write("litestream.yml", c.here("34", r["yaml"][0]))
			c.works(r["sh"][0])
			c.works("litestream restore -config litestream.yml -o later.db app.db")
			if got := c.rows("later.db"); got != "of 34 of 33" {
				t.Errorf("restored later: %q", got)
			}
		})
	}
}

func (c *client) database(name string) *sql.DB {
	c.Helper()
	db, err := sql.Open("sqlite", filepath.Join(c.dir, name)+"?_pragma=journal_mode(wal)")
	must(c.T, "open the database", err)
	return db
}

func (c *client) insert(row string) {
	c.Helper()
	db := c.database("app.db")
	defer db.Close()
	_, err := db.Exec(`CREATE TABLE IF NOT EXISTS t (x TEXT); INSERT INTO t VALUES (?)`, row)
	must(c.T, "insert", err)
}

func (c *client) rows(name string) string {
	c.Helper()
	db := c.database(name)
	defer db.Close()
	rows, err := db.Query(`SELECT x FROM t ORDER BY rowid`)
	must(c.T, "read "+name, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var x string
		must(c.T, "read a row", rows.Scan(&x))
		all = append(all, x)
	}
	must(c.T, "read all rows", rows.Err())
	return strings.Join(all, " ")
}
